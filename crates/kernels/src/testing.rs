//! What the tests of several kernels share: numbers, comparison of bits, all levels.

use crate::isa::{Isa, available_levels};

/// A small generator (SplitMix64): the same numbers from the same seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }
    /// Uniform in -1 .. 1.
    pub(crate) fn uniform(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / 8_388_608.0 - 1.0
    }
    /// A value of widely varying magnitude, now and then zero.
    pub(crate) fn wild(&mut self) -> f32 {
        if self.below(16) == 0 {
            return 0.0;
        }
        self.uniform() * ((self.below(40) as f32) - 20.0).exp2()
    }
    pub(crate) fn fill(&mut self, n: usize, mut value: impl FnMut(&mut Random) -> f32) -> Vec<f32> {
        (0..n).map(|_| value(self)).collect()
    }
}

/// Bits, with one pattern for all NaN: their payload is not part of the contract.
pub(crate) fn bits(x: f32) -> u32 {
    if x.is_nan() { 0x7FC0_0000 } else { x.to_bits() }
}

/// Panics with the first place where two results differ in a bit.
#[track_caller]
pub(crate) fn assert_same_bits(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: lengths");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!(
            bits(*f) == bits(*e),
            "{what}: element {i} is {f:e} ({:08x}), not {e:e} ({:08x})",
            bits(*f),
            bits(*e)
        );
    }
}

/// Runs `kernel` at every level of this machine and checks its output against `expected`.
#[track_caller]
pub(crate) fn check_levels(expected: &[f32], what: &str, mut kernel: impl FnMut(Isa, &mut [f32])) {
    for isa in available_levels() {
        let mut found = vec![f32::NAN; expected.len()];
        kernel(isa, &mut found);
        assert_same_bits(&found, expected, &format!("{what} at {}", isa.level()));
    }
}

/// Error of `found` in units of the last place of the f32 nearest to `truth`.
pub(crate) fn ulps(found: f32, truth: f64) -> f64 {
    let near = (truth as f32).abs().max(f32::MIN_POSITIVE);
    let ulp = f64::from(f32::from_bits(near.to_bits() + 1)) - f64::from(near);
    (f64::from(found) - truth).abs() / ulp
}
