//! Rows on their way into a kernel: rounded to the activation type, and spread over the tiles of their group.
#[cfg(target_arch = "x86_64")]
use crate::isa::Avx512;
use crate::numerics::{K_TILE, LANES};
use crate::vector::{Arith, Vector, per_level};

/// What becomes of 16 elements. A trait, as its methods can be told to be inlined into the code of a level and closures cannot:
/// called instead, they took ten times as long.
trait Put<T>: Copy {
    fn put(self, from: &[f32; LANES], to: &mut [T; LANES]);
}

/// Gives number `row` of a group of `rows` rows `[k tile][row][32]` its elements; the last tile is filled up with +0.
#[inline(always)]
fn spread<T>(from: &[f32], to: &mut [T], row: usize, rows: usize, how: impl Put<T>) {
    let (whole, rest) = from.as_chunks::<K_TILE>();
    let places = to.as_chunks_mut::<K_TILE>().0;
    for (tile, from) in whole.iter().enumerate() {
        put_tile(from, &mut places[tile * rows + row], how);
    }
    if !rest.is_empty() {
        let mut padded = [0.0; K_TILE];
        padded[..rest.len()].copy_from_slice(rest);
        put_tile(&padded, &mut places[whole.len() * rows + row], how);
    }
}

#[inline(always)]
fn put_tile<T>(from: &[f32; K_TILE], to: &mut [T; K_TILE], how: impl Put<T>) {
    for (from, to) in from.as_chunks().0.iter().zip(to.as_chunks_mut().0) {
        how.put(from, to);
    }
}

#[derive(Clone, Copy)]
struct Round<V>(V);

impl<V: Vector> Put<f32> for Round<V> {
    #[inline(always)]
    fn put(self, from: &[f32; LANES], to: &mut [f32; LANES]) {
        self.0.store(self.0.round_bf16(self.0.load(from)), to);
    }
}

#[cfg(target_arch = "x86_64")]
impl Put<u16> for Round<Avx512> {
    #[inline(always)]
    fn put(self, from: &[f32; LANES], to: &mut [u16; LANES]) {
        self.0.store_bf16(self.0.round_bf16(self.0.load(from)), to);
    }
}

#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Pair(Avx512);

#[cfg(target_arch = "x86_64")]
impl Put<u16> for Pair {
    #[inline(always)]
    fn put(self, from: &[f32; LANES], to: &mut [u16; LANES]) {
        self.0.store_bf16_paired(self.0.round_bf16(self.0.load(from)), to);
    }
}

#[derive(Clone, Copy)]
struct Keep;

impl Put<f32> for Keep {
    #[inline(always)]
    fn put(self, from: &[f32; LANES], to: &mut [f32; LANES]) {
        *to = *from;
    }
}

per_level! {
    /// Rounds one row to bf16 and widens it again, as number `row` of a group of `rows` rows `[k tile][row][32]`.
    pub(crate) fn round_row(from: &[f32], to: &mut [f32], row: usize, rows: usize) = round_row_of;
}

#[inline(always)]
fn round_row_of<V: Vector>(v: V, from: &[f32], to: &mut [f32], row: usize, rows: usize) {
    spread(from, to, row, rows, Round(v));
}

/// As [`round_row`], not rounded.
pub(crate) fn copy_row(from: &[f32], to: &mut [f32], row: usize, rows: usize) {
    spread(from, to, row, rows, Keep);
}

/// As [`round_row`], in bf16.
#[cfg(target_arch = "x86_64")]
pub(crate) fn narrow_row(v: Avx512, from: &[f32], to: &mut [u16], row: usize, rows: usize) {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    fn narrow(v: Avx512, from: &[f32], to: &mut [u16], row: usize, rows: usize) {
        spread(from, to, row, rows, Round(v));
    }
    // SAFETY: the token proves AVX-512 F, BW, DQ and VL, and with them AVX2 and FMA.
    unsafe { narrow(v, from, to, row, rows) }
}

/// As [`narrow_row`], of each four k (2, 0, 3, 1): see [`super::avx512_bf16`].
#[cfg(target_arch = "x86_64")]
pub(crate) fn paired_row(v: Avx512, from: &[f32], to: &mut [u16], row: usize, rows: usize) {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    fn pair(v: Avx512, from: &[f32], to: &mut [u16], row: usize, rows: usize) {
        spread(from, to, row, rows, Pair(v));
    }
    // SAFETY: the token proves AVX-512 F, BW, DQ and VL, and with them AVX2 and FMA.
    unsafe { pair(v, from, to, row, rows) }
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

    /// Whether each element is where and what it should be; the elements of other rows were `other`.
    fn check<T: Copy>(
        to: &[T],
        x: &[f32],
        row: usize,
        rows: usize,
        bits: impl Fn(T) -> u32,
        other: T,
        round: impl Fn(f32) -> u32,
    ) {
        for (i, &found) in to.iter().enumerate() {
            let (place, offset) = (i / K_TILE, i % K_TILE);
            let from = x.get(place / rows * K_TILE + offset).copied().unwrap_or(0.0);
            let expected = if place % rows == row { round(from) } else { bits(other) };
            assert_eq!(bits(found), expected, "k {} row {row} of {rows} at {i}: {from:e}", x.len());
        }
    }

    #[test]
    fn rows_round_as_the_contract_says_and_go_to_their_places() {
        let grid = grid();
        for isa in available_levels() {
            for (k, row, rows) in [(64, 0, 1), (65, 2, 3), (95, 15, 16), (5632, 1, 2), (31, 0, 4), (0, 0, 1)]
            {
                let x = &grid[..k];
                let len = k.next_multiple_of(K_TILE) * rows;
                let mut wide = vec![7f32; len];
                round_row(isa, x, &mut wide, row, rows);
                check(&wide, x, row, rows, f32::to_bits, 7.0, |x| bf16_to_f32(round_bf16(x)).to_bits());
                let mut copied = vec![7f32; len];
                copy_row(x, &mut copied, row, rows);
                check(&copied, x, row, rows, f32::to_bits, 7.0, f32::to_bits);
                #[cfg(target_arch = "x86_64")]
                if let Some(avx512) = isa.avx512() {
                    let mut narrow = vec![7u16; len];
                    narrow_row(avx512, x, &mut narrow, row, rows);
                    check(&narrow, x, row, rows, u32::from, 7, |x| u32::from(round_bf16(x)));
                    let mut paired = vec![7u16; len];
                    paired_row(avx512, x, &mut paired, row, rows);
                    let unpaired: Vec<u16> =
                        paired.chunks_exact(4).flat_map(|of| [of[1], of[3], of[0], of[2]]).collect();
                    assert_eq!(unpaired, narrow, "k {k} row {row} of {rows}");
                }
            }
        }
    }
}
