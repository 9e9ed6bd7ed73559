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
/// Rows that take two quarters of a panel together: a chain of one parity each, two weights, an input and the mask are the sixteen
/// registers. An input is loaded for two multiplications: one quarter at a time needs more loads than multiplications.
const MOST_ROWS: usize = 6;
/// Rows up to which two blocks do.
const TWO_BLOCKS: usize = 2 * MOST_ROWS;

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
unsafe fn all_rows<const FAR: bool>(piece: Piece<f32>) {
    if piece.rows == 1 {
        // SAFETY: the caller's promise.
        return unsafe { one::<FAR>(piece) };
    }
    if piece.first {
        for i in 0..piece.rows * QUARTERS {
            // SAFETY: each row has four vectors of sums.
            unsafe { _mm256_storeu_ps(piece.c.add(i * 8), _mm256_setzero_ps()) };
        }
    }
    // A tile is in L1 while the blocks of rows take it one after the other.
    for tile in 0..piece.k_tiles {
        let mut row = 0;
        while row < piece.rows {
            let rows = match piece.rows - row {
                left @ ..=MOST_ROWS => left,
                left @ ..=TWO_BLOCKS => left.div_ceil(2),
                _ => MOST_ROWS,
            };
            // SAFETY: these rows are there, and they are as many as the arm says: 2 to 6, as `all_rows` has at least two.
            unsafe {
                match (rows, FAR && row == 0) {
                    (2, true) => two::<true>(piece, tile, row),
                    (2, false) => two::<false>(piece, tile, row),
                    (3, true) => some::<3, true>(piece, tile, row),
                    (3, false) => some::<3, false>(piece, tile, row),
                    (4, true) => some::<4, true>(piece, tile, row),
                    (4, false) => some::<4, false>(piece, tile, row),
                    (5, true) => some::<5, true>(piece, tile, row),
                    (5, false) => some::<5, false>(piece, tile, row),
                    (_, true) => some::<6, true>(piece, tile, row),
                    (_, false) => some::<6, false>(piece, tile, row),
                }
            }
            row += rows;
        }
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

/// The only row, all quarters of the panel together: eight chains, as fewer would wait for the latency of FMA.
///
/// # Safety
/// As [`all_rows`]; there is one row.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn one<const FAR: bool>(piece: Piece<f32>) {
    let c = piece.c;
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
                let x = piece.x.add(tile * K_TILE + pair * 2);
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

/// A tile for two rows from `row` on, one half of the panel at a time, both parities together: eight chains.
///
/// # Safety
/// As [`all_rows`]; the tile and the rows are there.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn two<const FAR: bool>(piece: Piece<f32>, tile: usize, row: usize) {
    let (near, far) = (piece.tile_ahead(tile, 1), piece.tile_ahead(tile, 4));
    for half in 0..2 {
        let mut even = [[_mm256_setzero_ps(); 2]; 2];
        let mut odd = [[_mm256_setzero_ps(); 2]; 2];
        for pair in 0..K_TILE / 2 {
            let line = place(2 * half, pair);
            prefetch_line::<FAR>(near.wrapping_add(line), far.wrapping_add(line));
            // SAFETY: the tile and its two rows of x are there (the caller's promise).
            unsafe {
                let w = piece.w.add(tile * TILE + line);
                let [(e0, o0), (e1, o1)] = [weights(w), weights(w.add(16))];
                for r in 0..2 {
                    let x = piece.x.add((tile * piece.rows + row + r) * K_TILE + pair * 2);
                    let (xe, xo) = (_mm256_set1_ps(*x), _mm256_set1_ps(*x.add(1)));
                    even[r] = [_mm256_fmadd_ps(xe, e0, even[r][0]), _mm256_fmadd_ps(xe, e1, even[r][1])];
                    odd[r] = [_mm256_fmadd_ps(xo, o0, odd[r][0]), _mm256_fmadd_ps(xo, o1, odd[r][1])];
                }
            }
        }
        // SAFETY: the sums of these rows are there.
        unsafe { add_sums(piece.c.add(row * PANEL + half * 16), even, odd) };
    }
}

/// A tile for `R` rows from `row` on, one half of the panel at a time, one parity after the other: 2 R chains.
///
/// # Safety
/// As [`all_rows`]; the tile and the rows are there.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn some<const R: usize, const FAR: bool>(piece: Piece<f32>, tile: usize, row: usize) {
    let (near, far) = (piece.tile_ahead(tile, 1), piece.tile_ahead(tile, 4));
    for half in 0..2 {
        let mut even = [[_mm256_setzero_ps(); 2]; R];
        let mut odd = [[_mm256_setzero_ps(); 2]; R];
        // SAFETY: the tile, its R rows of x and their sums are there (the caller's promise).
        unsafe {
            let x = piece.x.add((tile * piece.rows + row) * K_TILE);
            for pair in 0..K_TILE / 2 {
                let line = place(2 * half, pair);
                prefetch_line::<FAR>(near.wrapping_add(line), far.wrapping_add(line));
                let w = piece.w.add(tile * TILE + line);
                let (a, b) = (weights(w).0, weights(w.add(16)).0);
                for (r, even) in even.iter_mut().enumerate() {
                    let x = _mm256_set1_ps(*x.add(r * K_TILE + pair * 2));
                    *even = [_mm256_fmadd_ps(x, a, even[0]), _mm256_fmadd_ps(x, b, even[1])];
                }
            }
            for pair in 0..K_TILE / 2 {
                let w = piece.w.add(tile * TILE + place(2 * half, pair));
                let (a, b) = (weights(w).1, weights(w.add(16)).1);
                for (r, odd) in odd.iter_mut().enumerate() {
                    let x = _mm256_set1_ps(*x.add(r * K_TILE + pair * 2 + 1));
                    *odd = [_mm256_fmadd_ps(x, a, odd[0]), _mm256_fmadd_ps(x, b, odd[1])];
                }
            }
            add_sums(piece.c.add(row * PANEL + half * 16), even, odd);
        }
    }
}

/// Adds both chains of 16 outputs of `R` rows to the running sums.
///
/// # Safety
/// `y` points to the sums of the first row's outputs; the next row's are [`PANEL`] further.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn add_sums<const R: usize>(y: *mut f32, even: [[__m256; 2]; R], odd: [[__m256; 2]; R]) {
    for (r, (even, odd)) in even.into_iter().zip(odd).enumerate() {
        for (q, (even, odd)) in even.into_iter().zip(odd).enumerate() {
            // SAFETY: the caller's promise.
            unsafe {
                let y = y.add(r * PANEL + q * 8);
                _mm256_storeu_ps(y, _mm256_add_ps(_mm256_loadu_ps(y), _mm256_add_ps(even, odd)));
            }
        }
    }
}
