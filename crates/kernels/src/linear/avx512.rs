//! Products with AVX-512F: 16 outputs a vector, one FMA chain per output, row and parity of k.
//!
//! A weight line holds 16 outputs x 2 k: the even k widen by a shift, the odd ones by a mask. No sum crosses lanes, so
//! the width of the vectors cannot show in the bits. VDPBF16PS adds in another order and has half the throughput here.
use std::arch::x86_64::{
    __m512, _mm512_add_ps, _mm512_and_si512, _mm512_castsi512_ps, _mm512_fmadd_ps, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi32,
    _mm512_storeu_ps,
};

use super::inputs::{GROUP, Tiled};
use super::packed::{TILE, prefetch_line};
use crate::isa::{Avx512, with_flush};
use crate::numerics::{K_TILE, PANEL};

/// One panel for every row: `c` takes rows of [`PANEL`] outputs.
/// `FAR` as for [`prefetch_line`].
pub(super) fn panel<const FAR: bool>(_: Avx512, weights: &[u16], x: Tiled<'_, f32>, c: &mut [f32]) {
    let k_tiles = weights.len() / TILE;
    assert_eq!(weights.len(), k_tiles * TILE);
    for (group, c) in x.groups().zip(c.chunks_mut(GROUP * PANEL)) {
        let rows = c.len() / PANEL;
        assert_eq!(group.len(), rows * k_tiles * K_TILE);
        // SAFETY: `Avx512` proves the features. The lengths, asserted above, are those that `group_rows` asks for. It
        // is what `with_flush` asks for: not inlined, intrinsics only, from memory to memory, no panic.
        unsafe {
            with_flush(|| group_rows::<FAR>(weights.as_ptr(), k_tiles, group.as_ptr(), rows, c.as_mut_ptr()));
        }
    }
}

/// # Safety
/// `w` points to `k_tiles` packed tiles, `x` to `[k tile][row][32]` of `rows` rows, `c` to `rows` rows of 32 outputs.
#[target_feature(enable = "avx512f")]
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
                1 => few::<1, FAR>(w, k_tiles, x, rows, c),
                2 => few::<2, FAR>(w, k_tiles, x, rows, c),
                3 => few::<3, FAR>(w, k_tiles, x, rows, c),
                4..=7 => few::<4, FAR>(w, k_tiles, x, rows, c),
                _ => eight::<FAR>(w, k_tiles, x, rows, c),
            }
        }
        row += match rows - row {
            few @ 1..=3 => few,
            4..=7 => 4,
            _ => 8,
        };
    }
}

/// 16 outputs x 2 k, as even and odd weights, and a prefetch of what follows.
///
/// # Safety
/// `line` points to 64 readable bytes.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn weights<const FAR: bool>(line: *const u16) -> (__m512, __m512) {
    prefetch_line::<FAR>(line);
    // SAFETY: the caller's promise.
    let both = unsafe { _mm512_loadu_si512(line.cast()) };
    let odd = _mm512_and_si512(both, _mm512_set1_epi32(0xFFFF_0000_u32.cast_signed()));
    (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(both)), _mm512_castsi512_ps(odd))
}

/// `R` rows, both halves of the panel together: 4 R chains, the running sums in registers.
///
/// # Safety
/// As [`group_rows`], from one of its rows on: tiles of `stride` rows, of which `R` are there.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn few<const R: usize, const FAR: bool>(
    w: *const u16,
    k_tiles: usize,
    x: *const f32,
    stride: usize,
    c: *mut f32,
) {
    let mut y = [[_mm512_setzero_ps(); 2]; R];
    for tile in 0..k_tiles {
        let mut even = [[_mm512_setzero_ps(); 2]; R];
        let mut odd = [[_mm512_setzero_ps(); 2]; R];
        for pair in 0..K_TILE / 2 {
            for half in 0..2 {
                // SAFETY: a tile is 2 halves of 16 lines of 32 elements; R rows of 32 k lie in the tile of x.
                unsafe {
                    let (we, wo) = weights::<FAR>(w.add(tile * TILE + half * (TILE / 2) + pair * PANEL));
                    for r in 0..R {
                        let x = x.add((tile * stride + r) * K_TILE + pair * 2);
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
    for (r, y) in y.iter().enumerate() {
        for (half, y) in y.iter().enumerate() {
            // SAFETY: R rows of 32 outputs lie behind `c`.
            unsafe { _mm512_storeu_ps(c.add(r * PANEL + half * 16), *y) };
        }
    }
}

/// Eight rows, one half of the panel at a time: 16 chains, the running sums in `c`.
///
/// # Safety
/// As [`few`], with eight rows.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn eight<const FAR: bool>(w: *const u16, k_tiles: usize, x: *const f32, stride: usize, c: *mut f32) {
    const R: usize = 8;
    for i in 0..R * 2 {
        // SAFETY: eight rows of two vectors lie behind `c`.
        unsafe { _mm512_storeu_ps(c.add(i * 16), _mm512_setzero_ps()) };
    }
    for step in 0..k_tiles * 2 {
        let (tile, half) = (step / 2, step % 2);
        let mut even = [_mm512_setzero_ps(); R];
        let mut odd = [_mm512_setzero_ps(); R];
        for pair in 0..K_TILE / 2 {
            // SAFETY: as in `few`; step `2 tile + half` starts at that half of the tile.
            unsafe {
                let (we, wo) = weights::<FAR>(w.add(step * (TILE / 2) + pair * PANEL));
                for r in 0..R {
                    let x = x.add((tile * stride + r) * K_TILE + pair * 2);
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
