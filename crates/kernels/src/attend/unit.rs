//! One unit of work: a tile of rows against the keys of a split, and the folds.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use super::AttendRow;
use super::kernel::{Kernel, RowTile, Source, TOGETHER};
use super::layout::{Element, PANELS, TILE};
use super::part::{Part, Sums, TILE_ROWS};
use super::plan::{Cut, Item, Unit, most_tiles};
use super::softmax::softmax;
use crate::linear::RowsRef;
use crate::linear::rows::SharedRows;
use crate::memory::Disjoint;
use crate::numerics::{K_TILE, KV_BLOCK, LANES, PANEL, SPAN, SPLIT};
use crate::vector::{Arith, Vector};

/// Panels of 32 keys in a split.
const SPLIT_PANELS: usize = SPLIT / PANEL;
/// Scores of a full tile of rows for a split.
const SCORES: usize = TILE_ROWS * SPLIT;

/// What the units of a call share.
pub(super) struct Call<'a, E> {
    /// All tiles of the store.
    pub(super) tiles: &'a [[E; TILE]],
    /// Index of the layer's first block.
    pub(super) first_block: usize,
    pub(super) kv_heads: usize,
    pub(super) d_tiles: usize,
    pub(super) head_dim: usize,
    /// Query heads of a K/V head.
    pub(super) group: usize,
    pub(super) scale: f32,
    pub(super) rows: &'a [AttendRow<'a>],
    pub(super) q: RowsRef<'a>,
    pub(super) out: SharedRows<'a>,
    pub(super) items: &'a [Item],
    pub(super) waiting: &'a [AtomicU32],
    pub(super) slots: Disjoint<'a, f32>,
}

impl<'a, E: Element> Call<'a, E> {
    /// Row of the call and query head of a pair.
    #[inline(always)]
    fn pair(&self, item: &Item, pair: usize) -> (usize, usize) {
        (item.first_row + pair / self.group, item.kv_head * self.group + pair % self.group)
    }

    /// K panels and V tiles of the split's keys; empty ones where no row of the item sees the block.
    #[inline(always)]
    fn split_tiles(&self, item: &Item, split: usize) -> [[&'a [[E; TILE]]; SPLIT_PANELS]; 2] {
        let mut found = [[&self.tiles[..0]; SPLIT_PANELS]; 2];
        let table = self.rows[item.first_row].block_table;
        let in_split = split * (SPLIT / KV_BLOCK)..(split + 1) * (SPLIT / KV_BLOCK);
        let seen = item.keys.start / KV_BLOCK..item.keys.end.div_ceil(KV_BLOCK);
        let blocks = in_split.start.max(seen.start)..in_split.end.min(seen.end);
        for (block, id) in blocks.clone().zip(&table[blocks]) {
            let id = self.first_block + *id as usize;
            let head = (id * self.kv_heads + item.kv_head) * 2 * PANELS * self.d_tiles;
            for panel in 0..PANELS {
                let at = (block - in_split.start) * PANELS + panel;
                found[0][at] = &self.tiles[head + panel * self.d_tiles..][..self.d_tiles];
                found[1][at] = &self.tiles[head + (PANELS + panel) * self.d_tiles..][..self.d_tiles];
            }
        }
        found
    }
}

/// Memory of one thread. Lengths for `d_tiles` tiles of a head dim.
pub(super) struct Workspace<'a, X> {
    /// Queries of each tile: `[d tile][row][32]`.
    q: &'a mut [X],
    /// Probabilities, scores and values of the tiles in work.
    p: &'a mut [X],
    s: &'a mut [f32],
    o: &'a mut [f32],
    /// For each tile the part over a span, then for each tile the part over all spans.
    parts: &'a mut [f32],
}

impl<'a, X> Workspace<'a, X> {
    /// Elements of the rows' memory.
    pub(super) fn rows_len(d_tiles: usize) -> usize {
        TILE_ROWS * most_tiles(d_tiles) * d_tiles * K_TILE + TOGETHER * SCORES
    }

    /// Elements of the results' memory.
    pub(super) fn results_len(d_tiles: usize) -> usize {
        TOGETHER * (SCORES + TILE_ROWS * d_tiles * PANEL) + 2 * most_tiles(d_tiles) * Part::len(d_tiles)
    }

