//! Products with AVX2 and FMA: 8 outputs a vector, one FMA chain per output, row and parity of k, as in the AVX-512 form.
use std::arch::x86_64::{
    __m256, _mm256_add_ps, _mm256_and_si256, _mm256_castsi256_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_slli_epi32,
    _mm256_storeu_ps,
};

use super::inputs::{GROUP, Tiled};
use super::packed::{TILE, prefetch_line};
use crate::isa::{Avx2, with_flush};
use crate::numerics::{K_TILE, PANEL};

/// Vectors of 8 outputs in a panel.
const QUARTERS: usize = 4;

/// One panel for every row: `c` takes rows of [`PANEL`] outputs.
/// `FAR` as for [`prefetch_line`].
pub(super) fn panel<const FAR: bool>(_: Avx2, weights: &[u16], x: Tiled<'_, f32>, c: &mut [f32]) {
    let k_tiles = weights.len() / TILE;
    assert_eq!(weights.len(), k_tiles * TILE);
    for (group, c) in x.groups().zip(c.chunks_mut(GROUP * PANEL)) {
        let rows = c.len() / PANEL;
        assert_eq!(group.len(), rows * k_tiles * K_TILE);
        // SAFETY: `Avx2` proves the features. The lengths, asserted above, are those that `group_rows` asks for. It is
        // what `with_flush` asks for: not inlined, intrinsics only, from memory to memory, no panic.
        unsafe {
            with_flush(|| group_rows::<FAR>(weights.as_ptr(), k_tiles, group.as_ptr(), rows, c.as_mut_ptr()));
        }
    }
}

/// # Safety
/// `w` points to `k_tiles` packed tiles, `x` to `[k tile][row][32]` of `rows` rows, `c` to `rows` rows of 32 outputs.
#[target_feature(enable = "avx2,fma")]
#[inline(never)]
unsafe fn group_rows<const FAR: bool>(
    w: *const u16,
    k_tiles: usize,
    x: *const f32,
    rows: usize,
    c: *mut f32,
) {
    let mut row = 0;
    while row < rows {
        // SAFETY: `row` and the number of rows that each arm takes stay within `rows`, so both pointers do within
        // the first tile and the results; the functions' other demands are this function's own.
        unsafe {
            let (x, c) = (x.add(row * K_TILE), c.add(row * PANEL));
            match rows - row {
                1 => one::<FAR>(w, k_tiles, x, rows, c),
                2 => some::<2, FAR>(w, k_tiles, x, rows, c),
                3 => some::<3, FAR>(w, k_tiles, x, rows, c),
                _ => some::<4, FAR>(w, k_tiles, x, rows, c),
            }
        }
        row += (rows - row).min(4);
    }
}

/// 8 outputs x 2 k, as even and odd weights; the first half of a line prefetches the line that follows.
///
/// # Safety
/// `line` points to a packed tile, `quarter` and `pair` are in range there.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn weights<const FAR: bool>(tile: *const u16, quarter: usize, pair: usize) -> (__m256, __m256) {
    // SAFETY: two halves of 16 lines of 32 elements; a quarter is half of a line.
    let both = unsafe {
        let at = tile.add(quarter / 2 * (TILE / 2) + pair * PANEL + quarter % 2 * 16);
        if quarter.is_multiple_of(2) {
            prefetch_line::<FAR>(at);
        }
        _mm256_loadu_si256(at.cast())
    };
    let odd = _mm256_and_si256(both, _mm256_set1_epi32(0xFFFF_0000_u32.cast_signed()));
    (_mm256_castsi256_ps(_mm256_slli_epi32::<16>(both)), _mm256_castsi256_ps(odd))
}

/// One row, all quarters of the panel together: eight chains, as fewer would wait for the latency of FMA.
///
/// # Safety
/// As [`group_rows`], from one of its rows on: tiles of `stride` rows.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn one<const FAR: bool>(w: *const u16, k_tiles: usize, x: *const f32, stride: usize, c: *mut f32) {
    let mut y = [_mm256_setzero_ps(); QUARTERS];
    for tile in 0..k_tiles {
        let mut even = [_mm256_setzero_ps(); QUARTERS];
        let mut odd = [_mm256_setzero_ps(); QUARTERS];
        for pair in 0..K_TILE / 2 {
            // SAFETY: the tile and its row of x are there (the caller's promise).
            unsafe {
                let x = x.add(tile * stride * K_TILE + pair * 2);
                let (xe, xo) = (_mm256_set1_ps(*x), _mm256_set1_ps(*x.add(1)));
                for q in 0..QUARTERS {
                    let (we, wo) = weights::<FAR>(w.add(tile * TILE), q, pair);
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
        // SAFETY: 32 outputs lie behind `c`.
        unsafe { _mm256_storeu_ps(c.add(q * 8), *y) };
    }
}

/// `R` rows, one quarter of the panel at a time: 2 R chains, the running sums in `c`.
///
/// # Safety
/// As [`one`], with `R` rows.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn some<const R: usize, const FAR: bool>(
    w: *const u16,
    k_tiles: usize,
    x: *const f32,
    stride: usize,
    c: *mut f32,
) {
    for i in 0..R * QUARTERS {
        // SAFETY: R rows of four vectors lie behind `c`.
        unsafe { _mm256_storeu_ps(c.add(i * 8), _mm256_setzero_ps()) };
    }
    for step in 0..k_tiles * QUARTERS {
        let (tile, q) = (step / QUARTERS, step % QUARTERS);
        let mut even = [_mm256_setzero_ps(); R];
        let mut odd = [_mm256_setzero_ps(); R];
        for pair in 0..K_TILE / 2 {
            // SAFETY: the tile and its R rows of x are there (the caller's promise).
            unsafe {
                let (we, wo) = weights::<FAR>(w.add(tile * TILE), q, pair);
                for r in 0..R {
                    let x = x.add((tile * stride + r) * K_TILE + pair * 2);
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
