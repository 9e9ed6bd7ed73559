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

/// Converts one row into number `row` of a group of `rows` rows: 32 elements at every `rows`-th place of 32. What is missing
/// in the last place becomes zero.
#[inline(always)]
fn spread<T: Copy + Default>(
    from: &[f32],
    to: &mut [T],
    row: usize,
    rows: usize,
    convert: impl Fn(f32) -> T,
) {
    let mut whole = from.chunks_exact(K_TILE);
    let mut places = to.chunks_exact_mut(K_TILE).skip(row).step_by(rows);
    for (from, to) in whole.by_ref().zip(places.by_ref()) {
        for i in 0..K_TILE {
            to[i] = convert(from[i]);
        }
    }
    if let Some(to) = places.next() {
        to.fill(T::default());
        for (to, from) in to.iter_mut().zip(whole.remainder()) {
            *to = convert(*from);
        }
    }
}

#[inline(always)]
fn narrow(from: &[f32], to: &mut [u16], row: usize, rows: usize) {
    spread(from, to, row, rows, |x| round(x.to_bits()) as u16);
}

#[inline(always)]
fn wide(from: &[f32], to: &mut [f32], row: usize, rows: usize) {
    spread(from, to, row, rows, |x| f32::from_bits(round(x.to_bits()) << 16));
}

/// Rounds one row to bf16, as number `row` of a group of `rows` rows `[k tile][row][32]`, filled up with +0.
pub(super) fn round_row(isa: Isa, from: &[f32], to: &mut [u16], row: usize, rows: usize) {
    levels!(isa, narrow(from: &[f32], to: &mut [u16], row: usize, rows: usize))
}

/// As [`round_row`], widened to f32 again.
pub(super) fn round_row_wide(isa: Isa, from: &[f32], to: &mut [f32], row: usize, rows: usize) {
    levels!(isa, wide(from: &[f32], to: &mut [f32], row: usize, rows: usize))
}

/// As [`round_row_wide`], not rounded.
pub(super) fn copy_row(from: &[f32], to: &mut [f32], row: usize, rows: usize) {
    spread(from, to, row, rows, |x| x);
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
    fn rows_round_as_the_contract_says_and_go_to_their_places() {
        let grid = grid();
        for isa in available_levels() {
            for (k, row, rows) in [(64, 0, 1), (65, 2, 3), (95, 15, 16), (5632, 1, 2), (31, 0, 4), (0, 0, 1)]
            {
                let x = &grid[..k];
                let mut narrow = vec![7u16; k.next_multiple_of(K_TILE) * rows];
                let mut wide = vec![7f32; narrow.len()];
                let mut copied = vec![7f32; narrow.len()];
                round_row(isa, x, &mut narrow, row, rows);
                round_row_wide(isa, x, &mut wide, row, rows);
                copy_row(x, &mut copied, row, rows);
                for i in 0..narrow.len() {
                    let (place, offset) = (i / K_TILE, i % K_TILE);
                    let from = x.get(place / rows * K_TILE + offset).copied().unwrap_or(0.0);
                    let mine = place % rows == row;
                    let expected = if mine { (round_bf16(from), from) } else { (7, 7.0) };
                    let wide_expected = if mine { bf16_to_f32(expected.0) } else { 7.0 };
                    let what = format!("{isa:?} k {k} row {row} of {rows} at {i}: {from:e}");
                    assert_eq!(narrow[i], expected.0, "{what}");
                    assert_eq!(wide[i].to_bits(), wide_expected.to_bits(), "{what}");
                    assert_eq!(copied[i].to_bits(), expected.1.to_bits(), "{what}");
                }
            }
        }
    }
}
