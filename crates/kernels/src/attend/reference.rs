//! The contract of attention in plain code: see [`crate::numerics`], "Attention".

use std::ops::Range;

use crate::math::exp;
use crate::numerics::{Activation, K_TILE, LANES, SPAN, SPLIT, add_z, fma_z};

/// K and V of one K/V head by absolute position, not rounded yet: `get(position)` is `(k, v)`, each `[head_dim]`.
pub trait Keys {
    /// K and V of a visible position.
    fn get(&self, position: usize) -> (&[f32], &[f32]);
}

/// One head of one row: `q: [head_dim]`, not rounded yet, attends to the positions of `visible`. Zeros where there are
/// none.
pub fn attend(
    q: &[f32],
    keys: &dyn Keys,
    visible: Range<usize>,
    scale: f32,
    activation: Activation,
) -> Vec<f32> {
    let mut total: Option<Part> = None;
    for span in visible.start / SPAN..visible.end.div_ceil(SPAN) {
        let mut in_span: Option<Part> = None;
        for split in span * (SPAN / SPLIT)..(span + 1) * (SPAN / SPLIT) {
            let seen = visible.start.max(split * SPLIT)..visible.end.min((split + 1) * SPLIT);
            if !seen.is_empty() {
                fold(&mut in_span, attend_split(q, keys, split * SPLIT, seen, scale, activation));
            }
        }
        if let Some(part) = in_span {
            fold(&mut total, part);
        }
    }
    let Some(total) = total else { return vec![0.0; q.len()] };
    let r = 1.0 / total.l;
    total.o.iter().map(|o| o * r).collect()
}

/// Largest score, sum of probabilities and their product with V, not divided.
struct Part {
    m: f32,
    l: f32,
    o: Vec<f32>,
}

fn fold(sum: &mut Option<Part>, b: Part) {
    let Some(a) = sum else {
        *sum = Some(b);
        return;
    };
    let m = if a.m > b.m { a.m } else { b.m };
    let (fa, fb) = (exp(a.m - m), exp(b.m - m));
    a.m = m;
    a.l = a.l.mul_add(fa, b.l * fb);
    for (a, b) in a.o.iter_mut().zip(b.o) {
        *a = a.mul_add(fa, b * fb);
    }
}

/// The split of keys `first ..`, of which `visible` are seen (at least one).
fn attend_split(
    q: &[f32],
    keys: &dyn Keys,
    first: usize,
    visible: Range<usize>,
    scale: f32,
    activation: Activation,
) -> Part {
    let round = |x: f32| activation.round(x);
    let score = |key: usize| product(q.len(), |d| round(q[d]), |d| round(keys.get(key).0[d])) * scale;
    let scores: Vec<f32> = visible.clone().map(score).collect();
    // A NaN score never becomes the largest; its row is NaN all the same, by `l`.
    let m = scores.iter().fold(f32::NEG_INFINITY, |m, s| if *s > m { *s } else { m });
    let mut p = [0.0_f32; SPLIT];
    for (key, s) in visible.clone().zip(&scores) {
        p[key - first] = exp(s - m);
    }
    let mut t = [0.0_f32; LANES];
    for (i, p) in p.iter().enumerate() {
        t[i % LANES] += p;
    }
    for w in [8, 4, 2, 1] {
        for i in 0..w {
            t[i] += t[i + w];
        }
    }
    let value = |key: usize, d: usize| if visible.contains(&key) { round(keys.get(key).1[d]) } else { 0.0 };
    let o = (0..q.len()).map(|d| product(SPLIT, |i| round(p[i]), |i| value(first + i, d)) + 0.0);
    Part { m, l: t[0], o: o.collect() }
}

/// A sum of `n` products in the order of products.
fn product(n: usize, a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32) -> f32 {
    let mut y = 0.0;
    for tile in (0..n).step_by(K_TILE) {
        let (mut even, mut odd) = (0.0, 0.0);
        for k in (tile..tile + K_TILE).step_by(2) {
            // Past the end both factors are +0.
            let of = |k: usize| if k < n { (a(k), b(k)) } else { (0.0, 0.0) };
            even = fma_z(of(k).0, of(k).1, even);
            odd = fma_z(of(k + 1).0, of(k + 1).1, odd);
        }
        y = add_z(y, add_z(even, odd));
    }
    y
}
