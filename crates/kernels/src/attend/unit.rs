//! One unit of work: a tile of rows against the keys of a split, and the folds.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use super::AttendRow;
use super::kernel::Kernel;
use super::layout::{Element, PANELS, TILE};
use super::part::{Part, TILE_ROWS};
use super::plan::{Cut, ITEM_PAIRS, Item, Unit};
use crate::linear::RowsRef;
use crate::linear::rows::SharedRows;
use crate::math::exp_of;
use crate::memory::Disjoint;
use crate::numerics::{K_TILE, KV_BLOCK, LANES, PANEL, SPAN, SPLIT};
use crate::vector::{Arith, Vector};

/// Panels of 32 keys in a split.
const SPLIT_PANELS: usize = SPLIT / PANEL;
/// Tiles of an item.
const ITEM_TILES: usize = ITEM_PAIRS / TILE_ROWS;

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
    /// Probabilities of a tile: `[key tile][row][32]`.
    p: &'a mut [X],
    /// Scores of a tile: `[key panel][row][32]`.
    s: &'a mut [f32],
    /// Values of a tile: `[d panel][row][32]`.
    o: &'a mut [f32],
    /// For each tile the part over a span, then for each tile the part over all spans.
    parts: &'a mut [f32],
}

impl<'a, X> Workspace<'a, X> {
    /// Elements of the rows' memory.
    pub(super) fn rows_len(d_tiles: usize) -> usize {
        ITEM_PAIRS * d_tiles * K_TILE + TILE_ROWS * SPLIT
    }

    /// Elements of the results' memory.
    pub(super) fn results_len(d_tiles: usize) -> usize {
        TILE_ROWS * SPLIT + TILE_ROWS * d_tiles * PANEL + 2 * ITEM_TILES * Part::len(d_tiles)
    }

    pub(super) fn new(rows: &'a mut [X], results: &'a mut [f32], d_tiles: usize) -> Workspace<'a, X> {
        let (p, q) = rows.split_at_mut(TILE_ROWS * SPLIT);
        let (s, results) = results.split_at_mut(TILE_ROWS * SPLIT);
        let (o, parts) = results.split_at_mut(TILE_ROWS * d_tiles * PANEL);
        Workspace { q, p, s, o, parts }
    }
}

/// Does a unit.
#[inline(always)]
pub(super) fn run<K: Kernel>(kernel: &K, call: &Call<'_, K::E>, unit: &Unit, work: Workspace<'_, K::X>) {
    let item = &call.items[unit.item];
    let part_len = Part::len(call.d_tiles);
    let (of_span, of_all) = work.parts.split_at_mut(ITEM_TILES * part_len);
    let mut tile_work = TileWork { q: work.q, p: work.p, s: work.s, o: work.o };
    for tile in 0..item.tiles() {
        load_queries(kernel, call, item, tile, tile_work.q);
    }
    let Some(cut) = item.cut else {
        let parts = attend_all(kernel, call, item, &mut tile_work, of_span, of_all);
        return finish(kernel.vector(), call, item, parts);
    };
    let slot_len = item.tiles() * part_len;
    let grains = item.grains(cut.grain);
    for grain in unit.grains.clone() {
        let slot = cut.first_slot * part_len + (grain - grains.start) * slot_len;
        // SAFETY: the slots of this grain belong to this unit until it is counted as finished.
        let parts = unsafe { call.slots.slice_mut(slot, slot_len) };
        attend_keys(kernel, call, item, grain * cut.grain..(grain + 1) * cut.grain, &mut tile_work, parts);
    }
    // Release: the parts of this unit are written. Acquire: the last one sees those of all.
    if call.waiting[unit.item].fetch_sub(1, Ordering::AcqRel) == 1 {
        // SAFETY: all units of the item are finished, so nobody else uses its slots any more.
        let slots = unsafe { call.slots.slice_mut(cut.first_slot * part_len, grains.len() * slot_len) };
        fold_slots(kernel.vector(), call, item, cut, slots, of_span, of_all);
        finish(kernel.vector(), call, item, of_all);
    }
}

/// Memory for a tile of rows and the queries of all.
struct TileWork<'a, X> {
    q: &'a mut [X],
    p: &'a mut [X],
    s: &'a mut [f32],
    o: &'a mut [f32],
}

/// The parts of an item's tiles, one after the other.
#[inline(always)]
fn part_of<'a, E: Element>(call: &Call<'_, E>, item: &Item, parts: &'a mut [f32], tile: usize) -> Part<'a> {
    let len = Part::len(call.d_tiles);
    Part::of(&mut parts[tile * len..][..len], call.d_tiles, item.tile(tile).len())
}

