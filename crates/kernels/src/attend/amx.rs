//! The products with AMX tiles: what [`super::product`] computes, 16 rows at a time at the price of one.
//!
//! A tile of K or V in its packing is two ready tiles of 32 k x 16 outputs.
//!
//! | rows | registers |
//! |---|---|
//! | one tile | 0, 1 results of each half panel; 4 rows; 5, 6 K or V |
//! | two tiles | 0 to 3 results of each tile and half panel; 4, 5 rows; 6, 7 K or V |
//!
//! Two tiles take fewer loads for each multiplication, which keeps the multiplier busy where K and V come from the L2
//! cache. There prefetching costs a tenth; from memory it gains a fifth. One tile of rows with two panels at once, which
//! would save loads too, reads two streams at a time: up to a third slower from memory, a tenth from L2.

use std::cell::Cell;

use super::kernel::{Kernel, Lanes, RowTile, Source};
use super::layout::{LINE, TILE};
use super::product::Product;
use crate::isa::{Amx, Avx512};
use crate::linear::amx::tiles::{ROW_BYTES, Tiles};
use crate::numerics::{K_TILE, LANES, PANEL};

/// Elements of half a tile of K or V.
const HALF: usize = TILE / 2;
/// Bytes from a row of results to the next.
const RESULT_STRIDE: usize = PANEL * size_of::<f32>();

/// AMX products on bf16, with AVX-512 beside them.
pub(super) struct AmxKernel {
    v: Avx512,
    tiles: Tiles,
    /// Rows of the one or two tiles of rows that the registers are configured for; 0 for none.
    rows: Cell<[usize; 2]>,
}

impl AmxKernel {
    pub(super) fn new(amx: Amx, v: Avx512) -> AmxKernel {
        AmxKernel { v, tiles: Tiles::new(amx), rows: Cell::new([0, 0]) }
    }

    fn configure_one(&self, rows: usize) {
        if self.rows.replace([rows, 0]) != [rows, 0] {
            self.tiles.configure([rows, rows, 16, 16, rows, 16, 16, 16]);
        }
    }

    fn configure_two(&self, a: usize, b: usize) {
        if self.rows.replace([a, b]) != [a, b] {
            self.tiles.configure([a, a, b, b, a, b, 16, 16]);
        }
    }
}

/// A tile, and the one that will be read after it.
type Step<'a> = (&'a [u16; TILE], &'a [u16; TILE]);

/// The tiles of a panel of keys; the next panel follows.
#[inline(always)]
fn along<'a>(k: &'a [&[[u16; TILE]]], panel: usize) -> impl Iterator<Item = Step<'a>> {
    let tiles = k[panel];
    let after = k.get(panel + 1).map_or(&tiles[0], |tiles| &tiles[0]);
    (0..tiles.len()).map(move |i| (&tiles[i], tiles.get(i + 1).unwrap_or(after)))
}

/// The tiles of a panel of dims, from each tile of keys one; the next panel follows.
#[inline(always)]
fn across<'a>(v: &'a [&[[u16; TILE]]], panel: usize) -> impl Iterator<Item = Step<'a>> {
    let after = v[0].get(panel + 1).unwrap_or(&v[0][panel]);
    (0..v.len()).map(move |i| (&v[i][panel], v.get(i + 1).map_or(after, |tiles| &tiles[panel])))
}

impl Kernel for AmxKernel {
    type V = Avx512;
    type E = u16;
    type X = u16;

    #[inline(always)]
    fn vector(&self) -> Avx512 {
        self.v
    }
    #[inline(always)]
    fn store_panel(&self, a: Lanes<Self>, b: Lanes<Self>, to: &mut [u16; K_TILE]) {
        self.v.store_bf16_pair(a, b, to);
    }

