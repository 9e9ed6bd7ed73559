//! Rounding whole rows to bf16: [`round_bf16`](crate::numerics::round_bf16) without branches, so that it becomes vector
//! code at the width of the level.
use crate::isa::{Isa, Level};
use crate::numerics::K_TILE;

/// Calls a plain function compiled for the level.
macro_rules! levels {
    ($isa:ident, $plain:ident($($argument:ident: $type:ty),*)) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
        fn avx512($($argument: $type),*) {
            $plain($($argument),*)
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn avx2($($argument: $type),*) {
            $plain($($argument),*)
        }
        match $isa.level() {
            // SAFETY: an `Isa` of this level proves that the processor has the features of `avx512`.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Amx => unsafe { avx512($($argument),*) },
            // SAFETY: an `Isa` of this level proves that the processor has the features of `avx2`.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { avx2($($argument),*) },
            _ => $plain($($argument),*),
        }
    }};
}

/// Bits of the bf16 nearest to an f32, given as its bits.
#[inline(always)]
fn round(bits: u32) -> u32 {
    let magnitude = bits & 0x7FFF_FFFF;
    let nearest = bits.wrapping_add(0x7FFF).wrapping_add(bits >> 16 & 1) >> 16;
    let flushed = if nearest & 0x7F80 == 0 { nearest & 0x8000 } else { nearest };
    if magnitude > 0x7F80_0000 { 0x7FC0 } else { flushed }
}

#[inline(always)]
fn wide(from: &[f32], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = f32::from_bits(round(from.to_bits()) << 16);
    }
}

#[inline(always)]
fn tiles(from: &[f32], to: &mut [u16], row: usize, rows: usize) {
    let mut whole = from.chunks_exact(K_TILE);
    let mut places = to.chunks_exact_mut(K_TILE).skip(row).step_by(rows);
    for (from, to) in whole.by_ref().zip(places.by_ref()) {
        for i in 0..K_TILE {
            to[i] = round(from[i].to_bits()) as u16;
        }
    }
    if let Some(to) = places.next() {
        to.fill(0);
        for (to, from) in to.iter_mut().zip(whole.remainder()) {
            *to = round(from.to_bits()) as u16;
        }
    }
}

/// Rounds `from` to bf16 and widens it again.
pub(super) fn round_wide(isa: Isa, from: &[f32], to: &mut [f32]) {
    assert_eq!(from.len(), to.len());
    levels!(isa, wide(from: &[f32], to: &mut [f32]))
}

/// Rounds one row to bf16 as number `row` of a row tile with `rows` rows: 32 elements at every `rows`-th place of 32. What is
/// missing in the last place becomes +0.
pub(super) fn round_tiles(isa: Isa, from: &[f32], to: &mut [u16], row: usize, rows: usize) {
    assert_eq!(to.len(), from.len().next_multiple_of(K_TILE) * rows);
    levels!(isa, tiles(from: &[f32], to: &mut [u16], row: usize, rows: usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::available_levels;
    use crate::numerics::{bf16_to_f32, round_bf16};

    /// Every exponent and sign with mantissas around the rounding points, and NaNs.
    fn grid() -> Vec<f32> {
        let mantissas =
            [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x1_8000, 0x7E_8000, 0x7F_7FFF, 0x7F_8000, 0x7F_FFFF];
        let bits = (0..512u32).flat_map(|high| mantissas.map(|low| high << 23 | low));
        bits.map(f32::from_bits).collect()
    }

    #[test]
    fn rows_round_as_the_contract_says() {
        let x = grid();
        for isa in available_levels() {
            let mut wide = vec![0.0; x.len()];
            round_wide(isa, &x, &mut wide);
            for (x, y) in x.iter().zip(&wide) {
                assert_eq!(y.to_bits(), bf16_to_f32(round_bf16(*x)).to_bits(), "{isa:?} {x:e}");
            }
        }
    }

    #[test]
    fn rows_become_tiles() {
        let grid = grid();
        for isa in available_levels() {
            for (k, row, rows) in [(64, 0, 1), (65, 2, 3), (95, 15, 16), (5632, 1, 2), (31, 0, 4), (0, 0, 1)]
            {
                let x = &grid[..k];
                let mut tiles = vec![7u16; k.next_multiple_of(K_TILE) * rows];
                round_tiles(isa, x, &mut tiles, row, rows);
                for (i, &y) in tiles.iter().enumerate() {
                    let (place, offset) = (i / K_TILE, i % K_TILE);
                    let expected = match x.get(place / rows * K_TILE + offset) {
                        _ if place % rows != row => 7,
                        Some(x) => round_bf16(*x),
                        None => 0,
                    };
                    assert_eq!(y, expected, "{isa:?} k {k} row {row} of {rows} at {i}");
                }
            }
        }
    }
}
