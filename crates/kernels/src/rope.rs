//! Rotary position embedding.
//!
//! Element `m` of a head pairs with `m + d/2` over the whole head dim `d`; the first `rotated_pairs` pairs turn, the
//! others pass through. Frequencies are f32 values computed in f64; the angle `position * frequency` is one f32 product;
//! its cosine and sine are computed in f64 and rounded to f32.

use crate::isa::Isa;
use crate::math::{pow, sin_cos};
use crate::numerics::LANES;
use crate::vector::{Arith, Vector, per_level};

/// Which angles a layer type uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeSpec {
    /// Elements of a head, even.
    pub head_dim: usize,
    /// Base of the frequencies.
    pub theta: f64,
    /// Pairs that turn; `head_dim / 2` for ordinary rotary embedding.
    pub rotated_pairs: usize,
    /// Divides every frequency (1 unless the checkpoint stretches positions).
    pub factor: f64,
}

/// Frequencies of a [`RopeSpec`]: `theta^(-2m / head_dim) / factor` for each rotated pair.
#[derive(Clone, Debug)]
pub struct Rope {
    frequencies: Vec<f32>, // [rotated_pairs]
}

impl Rope {
    /// Computes the frequencies.
    pub fn new(spec: RopeSpec) -> Rope {
        assert!(spec.head_dim.is_multiple_of(2) && spec.rotated_pairs <= spec.head_dim / 2, "rope: {spec:?}");
        let frequency = |m: usize| {
            let exponent = -2.0 * m as f64 / spec.head_dim as f64;
            (pow(spec.theta, exponent) / spec.factor) as f32
        };
        Rope { frequencies: (0..spec.rotated_pairs).map(frequency).collect() }
    }

    /// Pairs that turn: the length of a table.
    pub fn rotated_pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// Cosines and sines of one position (below 2^20, so that angles stay in the range of [`sin_cos`]), each
    /// `[rotated_pairs]`.
    pub fn tables(&self, isa: Isa, position: u32, cos: &mut [f32], sin: &mut [f32]) {
        let n = self.rotated_pairs();
        assert!(cos.len() == n && sin.len() == n, "rope: tables of {} and {}, not {n}", cos.len(), sin.len());
        tables(isa, &self.frequencies, position as f32, cos, sin);
    }
}

/// Turns one head in place by the tables of its position.
pub fn apply(isa: Isa, head: &mut [f32], cos: &[f32], sin: &[f32]) {
    assert!(head.len().is_multiple_of(2), "rope: a head of {} elements", head.len());
    assert!(cos.len() == sin.len() && cos.len() <= head.len() / 2, "rope: more pairs than the head has");
    rotate(isa, head, cos, sin);
}

per_level! {
    fn tables(frequencies: &[f32], position: f32, cos: &mut [f32], sin: &mut [f32]) = tables_of;
}
per_level! {
    fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32]) = rotate_of;
}

#[inline(always)]
fn tables_of<V: Vector>(_: V, frequencies: &[f32], position: f32, cos: &mut [f32], sin: &mut [f32]) {
    for ((f, c), s) in frequencies.iter().zip(cos).zip(sin) {
        let (sine, cosine) = sin_cos(f64::from(position * f));
        (*s, *c) = (sine as f32, cosine as f32);
    }
}

/// One step of up to sixteen pairs: `(x c - y s, y c + x s)`.
#[inline(always)]
fn turn<A: Arith>(a: A, x: A::F, y: A::F, cos: A::F, sin: A::F) -> (A::F, A::F) {
    (a.fma(x, cos, a.neg(a.mul(y, sin))), a.fma(y, cos, a.mul(x, sin)))
}

