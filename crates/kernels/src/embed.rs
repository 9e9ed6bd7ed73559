//! Embedding rows on their way into the residual stream.

use crate::isa::Isa;
use crate::numerics::{Activation, LANES};
use crate::vector::{Vector, per_level};

/// `row = round(row * scale)`, rounded to the activation type.
pub fn scale_row(isa: Isa, activation: Activation, scale: f32, row: &mut [f32]) {
    match activation {
        Activation::Bf16 => scale_bf16(isa, scale, row),
        Activation::F32 => row.iter_mut().for_each(|x| *x *= scale),
    }
}

per_level! {
    fn scale_bf16(scale: f32, row: &mut [f32]) = scale_bf16_of;
}

#[inline(always)]
fn scale_bf16_of<V: Vector>(v: V, scale: f32, row: &mut [f32]) {
    let scale = v.splat(scale);
    let (chunks, rest) = row.as_chunks_mut::<LANES>();
    for chunk in chunks {
        v.store(v.round_bf16(v.mul(v.load(chunk), scale)), chunk);
    }
    v.store_first(v.round_bf16(v.mul(v.load_first(rest), scale)), rest);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, check_levels};

    #[test]
    fn rows_are_scaled_and_rounded_at_every_length() {
        let mut random = Random::new(21);
        for n in (0..40).chain([256]) {
            let mut row = random.fill(n, Random::wild);
            if n > 20 {
                row[..3].copy_from_slice(&[f32::NAN, f32::MAX, 1e-40]);
            }
            for activation in [Activation::Bf16, Activation::F32] {
                let expected: Vec<f32> = row.iter().map(|x| activation.round(x * 16.5)).collect();
                check_levels(&expected, &format!("{activation:?} row of {n}"), |isa, out| {
                    out.copy_from_slice(&row);
                    scale_row(isa, activation, 16.5, out);
                });
            }
        }
    }
}
