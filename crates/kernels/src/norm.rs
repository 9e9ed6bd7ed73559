//! Root-mean-square norms, alone and joined with the addition to the residual stream.
//!
//! The sum of squares runs in the lanes and the tree of [`crate::numerics`], each step one FMA; then
//! `r = 1 / sqrt(sum / n + eps)` and `y = (x * r) * w`.

use crate::isa::Isa;
use crate::numerics::LANES;
use crate::vector::{Vector, per_level};

/// What a norm needs beside its input.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm<'a> {
    /// `[n]` factors in their final form (a model that stores `w - 1` adds the one when it loads); `None` means ones.
    pub weight: Option<&'a [f32]>,
    /// Added to the mean square.
    pub eps: f32,
}

impl RmsNorm<'_> {
    pub(crate) fn assert_fits(&self, n: usize) {
        assert!(self.weight.is_none_or(|w| w.len() == n), "norm: weight and row differ in length");
    }
}

/// `out = norm(x)`; `x` and `out` are one row of any length.
pub fn rms_norm(isa: Isa, x: &[f32], norm: RmsNorm<'_>, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "norm: input and output differ in length");
    norm.assert_fits(x.len());
    norm_row(isa, x, norm, out);
}

/// `x = norm(x)`.
pub fn rms_norm_in_place(isa: Isa, x: &mut [f32], norm: RmsNorm<'_>) {
    norm.assert_fits(x.len());
    norm_row_in_place(isa, x, norm);
}

/// `x = (x + norm(h)) * scale`: a branch returns to the residual stream.
pub fn add_norm(isa: Isa, x: &mut [f32], h: &[f32], norm: RmsNorm<'_>, scale: f32) {
    assert_eq!(x.len(), h.len(), "add_norm: stream and branch differ in length");
    norm.assert_fits(x.len());
    add_norm_row(isa, x, h, norm, scale);
}

/// [`add_norm`], then `out = next(x)`, the input of the following branch.
pub fn add_norm_then(
    isa: Isa,
    x: &mut [f32],
    h: &[f32],
    norm: RmsNorm<'_>,
    scale: f32,
    next: RmsNorm<'_>,
    out: &mut [f32],
) {
    assert!(
        x.len() == h.len() && x.len() == out.len(),
        "add_norm: stream, branch and output differ in length"
    );
    norm.assert_fits(x.len());
    next.assert_fits(x.len());
    add_norm_then_row(isa, x, h, norm, scale, next, out);
}

/// `x = x + h`, then `out = next(x)`: a branch without a norm of its own returns to the stream.
pub fn add_then(isa: Isa, x: &mut [f32], h: &[f32], next: RmsNorm<'_>, out: &mut [f32]) {
    assert!(x.len() == h.len() && x.len() == out.len(), "add: stream, branch and output differ in length");
    next.assert_fits(x.len());
    add_then_row(isa, x, h, next, out);
}