#[inline(always)]
fn load_queries<K: Kernel>(kernel: &K, call: &Call<'_, K::E>, item: &Item, tile: usize, q: &mut [K::X]) {
    let v = kernel.vector();
    let pairs = item.tile(tile);
    let rows = pairs.len();
    let q = &mut q[tile * TILE_ROWS * call.d_tiles * K_TILE..][..call.d_tiles * rows * K_TILE];
    for (r, pair) in pairs.enumerate() {
        let (row, head) = call.pair(item, pair);
        let from = &call.q.row(row, (head + 1) * call.head_dim)[head * call.head_dim..];
        for half in 0..call.d_tiles * 2 {
            let x = match from.get(half * LANES..) {
                Some(rest) => match rest.first_chunk() {
                    Some(lanes) => v.load(lanes),
                    None => v.load_first(rest),
                },
                None => v.splat(0.0),
            };
            let at = (half / 2 * rows + r) * K_TILE + half % 2 * LANES;
            let to = q[at..].first_chunk_mut().expect("a vector of the tile");
            kernel.store_rounded(K::E::round_lanes(v, x), to);
        }
    }
}

/// All keys of an item, span by span; returns the memory that has its parts.
#[inline(always)]
fn attend_all<'m, K: Kernel>(
    kernel: &K,
    call: &Call<'_, K::E>,
    item: &Item,
    work: &mut TileWork<'_, K::X>,
    of_span: &'m mut [f32],
    of_all: &'m mut [f32],
) -> &'m mut [f32] {
    let spans = item.grains(SPAN);
    if spans.len() <= 1 {
        attend_keys(kernel, call, item, item.keys.clone(), work, of_span);
        return of_span;
    }
    for tile in 0..item.tiles() {
        part_of(call, item, of_all, tile).clear();
    }
    for span in spans {
        attend_keys(kernel, call, item, span * SPAN..(span + 1) * SPAN, work, of_span);
        fold_tiles(kernel.vector(), call, item, of_all, of_span);
    }
    of_all
}

/// Folds the parts of each tile of `next` into those of `ours`.
#[inline(always)]
fn fold_tiles<V: Vector, E: Element>(
    v: V,
    call: &Call<'_, E>,
    item: &Item,
    ours: &mut [f32],
    next: &mut [f32],
) {
    for tile in 0..item.tiles() {
        let next = part_of(call, item, next, tile);
        part_of(call, item, ours, tile).fold(v, item.tile(tile).len(), &next);
    }
}

/// Folds the parts that the units of an item have left, into `of_all`.
#[inline(always)]
fn fold_slots<V: Vector, E: Element>(
    v: V,
    call: &Call<'_, E>,
    item: &Item,
    cut: Cut,
    slots: &mut [f32],
    of_span: &mut [f32],
    of_all: &mut [f32],
) {
    let slot_len = item.tiles() * Part::len(call.d_tiles);
    for tile in 0..item.tiles() {
        part_of(call, item, of_all, tile).clear();
    }
    if cut.grain == SPAN {
        for slot in slots.chunks_exact_mut(slot_len) {
            fold_tiles(v, call, item, of_all, slot);
        }
        return;
    }
    let mut slots = item.grains(SPLIT).zip(slots.chunks_exact_mut(slot_len)).peekable();
    for span in item.grains(SPAN) {
        for tile in 0..item.tiles() {
            part_of(call, item, of_span, tile).clear();
        }
        while let Some((_, slot)) = slots.next_if(|(split, _)| split * SPLIT / SPAN == span) {
            fold_tiles(v, call, item, of_span, slot);
        }
        fold_tiles(v, call, item, of_all, of_span);
    }
}

/// The keys of an item in a range of whole splits within one span: `parts` gets the part of each tile.
#[inline(always)]
fn attend_keys<K: Kernel>(
    kernel: &K,
    call: &Call<'_, K::E>,
    item: &Item,
    keys: Range<usize>,
    work: &mut TileWork<'_, K::X>,
    parts: &mut [f32],
) {
    for tile in 0..item.tiles() {
        part_of(call, item, parts, tile).clear();
    }
    let keys = keys.start.max(item.keys.start)..keys.end.min(item.keys.end);
    for split in keys.start / SPLIT..keys.end.div_ceil(SPLIT) {
        let [k, v] = call.split_tiles(item, split);
        for tile in 0..item.tiles() {
            let seen = Seen::new(call, item, item.tile(tile), split);
            if seen.panels.is_empty() {
                continue;
            }
            let part = part_of(call, item, parts, tile);
            attend_split(kernel, call, &seen, [&k, &v], tile, work, part);
        }
    }
}

/// What the rows of a tile see of a split.
struct Seen {
    rows: usize,
    /// Keys of each row, counted from the first of `panels`.
    keys: [(usize, usize); TILE_ROWS],
    /// Panels of the split in which some row sees a key, and those between.
    panels: Range<usize>,
}

