//! Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011): four random words that
//! are a pure function of a counter and a key, so that the noise of a token needs no state and no order.

use crate::vector::{Arith, Single};

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// What a round adds to the key.
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Four words for `counter` under `key`.
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    philox_of(Single, counter.map(f32::from_bits), key).map(f32::to_bits)
}

/// [`philox4x32`] for each lane; words are the bits of the lanes.
#[inline(always)]
pub(super) fn philox_of<A: Arith>(a: A, counter: [A::F; 4], mut key: [u32; 2]) -> [A::F; 4] {
    let (m0, m1) = (a.splat_bits(MULTIPLIERS[0]), a.splat_bits(MULTIPLIERS[1]));
    let mut c = counter;
    for _ in 0..ROUNDS {
        let (low0, high0) = a.mul_wide(c[0], m0);
        let (low1, high1) = a.mul_wide(c[2], m1);
        let (k0, k1) = (a.splat_bits(key[0]), a.splat_bits(key[1]));
        c = [a.xor(a.xor(high1, c[1]), k0), low1, a.xor(a.xor(high0, c[3]), k1), low0];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    c
}

#[cfg(test)]
mod tests {
    use super::philox4x32;

    /// The known answers that the authors publish with their library (Random123).
    #[test]
    fn known_answers() {
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, words) in cases {
            assert_eq!(philox4x32(counter, key), words);
        }
    }
}