    pub(super) fn new(rows: &'a mut [X], results: &'a mut [f32], d_tiles: usize) -> Workspace<'a, X> {
        let (p, q) = rows.split_at_mut(TOGETHER * SCORES);
        let (s, results) = results.split_at_mut(TOGETHER * SCORES);
        let (o, parts) = results.split_at_mut(TOGETHER * TILE_ROWS * d_tiles * PANEL);
        Workspace { q, p, s, o, parts }
    }
}

/// Does a unit.
#[inline(always)]
pub(super) fn run<K: Kernel>(kernel: &K, call: &Call<'_, K::E>, unit: &Unit, work: &mut Workspace<'_, K::X>) {
    let item = &call.items[unit.item];
    let worker = Worker { kernel, call, item, part_len: Part::len(call.d_tiles) };
    let (of_span, of_all) = work.parts.split_at_mut(item.tiles() * worker.part_len);
    let mut work = TileWork { q: &mut *work.q, p: &mut *work.p, s: &mut *work.s, o: &mut *work.o };
    for tile in 0..item.tiles() {
        worker.load_queries(tile, work.q);
    }
    let Some(cut) = item.cut else {
        let parts = worker.attend_all(&mut work, of_span, of_all);
        return worker.finish(parts);
    };
    let slot_len = item.tiles() * worker.part_len;
    let first_slot = cut.first_slot * worker.part_len;
    let grains = item.grains(cut.grain);
    for grain in unit.grains.clone() {
        // SAFETY: the slots of this grain belong to this unit until it is counted as finished.
        let parts = unsafe { call.slots.slice_mut(first_slot + (grain - grains.start) * slot_len, slot_len) };
        worker.attend_keys(grain * cut.grain..(grain + 1) * cut.grain, &mut work, parts);
    }
    // Release: the parts of this unit are written. Acquire: the last one sees those of all.
    if call.waiting[unit.item].fetch_sub(1, Ordering::AcqRel) == 1 {
        // SAFETY: all units of the item are finished, so nobody else uses its slots any more.
        let slots = unsafe { call.slots.slice_mut(first_slot, grains.len() * slot_len) };
        worker.fold_slots(cut, slots, of_span, of_all);
        worker.finish(of_all);
    }
}

/// Memory for the tiles in work, and the queries of all.
struct TileWork<'a, X> {
    q: &'a mut [X],
    p: &'a mut [X],
    s: &'a mut [f32],
    o: &'a mut [f32],
}

/// One item of a call, as a kernel does it. `parts` is always memory for one part per tile, one after the other.
struct Worker<'a, 'c, K: Kernel> {
    kernel: &'a K,
    call: &'a Call<'c, K::E>,
    item: &'a Item,
    /// [`Part::len`] of this call.
    part_len: usize,
}

impl<K: Kernel> Worker<'_, '_, K> {
    #[inline(always)]
    fn load_queries(&self, tile: usize, q: &mut [K::X]) {
        let v = self.kernel.vector();
        let (d_tiles, dim) = (self.call.d_tiles, self.call.head_dim);
        let pairs = self.item.tile(tile);
        let rows = pairs.len();
        let q = &mut q[tile * TILE_ROWS * d_tiles * K_TILE..][..d_tiles * rows * K_TILE];
        for (r, pair) in pairs.enumerate() {
            let (row, head) = self.call.pair(self.item, pair);
            let from = &self.call.q.row(row, (head + 1) * dim)[head * dim..];
            for (t, q) in q.chunks_exact_mut(rows * K_TILE).enumerate() {
                let a = K::E::round_lanes(v, load(v, from, 2 * t * LANES));
                let b = K::E::round_lanes(v, load(v, from, (2 * t + 1) * LANES));
                self.kernel.store_panel(a, b, q[r * K_TILE..].first_chunk_mut().expect("a row of the tile"));
            }
        }
    }

