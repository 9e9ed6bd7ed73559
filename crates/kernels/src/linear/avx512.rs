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
unsafe fn all_rows<const FAR: bool>(piece: Piece) {
    let mut row = 0;
    while row < piece.rows {
        // SAFETY: each arm takes no more rows than are left.
        unsafe {
            match piece.rows - row {
                1 => few::<1, FAR>(piece, row),
                2 => few::<2, FAR>(piece, row),
                3 => few::<3, FAR>(piece, row),
                4..=7 => few::<4, FAR>(piece, row),
                _ => eight::<FAR>(piece, row),
            }
        }
        row += match piece.rows - row {
            few @ 1..=3 => few,
            4..=7 => 4,
            _ => 8,
        };
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

/// `R` rows from `row` on, both halves of the panel together: 4 R chains, the running sums in registers.
///
/// # Safety
/// As [`all_rows`]; the rows are there.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn few<const R: usize, const FAR: bool>(piece: Piece, row: usize) {
    let mut y = [[_mm512_setzero_ps(); 2]; R];
    if !piece.first {
        for (i, y) in y.as_flattened_mut().iter_mut().enumerate() {
            // SAFETY: R rows of two vectors of sums from `row` on.
            *y = unsafe { _mm512_loadu_ps(piece.c.add(row * PANEL + i * 16)) };
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
                // SAFETY: a tile is 2 halves of 16 lines of 32 elements; R rows of 32 k from `row` on lie in the tile of x.
                unsafe {
                    let (we, wo) = weights(piece.w.add(tile * TILE + line));
                    for r in 0..R {
                        let x = piece.x.add((tile * piece.rows + row + r) * K_TILE + pair * 2);
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
        // SAFETY: R rows of two vectors of sums from `row` on.
        unsafe { _mm512_storeu_ps(piece.c.add(row * PANEL + i * 16), *y) };
    }
}

/// Eight rows from `row` on, one half of the panel at a time: 16 chains, the running sums in memory.
///
/// # Safety
/// As [`few`], with eight rows.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn eight<const FAR: bool>(piece: Piece, row: usize) {
    const R: usize = 8;
    // SAFETY: eight rows of two vectors of sums from `row` on.
    let c = unsafe { piece.c.add(row * PANEL) };
    if piece.first {
        for i in 0..R * 2 {
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(c.add(i * 16), _mm512_setzero_ps()) };
        }
    }
    for step in 0..piece.k_tiles * 2 {
        let (tile, half) = (step / 2, step % 2);
        let mut even = [_mm512_setzero_ps(); R];
        let mut odd = [_mm512_setzero_ps(); R];
        let (near, far) = (piece.tile_ahead(tile, 1), piece.tile_ahead(tile, 4));
        for pair in 0..K_TILE / 2 {
            let line = half * (TILE / 2) + pair * PANEL;
            prefetch_line::<FAR>(near.wrapping_add(line), far.wrapping_add(line));
            // SAFETY: as in `few`.
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
            // SAFETY: eight rows of two vectors lie behind `c`.
            unsafe {
                let y = c.add(r * PANEL + half * 16);
                _mm512_storeu_ps(y, _mm512_add_ps(_mm512_loadu_ps(y), _mm512_add_ps(even[r], odd[r])));
            }
        }
    }
}
