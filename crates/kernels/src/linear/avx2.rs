//! Products with AVX2 and FMA: 8 outputs a vector, one FMA chain per output, row and parity of k, as in the AVX-512 form.
use std::arch::x86_64::{
    __m256, _mm256_add_ps, _mm256_and_si256, _mm256_castsi256_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_slli_epi32,
    _mm256_storeu_ps,
};

use super::fma::{Piece, each_piece};
use super::inputs::Tiled;
use super::packed::{TILE, prefetch_line};
use crate::isa::{Avx2, with_flush};
use crate::numerics::{K_TILE, PANEL};

/// Vectors of 8 outputs in a panel.
const QUARTERS: usize = 4;

/// Panels that stand one behind the other, for every row: `c` takes `[panel][row][32 outputs]`. `FAR` as for
/// [`prefetch_line`].
pub(super) fn panels<const FAR: bool>(_: Avx2, weights: &[u16], x: Tiled<'_, f32>, c: &mut [f32]) {
    // SAFETY: `Avx2` proves the features, and the piece's pointers are good. `all_rows` is what `with_flush` asks for: not
    // inlined, intrinsics only, from memory to memory, no panic.
    each_piece(weights, x, c, |piece| unsafe { with_flush(|| all_rows::<FAR>(piece)) });
}

/// # Safety
/// The piece's pointers have the lengths that [`Piece`] says.
#[target_feature(enable = "avx2,fma")]
#[inline(never)]
unsafe fn all_rows<const FAR: bool>(piece: Piece) {
    let mut row = 0;
    while row < piece.rows {
        // SAFETY: each arm takes no more rows than are left.
        unsafe {
            match piece.rows - row {
                1 => one::<FAR>(piece, row),
                2 => some::<2, FAR>(piece, row),
                3 => some::<3, FAR>(piece, row),
                _ => some::<4, FAR>(piece, row),
            }
        }
        row += (piece.rows - row).min(4);
    }
}

/// Where a quarter of a pair's line starts in its tile.
#[inline(always)]
fn place(quarter: usize, pair: usize) -> usize {
    quarter / 2 * (TILE / 2) + pair * PANEL + quarter % 2 * 16
}

/// 8 outputs x 2 k, as even and odd weights.
///
/// # Safety
/// `half_line` points to 32 readable bytes.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn weights(half_line: *const u16) -> (__m256, __m256) {
    // SAFETY: the caller's promise.
    let both = unsafe { _mm256_loadu_si256(half_line.cast()) };
    let odd = _mm256_and_si256(both, _mm256_set1_epi32(0xFFFF_0000_u32.cast_signed()));
    (_mm256_castsi256_ps(_mm256_slli_epi32::<16>(both)), _mm256_castsi256_ps(odd))
}

/// One row, all quarters of the panel together: eight chains, as fewer would wait for the latency of FMA.
///
/// # Safety
/// As [`all_rows`]; the row is there.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn one<const FAR: bool>(piece: Piece, row: usize) {
    // SAFETY: 32 sums of this row.
    let c = unsafe { piece.c.add(row * PANEL) };
    let mut y = [_mm256_setzero_ps(); QUARTERS];
    if !piece.first {
        for (q, y) in y.iter_mut().enumerate() {
            // SAFETY: as above.
            *y = unsafe { _mm256_loadu_ps(c.add(q * 8)) };
        }
    }
    for tile in 0..piece.k_tiles {
        let mut even = [_mm256_setzero_ps(); QUARTERS];
        let mut odd = [_mm256_setzero_ps(); QUARTERS];
        let (near, far) = (piece.tile_ahead(tile, 1), piece.tile_ahead(tile, 4));
        for pair in 0..K_TILE / 2 {
            // SAFETY: the tile and its row of x are there (the caller's promise).
            unsafe {
                let x = piece.x.add((tile * piece.rows + row) * K_TILE + pair * 2);
                let (xe, xo) = (_mm256_set1_ps(*x), _mm256_set1_ps(*x.add(1)));
                for q in 0..QUARTERS {
                    let at = place(q, pair);
                    if q.is_multiple_of(2) {
                        prefetch_line::<FAR>(near.wrapping_add(at), far.wrapping_add(at));
                    }
                    let (we, wo) = weights(piece.w.add(tile * TILE + at));
                    even[q] = _mm256_fmadd_ps(xe, we, even[q]);
                    odd[q] = _mm256_fmadd_ps(xo, wo, odd[q]);
                }
            }
        }
        for q in 0..QUARTERS {
            y[q] = _mm256_add_ps(y[q], _mm256_add_ps(even[q], odd[q]));
        }
    }
    for (q, y) in y.iter().enumerate() {
        // SAFETY: 32 sums lie behind `c`.
        unsafe { _mm256_storeu_ps(c.add(q * 8), *y) };
    }
}

/// `R` rows from `row` on, one quarter of the panel at a time: 2 R chains, the running sums in memory.
///
/// # Safety
/// As [`all_rows`]; the rows are there.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn some<const R: usize, const FAR: bool>(piece: Piece, row: usize) {
    // SAFETY: R rows of four vectors of sums from `row` on.
    let c = unsafe { piece.c.add(row * PANEL) };
    if piece.first {
        for i in 0..R * QUARTERS {
            // SAFETY: as above.
            unsafe { _mm256_storeu_ps(c.add(i * 8), _mm256_setzero_ps()) };
        }
    }
    for step in 0..piece.k_tiles * QUARTERS {
        let (tile, q) = (step / QUARTERS, step % QUARTERS);
        let mut even = [_mm256_setzero_ps(); R];
        let mut odd = [_mm256_setzero_ps(); R];
        let (near, far) = (piece.tile_ahead(tile, 1), piece.tile_ahead(tile, 4));
        for pair in 0..K_TILE / 2 {
            let at = place(q, pair);
            if q.is_multiple_of(2) {
                prefetch_line::<FAR>(near.wrapping_add(at), far.wrapping_add(at));
            }
            // SAFETY: the tile and its R rows of x are there (the caller's promise).
            unsafe {
                let (we, wo) = weights(piece.w.add(tile * TILE + at));
                for r in 0..R {
                    let x = piece.x.add((tile * piece.rows + row + r) * K_TILE + pair * 2);
                    even[r] = _mm256_fmadd_ps(_mm256_set1_ps(*x), we, even[r]);
                    odd[r] = _mm256_fmadd_ps(_mm256_set1_ps(*x.add(1)), wo, odd[r]);
                }
            }
        }
        for r in 0..R {
            // SAFETY: R rows of four vectors lie behind `c`.
            unsafe {
                let y = c.add(r * PANEL + q * 8);
                _mm256_storeu_ps(y, _mm256_add_ps(_mm256_loadu_ps(y), _mm256_add_ps(even[r], odd[r])));
            }
        }
    }
}
