//! The blocks of one sequence in one group.

use std::collections::VecDeque;

use paceline_backend::KvBlockId;

/// Entries `first .. end` of a block table. Entries below `first` were given back; a backend keeps their stale ids and
/// never looks at them, because no row sees positions there.
#[derive(Debug, Default)]
pub(super) struct BlockTable {
    first: usize,
    blocks: VecDeque<KvBlockId>,
}

impl BlockTable {
    /// Blocks held.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Index behind the last entry.
    pub(super) fn end(&self) -> usize {
        self.first + self.blocks.len()
    }

    /// The blocks held.
    pub(super) fn blocks(&self) -> impl Iterator<Item = KvBlockId> + '_ {
        self.blocks.iter().copied()
    }

    /// Index of the first entry held.
    pub(super) fn first(&self) -> usize {
        self.first
    }

    /// Its entries below index `end`, all of which it holds.
    pub(super) fn up_to(&self, end: usize) -> Self {
        Self { first: self.first, blocks: self.blocks.range(..end - self.first).copied().collect() }
    }

    /// Entries from index `from`, which is not below the first.
    pub(super) fn from(&mut self, from: usize) -> &[KvBlockId] {
        &self.blocks.make_contiguous()[from - self.first..]
    }

    pub(super) fn push(&mut self, block: KvBlockId) {
        self.blocks.push_back(block);
    }

    /// Takes out the first entry if it is below index `below`.
    pub(super) fn pop_below(&mut self, below: usize) -> Option<KvBlockId> {
        let block = if self.first < below { self.blocks.pop_front() } else { None };
        self.first += usize::from(block.is_some());
        block
    }

    pub(super) fn into_blocks(self) -> impl Iterator<Item = KvBlockId> {
        self.blocks.into_iter()
    }
}
