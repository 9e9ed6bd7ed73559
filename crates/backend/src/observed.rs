//! A backend that lets somebody look: after each op and at each value that a model names.

use crate::delegate::delegate;
use crate::{Backend, Buf, Mark, Op, Rows};

/// Looks at what a model does, through the `peek` calls of [`Backend`].
pub trait Observer: Send {
    /// An op ran. (To plant a fault, an observer may change what it left.)
    fn ran(&mut self, backend: &mut dyn Backend, op: &Op, rows: Rows);

    /// A value was named. It stands in `buf` at the rows of the run; logits stand there from row 0 on.
    fn marked(&mut self, backend: &dyn Backend, mark: Mark, buf: Buf, rows: Rows);
}

/// Wraps a backend and shows an observer what happens.
pub struct Observed<B, O> {
    inner: B,
    observer: O,
}

impl<B: Backend, O: Observer> Observed<B, O> {
    /// Wraps `inner`.
    pub fn new(inner: B, observer: O) -> Self {
        Self { inner, observer }
    }

    /// The observer.
    pub fn observer(&self) -> &O {
        &self.observer
    }

    /// The observer, to set it for what comes.
    pub fn observer_mut(&mut self) -> &mut O {
        &mut self.observer
    }
}

impl<B: Backend, O: Observer> Backend for Observed<B, O> {
    delegate!(load_and_peek, open, close, put_blocks, put_drafts, truncate, collect, begin);

    fn run(&mut self, op: &Op, rows: Rows) {
        self.inner.run(op, rows);
        self.observer.ran(&mut self.inner, op, rows);
    }

    fn mark(&mut self, mark: Mark, buf: Buf, rows: Rows) {
        self.inner.mark(mark, buf, rows);
        self.observer.marked(&self.inner, mark, buf, rows);
    }
}
