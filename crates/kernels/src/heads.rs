//! Norm and rotary embedding of all heads of a row: the same bits as [`rms_norm_in_place`](crate::norm::rms_norm_in_place) and
//! [`rope::apply`](crate::rope::apply) head by head, in one go, so that a head does not wait for the one before it.

use crate::isa::Isa;
use crate::norm::{RmsNorm, norm_in_place_of};
use crate::rope::rotate_of;
use crate::vector::{Vector, per_level};

/// Norms each head of `dim` elements.
///
/// # Panics
/// If these are no whole heads, or the norm's weight does not fit one.
pub fn norm_heads(isa: Isa, heads: &mut [f32], dim: usize, norm: RmsNorm<'_>) {
    norm_and_turn_heads(isa, heads, dim, norm, &[], &[]);
}

/// Norms each head of `dim` elements and turns it by the tables of its position.
///
/// # Panics
/// As [`norm_heads`], and if the tables differ in length or have more pairs than a head.
pub fn norm_and_turn_heads(
    isa: Isa,
    heads: &mut [f32],
    dim: usize,
    norm: RmsNorm<'_>,
    cos: &[f32],
    sin: &[f32],
) {
    assert!(
        dim.is_multiple_of(2) && heads.len().is_multiple_of(dim),
        "{} elements for heads of {dim}",
        heads.len()
    );
    norm.assert_fits(dim);
    assert!(cos.len() == sin.len() && cos.len() <= dim / 2, "rope: more pairs than the head has");
    all_heads(isa, heads, dim, norm, cos, sin);
}

per_level! {
    fn all_heads(heads: &mut [f32], dim: usize, norm: RmsNorm<'_>, cos: &[f32], sin: &[f32]) = all_heads_of;
}

#[inline(always)]
fn all_heads_of<V: Vector>(v: V, heads: &mut [f32], dim: usize, norm: RmsNorm<'_>, cos: &[f32], sin: &[f32]) {
    for head in heads.chunks_exact_mut(dim) {
        norm_in_place_of(v, head, norm);
        if !cos.is_empty() {
            rotate_of(v, head, cos, sin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::available_levels;
    use crate::norm::rms_norm_in_place;
    use crate::rope;
    use crate::testing::{Random, check_levels};

    #[test]
    fn heads_equal_one_after_the_other() {
        let mut random = Random::new(12);
        let plain = available_levels()[0];
        for (n, dim, pairs) in [(0, 8, 4), (1, 8, 4), (3, 24, 5), (4, 64, 32), (5, 80, 0), (2, 256, 64)] {
            let x = random.fill(n * dim, Random::wild);
            let weight = random.fill(dim, Random::uniform);
            let (cos, sin) = (random.fill(pairs, Random::uniform), random.fill(pairs, Random::uniform));
            for weight in [None, Some(&weight[..])] {
                let norm = RmsNorm { weight, eps: 1e-6 };
                let (mut normed, mut turned) = (x.clone(), x.clone());
                normed.chunks_exact_mut(dim).for_each(|head| rms_norm_in_place(plain, head, norm));
                for head in turned.chunks_exact_mut(dim) {
                    rms_norm_in_place(plain, head, norm);
                    rope::apply(plain, head, &cos, &sin);
                }
                let what = format!("{n} heads of {dim}, {pairs} pairs");
                check_levels(&normed, &what, |isa, out| {
                    out.copy_from_slice(&x);
                    norm_heads(isa, out, dim, norm);
                });
                check_levels(&turned, &what, |isa, out| {
                    out.copy_from_slice(&x);
                    norm_and_turn_heads(isa, out, dim, norm, &cos, &sin);
                });
            }
        }
    }
}
