//! Cutting a call into units of work.
//!
//! Rows of one sequence that stand side by side share the keys that they read. Their (row, query head) pairs for one K/V
//! head are cut into *items* of up to 64, which read each key once from memory; inside, tiles of 16 take each key together.
//!
//! ```text
//! rows of a sequence x heads of a K/V head   0 ............ 63 | 64 ............ 127 | ..     items
//!                                             0..15 | 16..31 | ..                             tiles
//! keys of an item      split  split | split  split  split | split                             units, where threads need it
//!                      grain  grain | grain ..                                                parts to fold
//! ```
//! An item that is too large a share of the call is cut into units of whole splits or whole spans of keys, each of which is
//! kept as a part. Whoever finishes the last unit folds the parts, in the contract's order. How a call is cut changes
//! no bit: the tree of folds is fixed by positions alone.

use std::ops::Range;
use std::sync::atomic::AtomicU32;

use super::AttendRow;
use super::layout::KvLayout;
use super::part::TILE_ROWS;
use crate::numerics::{KV_BLOCK, SPAN, SPLIT};

/// Tiles of the smallest item that many rows are cut into.
const LEAST_TILES: usize = 4;

/// Tiles of the largest item. Its queries and parts, and K and V of a split, stay in a 2 MB L2 cache: 16 tiles at a
/// head dim of 256, 8 at 512. Keys come from beyond that cache once for all of them.
pub(super) fn most_tiles(d_tiles: usize) -> usize {
    if d_tiles <= 8 { 16 } else { 8 }
}

/// Keys and values of less than this many bytes are not worth a unit of their own.
const MIN_UNIT_BYTES: usize = 128 << 10;

/// A call that reads less than this many bytes, those for several lots of pairs counted as often ([`Shape::at_once`]), is left to its
/// caller: waking another thread and waiting for it costs as much.
const MIN_SHARED_BYTES: usize = 144 << 10;

/// Pairs of rows and query heads that read the same K/V head of the same sequence.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// Row of the call that pair 0 belongs to.
    pub(super) first_row: usize,
    /// Pair `i` is row `first_row + i / group`, query head `i % group` of the K/V head.
    pub(super) pairs: Range<usize>,
    pub(super) kv_head: usize,
    /// Absolute positions, from the first to the last that some row of the item sees.
    pub(super) keys: Range<usize>,
    /// `None`: one unit does it all.
    pub(super) cut: Option<Cut>,
}

/// How the keys of an item are cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// Keys of a part: [`SPLIT`] or [`SPAN`].
    pub(super) grain: usize,
    /// Where its parts are kept: for each grain, one for each tile.
    pub(super) first_slot: usize,
}

/// What one thread does in one go: some grains of an item.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) item: usize,
    /// Grains at absolute positions `grain * i ..`; without a cut, nothing.
    pub(super) grains: Range<usize>,
}

impl Item {
    pub(super) fn tiles(&self) -> usize {
        self.pairs.len().div_ceil(TILE_ROWS)
    }

    /// The pairs of a tile.
    pub(super) fn tile(&self, tile: usize) -> Range<usize> {
        let start = self.pairs.start + tile * TILE_ROWS;
        start..(start + TILE_ROWS).min(self.pairs.end)
    }

    /// Grains of `grain` keys at absolute positions that hold its keys.
    pub(super) fn grains(&self, grain: usize) -> Range<usize> {
        self.keys.start / grain..self.keys.end.div_ceil(grain)
    }

    fn work(&self) -> usize {
        self.grains(SPLIT).len() * self.tiles()
    }
}

/// Units of a call. Kept and refilled, so that a call allocates nothing once the largest has been seen.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) items: Vec<Item>,
    pub(super) units: Vec<Unit>,
    /// For each item, units that are not finished.
    pub(super) waiting: Vec<AtomicU32>,
    /// Units that a thread takes in one go.
    pub(super) chunk: usize,
}

/// What a plan depends on beside the rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) layout: KvLayout,
    /// Query heads of a K/V head.
    pub(super) group: usize,
    /// Pairs that take about as long as one.
    pub(super) at_once: usize,
    pub(super) threads: usize,
    /// Parts that can be kept.
    pub(super) slots: usize,
}

impl Plan {
    /// Room for calls of up to `max_rows` rows.
    pub(super) fn reserve(&mut self, max_rows: usize, group: usize, kv_heads: usize, threads: usize) {
        let items = ((max_rows * group).div_ceil(LEAST_TILES * TILE_ROWS) + max_rows) * kv_heads;
        self.items.reserve(items);
        self.units.reserve(items + 8 * threads);
        self.waiting.reserve(items);
    }

