//! Products in plain Rust, on the packed layout.
use super::inputs::{GROUP, Tiled};
use super::packed::TILE;
use crate::numerics::{K_TILE, PANEL, add_z, bf16_to_f32, fma_z};

/// Panels that stand one behind the other, for every row: `c` takes `[panel][row][32 outputs]`.
pub(super) fn panels(weights: &[u16], x: Tiled<'_, f32>, c: &mut [f32]) {
    let panels = weights.chunks_exact(x.k_tiles * TILE);
    for (weights, c) in panels.zip(c.chunks_exact_mut(x.rows * PANEL)) {
        panel(weights, x, c);
    }
}

fn panel(weights: &[u16], x: Tiled<'_, f32>, c: &mut [f32]) {
    for (group, c) in x.groups().zip(c.chunks_mut(GROUP * PANEL)) {
        c.fill(0.0);
        let x = group.chunks_exact(c.len() / PANEL * K_TILE);
        for (x, weights) in x.zip(weights.chunks_exact(TILE)) {
            for (x, y) in x.chunks_exact(K_TILE).zip(c.chunks_exact_mut(PANEL)) {
                for (output, y) in y.iter_mut().enumerate() {
                    *y = add_z(*y, tile_sum(x, &weights[output / 16 * (TILE / 2) + output % 16 * 2..]));
                }
            }
        }
    }
}

/// Even plus odd chain of one output over one k tile; its pairs of weights stand [`PANEL`] elements apart.
fn tile_sum(x: &[f32], weights: &[u16]) -> f32 {
    let (mut even, mut odd) = (0.0, 0.0);
    for (x, pair) in x.chunks_exact(2).zip(weights.chunks(PANEL)) {
        even = fma_z(x[0], bf16_to_f32(pair[0]), even);
        odd = fma_z(x[1], bf16_to_f32(pair[1]), odd);
    }
    add_z(even, odd)
}
