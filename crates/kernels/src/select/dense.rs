//! The logits of a whole row, with the largest of each group: what most passes over the vocabulary can skip by.

use super::candidates::Candidate;
use super::noise::{HIGHEST, Noise, noise_bound, noise_of};
use super::{GROUP, TILE};
use crate::math::{EXP_LOWEST, exp_of};
use crate::numerics::LANES;
use crate::vector::{Vector, per_level};

/// A row, or a tile of it, as `y = z / temperature`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dense<'a> {
    pub(super) logits: &'a [f32],
    /// The largest logit of each [`GROUP`].
    pub(super) maxima: &'a [f32],
    pub(super) temperature: f32,
}

/// The best of a draw so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drawn {
    /// `y + noise`; -inf where nothing is drawn.
    pub(super) x: f32,
    pub(super) token: u32,
}

impl Default for Drawn {
    fn default() -> Drawn {
        Drawn { x: f32::NEG_INFINITY, token: 0 }
    }
}

impl Dense<'_> {
    /// The largest logit and the lowest id that has it; `None` if there is none above -inf.
    pub(super) fn largest(&self) -> Option<(f32, usize)> {
        let mut best: Option<(f32, usize)> = None;
        for (group, &max) in self.maxima.iter().enumerate() {
            if max > best.map_or(f32::NEG_INFINITY, |(logit, _)| logit) {
                best = Some((max, group));
            }
        }
        let (logit, group) = best?;
        let place = self.logits[group * GROUP..].iter().position(|z| *z == logit);
        Some((logit, group * GROUP + place.expect("the group has its largest logit")))
    }

    /// A bound that at least `n` values of y reach, tight where the largest are spread over the groups: the n-th largest of the groups'
    /// largest. `scratch` is overwritten.
    pub(super) fn border(&self, n: usize, scratch: &mut Vec<f32>) -> f32 {
        if n > self.maxima.len() {
            return f32::MIN;
        }
        scratch.clear();
        scratch.extend_from_slice(self.maxima);
        let (_, nth, _) = scratch.select_nth_unstable_by(n - 1, |a, b| b.total_cmp(a));
        (*nth / self.temperature).max(f32::MIN)
    }
}

