//! A backend that measures how long choosing takes. The clock is the caller's: nothing here reads one by itself.

use std::time::Duration;

use crate::delegate::delegate;
use crate::{Backend, Op, Rows};

/// Wraps a backend for one pass.
pub struct Timed<'a> {
    inner: &'a mut dyn Backend,
    clock: fn() -> Duration,
    choosing: Duration,
}

impl<'a> Timed<'a> {
    /// Wraps `inner`. `clock` gives the time since some fixed moment.
    pub fn new(inner: &'a mut dyn Backend, clock: fn() -> Duration) -> Self {
        Self { inner, clock, choosing: Duration::ZERO }
    }

    /// Time in [`Op::Choose`] so far.
    pub fn choosing(&self) -> Duration {
        self.choosing
    }
}

impl Backend for Timed<'_> {
    delegate!(load_and_peek, open, close, put_blocks, put_drafts, truncate, collect, begin, mark);

    fn run(&mut self, op: &Op, rows: Rows) {
        if !matches!(op, Op::Choose { .. }) {
            return self.inner.run(op, rows);
        }
        let start = (self.clock)();
        self.inner.run(op, rows);
        self.choosing += (self.clock)().saturating_sub(start);
    }
}
