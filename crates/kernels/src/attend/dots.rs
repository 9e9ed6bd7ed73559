//! The products with AVX-512's dot products of bf16: what [`super::product`] computes, two steps of a chain at a time (see
//! [`crate::linear::avx512_bf16`]).

use std::arch::x86_64::{_mm512_add_ps, _mm512_setzero_ps, _mm512_storeu_ps};

use super::kernel::{Kernel, Lanes, RowTile, Source};
use super::layout::TILE;
use super::product::{PREFETCH, Product};
use crate::isa::{Avx512, Avx512Bf16, with_flush};
use crate::linear::avx512_bf16::{Fetch, MOST_ROWS, tile_sums};
use crate::numerics::{K_TILE, LANES, PANEL};
use crate::vector::Vector;

/// Dot products of bf16, with AVX-512 beside them.
pub(super) struct Dots(Avx512);

impl Dots {
    pub(super) fn new(dots: Avx512Bf16) -> Dots {
        Dots(dots.avx512())
    }
}

impl Kernel for Dots {
    type V = Avx512;
    type E = u16;
    type X = u16;

    #[inline(always)]
    fn vector(&self) -> Avx512 {
        self.0
    }
    #[inline(always)]
    fn store_panel(&self, a: Lanes<Self>, b: Lanes<Self>, to: &mut [u16; K_TILE]) {
        let (first, second) = to.split_at_mut(LANES);
        self.0.store_bf16_paired(a, first.first_chunk_mut().expect("half a panel"));
        self.0.store_bf16_paired(b, second.first_chunk_mut().expect("half a panel"));
    }
    #[inline(always)]
    fn scores(&self, k: &[&[[u16; TILE]]], d_tiles: usize, tiles: &mut [RowTile<'_, u16>], _: Source) {
        for tile in tiles {
            let product = Product::scores(k, d_tiles, tile);
            // SAFETY: whoever has made this kernel has the features; `Product::scores` checked the lengths, and the tile is
            // borrowed here. The function is what `with_flush` asks for: not inlined, intrinsics from memory to memory, no panic.
            unsafe { with_flush(|| scores(self.0, product)) };
        }
    }
    #[inline(always)]
    fn values(&self, v: &[&[[u16; TILE]]], d_tiles: usize, tiles: &mut [RowTile<'_, u16>], _: Source) {
        for tile in tiles {
            let product = Product::values(v, d_tiles, tile);
            // SAFETY: as in `scores`.
            unsafe { with_flush(|| values(self.0, product)) };
        }
    }
}

/// # Safety
/// The features are there; `product` comes from [`Product::scores`], whose slices are still borrowed.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
#[inline(never)]
unsafe fn scores(v: Avx512, product: Product<'_, u16, u16>) {
    for (panel, tiles) in product.keys.iter().enumerate() {
        // SAFETY: `y` holds a tile of rows for each panel of keys, `x` one for each of its `d_tiles` tiles.
        unsafe { output_panel(v, tiles.iter(), product, panel) };
    }
}

/// # Safety
/// As [`scores`], from [`Product::values`].
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
#[inline(never)]
unsafe fn values(v: Avx512, product: Product<'_, u16, u16>) {
    for panel in 0..product.d_tiles {
        // SAFETY: each tile of keys has `d_tiles` tiles.
        let tiles = product.keys.iter().map(|tiles| unsafe { tiles.get_unchecked(panel) });
        // SAFETY: `y` holds a tile of rows for each panel of dims, `x` one for each tile of keys.
        unsafe { output_panel(v, tiles, product, panel) };
    }
}

/// 32 outputs of all rows.
///
/// # Safety
/// The features are there; `x` points to a tile of `[rows][32]` for each of `tiles`, `y` to one for each panel.
#[inline(always)]
unsafe fn output_panel<'a>(
    v: Avx512,
    tiles: impl Iterator<Item = &'a [u16; TILE]> + Clone,
    product: Product<'_, u16, u16>,
    panel: usize,
) {
    let rows = product.rows;
    let mut row = 0;
    while row < rows {
        let left = match rows - row {
            left @ ..=MOST_ROWS => left,
            left => left.div_ceil(2),
        };
        // SAFETY: rows `row .. row + left` are there, of `x` and of `y`; a tile of rows has at most 16, so the last arm has 8.
        unsafe {
            let (x, y) = (product.x.add(row * K_TILE), product.y.add((panel * rows + row) * PANEL));
            match left {
                1 => both_halves::<1>(v, tiles.clone(), rows, x, y),
                2 => both_halves::<2>(v, tiles.clone(), rows, x, y),
                3 => both_halves::<3>(v, tiles.clone(), rows, x, y),
                4 => each_half::<4>(v, tiles.clone(), rows, x, y),
                5 => each_half::<5>(v, tiles.clone(), rows, x, y),
                6 => each_half::<6>(v, tiles.clone(), rows, x, y),
                7 => each_half::<7>(v, tiles.clone(), rows, x, y),
                _ => each_half::<8>(v, tiles.clone(), rows, x, y),
            }
        }
        row += left;
    }
}

/// `R` rows, the halves of the panel together.
///
/// # Safety
/// As [`halves`].
#[inline(always)]
unsafe fn both_halves<'a, const R: usize>(
    v: Avx512,
    tiles: impl Iterator<Item = &'a [u16; TILE]>,
    stride: usize,
    x: *const u16,
    y: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe { halves::<R, 2>(v, tiles, 0, stride, x, y) };
}

/// `R` rows, one half of the panel after the other.
///
/// # Safety
/// As [`halves`].
#[inline(always)]
unsafe fn each_half<'a, const R: usize>(
    v: Avx512,
    tiles: impl Iterator<Item = &'a [u16; TILE]> + Clone,
    stride: usize,
    x: *const u16,
    y: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        halves::<R, 1>(v, tiles.clone(), 0, stride, x, y);
        halves::<R, 1>(v, tiles, 1, stride, x, y);
    }
}

/// Fetches the line one tile further.
#[derive(Clone, Copy)]
struct Next(Avx512, *const u16);

impl Fetch for Next {
    #[inline(always)]
    fn fetch(self, line: usize) {
        self.0.prefetch(self.1.wrapping_add(line).wrapping_byte_add(PREFETCH));
    }
}

/// `R` rows and `H` halves of 16 outputs, from half `first` on.
///
/// # Safety
/// The features are there; `x` points to a tile of rows of 32, of `stride` rows, for each of `tiles`, `y` to one; `R` rows are there.
#[inline(always)]
unsafe fn halves<'a, const R: usize, const H: usize>(
    v: Avx512,
    tiles: impl Iterator<Item = &'a [u16; TILE]>,
    first: usize,
    stride: usize,
    x: *const u16,
    y: *mut f32,
) {
    // SAFETY: a tile has two halves, the tiles of `x` and `y` have R rows; the features are the caller's promise.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); H]; R];
        for (t, tile) in tiles.enumerate() {
            let w = tile.as_ptr().add(first * (TILE / 2));
            let of_tile = tile_sums::<R, H>(w, x.add(t * stride * K_TILE), Next(v, w));
            for (sum, more) in sums.as_flattened_mut().iter_mut().zip(of_tile.as_flattened()) {
                *sum = _mm512_add_ps(*sum, *more);
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (h, sum) in sums.iter().enumerate() {
                _mm512_storeu_ps(y.add(r * PANEL + (first + h) * LANES), *sum);
            }
        }
    }
}