    /// All keys of the item, span by span; returns the memory that has its parts.
    #[inline(always)]
    fn attend_all<'m>(
        &self,
        work: &mut TileWork<'_, K::X>,
        of_span: &'m mut [f32],
        of_all: &'m mut [f32],
    ) -> &'m mut [f32] {
        let spans = self.item.grains(SPAN);
        if spans.len() <= 1 {
            self.attend_keys(self.item.keys.clone(), work, of_span);
            return of_span;
        }
        self.clear(of_all);
        for span in spans {
            self.attend_keys(span * SPAN..(span + 1) * SPAN, work, of_span);
            self.fold(of_all, of_span);
        }
        of_all
    }

    /// The keys of the item in a range of whole splits within one span, into `parts`.
    #[inline(always)]
    fn attend_keys(&self, keys: Range<usize>, work: &mut TileWork<'_, K::X>, parts: &mut [f32]) {
        self.clear(parts);
        let item = self.item;
        let keys = keys.start.max(item.keys.start)..keys.end.min(item.keys.end);
        for split in keys.start / SPLIT..keys.end.div_ceil(SPLIT) {
            let [k, v] = self.call.split_tiles(item, split);
            for first in (0..item.tiles()).step_by(TOGETHER) {
                let tiles = first..(first + TOGETHER).min(item.tiles());
                let pairs = item.tile(first).start..item.tile(tiles.end - 1).end;
                let seen = Seen::new(self.call, item, pairs, split);
                if !seen.panels.is_empty() {
                    let (k, v) = (&k[seen.panels.clone()], &v[seen.panels.clone()]);
                    self.attend_split(k, v, &seen, tiles, work, parts);
                }
            }
        }
    }

    /// Some tiles of rows against panels of a split, folded into their parts. A tile may not see a panel that another one
    /// does: that adds +0 to it.
    #[inline(always)]
    fn attend_split(
        &self,
        k: &[&[[K::E; TILE]]],
        v: &[&[[K::E; TILE]]],
        seen: &Seen,
        tiles: Range<usize>,
        work: &mut TileWork<'_, K::X>,
        parts: &mut [f32],
    ) {
        let d_tiles = self.call.d_tiles;
        let (q_len, o_len) = (TILE_ROWS * d_tiles * K_TILE, TILE_ROWS * d_tiles * PANEL);
        let (q, p) = (work.q[tiles.start * q_len..].chunks_exact(q_len), work.p.chunks_exact_mut(SCORES));
        let mut memory = q.zip(p).zip(work.s.chunks_exact_mut(SCORES)).zip(work.o.chunks_exact_mut(o_len));
        let mut in_work: [RowTile<'_, K::X>; TOGETHER] = std::array::from_fn(|i| {
            let (((q, p), s), o) = memory.next().expect("memory for each tile");
            let rows = if tiles.start + i < tiles.end { self.item.tile(tiles.start + i).len() } else { 0 };
            let (q, p) = (&q[..d_tiles * rows * K_TILE], &mut p[..k.len() * rows * K_TILE]);
            RowTile { rows, q, p, s: &mut s[..k.len() * rows * PANEL], o: &mut o[..d_tiles * rows * PANEL] }
        });
        let in_work = &mut in_work[..tiles.len()];
        let source = if tiles.start == 0 { Source::Memory } else { Source::Cache };
        self.kernel.scores(k, d_tiles, in_work, source);
        let mut sums = [Sums::default(); TOGETHER];
        for ((tile, sums), keys) in in_work.iter_mut().zip(&mut sums).zip(seen.keys.as_chunks().0) {
            *sums = softmax(self.kernel, tile, keys, self.call.scale);
        }
        self.kernel.values(v, d_tiles, in_work, source);
        for ((i, tile), sums) in tiles.zip(in_work).zip(&sums) {
            self.part(parts, i).fold_split(self.kernel.vector(), tile.rows, sums, tile.o);
        }
    }

    #[inline(always)]
    fn part<'m>(&self, parts: &'m mut [f32], tile: usize) -> Part<'m> {
        let memory = &mut parts[tile * self.part_len..][..self.part_len];
        Part::of(memory, self.call.d_tiles, self.item.tile(tile).len())
    }

    #[inline(always)]
    fn clear(&self, parts: &mut [f32]) {
        for tile in 0..self.item.tiles() {
            self.part(parts, tile).clear();
        }
    }

    /// Folds `next`, over the keys that follow, into `parts`.
    #[inline(always)]
    fn fold(&self, parts: &mut [f32], next: &mut [f32]) {
        for tile in 0..self.item.tiles() {
            let next = self.part(next, tile);
            self.part(parts, tile).fold(self.kernel.vector(), self.item.tile(tile).len(), &next);
        }
    }

    /// Folds the parts that the units of the item have left, into `of_all`.
    #[inline(always)]
    fn fold_slots(&self, cut: Cut, slots: &mut [f32], of_span: &mut [f32], of_all: &mut [f32]) {
        self.clear(of_all);
        let slots = slots.chunks_exact_mut(self.item.tiles() * self.part_len);
        if cut.grain == SPAN {
            for slot in slots {
                self.fold(of_all, slot);
            }
            return;
        }
        let mut slots = self.item.grains(SPLIT).zip(slots).peekable();
        for span in self.item.grains(SPAN) {
            self.clear(of_span);
            while let Some((_, slot)) = slots.next_if(|(split, _)| split * SPLIT / SPAN == span) {
                self.fold(of_span, slot);
            }
            self.fold(of_all, of_span);
        }
    }

    /// Divides and writes the rows of the item.
    #[inline(always)]
    fn finish(&self, parts: &mut [f32]) {
        let v = self.kernel.vector();
        let dim = self.call.head_dim;
        for tile in 0..self.item.tiles() {
            let pairs = self.item.tile(tile);
            let rows = pairs.len();
            let part = self.part(parts, tile);
            for (r, pair) in pairs.enumerate() {
                let (row, head) = self.call.pair(self.item, pair);
                // SAFETY: these columns of this row are the result of this pair, which is in one item only; the item is
                // finished by one thread.
                let out = unsafe { self.call.out.part(row, head * dim..(head + 1) * dim) };
                if part.l[r] == 0.0 {
                    out.fill(0.0);
                    continue;
                }
                let inverse = v.splat(1.0 / part.l[r]);
                for (o, out) in part.o.chunks_exact(rows * PANEL).zip(out.chunks_mut(PANEL)) {
                    for (o, out) in o[r * PANEL..].as_chunks().0.iter().zip(out.chunks_mut(LANES)) {
                        let y = v.mul(v.load(o), inverse);
                        match out.first_chunk_mut() {
                            Some(out) => v.store(y, out),
                            None => v.store_first(y, out),
                        }
                    }
                }
            }
        }
    }
}