per_level! {
    fn norm_row(x: &[f32], norm: RmsNorm<'_>, out: &mut [f32]) = norm_of;
}
per_level! {
    fn norm_row_in_place(x: &mut [f32], norm: RmsNorm<'_>) = norm_in_place_of;
}
per_level! {
    fn add_norm_row(x: &mut [f32], h: &[f32], norm: RmsNorm<'_>, scale: f32) = add_norm_of;
}
per_level! {
    fn add_norm_then_row(
        x: &mut [f32],
        h: &[f32],
        norm: RmsNorm<'_>,
        scale: f32,
        next: RmsNorm<'_>,
        out: &mut [f32],
    ) = add_norm_then_of;
}

per_level! {
    fn add_then_row(x: &mut [f32], h: &[f32], next: RmsNorm<'_>, out: &mut [f32]) = add_then_of;
}

/// A norm's weight, cut like a row. Without one each factor is 1, which changes no bit.
#[derive(Clone, Copy)]
struct Weight<'a>(Option<(&'a [[f32; LANES]], &'a [f32])>);

impl<'a> Weight<'a> {
    #[inline(always)]
    fn new(weight: Option<&'a [f32]>) -> Weight<'a> {
        Weight(weight.map(<[f32]>::as_chunks))
    }
    #[inline(always)]
    fn chunk<V: Vector>(self, v: V, i: usize) -> V::F {
        match self.0 {
            Some((chunks, _)) => v.load(&chunks[i]),
            None => v.splat(1.0),
        }
    }
    #[inline(always)]
    fn rest<V: Vector>(self, v: V) -> V::F {
        match self.0 {
            Some((_, rest)) => v.load_first(rest),
            None => v.splat(1.0),
        }
    }
}

/// `1 / sqrt(mean square + eps)` from the lane sums of `n` squares.
#[inline(always)]
fn inverse_rms<V: Vector>(v: V, squares: V::F, n: usize, eps: f32) -> V::F {
    let mean = v.sum(squares) / n as f32;
    v.splat(1.0 / (mean + eps).sqrt())
}

#[inline(always)]
fn sum_of_squares<V: Vector>(v: V, x: &[f32]) -> V::F {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut squares = v.splat(0.0);
    for chunk in chunks {
        let x = v.load(chunk);
        squares = v.fma(x, x, squares);
    }
    let x = v.load_first(rest);
    v.fma(x, x, squares)
}

/// `out = (x * r) * w`.
#[inline(always)]
fn scale_into<V: Vector>(v: V, x: &[f32], r: V::F, weight: Option<&[f32]>, out: &mut [f32]) {
    let (xs, x_rest) = x.as_chunks::<LANES>();
    let (outs, out_rest) = out.as_chunks_mut::<LANES>();
    let weight = Weight::new(weight);
    for (i, (x, o)) in xs.iter().zip(outs).enumerate() {
        v.store(v.mul(v.mul(v.load(x), r), weight.chunk(v, i)), o);
    }
    v.store_first(v.mul(v.mul(v.load_first(x_rest), r), weight.rest(v)), out_rest);
}

#[inline(always)]
fn norm_of<V: Vector>(v: V, x: &[f32], norm: RmsNorm<'_>, out: &mut [f32]) {
    let r = inverse_rms(v, sum_of_squares(v, x), x.len(), norm.eps);
    scale_into(v, x, r, norm.weight, out);
}

#[inline(always)]
pub(crate) fn norm_in_place_of<V: Vector>(v: V, x: &mut [f32], norm: RmsNorm<'_>) {
    let r = inverse_rms(v, sum_of_squares(v, x), x.len(), norm.eps);
    let (xs, x_rest) = x.as_chunks_mut::<LANES>();
    let weight = Weight::new(norm.weight);
    for (i, x) in xs.iter_mut().enumerate() {
        v.store(v.mul(v.mul(v.load(x), r), weight.chunk(v, i)), x);
    }
    v.store_first(v.mul(v.mul(v.load_first(x_rest), r), weight.rest(v)), x_rest);
}

#[inline(always)]
fn add_norm_of<V: Vector>(v: V, x: &mut [f32], h: &[f32], norm: RmsNorm<'_>, scale: f32) {
    add_norm_squares(v, x, h, norm, scale);
}

/// Adds the normed branch to the stream and returns the lane sums of the new stream's squares.
#[inline(always)]
fn add_norm_squares<V: Vector>(v: V, x: &mut [f32], h: &[f32], norm: RmsNorm<'_>, scale: f32) -> V::F {
    let r = inverse_rms(v, sum_of_squares(v, h), h.len(), norm.eps);
    let scale = v.splat(scale);
    let mut squares = v.splat(0.0);
    let (xs, x_rest) = x.as_chunks_mut::<LANES>();
    let (hs, h_rest) = h.as_chunks::<LANES>();
    let weight = Weight::new(norm.weight);
    for (i, (x, h)) in xs.iter_mut().zip(hs).enumerate() {
        let normed = v.mul(v.mul(v.load(h), r), weight.chunk(v, i));
        let y = v.mul(v.add(v.load(x), normed), scale);
        squares = v.fma(y, y, squares);
        v.store(y, x);
    }
    let normed = v.mul(v.mul(v.load_first(h_rest), r), weight.rest(v));
    let y = v.mul(v.add(v.load_first(x_rest), normed), scale);
    // Lanes beyond the row are NaN where `r` or the scale is not finite; they are no part of the sum.
    let y = v.select(v.lanes(0, x_rest.len()), y, v.splat(0.0));
    v.store_first(y, x_rest);
    v.fma(y, y, squares)
}

#[inline(always)]
fn add_norm_then_of<V: Vector>(
    v: V,
    x: &mut [f32],
    h: &[f32],
    norm: RmsNorm<'_>,
    scale: f32,
    next: RmsNorm<'_>,
    out: &mut [f32],
) {
    let squares = add_norm_squares(v, x, h, norm, scale);
    let r = inverse_rms(v, squares, x.len(), next.eps);
    scale_into(v, x, r, next.weight, out);
}

#[inline(always)]
fn add_then_of<V: Vector>(v: V, x: &mut [f32], h: &[f32], next: RmsNorm<'_>, out: &mut [f32]) {
    let mut squares = v.splat(0.0);
    let (xs, x_rest) = x.as_chunks_mut::<LANES>();
    let (hs, h_rest) = h.as_chunks::<LANES>();
    for (x, h) in xs.iter_mut().zip(hs) {
        let y = v.add(v.load(x), v.load(h));
        squares = v.fma(y, y, squares);
        v.store(y, x);
    }
    let y = v.add(v.load_first(x_rest), v.load_first(h_rest));
    v.store_first(y, x_rest);
    let r = inverse_rms(v, v.fma(y, y, squares), x.len(), next.eps);
    scale_into(v, x, r, next.weight, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, check_levels};

    /// The contract in plain code.
    fn reference(x: &[f32], norm: RmsNorm<'_>) -> Vec<f32> {
        let mut t = [0.0_f32; LANES];
        for (i, x) in x.iter().enumerate() {
            t[i % LANES] = x.mul_add(*x, t[i % LANES]);
        }
        for w in [8, 4, 2, 1] {
            for i in 0..w {
                t[i] += t[i + w];
            }
        }
        let r = 1.0 / (t[0] / x.len() as f32 + norm.eps).sqrt();
        x.iter().enumerate().map(|(i, x)| x * r * norm.weight.map_or(1.0, |w| w[i])).collect()
    }

    const LENGTHS: [usize; 12] = [1, 2, 15, 16, 17, 31, 32, 33, 96, 257, 1536, 5376];

    fn case(random: &mut Random, n: usize) -> [Vec<f32>; 4] {
        let weight = |r: &mut Random| 1.0 + r.uniform();
        [
            random.fill(n, Random::wild),
            random.fill(n, Random::wild),
            random.fill(n, weight),
            random.fill(n, weight),
        ]
    }

    #[test]
    fn norms_equal_the_reference_at_every_length() {
        let mut random = Random::new(3);
        for n in LENGTHS {
            let [x, _, w, _] = case(&mut random, n);
            for weight in [None, Some(&w[..])] {
                let norm = RmsNorm { weight, eps: 1e-6 };
                let expected = reference(&x, norm);
                let what = format!("norm of {n}, weight {}", weight.is_some());
                check_levels(&expected, &what, |isa, out| rms_norm(isa, &x, norm, out));
                check_levels(&expected, &what, |isa, out| {
                    out.copy_from_slice(&x);
                    rms_norm_in_place(isa, out, norm);
                });
            }
        }
    }

    #[test]
    fn joined_norms_equal_their_parts() {
        let mut random = Random::new(4);
        for n in LENGTHS {
            let [x, h, w, next] = case(&mut random, n);
            for (weight, scale) in [(Some(&w[..]), 1.0), (None, 0.731), (Some(&w[..]), 0.25)] {
                let norm = RmsNorm { weight, eps: 1e-6 };
                let branch = reference(&h, norm);
                let stream: Vec<f32> = x.iter().zip(&branch).map(|(x, b)| (x + b) * scale).collect();
                let what = format!("add_norm of {n}, scale {scale}");
                check_levels(&stream, &what, |isa, out| {
                    out.copy_from_slice(&x);
                    add_norm(isa, out, &h, norm, scale);
                });
                let next = RmsNorm { weight: Some(&next), eps: 1e-5 };
                let after = reference(&stream, next);
                let both = [stream, after].concat();
                check_levels(&both, &what, |isa, out| {
                    let (stream, after) = out.split_at_mut(n);
                    stream.copy_from_slice(&x);
                    add_norm_then(isa, stream, &h, norm, scale, next, after);
                });
            }
        }
    }

    #[test]
    fn a_plain_addition_and_the_norm_behind_it_equal_their_parts() {
        let mut random = Random::new(8);
        for n in LENGTHS {
            let [x, h, w, _] = case(&mut random, n);
            let next = RmsNorm { weight: Some(&w), eps: 1e-6 };
            let stream: Vec<f32> = x.iter().zip(&h).map(|(x, h)| x + h).collect();
            let both = [stream.clone(), reference(&stream, next)].concat();
            check_levels(&both, &format!("add of {n}"), |isa, out| {
                let (stream, after) = out.split_at_mut(n);
                stream.copy_from_slice(&x);
                add_then(isa, stream, &h, next, after);
            });
        }
    }

    #[test]
    fn a_row_that_is_not_finite_gives_no_finite_norm() {
        let weight = [1.0; 37];
        let norm = RmsNorm { weight: Some(&weight), eps: 1e-6 };
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = [1.0; 37];
            x[36] = bad;
            let expected = reference(&x, norm);
            assert!(expected[36].is_nan());
            check_levels(&expected, "faulty norm", |isa, out| rms_norm(isa, &x, norm, out));
            let (scale, stream) = (1.0, [2.0_f32; 37]);
            let sum: Vec<f32> = stream.iter().zip(&expected).map(|(x, b)| x + b).collect();
            let both = [sum.clone(), reference(&sum, norm)].concat();
            check_levels(&both, "faulty add_norm", |isa, out| {
                let (x_out, after) = out.split_at_mut(37);
                x_out.copy_from_slice(&stream);
                add_norm_then(isa, x_out, &x, norm, scale, norm, after);
            });
        }
    }

    #[test]
    fn norm_is_close_to_float64() {
        let mut random = Random::new(5);
        for n in LENGTHS {
            let x = random.fill(n, Random::uniform);
            let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / n as f64;
            for (x, y) in x.iter().zip(reference(&x, RmsNorm { weight: None, eps: 1e-6 })) {
                let truth = f64::from(*x) / (mean + 1e-6).sqrt();
                assert!((f64::from(y) - truth).abs() <= 4e-7 * truth.abs(), "{y} is not {truth}");
            }
        }
    }
}
