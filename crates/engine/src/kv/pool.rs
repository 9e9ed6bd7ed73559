//! The free blocks of a group.

use paceline_backend::KvBlockId;

/// Free blocks, last given back first: its memory is likelier to be cached.
#[derive(Debug)]
pub(super) struct BlockPool {
    free: Vec<KvBlockId>,
}

impl BlockPool {
    /// All of `n_blocks` blocks are free.
    pub(super) fn new(n_blocks: usize) -> Self {
        Self { free: (0..n_blocks as u32).rev().map(KvBlockId).collect() }
    }

    pub(super) fn n_free(&self) -> usize {
        self.free.len()
    }

    pub(super) fn free(&self) -> impl Iterator<Item = KvBlockId> + '_ {
        self.free.iter().copied()
    }

    pub(super) fn take(&mut self) -> Option<KvBlockId> {
        self.free.pop()
    }

    pub(super) fn give(&mut self, block: KvBlockId) {
        self.free.push(block);
    }
}
