//! The blocks of a group: who is free, and how many hold each of the others.

use paceline_backend::KvBlockId;

/// Free blocks, last given back first: its memory is likelier to be cached.
#[derive(Debug)]
pub(super) struct BlockPool {
    free: Vec<KvBlockId>,
    /// By block.
    holders: Vec<u32>,
    /// Blocks with more than one holder.
    n_shared: usize,
}

impl BlockPool {
    /// All of `n_blocks` blocks are free.
    pub(super) fn new(n_blocks: usize) -> Self {
        Self {
            free: (0..n_blocks as u32).rev().map(KvBlockId).collect(),
            holders: vec![0; n_blocks],
            n_shared: 0,
        }
    }

    pub(super) fn n_free(&self) -> usize {
        self.free.len()
    }

    pub(super) fn free(&self) -> impl Iterator<Item = KvBlockId> + '_ {
        self.free.iter().copied()
    }

    pub(super) fn n_shared(&self) -> usize {
        self.n_shared
    }

    /// By block, how many hold it.
    pub(super) fn holders(&self) -> &[u32] {
        &self.holders
    }

    pub(super) fn take(&mut self) -> Option<KvBlockId> {
        let block = self.free.pop()?;
        self.holders[block.0 as usize] = 1;
        Some(block)
    }

    /// One more holds a block that somebody holds.
    pub(super) fn share(&mut self, block: KvBlockId) {
        let holders = &mut self.holders[block.0 as usize];
        *holders += 1;
        self.n_shared += usize::from(*holders == 2);
    }

    /// One holder less. The last one frees the block.
    pub(super) fn give(&mut self, block: KvBlockId) {
        let holders = &mut self.holders[block.0 as usize];
        *holders -= 1;
        match *holders {
            0 => self.free.push(block),
            1 => self.n_shared -= 1,
            _ => {}
        }
    }
}
