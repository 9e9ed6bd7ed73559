//! Products in plain Rust, on the packed layout.
use super::packed::TILE;
use crate::numerics::{K_TILE, PANEL, add_z, bf16_to_f32, fma_z};

/// One panel for every row: `x` is rows of `k_tiles` tiles, `c` takes rows of [`PANEL`] outputs.
pub(super) fn panel(weights: &[u16], x: &[f32], c: &mut [f32]) {
    let k = weights.len() / PANEL;
    for (row, y) in c.chunks_exact_mut(PANEL).enumerate() {
        y.fill(0.0);
        let x = x[row * k..][..k].chunks_exact(K_TILE);
        for (x, weights) in x.zip(weights.chunks_exact(TILE)) {
            for (output, y) in y.iter_mut().enumerate() {
                let (mut even, mut odd) = (0.0, 0.0);
                let pairs = weights[output / 16 * (TILE / 2) + output % 16 * 2..].chunks(PANEL);
                for (x, pair) in x.chunks_exact(2).zip(pairs) {
                    even = fma_z(x[0], bf16_to_f32(pair[0]), even);
                    odd = fma_z(x[1], bf16_to_f32(pair[1]), odd);
                }
                *y = add_z(*y, add_z(even, odd));
            }
        }
    }
}
