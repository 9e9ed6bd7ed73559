//! The contract of a product in plain code.
//!
//! `y = sum over k tiles, ascending, of (even chain + odd chain)`: see [`crate::numerics`], "Products". Every level of
//! [`crate::linear::linear`] gives these bits, whatever else is in the call.
use crate::numerics::{Activation, K_TILE, add_z, bf16_to_f32, fma_z};

/// One output for one row: `x` holds `k` activations, `weights` the bf16 bits of the output's `k` weights.
pub fn product(x: &[f32], activation: Activation, weights: &[u16]) -> f32 {
    assert_eq!(x.len(), weights.len());
    let mut y = 0.0;
    for (x, weights) in x.chunks(K_TILE).zip(weights.chunks(K_TILE)) {
        let (mut even, mut odd) = (0.0, 0.0);
        for i in (0..K_TILE).step_by(2) {
            // Past the end both factors are +0: such an FMA still turns a flushed -0 into +0.
            let x = |i: usize| x.get(i).map_or(0.0, |&x| activation.round(x));
            let weight = |i: usize| weights.get(i).map_or(0.0, |&w| bf16_to_f32(w));
            even = fma_z(x(i), weight(i), even);
            odd = fma_z(x(i + 1), weight(i + 1), odd);
        }
        y = add_z(y, add_z(even, odd));
    }
    y
}