per_level! {
    /// Writes the largest of each group of `x`, NaN aside (-inf where there is none); says whether there is a NaN.
    pub(super) fn group_maxima(x: &[f32], maxima: &mut [f32]) -> bool = group_maxima_of;
}
per_level! {
    /// The sum of `exp(y - m)`: 16 lanes over each tile, tiles ascending.
    pub(super) fn mass(row: Dense<'_>, m: f32) -> f32 = mass_of;
}
per_level! {
    /// The sum of `exp(y - m) * (y - m)`, in the order of [`mass`]; 0 for what has no mass.
    pub(super) fn moment(row: Dense<'_>, m: f32) -> f32 = moment_of;
}
per_level! {
    /// Appends the tokens that `keep` accepts, ascending. It accepts none with `y - m < floor`.
    pub(super) fn collect(
        row: Dense<'_>,
        m: f32,
        floor: f32,
        keep: &dyn Fn(&Candidate) -> bool,
        list: &mut Vec<Candidate>,
    ) = collect_of;
}
per_level! {
    /// The token of a tile, whose first group is `first_group`, with the largest `y + noise`, the lowest of equals. Groups that
    /// cannot reach `threshold` are left out.
    pub(super) fn draw(tile: Dense<'_>, first_group: usize, noise: Noise, threshold: f32) -> Drawn = draw_of;
}

/// The lanes of a group; what is missing in the last group of a row is -inf, in `padding`.
#[inline(always)]
fn lanes_of<'a>(group: &'a [f32], padding: &'a mut [f32; GROUP]) -> &'a [[f32; LANES]] {
    let whole = match <&[f32; GROUP]>::try_from(group) {
        Ok(group) => group,
        Err(_) => {
            padding.fill(f32::NEG_INFINITY);
            padding[..group.len()].copy_from_slice(group);
            padding
        }
    };
    whole.as_chunks::<LANES>().0
}

const NO_PADDING: [f32; GROUP] = [0.0; GROUP];

#[inline(always)]
fn group_maxima_of<V: Vector>(v: V, x: &[f32], maxima: &mut [f32]) -> bool {
    let (mut nan, mut padding) = (v.splat(0.0), NO_PADDING);
    for (group, max) in x.chunks(GROUP).zip(maxima) {
        let mut best = v.splat(f32::NEG_INFINITY);
        for x in lanes_of(group, &mut padding) {
            let x = v.load(x);
            best = v.max(x, best);
            nan = v.select(v.le(x, x), nan, v.splat(1.0));
        }
        *max = v.max_lane(best);
    }
    v.any(v.lt(v.splat(0.0), nan))
}

#[inline(always)]
fn mass_of<V: Vector>(v: V, row: Dense<'_>, m: f32) -> f32 {
    sum_of(
        v,
        row,
        m,
        #[inline(always)]
        |p, _| p,
    )
}

#[inline(always)]
fn moment_of<V: Vector>(v: V, row: Dense<'_>, m: f32) -> f32 {
    sum_of(
        v,
        row,
        m,
        #[inline(always)]
        |p, x| v.select(v.lt(v.splat(0.0), p), v.mul(p, x), p),
    )
}

/// The sum of `term(exp(y - m), y - m)`: 16 lanes over each tile, tiles ascending. A term without mass is +0.
#[inline(always)]
fn sum_of<V: Vector>(v: V, row: Dense<'_>, m: f32, term: impl Fn(V::F, V::F) -> V::F) -> f32 {
    let (temperature, m_lanes) = (v.splat(row.temperature), v.splat(m));
    let (mut total, mut padding) = (0.0, NO_PADDING);
    for (tile, maxima) in row.logits.chunks(TILE).zip(row.maxima.chunks(TILE / GROUP)) {
        let mut sums = v.splat(0.0);
        for (group, max) in tile.chunks(GROUP).zip(maxima) {
            // What is left out is +0, whose addition changes nothing.
            if max / row.temperature - m < EXP_LOWEST {
                continue;
            }
            for z in lanes_of(group, &mut padding) {
                let x = v.sub(v.div(v.load(z), temperature), m_lanes);
                sums = v.add(sums, term(exp_of(v, x), x));
            }
        }
        total += v.sum(sums);
    }
    total
}

#[inline(always)]
fn collect_of<V: Vector>(
    v: V,
    row: Dense<'_>,
    m: f32,
    floor: f32,
    keep: &dyn Fn(&Candidate) -> bool,
    list: &mut Vec<Candidate>,
) {
    let mut padding = NO_PADDING;
    for (g, (group, max)) in row.logits.chunks(GROUP).zip(row.maxima).enumerate() {
        // Division and subtraction keep the order: no `y - m` of the group is above this.
        if max / row.temperature - m < floor {
            continue;
        }
        for (i, z) in lanes_of(group, &mut padding).iter().enumerate() {
            let y = v.div(v.load(z), v.splat(row.temperature));
            let x = v.sub(y, v.splat(m));
            if v.any(v.le(v.splat(floor), x)) {
                let (mut ys, mut ps) = ([0.0; LANES], [0.0; LANES]);
                v.store(y, &mut ys);
                v.store(exp_of(v, x), &mut ps);
                let first = (g * GROUP + i * LANES) as u32;
                let all = (first..).zip(ys).zip(ps).map(|((token, y), p)| Candidate { token, y, p });
                // What the padding of a short group adds is -inf.
                list.extend(all.filter(|candidate| candidate.y > f32::NEG_INFINITY && keep(candidate)));
            }
        }
    }
}

#[inline(always)]
fn draw_of<V: Vector>(v: V, tile: Dense<'_>, first_group: usize, noise: Noise, threshold: f32) -> Drawn {
    let inverse = v.splat(tile.temperature.recip());
    let (mut best, mut padding) = (Drawn::default(), NO_PADDING);
    for (g, (group, max)) in tile.logits.chunks(GROUP).zip(tile.maxima).enumerate() {
        let least = if best.x > threshold { best.x } else { threshold };
        // Rounding keeps the order: no `y + noise` of the group is above this sum, so none is the largest of the row.
        if max / tile.temperature + HIGHEST < least {
            continue;
        }
        let group = lanes_of(group, &mut padding);
        let words = noise.words_of_group(v, first_group + g);
        let mut highest = v.splat(f32::NEG_INFINITY);
        for (z, words) in group.iter().zip(words) {
            // At least z / temperature, whatever was rounded.
            let y = v.mul(v.load(z), inverse);
            let y = v.fma(v.abs(y), v.splat(1e-6), y);
            highest = v.max(v.add(y, noise_bound(v, words)), highest);
        }
        if v.any(v.le(v.splat(least), highest)) {
            let drawn = draw_group(v, group, tile.temperature, words);
            if drawn.x > best.x {
                best = Drawn { token: ((first_group + g) * GROUP) as u32 + drawn.token, ..drawn };
            }
        }
    }
    best
}

/// The place in a group with the largest `y + noise`.
#[inline(always)]
fn draw_group<V: Vector>(
    v: V,
    group: &[[f32; LANES]],
    temperature: f32,
    words: [V::F; GROUP / LANES],
) -> Drawn {
    let mut best = Drawn::default();
    for (i, (z, words)) in group.iter().zip(words).enumerate() {
        let mut x = [0.0; LANES];
        v.store(v.add(v.div(v.load(z), v.splat(temperature)), noise_of(v, words)), &mut x);
        for (lane, &x) in x.iter().enumerate() {
            if x > best.x {
                best = Drawn { x, token: (i * LANES + lane) as u32 };
            }
        }
    }
    best
}