#[inline(always)]
pub(crate) fn rotate_of<V: Vector>(v: V, head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let half = head.len() / 2;
    let (first, second) = head.split_at_mut(half);
    let (xs, x_rest) = first[..cos.len()].as_chunks_mut::<LANES>();
    let (ys, y_rest) = second[..cos.len()].as_chunks_mut::<LANES>();
    let (cs, c_rest) = cos.as_chunks::<LANES>();
    let (ss, s_rest) = sin.as_chunks::<LANES>();
    for (((x, y), c), s) in xs.iter_mut().zip(ys).zip(cs).zip(ss) {
        let (p, q) = turn(v, v.load(x), v.load(y), v.load(c), v.load(s));
        v.store(p, x);
        v.store(q, y);
    }
    let (c, s) = (v.load_first(c_rest), v.load_first(s_rest));
    let (p, q) = turn(v, v.load_first(x_rest), v.load_first(y_rest), c, s);
    v.store_first(p, x_rest);
    v.store_first(q, y_rest);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::available_levels;
    use crate::testing::{Random, assert_same_bits, check_levels};

    fn spec(head_dim: usize, theta: f64, rotated_pairs: usize, factor: f64) -> Rope {
        Rope::new(RopeSpec { head_dim, theta, rotated_pairs, factor })
    }

    #[test]
    fn tables_are_close_to_float64_and_equal_at_every_level() {
        for (rope, d, theta, factor) in
            [(spec(256, 1e4, 128, 1.0), 256.0, 1e4_f64, 1.0), (spec(512, 1e6, 64, 8.0), 512.0, 1e6, 8.0)]
        {
            let n = rope.rotated_pairs();
            for position in [0, 1, 17, 511, 4096, 131_071, 1_000_000] {
                let (mut cos, mut sin) = (vec![0.0; n], vec![0.0; n]);
                rope.tables(available_levels()[0], position, &mut cos, &mut sin);
                for m in 0..n {
                    let frequency = (theta.powf(-2.0 * m as f64 / d) / factor) as f32;
                    assert!((rope.frequencies[m] - frequency).abs() <= frequency * 1.2e-7);
                    let angle = f64::from(position as f32 * rope.frequencies[m]);
                    assert!((f64::from(cos[m]) - angle.cos()).abs() < 6.1e-8);
                    assert!((f64::from(sin[m]) - angle.sin()).abs() < 6.1e-8);
                }
                check_levels(&[cos, sin].concat(), &format!("tables of {position}"), |isa, out| {
                    let (cos, sin) = out.split_at_mut(n);
                    rope.tables(isa, position, cos, sin);
                });
            }
        }
    }

    #[test]
    fn heads_turn_as_the_plain_form_and_the_rest_passes_through() {
        let mut random = Random::new(6);
        for (head_dim, pairs) in [(8, 4), (24, 5), (40, 20), (64, 0), (80, 33), (256, 128), (512, 64)] {
            let x = random.fill(head_dim, Random::wild);
            let cos = random.fill(pairs, Random::uniform);
            let sin = random.fill(pairs, Random::uniform);
            let mut expected = x.clone();
            for m in 0..pairs {
                let (a, b) = (x[m], x[m + head_dim / 2]);
                expected[m] = a.mul_add(cos[m], -(b * sin[m]));
                expected[m + head_dim / 2] = b.mul_add(cos[m], a * sin[m]);
            }
            check_levels(&expected, &format!("rope of {head_dim}, {pairs} pairs"), |isa, out| {
                out.copy_from_slice(&x);
                apply(isa, out, &cos, &sin);
            });
        }
    }

    #[test]
    fn position_zero_changes_nothing() {
        let rope = spec(64, 1e4, 32, 1.0);
        let (mut cos, mut sin) = ([0.0; 32], [1.0; 32]);
        let x = Random::new(7).fill(64, Random::wild);
        for isa in available_levels() {
            rope.tables(isa, 0, &mut cos, &mut sin);
            let mut y = x.clone();
            apply(isa, &mut y, &cos, &sin);
            assert_same_bits(&y, &x, "rope at 0");
        }
    }
}
