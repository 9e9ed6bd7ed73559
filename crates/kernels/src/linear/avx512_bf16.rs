//! Products with AVX-512's dot products of bf16: two steps of a chain in one instruction.
//!
//! `vdpbf16ps` does for each lane an FMA of the upper halves of two pairs, then one of the lower halves, each rounded, subnormals
//! flushed: two steps of one chain ([`crate::isa`] tries it out before the level may be used). A line of weights holds the k of
//! both chains, so two lines are mixed into the pairs of each, and rows come with each four k as (2, 0, 3, 1):
//!
//! ```text
//!            lower, upper half of a lane
//! lines      (0, 1)  (2, 3)
//! even chain (2, 0)          k 0 first, then k 2
//! odd chain  (3, 1)
//! ```
//! Where it has the throughput of FMA, as on Zen 4, that is twice as fast.
use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_add_ps, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_mask_blend_epi16, _mm512_set1_epi32, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_slli_epi32,
    _mm512_srli_epi32, _mm512_storeu_ps,
};

use super::fma::{Piece, each_piece};
use super::inputs::Tiled;
use super::packed::{TILE, prefetch_line};
use crate::isa::{Avx512Bf16, with_flush};
use crate::numerics::{K_TILE, PANEL};

/// Rows that take a weight together.
pub(crate) const MOST_ROWS: usize = 8;

/// Panels that stand one behind the other, for every row: `c` takes `[panel][row][32 outputs]`. `FAR` as for
/// [`prefetch_line`].
pub(super) fn panels<const FAR: bool>(_: Avx512Bf16, weights: &[u16], x: Tiled<'_, u16>, c: &mut [f32]) {
    // SAFETY: `Avx512Bf16` proves the features, and the piece's pointers are good. `all_rows` is what `with_flush` asks for: not
    // inlined, intrinsics only, from memory to memory, no panic.
    each_piece(weights, x, c, |piece| unsafe { with_flush(|| all_rows::<FAR>(piece)) });
}

/// # Safety
/// The piece's pointers have the lengths that [`Piece`] says.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
#[inline(never)]
unsafe fn all_rows<const FAR: bool>(piece: Piece<u16>) {
    // SAFETY: each arm takes all rows.
    unsafe {
        match piece.rows {
            1 => few::<1, FAR>(piece),
            2 => few::<2, FAR>(piece),
            3 => few::<3, FAR>(piece),
            _ => many::<FAR>(piece),
        }
    }
}

/// All of `R` rows, the running sums in registers.
///
/// # Safety
/// As [`all_rows`]; there are `R` rows.
#[inline(always)]
unsafe fn few<const R: usize, const FAR: bool>(piece: Piece<u16>) {
    // SAFETY: R rows have two vectors of sums each, a tile of x has R rows, and the features are the caller's promise.
    unsafe {
        let mut y = [[_mm512_setzero_ps(); R]; 2];
        if !piece.first {
            for (half, y) in y.iter_mut().enumerate() {
                for (r, y) in y.iter_mut().enumerate() {
                    *y = _mm512_loadu_ps(piece.c.add(r * PANEL + half * 16));
                }
            }
        }
        for tile in 0..piece.k_tiles {
            let (near, far) = (piece.tile_ahead(tile, 1), piece.tile_ahead(tile, 4));
            let x = piece.x.add(tile * R * K_TILE);
            // Lines in the order in which they stand in memory. Both halves at once, which are two streams, took a sixth longer for weights
            // in the caches and a tenth for those from memory.
            for (half, y) in y.iter_mut().enumerate() {
                let at = half * (TILE / 2);
                let fetch = Ahead::<FAR> { near: near.wrapping_add(at), far: far.wrapping_add(at) };
                let sums = tile_sums::<R, 1>(piece.w.add(tile * TILE + at), x, fetch);
                for (y, sum) in y.iter_mut().zip(sums.as_flattened()) {
                    *y = _mm512_add_ps(*y, *sum);
                }
            }
        }
        for (half, y) in y.iter().enumerate() {
            for (r, y) in y.iter().enumerate() {
                _mm512_storeu_ps(piece.c.add(r * PANEL + half * 16), *y);
            }
        }
    }
}

/// More than three rows: in blocks, tile by tile, the running sums in memory.
///
/// # Safety
/// As [`all_rows`].
#[inline(always)]
unsafe fn many<const FAR: bool>(piece: Piece<u16>) {
    if piece.first {
        for i in 0..piece.rows * 2 {
            // SAFETY: each row has two vectors of sums.
            unsafe { _mm512_storeu_ps(piece.c.add(i * 16), _mm512_setzero_ps()) };
        }
    }
    // A tile is in L1 while the blocks of rows take it one after the other.
    for tile in 0..piece.k_tiles {
        let mut row = 0;
        while row < piece.rows {
            let rows = match piece.rows - row {
                left @ ..=MOST_ROWS => left,
                left => left.div_ceil(2),
            };
            // SAFETY: these rows are there, and they are as many as the arm says: 4 to 8, as a piece has 4 to 16 here.
            unsafe {
                match (rows, FAR && row == 0) {
                    (4, true) => some::<4, true>(piece, tile, row),
                    (4, false) => some::<4, false>(piece, tile, row),
                    (5, true) => some::<5, true>(piece, tile, row),
                    (5, false) => some::<5, false>(piece, tile, row),
                    (6, true) => some::<6, true>(piece, tile, row),
                    (6, false) => some::<6, false>(piece, tile, row),
                    (7, true) => some::<7, true>(piece, tile, row),
                    (7, false) => some::<7, false>(piece, tile, row),
                    (_, true) => some::<8, true>(piece, tile, row),
                    (_, false) => some::<8, false>(piece, tile, row),
                }
            }
            row += rows;
        }
    }
}

