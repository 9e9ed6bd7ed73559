//! A backend on which a target's own choice is a draft: so a whole model can draft for another one, by the line of ops that it is.

use crate::delegate::delegate;
use crate::{Backend, Op, Rows};

/// Wraps a backend for one pass of a drafter: [`Op::Choose`] becomes [`Op::ChooseDraft`].
pub struct DraftChoice<'a> {
    inner: &'a mut dyn Backend,
    step: usize,
}

impl<'a> DraftChoice<'a> {
    /// Wraps `inner` for a pass that chooses the drafts of this step.
    pub fn new(inner: &'a mut dyn Backend, step: usize) -> Self {
        Self { inner, step }
    }
}

impl Backend for DraftChoice<'_> {
    delegate!(load_and_peek, open, close, put_blocks, put_drafts, truncate, collect, begin, mark);

    fn run(&mut self, op: &Op, rows: Rows) {
        let &Op::Choose { logits, softcap, first_row } = op else { return self.inner.run(op, rows) };
        self.inner.run(&Op::ChooseDraft { logits, softcap, first_row, step: self.step as u32 }, rows);
    }
}