    /// Cuts a call. Panics if a block table does not cover what its row sees, or names a block beyond `n_blocks`.
    pub(super) fn make(&mut self, rows: &[AttendRow<'_>], n_blocks: usize, shape: Shape) {
        self.items.clear();
        self.units.clear();
        self.waiting.clear();
        // Large items save reading, as long as each thread has a few.
        let pairs = rows.len() * shape.group * shape.layout.kv_heads;
        let tiles = pairs / (4 * shape.threads * TILE_ROWS);
        let item_pairs = TILE_ROWS * tiles.clamp(LEAST_TILES, most_tiles(shape.layout.d_tiles()));
        let mut first = 0;
        for rows in rows.chunk_by(|a, b| std::ptr::eq(a.block_table, b.block_table)) {
            self.add_sequence(rows, first, item_pairs, n_blocks, shape);
            first += rows.len();
        }
        self.cut(shape);
    }

    fn add_sequence(
        &mut self,
        rows: &[AttendRow<'_>],
        first_row: usize,
        item_pairs: usize,
        n_blocks: usize,
        shape: Shape,
    ) {
        let pairs = rows.len() * shape.group;
        for start in (0..pairs).step_by(item_pairs) {
            let pairs = start..(start + item_pairs).min(pairs);
            let keys = hull(&rows[pairs.start / shape.group..pairs.end.div_ceil(shape.group)]);
            let blocks = keys.start / KV_BLOCK..keys.end.div_ceil(KV_BLOCK);
            let named = rows[0].block_table.get(blocks);
            assert!(
                named.is_some_and(|ids| ids.iter().all(|id| (*id as usize) < n_blocks)),
                "attend: the block table of row {first_row} does not hold positions {keys:?}, or has ids beyond {n_blocks}"
            );
            self.items.extend((0..shape.layout.kv_heads).map(|kv_head| Item {
                first_row,
                pairs: pairs.clone(),
                kv_head,
                keys: keys.clone(),
                cut: None,
            }));
        }
    }

    /// Decides which items are cut, and makes the units.
    fn cut(&mut self, shape: Shape) {
        let key_bytes = shape.layout.layer_block_bytes() / shape.layout.kv_heads / KV_BLOCK;
        let lots = |item: &Item| item.pairs.len().div_ceil(shape.at_once);
        let keys: usize = self.items.iter().map(|item| item.keys.len() * lots(item)).sum();
        let threads = if keys * key_bytes < MIN_SHARED_BYTES { 1 } else { shape.threads };
        let work: usize = self.items.iter().map(Item::work).sum();
        let pieces = if self.items.len().is_multiple_of(threads) { 1 } else { 4 };
        let target = (work / (pieces * threads)).max(MIN_UNIT_BYTES / (key_bytes * SPLIT)).max(1);
        let mut free = shape.slots;
        let mut first_slot = 0;
        for (index, item) in self.items.iter_mut().enumerate() {
            let pieces = item.work().div_ceil(target);
            let grain = if threads == 1 { None } else { grain(item, pieces, free) };
            item.cut = grain.map(|grain| Cut { grain, first_slot });
            let Some(grain) = grain else {
                self.units.push(Unit { item: index, grains: 0..0 });
                self.waiting.push(AtomicU32::new(1));
                continue;
            };
            let grains = item.grains(grain);
            let slots = grains.len() * item.tiles();
            (free, first_slot) = (free - slots, first_slot + slots);
            let per_unit = grains.len().div_ceil(pieces);
            let units = grains.clone().step_by(per_unit);
            self.waiting.push(AtomicU32::new(units.len() as u32));
            let end = grains.end;
            self.units.extend(units.map(|g| Unit { item: index, grains: g..(g + per_unit).min(end) }));
        }
        self.chunk = if threads == 1 { self.units.len().max(1) } else { 1 };
    }
}

/// The grain in which an item is cut into about `pieces` pieces, if it is to be and `free` parts can be kept: splits for
/// even pieces, spans where there are enough of them.
fn grain(item: &Item, pieces: usize, free: usize) -> Option<usize> {
    let fits = |grain: usize| item.grains(grain).len() * item.tiles() <= free;
    let (splits, spans) = (item.grains(SPLIT).len(), item.grains(SPAN).len());
    if pieces < 2 || splits < 2 {
        return None;
    }
    if (spans < 2 * pieces || spans < 2) && fits(SPLIT) {
        return Some(SPLIT);
    }
    (spans >= 2 && fits(SPAN)).then_some(SPAN)
}

/// From the first to the last position that some row sees.
fn hull(rows: &[AttendRow<'_>]) -> Range<usize> {
    let seen = rows.iter().map(|row| &row.visible).filter(|visible| !visible.is_empty());
    let start = seen.clone().map(|visible| visible.start).min().unwrap_or(0);
    let end = seen.map(|visible| visible.end).max().unwrap_or(0);
    start as usize..end as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numerics::Activation;

    /// Threads that a call of `n_rows` rows over `n_keys` keys is made for.
    fn shared(n_rows: usize, n_keys: u32, at_once: usize) -> bool {
        let layout = KvLayout { head_dim: 64, kv_heads: 2, activation: Activation::Bf16 };
        let table: Vec<u32> = (0..64).collect();
        let rows = vec![AttendRow { block_table: &table, visible: 0..n_keys }; n_rows];
        let mut plan = Plan::default();
        plan.make(&rows, 64, Shape { layout, group: 2, at_once, threads: 2, slots: 64 });
        plan.units.len() > plan.chunk
    }

    #[test]
    fn a_call_is_shared_once_it_takes_longer_than_sharing() {
        // 64 KB of K and V.
        assert!(!shared(1, 128, 4) && !shared(5, 128, TILE_ROWS));
        assert!(shared(5, 128, 4));
        assert!(shared(1, 512, 4) && shared(1, 512, TILE_ROWS));
    }
}
