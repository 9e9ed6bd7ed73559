//! Which sequence holds which K/V blocks.
//!
//! A *group* is a set of layers with one head size and one window; it has its own blocks, and each sequence has one block
//! table in it. Blocks cover absolute positions: entry `i` of a table holds positions `KV_BLOCK * i ..`. Layers that share
//! the K/V of others have no group and need nothing here.
//!
//! ```text
//! position   0            len - W          len        len + rows
//!            |  given back   |   visible    |  this pass  |
//! table      .. first ....... held blocks ............ end
//! ```
//! A pass writes rows `len .. len + rows`, so the table must reach there before it begins ([`KvCache::grow`]). Rejected
//! rows need no care: `len` does not move over them and they are rewritten before anything sees them. After commit a group
//! with a window gives back the blocks wholly below `len - W` ([`KvCache::release_below`]).

//!
//! Sequences that begin with the same tokens may hold the same blocks ([`KvCache::share`]): whole ones, all of whose rows are
//! committed, so nobody writes to them any more. Each goes on in blocks of its own.

mod pool;
mod table;

use paceline_backend::{KV_BLOCK, KvBlockId, KvGroup};

use pool::BlockPool;
use table::BlockTable;

/// A group as the cache is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KvGroupSize {
    /// Handle of the group.
    pub(crate) group: KvGroup,
    /// Keys that a query sees, its own included; `None` sees all.
    pub(crate) window: Option<usize>,
    /// Blocks that the backend made.
    pub(crate) n_blocks: usize,
}

/// Most blocks that a sequence holds at one time in a group, when it grows to `tokens` in passes of up to `rows` rows.
pub(crate) fn most_held(window: Option<usize>, tokens: usize, rows: usize) -> usize {
    let all = tokens.div_ceil(KV_BLOCK);
    match window {
        None => all,
        // From the block of position len - W to that of position len + rows - 1.
        Some(window) => all.min((window + rows - 1).div_ceil(KV_BLOCK) + 1),
    }
}

/// The blocks of one sequence, a table per group.
#[derive(Debug, Default)]
pub(crate) struct SequenceKv {
    tables: Vec<BlockTable>,
}

impl SequenceKv {
    /// Blocks held in a group.
    pub(crate) fn held(&self, group: usize) -> usize {
        self.tables.get(group).map_or(0, BlockTable::len)
    }

    /// Blocks that positions up to `end` need beyond those held.
    pub(crate) fn blocks_needed(&self, group: usize, end: usize) -> usize {
        end.div_ceil(KV_BLOCK).saturating_sub(self.end(group))
    }

    /// First position that the blocks held and `free` more do not cover.
    pub(crate) fn reach(&self, group: usize, free: usize) -> usize {
        (self.end(group) + free) * KV_BLOCK
    }

    /// Number of the table's entries, given back ones included.
    fn end(&self, group: usize) -> usize {
        self.tables.get(group).map_or(0, BlockTable::end)
    }
}

/// Blocks of all groups.
#[derive(Debug)]
pub(crate) struct KvCache {
    sizes: Vec<KvGroupSize>,
    pools: Vec<BlockPool>,
}

impl KvCache {
    pub(crate) fn new(sizes: Vec<KvGroupSize>) -> Self {
        let pools = sizes.iter().map(|size| BlockPool::new(size.n_blocks)).collect();
        Self { sizes, pools }
    }

    /// The groups.
    pub(crate) fn sizes(&self) -> &[KvGroupSize] {
        &self.sizes
    }