impl Seen {
    #[inline(always)]
    fn new<E: Element>(call: &Call<'_, E>, item: &Item, pairs: Range<usize>, split: usize) -> Seen {
        let first = split * SPLIT;
        let rows = pairs.len();
        let mut keys = [(0, 0); TILE_ROWS];
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
            return Seen { rows, keys, panels: 0..0 };
        }
        let panels = lowest / PANEL..highest.div_ceil(PANEL);
        for keys in &mut keys {
            if keys.0 < keys.1 {
                *keys = (keys.0 - panels.start * PANEL, keys.1 - panels.start * PANEL);
            }
        }
        Seen { rows, keys, panels }
    }
}

/// A tile of rows against the visible panels of a split, folded into `part`.
#[inline(always)]
fn attend_split<K: Kernel>(
    kernel: &K,
    call: &Call<'_, K::E>,
    seen: &Seen,
    [k, v]: [&[&[[K::E; TILE]]; SPLIT_PANELS]; 2],
    tile: usize,
    work: &mut TileWork<'_, K::X>,
    mut part: Part<'_>,
) {
    let (rows, panels) = (seen.rows, seen.panels.len());
    let q = &work.q[tile * TILE_ROWS * call.d_tiles * K_TILE..][..call.d_tiles * rows * K_TILE];
    let s = &mut work.s[..panels * rows * PANEL];
    let p = &mut work.p[..panels * rows * K_TILE];
    let o = &mut work.o[..call.d_tiles * rows * PANEL];
    kernel.scores(&k[seen.panels.clone()], call.d_tiles, rows, q, s);
    let (mut m, mut l) = ([0.0; TILE_ROWS], [0.0; TILE_ROWS]);
    for r in 0..rows {
        (m[r], l[r]) = softmax(kernel, s, rows, r, seen.keys[r], call.scale, p);
    }
    kernel.values(&v[seen.panels.clone()], call.d_tiles, rows, p, o);
    part.fold_split(kernel.vector(), rows, &m, &l, o);
}

/// Probabilities of one row, relative to its largest score: (that score, the sum of the unrounded probabilities). A row
/// that sees no key has sum 0.
#[inline(always)]
fn softmax<K: Kernel>(
    kernel: &K,
    s: &[f32],
    rows: usize,
    r: usize,
    (start, end): (usize, usize),
    scale: f32,
    p: &mut [K::X],
) -> (f32, f32) {
    let v = kernel.vector();
    let scale = v.splat(scale);
    let lowest = v.splat(f32::NEG_INFINITY);
    let (vectors, _) = s.as_chunks::<LANES>();
    let (out, _) = p.as_chunks_mut::<LANES>();
    // Vector `i` of the row's keys.
    let place = |i: usize| (i / 2 * rows + r) * 2 + i % 2;
    let mut m = lowest;
    for i in start / LANES..end.div_ceil(LANES) {
        let inside = v.lanes(start.saturating_sub(i * LANES), end - i * LANES);
        m = v.max(v.select(inside, v.mul(v.load(&vectors[place(i)]), scale), lowest), m);
    }
    let m = v.max_lane(m);
    let largest = v.splat(m);
    let mut l = v.splat(0.0);
    for i in 0..vectors.len() / rows {
        let inside = v.lanes(start.saturating_sub(i * LANES), end.saturating_sub(i * LANES));
        let e = exp_of(v, v.sub(v.mul(v.load(&vectors[place(i)]), scale), largest));
        let e = v.select(inside, e, v.splat(0.0));
        l = v.add(l, e);
        kernel.store_rounded(K::E::round_lanes(v, e), &mut out[place(i)]);
    }
    (m, v.sum(l))
}

/// Divides and writes the rows of an item.
#[inline(always)]
fn finish<V: Vector, E: Element>(v: V, call: &Call<'_, E>, item: &Item, parts: &mut [f32]) {
    for tile in 0..item.tiles() {
        let pairs = item.tile(tile);
        let rows = pairs.len();
        let part = part_of(call, item, parts, tile);
        let (o, _) = part.o.as_chunks::<LANES>();
        for (r, pair) in pairs.enumerate() {
            let (row, head) = call.pair(item, pair);
            // SAFETY: these columns of this row are the result of this pair, which is in one item only; the item is
            // finished by one thread.
            let out = unsafe { call.out.part(row, head * call.head_dim..(head + 1) * call.head_dim) };
            if part.l[r] == 0.0 {
                out.fill(0.0);
                continue;
            }
            let inverse = v.splat(1.0 / part.l[r]);
            let place = |i: usize| (i / 2 * rows + r) * 2 + i % 2;
            let (whole, rest) = out.as_chunks_mut::<LANES>();
            let n = whole.len();
            for (i, out) in whole.iter_mut().enumerate() {
                v.store(v.mul(v.load(&o[place(i)]), inverse), out);
            }
            if !rest.is_empty() {
                v.store_first(v.mul(v.load(&o[place(n)]), inverse), rest);
            }
        }
    }
}
