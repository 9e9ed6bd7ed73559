//! The products with AMX tiles: what [`super::product`] computes, 16 rows at a time at the price of one.
//!
//! A tile of K or V in its packing is two ready tiles of 32 k x 16 outputs. One tile of rows is multiplied with two tiles
//! of K or V, four halves, at once: tiles 0 to 3 hold the results, 4 the rows, 5 to 7 what they are multiplied with.

use std::cell::Cell;

use super::kernel::Kernel;
use super::layout::TILE;
use super::product::{PREFETCH, Product};
use crate::isa::{Amx, Avx512};
use crate::linear::amx::tiles::{ROW_BYTES, Tiles};
use crate::numerics::{K_TILE, LANES, PANEL};
use crate::vector::Arith;

/// Elements of half a tile of K or V.
const HALF: usize = TILE / 2;
/// Bytes from a row of results to the next.
const RESULT_STRIDE: usize = PANEL * size_of::<f32>();

/// AMX products on bf16, with AVX-512 beside them.
pub(super) struct AmxKernel {
    v: Avx512,
    tiles: Tiles,
    /// Rows that the tiles are configured for; 0 before the first product.
    rows: Cell<usize>,
}

impl AmxKernel {
    pub(super) fn new(amx: Amx, v: Avx512) -> AmxKernel {
        AmxKernel { v, tiles: Tiles::new(amx), rows: Cell::new(0) }
    }

    fn configure(&self, rows: usize) {
        if self.rows.replace(rows) != rows {
            self.tiles.configure([rows, rows, rows, rows, rows, 16, 16, 16]);
        }
    }
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
    fn store_rounded(&self, x: <Avx512 as Arith>::F, to: &mut [u16; LANES]) {
        self.v.store_bf16(x, to);
    }

    fn scores(&self, k: &[&[[u16; TILE]]], d_tiles: usize, rows: usize, q: &[u16], s: &mut [f32]) {
        let product = Product::scores(k, d_tiles, rows, q, s);
        self.configure(rows);
        let (pairs, last) = k.as_chunks::<2>();
        let mut y = product.y;
        for [a, b] in pairs {
            let tiles = a.iter().zip(*b).map(|(a, b)| [a, b]);
            // SAFETY: `s` holds a tile of rows for each panel of keys, `q` one for each of its `d_tiles` tiles.
            unsafe {
                self.two_panels(tiles, rows, product.x, y);
                y = y.add(2 * rows * PANEL);
            }
        }
        for panel in last {
            // SAFETY: as above.
            unsafe { self.one_panel(panel.iter(), rows, product.x, y) };
        }
    }

    fn values(&self, v: &[&[[u16; TILE]]], d_tiles: usize, rows: usize, p: &[u16], o: &mut [f32]) {
        let product = Product::values(v, d_tiles, rows, p, o);
        self.configure(rows);
        for panel in (0..d_tiles).step_by(2) {
            // SAFETY: `o` holds a tile of rows for each panel of dims, `p` one for each tile of keys, each of which has
            // `d_tiles` tiles.
            unsafe {
                let y = product.y.add(panel * rows * PANEL);
                if panel + 1 < d_tiles {
                    let tiles = v.iter().map(|v| [v.get_unchecked(panel), v.get_unchecked(panel + 1)]);
                    self.two_panels(tiles, rows, product.x, y);
                } else {
                    let tiles = v.iter().map(|v| v.get_unchecked(panel));
                    self.one_panel(tiles, rows, product.x, y);
                }
            }
        }
    }
}

impl AmxKernel {
    /// 64 outputs: the results of the second panel follow those of the first.
    ///
    /// # Safety
    /// The tiles are configured for `rows`. `x` points to a tile of `[rows][32]` for each of `tiles`, `y` to two.
    #[inline(always)]
    unsafe fn two_panels<'a>(
        &self,
        tiles: impl Iterator<Item = [&'a [u16; TILE]; 2]>,
        rows: usize,
        mut x: *const u16,
        y: *mut f32,
    ) {
        let t = &self.tiles;
        // SAFETY: a tile of K or V is two halves of 16 rows of 64 bytes; the rest is the caller's promise.
        unsafe {
            t.zero::<0>();
            t.zero::<1>();
            t.zero::<2>();
            t.zero::<3>();
            for [a, b] in tiles {
                prefetch(a);
                prefetch(b);
                t.load::<4, _>(x, ROW_BYTES);
                t.load::<5, _>(a.as_ptr(), ROW_BYTES);
                t.multiply::<0, 4, 5>();
                t.load::<6, _>(a.as_ptr().add(HALF), ROW_BYTES);
                t.multiply::<1, 4, 6>();
                t.load::<7, _>(b.as_ptr(), ROW_BYTES);
                t.multiply::<2, 4, 7>();
                t.load::<5, _>(b.as_ptr().add(HALF), ROW_BYTES);
                t.multiply::<3, 4, 5>();
                x = x.wrapping_add(rows * K_TILE);
            }
            t.store::<0>(y, RESULT_STRIDE);
            t.store::<1>(y.add(LANES), RESULT_STRIDE);
            let y = y.add(rows * PANEL);
            t.store::<2>(y, RESULT_STRIDE);
            t.store::<3>(y.add(LANES), RESULT_STRIDE);
        }
    }

    /// 32 outputs.
    ///
    /// # Safety
    /// As [`AmxKernel::two_panels`], with one tile of `y`.
    #[inline(always)]
    unsafe fn one_panel<'a>(
        &self,
        tiles: impl Iterator<Item = &'a [u16; TILE]>,
        rows: usize,
        mut x: *const u16,
        y: *mut f32,
    ) {
        let t = &self.tiles;
        // SAFETY: as in `two_panels`.
        unsafe {
            t.zero::<0>();
            t.zero::<1>();
            for a in tiles {
                prefetch(a);
                t.load::<4, _>(x, ROW_BYTES);
                t.load::<5, _>(a.as_ptr(), ROW_BYTES);
                t.multiply::<0, 4, 5>();
                t.load::<6, _>(a.as_ptr().add(HALF), ROW_BYTES);
                t.multiply::<1, 4, 6>();
                x = x.wrapping_add(rows * K_TILE);
            }
            t.store::<0>(y, RESULT_STRIDE);
            t.store::<1>(y.add(LANES), RESULT_STRIDE);
        }
    }
}

/// Fetches the tile that stands behind this one.
#[inline(always)]
fn prefetch(tile: &[u16; TILE]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    for line in (0..TILE * size_of::<u16>()).step_by(ROW_BYTES) {
        let ahead = tile.as_ptr().wrapping_byte_add(PREFETCH + line);
        // SAFETY: a prefetch is a hint that never faults; SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead.cast()) };
    }
}