    /// Free blocks of each group.
    pub(crate) fn free(&self) -> impl Iterator<Item = usize> + '_ {
        self.pools.iter().map(BlockPool::n_free)
    }

    /// Makes the tables of a sequence reach position `end` and tells `put` of new entries: group, index of the first new entry,
    /// blocks. Takes nothing and returns false if a group has too few free blocks.
    #[must_use]
    pub(crate) fn grow(
        &mut self,
        kv: &mut SequenceKv,
        end: usize,
        mut put: impl FnMut(KvGroup, usize, &[KvBlockId]),
    ) -> bool {
        let fits = |(group, pool): (usize, &BlockPool)| kv.blocks_needed(group, end) <= pool.n_free();
        if !self.pools.iter().enumerate().all(fits) {
            return false;
        }
        kv.tables.resize_with(self.pools.len(), BlockTable::default);
        for (group, pool) in self.pools.iter_mut().enumerate() {
            let first_new = kv.end(group);
            let n_new = kv.blocks_needed(group, end);
            let table = &mut kv.tables[group];
            for _ in 0..n_new {
                table.push(pool.take().expect("counted above"));
            }
            if n_new > 0 {
                put(self.sizes[group].group, first_new, table.from(first_new));
            }
        }
        true
    }

    /// The blocks of a sequence's first `len` committed tokens, a multiple of [`KV_BLOCK`], for another one to hold as well; `None` if
    /// a row at `len` would see what was given back.
    pub(crate) fn share(&mut self, kv: &SequenceKv, len: usize) -> Option<SequenceKv> {
        debug_assert!(len.is_multiple_of(KV_BLOCK));
        let end = len / KV_BLOCK;
        if !self.covers(kv, len) {
            return None;
        }
        let shared = SequenceKv { tables: kv.tables.iter().map(|table| table.up_to(end)).collect() };
        for (table, pool) in shared.tables.iter().zip(&mut self.pools) {
            table.blocks().for_each(|block| pool.share(block));
        }
        Some(shared)
    }

    /// Whether the blocks of all rows below `len` that a row at `len` sees are there.
    pub(crate) fn covers(&self, kv: &SequenceKv, len: usize) -> bool {
        let covers = |(table, size): (&BlockTable, &KvGroupSize)| {
            let first_seen = size.window.map_or(0, |window| len.saturating_sub(window) / KV_BLOCK);
            table.first() <= first_seen && len.div_ceil(KV_BLOCK) <= table.end()
        };
        kv.tables.len() == self.pools.len() && kv.tables.iter().zip(&self.sizes).all(covers)
    }

    /// Whether a block has several holders.
    pub(crate) fn shares(&self) -> bool {
        self.pools.iter().any(|pool| pool.n_shared() > 0)
    }

    /// Tells `put` of all that a sequence holds, as [`KvCache::grow`] does of new entries. Entries that were given back get an id that
    /// nobody looks at.
    pub(crate) fn put_held(&self, kv: &mut SequenceKv, mut put: impl FnMut(KvGroup, usize, &[KvBlockId])) {
        for (table, size) in kv.tables.iter_mut().zip(&self.sizes) {
            let first = table.first();
            put(size.group, 0, &vec![KvBlockId(0); first]);
            put(size.group, first, table.from(first));
        }
    }

    /// Gives back what no row at `len` or later sees.
    pub(crate) fn release_below(&mut self, kv: &mut SequenceKv, len: usize) {
        for (group, table) in kv.tables.iter_mut().enumerate() {
            let Some(window) = self.sizes[group].window else { continue };
            let first_kept = len.saturating_sub(window) / KV_BLOCK;
            while let Some(block) = table.pop_below(first_kept) {
                self.pools[group].give(block);
            }
        }
    }

    /// Gives back all blocks of a sequence.
    pub(crate) fn release(&mut self, kv: &mut SequenceKv) {
        for (group, table) in kv.tables.drain(..).enumerate() {
            table.into_blocks().for_each(|block| self.pools[group].give(block));
        }
    }

    /// Checks that every block is free, or held by as many as were counted.
    ///
    /// # Errors
    /// What does not add up.
    pub(crate) fn check_integrity<'a>(
        &self,
        live: impl Iterator<Item = &'a SequenceKv> + Clone,
    ) -> Result<(), String> {
        for (group, pool) in self.pools.iter().enumerate() {
            let count = |blocks: &mut dyn Iterator<Item = KvBlockId>| {
                let mut count = vec![0_u32; self.sizes[group].n_blocks];
                blocks.for_each(|block| count[block.0 as usize] += 1);
                count
            };
            let tables = live.clone().flat_map(|kv| kv.tables.get(group));
            let held = count(&mut tables.flat_map(BlockTable::blocks));
            let free = count(&mut pool.free());
            for (block, &holders) in pool.holders().iter().enumerate() {
                let (held, free) = (held[block], free[block]);
                if held != holders || free != u32::from(holders == 0) {
                    return Err(format!(
                        "block {block} of group {group} is held {held} times and free {free} times, counted with {holders} holders"
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