/// Sixteen elements from `at` on, +0 past the end.
#[inline(always)]
fn load<V: Vector>(v: V, from: &[f32], at: usize) -> V::F {
    let rest = &from[at.min(from.len())..];
    match rest.first_chunk() {
        Some(lanes) => v.load(lanes),
        None => v.load_first(rest),
    }
}

/// What the rows of some tiles see of a split.
struct Seen {
    /// Keys of each row, counted from the first of `panels`.
    keys: [(usize, usize); TOGETHER * TILE_ROWS],
    /// Panels of the split in which some row sees a key, and those between.
    panels: Range<usize>,
}

impl Seen {
    #[inline(always)]
    fn new<E: Element>(call: &Call<'_, E>, item: &Item, pairs: Range<usize>, split: usize) -> Seen {
        let first = split * SPLIT;
        let mut keys = [(0, 0); TOGETHER * TILE_ROWS];
        let (mut lowest, mut highest) = (SPLIT, 0);
        for (pair, keys) in pairs.zip(&mut keys) {
            let visible = &call.rows[call.pair(item, pair).0].visible;
            let start = (visible.start as usize).saturating_sub(first);
            let end = (visible.end as usize).saturating_sub(first).min(SPLIT);
            if start < end {
                *keys = (start, end);
                (lowest, highest) = (lowest.min(start), highest.max(end));
            }
        }
        if lowest >= highest {
            return Seen { keys, panels: 0..0 };
        }
        let panels = lowest / PANEL..highest.div_ceil(PANEL);
        for keys in &mut keys {
            if keys.0 < keys.1 {
                *keys = (keys.0 - panels.start * PANEL, keys.1 - panels.start * PANEL);
            }
        }
        Seen { keys, panels }
    }
}
