//! A backend that lists what was asked of it: the op list of a pass, and every use of a door.

use crate::delegate::delegate;
use crate::{Backend, Buf, Mark, Op, Pass, Rows, SlotId, SlotReport, TokenId};

/// The doors through which values pass between host and backend (see [`Backend`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Door {
    /// [`Backend::put_drafts`].
    PutDrafts,
    /// [`Backend::truncate`].
    Truncate,
    /// [`Backend::collect`].
    Collect,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// A pass began, with this many rows and wanted rows.
    Begin {
        /// All rows.
        rows: usize,
        /// Wanted rows.
        wanted: usize,
    },
    /// An op ran.
    Run {
        /// The op.
        op: Op,
        /// Its rows.
        rows: Rows,
    },
    /// A value was named.
    Mark(Mark),
    /// A door was used.
    Door(Door),
}

/// Wraps a backend and keeps a list of what was asked of it.
pub struct Recorder<B> {
    inner: B,
    records: Vec<Record>,
}

impl<B: Backend> Recorder<B> {
    /// Starts an empty list.
    pub fn new(inner: B) -> Self {
        Self { inner, records: Vec::new() }
    }

    /// What happened since the last call.
    pub fn take(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.records)
    }

    /// The wrapped backend.
    pub fn into_inner(self) -> B {
        self.inner
    }
}

impl<B: Backend> Backend for Recorder<B> {
    delegate!(load_and_peek, open, close, put_blocks);

    fn put_drafts(&mut self, slot: SlotId, drafts: &[TokenId]) {
        self.records.push(Record::Door(Door::PutDrafts));
        self.inner.put_drafts(slot, drafts);
    }

    fn truncate(&mut self, slot: SlotId, len: usize) {
        self.records.push(Record::Door(Door::Truncate));
        self.inner.truncate(slot, len);
    }

    fn collect(&mut self, slot: SlotId) -> SlotReport {
        self.records.push(Record::Door(Door::Collect));
        self.inner.collect(slot)
    }

    fn begin(&mut self, pass: &Pass) {
        self.records.push(Record::Begin { rows: pass.rows().len(), wanted: pass.wanted().len() });
        self.inner.begin(pass);
    }

    fn run(&mut self, op: &Op, rows: Rows) {
        self.records.push(Record::Run { op: *op, rows });
        self.inner.run(op, rows);
    }

    fn mark(&mut self, mark: Mark, buf: Buf, rows: Rows) {
        self.records.push(Record::Mark(mark));
        self.inner.mark(mark, buf, rows);
    }
}
