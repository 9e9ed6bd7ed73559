//! Products with AVX-512F: 16 outputs a vector, one FMA chain per output, row and parity of k.
//!
//! A weight line holds 16 outputs x 2 k: the even k widen by a shift, the odd ones by a mask. No sum crosses lanes, so
//! the width of the vectors cannot show in the bits. VDPBF16PS adds in another order and has half the throughput here.
use std::arch::x86_64::{
    __m512, _mm512_add_ps, _mm512_and_si512, _mm512_castsi512_ps, _mm512_fmadd_ps, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi32,
    _mm512_storeu_ps,
};

use super::fma::{Piece, each_piece};
use super::inputs::Tiled;
use super::packed::{TILE, prefetch_line};
use crate::isa::{Avx512, with_flush};
use crate::numerics::{K_TILE, PANEL};

/// Rows that take a weight together.
const MOST_ROWS: usize = 8;

/// Panels that stand one behind the other, for every row: `c` takes `[panel][row][32 outputs]`. `FAR` as for
/// [`prefetch_line`].
pub(super) fn panels<const FAR: bool>(_: Avx512, weights: &[u16], x: Tiled<'_, f32>, c: &mut [f32]) {
    // SAFETY: `Avx512` proves the features, and the piece's pointers are good. `all_rows` is what `with_flush` asks for: not
    // inlined, intrinsics only, from memory to memory, no panic.
    each_piece(weights, x, c, |piece| unsafe { with_flush(|| all_rows::<FAR>(piece)) });
}

/// # Safety
/// The piece's pointers have the lengths that [`Piece`] says.
#[target_feature(enable = "avx512f")]
#[inline(never)]
unsafe fn all_rows<const FAR: bool>(piece: Piece<f32>) {
    // SAFETY: each arm takes all rows.
    unsafe {
        match piece.rows {
            1 => few::<1, FAR>(piece),
            2 => few::<2, FAR>(piece),
            3 => few::<3, FAR>(piece),
            4 => few::<4, FAR>(piece),
            _ => many::<FAR>(piece),
        }
    }
}

/// More than four rows: in blocks, tile by tile, the running sums in memory.
///
/// # Safety
/// As [`all_rows`].
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn many<const FAR: bool>(piece: Piece<f32>) {
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
            // SAFETY: these rows are there, and they are as many as the arm says: 4 to 8, as a piece has 5 to 16 here.
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

/// 16 outputs x 2 k, as even and odd weights.
///
/// # Safety
/// `line` points to 64 readable bytes.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn weights(line: *const u16) -> (__m512, __m512) {
    // SAFETY: the caller's promise.
    let both = unsafe { _mm512_loadu_si512(line.cast()) };
    let odd = _mm512_and_si512(both, _mm512_set1_epi32(0xFFFF_0000_u32.cast_signed()));
    (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(both)), _mm512_castsi512_ps(odd))
}

/// All of `R` rows, both halves of the panel together: 4 R chains, the running sums in registers.
///
/// # Safety
/// As [`all_rows`]; there are `R` rows.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn few<const R: usize, const FAR: bool>(piece: Piece<f32>) {
    let mut y = [[_mm512_setzero_ps(); 2]; R];
    if !piece.first {
        for (i, y) in y.as_flattened_mut().iter_mut().enumerate() {
            // SAFETY: R rows of two vectors of sums.
            *y = unsafe { _mm512_loadu_ps(piece.c.add(i * 16)) };
        }
    }
    for tile in 0..piece.k_tiles {
        let mut even = [[_mm512_setzero_ps(); 2]; R];
        let mut odd = [[_mm512_setzero_ps(); 2]; R];
        let (near, far) = (piece.tile_ahead(tile, 1), piece.tile_ahead(tile, 4));
        for pair in 0..K_TILE / 2 {
            for half in 0..2 {
                let line = half * (TILE / 2) + pair * PANEL;
                prefetch_line::<FAR>(near.wrapping_add(line), far.wrapping_add(line));
                // SAFETY: a tile is 2 halves of 16 lines of 32 elements; R rows of 32 k lie in the tile of x.
                unsafe {
                    let (we, wo) = weights(piece.w.add(tile * TILE + line));
                    for r in 0..R {
                        let x = piece.x.add((tile * R + r) * K_TILE + pair * 2);
                        even[r][half] = _mm512_fmadd_ps(_mm512_set1_ps(*x), we, even[r][half]);
                        odd[r][half] = _mm512_fmadd_ps(_mm512_set1_ps(*x.add(1)), wo, odd[r][half]);
                    }
                }
            }
        }
        for r in 0..R {
            for half in 0..2 {
                y[r][half] = _mm512_add_ps(y[r][half], _mm512_add_ps(even[r][half], odd[r][half]));
            }
        }
    }
    for (i, y) in y.as_flattened().iter().enumerate() {
        // SAFETY: R rows of two vectors of sums.
        unsafe { _mm512_storeu_ps(piece.c.add(i * 16), *y) };
    }
}

/// A tile for `R` rows from `row` on, one half of the panel at a time: 2 R chains, the running sums in memory.
///
/// # Safety
/// As [`all_rows`]; the tile and the rows are there.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn some<const R: usize, const FAR: bool>(piece: Piece<f32>, tile: usize, row: usize) {
    let (near, far) = (piece.tile_ahead(tile, 1), piece.tile_ahead(tile, 4));
    for half in 0..2 {
        let mut even = [_mm512_setzero_ps(); R];
        let mut odd = [_mm512_setzero_ps(); R];
        for pair in 0..K_TILE / 2 {
            let line = half * (TILE / 2) + pair * PANEL;
            prefetch_line::<FAR>(near.wrapping_add(line), far.wrapping_add(line));
            // SAFETY: as in `few`, R rows from `row` on.
            unsafe {
                let (we, wo) = weights(piece.w.add(tile * TILE + line));
                for r in 0..R {
                    let x = piece.x.add((tile * piece.rows + row + r) * K_TILE + pair * 2);
                    even[r] = _mm512_fmadd_ps(_mm512_set1_ps(*x), we, even[r]);
                    odd[r] = _mm512_fmadd_ps(_mm512_set1_ps(*x.add(1)), wo, odd[r]);
                }
            }
        }
        for r in 0..R {
            // SAFETY: R rows of two vectors of sums stand from `row` on.
            unsafe {
                let y = piece.c.add((row + r) * PANEL + half * 16);
                _mm512_storeu_ps(y, _mm512_add_ps(_mm512_loadu_ps(y), _mm512_add_ps(even[r], odd[r])));
            }
        }
    }
}