/// A tile for `R` rows from `row` on, one half of the panel at a time. (Both at once, with an input loaded for two multiplications,
/// took a sixth longer.)
///
/// # Safety
/// As [`all_rows`]; the tile and the rows are there.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
#[inline]
unsafe fn some<const R: usize, const FAR: bool>(piece: Piece<u16>, tile: usize, row: usize) {
    let (near, far) = (piece.tile_ahead(tile, 1), piece.tile_ahead(tile, 4));
    for half in 0..2 {
        let at = half * (TILE / 2);
        let fetch = Ahead::<FAR> { near: near.wrapping_add(at), far: far.wrapping_add(at) };
        // SAFETY: a tile has two halves, R rows of x and their sums stand from `row` on.
        unsafe {
            let x = piece.x.add((tile * piece.rows + row) * K_TILE);
            let sums = tile_sums::<R, 1>(piece.w.add(tile * TILE + at), x, fetch);
            for (r, sum) in sums.as_flattened().iter().enumerate() {
                let y = piece.c.add((row + r) * PANEL + half * 16);
                _mm512_storeu_ps(y, _mm512_add_ps(_mm512_loadu_ps(y), *sum));
            }
        }
    }
}

/// What is fetched while a tile is used.
pub(crate) trait Fetch: Copy {
    /// For the line that stands `line` elements behind the first one.
    fn fetch(self, line: usize);
}

/// Weights of a matrix, as [`prefetch_line`] says.
#[derive(Clone, Copy)]
struct Ahead<const FAR: bool> {
    near: *const u16,
    far: *const u16,
}

impl<const FAR: bool> Fetch for Ahead<FAR> {
    #[inline(always)]
    fn fetch(self, line: usize) {
        prefetch_line::<FAR>(self.near.wrapping_add(line), self.far.wrapping_add(line));
    }
}

/// Even plus odd chain over a tile for `R` rows and `H` halves of 16 outputs.
///
/// # Safety
/// The processor has AVX-512 F, BW and BF16; `w` points to `H` halves of a tile, `x` to `R` rows of 32; both are aligned as their
/// tiles are.
#[inline(always)]
pub(crate) unsafe fn tile_sums<const R: usize, const H: usize>(
    w: *const u16,
    x: *const u16,
    fetch: impl Fetch,
) -> [[__m512; H]; R] {
    // SAFETY: a half is 16 lines of 32 elements, a row 32 elements; the features are the caller's promise.
    unsafe {
        let mut even = [[_mm512_setzero_ps(); H]; R];
        let mut odd = [[_mm512_setzero_ps(); H]; R];
        for four in 0..K_TILE / 4 {
            let mut weights = [(bf16s(_mm512_setzero_si512()), bf16s(_mm512_setzero_si512())); H];
            for (h, weights) in weights.iter_mut().enumerate() {
                let line = h * (TILE / 2) + four * 2 * PANEL;
                fetch.fetch(line);
                fetch.fetch(line + PANEL);
                *weights = pairs(w.add(line));
            }
            for r in 0..R {
                let x = x.add(r * K_TILE + four * 4).cast::<i32>();
                let (xe, xo) = (bf16s(_mm512_set1_epi32(*x)), bf16s(_mm512_set1_epi32(*x.add(1))));
                for (h, (we, wo)) in weights.into_iter().enumerate() {
                    even[r][h] = _mm512_dpbf16_ps(even[r][h], we, xe);
                    odd[r][h] = _mm512_dpbf16_ps(odd[r][h], wo, xo);
                }
            }
        }
        for r in 0..R {
            for h in 0..H {
                even[r][h] = _mm512_add_ps(even[r][h], odd[r][h]);
            }
        }
        even
    }
}

/// The even and the odd pairs of 16 outputs x 4 k.
///
/// # Safety
/// The processor has AVX-512 F, BW and BF16; `lines` points to 128 readable bytes.
#[inline(always)]
unsafe fn pairs(lines: *const u16) -> (__m512bh, __m512bh) {
    const LOWER: u32 = 0x5555_5555;
    // SAFETY: the caller's promise.
    unsafe {
        let (first, second) = (_mm512_loadu_si512(lines.cast()), _mm512_loadu_si512(lines.add(PANEL).cast()));
        let even = _mm512_mask_blend_epi16(LOWER, _mm512_slli_epi32::<16>(first), second);
        let odd = _mm512_mask_blend_epi16(LOWER, first, _mm512_srli_epi32::<16>(second));
        (bf16s(even), bf16s(odd))
    }
}

/// The same bits.
#[inline(always)]
fn bf16s(x: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes for which any bits are a value.
    unsafe { std::mem::transmute(x) }
}