    fn scores(&self, k: &[&[[u16; TILE]]], d_tiles: usize, tiles: &mut [RowTile<'_, u16>], source: Source) {
        if let [a, b] = tiles {
            let [a, b] = [Product::scores(k, d_tiles, a), Product::scores(k, d_tiles, b)];
            self.configure_two(a.rows, b.rows);
            for panel in 0..k.len() {
                // SAFETY: the registers are configured for these rows; the scores of each have this panel, and their
                // queries a tile for each of the panel's `d_tiles` tiles.
                unsafe { self.two_by_two(along(k, panel), Rows::of(a, panel), Rows::of(b, panel), source) };
            }
            return;
        }
        for tile in tiles {
            let product = Product::scores(k, d_tiles, tile);
            self.configure_one(product.rows);
            for panel in 0..k.len() {
                // SAFETY: as above.
                unsafe { self.one_by_two(along(k, panel), Rows::of(product, panel)) };
            }
        }
    }

    fn values(&self, v: &[&[[u16; TILE]]], d_tiles: usize, tiles: &mut [RowTile<'_, u16>], source: Source) {
        if let [a, b] = tiles {
            let [a, b] = [Product::values(v, d_tiles, a), Product::values(v, d_tiles, b)];
            self.configure_two(a.rows, b.rows);
            for panel in 0..d_tiles {
                // SAFETY: the registers are configured for these rows; the values of each have this panel, and their
                // probabilities a tile for each tile of keys.
                unsafe { self.two_by_two(across(v, panel), Rows::of(a, panel), Rows::of(b, panel), source) };
            }
            return;
        }
        for tile in tiles {
            let product = Product::values(v, d_tiles, tile);
            self.configure_one(product.rows);
            for panel in 0..d_tiles {
                // SAFETY: as above.
                unsafe { self.one_by_two(across(v, panel), Rows::of(product, panel)) };
            }
        }
    }
}

/// A tile of rows: its inputs, and its results of one panel.
#[derive(Clone, Copy)]
struct Rows {
    rows: usize,
    x: *const u16,
    y: *mut f32,
}

impl Rows {
    /// # Safety
    /// The product has results for `panel`.
    #[inline(always)]
    unsafe fn of(product: Product<'_, u16, u16>, panel: usize) -> Rows {
        // SAFETY: the caller's promise.
        let y = unsafe { product.y.add(panel * product.rows * PANEL) };
        Rows { rows: product.rows, x: product.x, y }
    }

    /// Inputs for tile `t` of what the rows are multiplied with.
    #[inline(always)]
    fn input(&self, t: usize) -> *const u16 {
        self.x.wrapping_add(t * self.rows * K_TILE)
    }
}

impl AmxKernel {
    /// Two tiles of rows, 32 outputs.
    ///
    /// # Safety
    /// The registers are configured for the rows of `a` and `b`, whose inputs have a tile of `[rows][32]` for each of
    /// `tiles`, and whose results have one.
    #[inline(always)]
    unsafe fn two_by_two<'a>(&self, tiles: impl Iterator<Item = Step<'a>>, a: Rows, b: Rows, source: Source) {
        let t = &self.tiles;
        // SAFETY: a tile of K or V is two halves of 16 rows of 64 bytes; the rest is the caller's promise.
        unsafe {
            t.zero::<0>();
            t.zero::<1>();
            t.zero::<2>();
            t.zero::<3>();
            for (i, (tile, next)) in tiles.enumerate() {
                if source == Source::Memory {
                    prefetch(next);
                }
                t.load::<6, _>(tile.as_ptr(), ROW_BYTES);
                t.load::<4, _>(a.input(i), ROW_BYTES);
                t.multiply::<0, 4, 6>();
                t.load::<7, _>(tile.as_ptr().add(HALF), ROW_BYTES);
                t.multiply::<1, 4, 7>();
                t.load::<5, _>(b.input(i), ROW_BYTES);
                t.multiply::<2, 5, 6>();
                t.multiply::<3, 5, 7>();
            }
            t.store::<0>(a.y, RESULT_STRIDE);
            t.store::<1>(a.y.add(LANES), RESULT_STRIDE);
            t.store::<2>(b.y, RESULT_STRIDE);
            t.store::<3>(b.y.add(LANES), RESULT_STRIDE);
        }
    }

    /// One tile of rows, 32 outputs.
    ///
    /// # Safety
    /// As [`AmxKernel::two_by_two`], for `a` alone.
    #[inline(always)]
    unsafe fn one_by_two<'a>(&self, tiles: impl Iterator<Item = Step<'a>>, a: Rows) {
        let t = &self.tiles;
        // SAFETY: as in `two_by_two`.
        unsafe {
            t.zero::<0>();
            t.zero::<1>();
            for (i, (tile, next)) in tiles.enumerate() {
                prefetch(next);
                t.load::<4, _>(a.input(i), ROW_BYTES);
                t.load::<5, _>(tile.as_ptr(), ROW_BYTES);
                t.multiply::<0, 4, 5>();
                t.load::<6, _>(tile.as_ptr().add(HALF), ROW_BYTES);
                t.multiply::<1, 4, 6>();
            }
            t.store::<0>(a.y, RESULT_STRIDE);
            t.store::<1>(a.y.add(LANES), RESULT_STRIDE);
        }
    }
}

/// Fetches a tile.
#[inline(always)]
fn prefetch(tile: &[u16; TILE]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    for line in tile.as_chunks::<LINE>().0 {
        // SAFETY: a prefetch is a hint that never faults; SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}
