//! A row's few tokens that may be drawn, and the filters that choose them.
//!
//! With `m` the largest y of the row and `p = exp(y - m)`, in this order:
//! - top-k keeps the k largest y, the lower ids of equals;
//! - top-p orders by p descending, id ascending, adds p in this order and keeps what comes up to the first sum that is at least
//!   `top_p * mass`. The mass of a whole vocabulary adds p in 16 lanes over each tile, tiles ascending; that of a list adds in the
//!   list's order. A token of p = 0 is not kept;
//! - min-p keeps `p >= min_p` (the largest p is 1);
//! - typical-p: `H = ln(mass) - moment / mass`, where the moment adds `p * (y - m)` as the mass adds p; orders by the distance
//!   `|(ln(mass) - (y - m)) - H|` ascending, id ascending, adds `p / mass` in this order and keeps what comes up to the first sum that
//!   is at least `typical_p`. A token of p = 0 of a whole vocabulary is not kept.
//!
//! A list's order is by p descending, id ascending. Each filter keeps at least one token.

use super::dense::{Dense, Drawn, collect, mass, moment};
use super::noise::Noise;
use super::rules::Filters;
use crate::isa::Isa;
use crate::math::{EXP_LOWEST, exp, ln};
use crate::numerics::LANES;
use crate::vector::{Vector, per_level};

/// A token that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) token: u32,
    /// Logit over temperature.
    pub(super) y: f32,
    /// `exp(y - m)`.
    pub(super) p: f32,
}

/// Ratio of p between the borders of two bands of top-p, which are sorted one after the other.
const BAND: f32 = 0.05;
/// The first border of the distances of typical-p; each further one is twice as far.
const NEAR: f32 = 0.5;
/// What is collected below a bound that a logarithm gives, so that no rounding leaves out what belongs above.
const MARGIN: f32 = 0.01;

/// A list of candidates, and scratch.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    pub(super) list: Vec<Candidate>,
    maxima: Vec<f32>,
}

impl Candidates {
    /// Fills the list from single tokens with their logits after the rules; -inf is left out. Returns `m`, if anything is left.
    pub(super) fn fill(&mut self, tokens: impl Iterator<Item = (u32, f32)>, temperature: f32) -> Option<f32> {
        let m = self.fill_unweighed(tokens, temperature)?;
        self.list.iter_mut().for_each(|candidate| candidate.p = exp(candidate.y - m));
        Some(m)
    }

    /// As [`Candidates::fill`], with p = 0: for a draw without filters, which asks for none.
    pub(super) fn fill_unweighed(
        &mut self,
        tokens: impl Iterator<Item = (u32, f32)>,
        temperature: f32,
    ) -> Option<f32> {
        self.list.clear();
        let tokens = tokens.map(|(token, z)| Candidate { token, y: z / temperature, p: 0.0 });
        self.list.extend(tokens.filter(|candidate| candidate.y > f32::NEG_INFINITY));
        self.list.iter().map(|candidate| candidate.y).reduce(f32::max)
    }

    /// Fills the list with the n largest y of a row, or all above -inf, the largest first.
    pub(super) fn fill_largest(&mut self, isa: Isa, row: Dense<'_>, m: f32, n: usize) {
        self.list.clear();
        if n > 0 {
            let border = row.border(n, &mut self.maxima);
            collect(isa, row, m, border - m, &|candidate| candidate.y >= border, &mut self.list);
            self.top_k(n);
        }
    }

    /// Fills the list with the tokens of a row that the filters, of which there is one, keep.
    pub(super) fn fill_filtered(&mut self, isa: Isa, row: Dense<'_>, m: f32, filters: &Filters) {
        let Filters { top_k, top_p, min_p, typical_p } = *filters;
        if top_k > 0 {
            self.fill_largest(isa, row, m, top_k);
            return self.keep(m, filters);
        }
        self.list.clear();
        if top_p < 1.0 {
            self.fill_top_p(isa, row, m, top_p);
        } else if min_p > 0.0 {
            collect(isa, row, m, ln(min_p) - MARGIN, &|candidate| candidate.p >= min_p, &mut self.list);
        } else {
            return self.fill_typical_p(isa, row, m, typical_p);
        }
        self.keep(m, &Filters { top_k: 0, top_p: 1.0, ..*filters });
    }

    /// Leaves the tokens of the list that the filters keep.
    pub(super) fn keep(&mut self, m: f32, filters: &Filters) {
        if filters.top_k > 0 {
            self.top_k(filters.top_k);
        }
        if filters.top_p < 1.0 {
            self.rank();
            let target = filters.top_p * self.mass();
            self.cut_at(0, 0.0, target, |candidate| candidate.p);
        }
        if filters.min_p > 0.0 {
            self.list.retain(|candidate| candidate.p >= filters.min_p);
        }
        if filters.typical_p < 1.0 {
            self.rank();
            let mass = self.mass();
            let terms = self.list.iter().filter(|candidate| candidate.p > 0.0);
            let moment = terms.fold(0.0, |sum, candidate| sum + candidate.p * (candidate.y - m));
            let typical = Typical::new(m, mass, moment);
            self.list.sort_unstable_by_key(|candidate| typical.order(candidate));
            self.cut_at(0, 0.0, filters.typical_p, |candidate| candidate.p / mass);
        }
    }

    /// Brings the list into the order of p.
    pub(super) fn rank(&mut self) {
        self.list.sort_unstable_by_key(by_p);
    }

    /// Only as much is sorted as the sum needs.
    fn fill_top_p(&mut self, isa: Isa, row: Dense<'_>, m: f32, top_p: f32) {
        let target = top_p * mass(isa, row, m);
        let (mut sum, mut high, mut low) = (0.0, f32::INFINITY, BAND);
        loop {
            let first = self.list.len();
            let inside = |candidate: &Candidate| candidate.p >= low && candidate.p < high;
            collect(isa, row, m, ln(low) - MARGIN, &inside, &mut self.list);
            self.list[first..].sort_unstable_by_key(by_p);
            let so_far = self.cut_at(first, sum, target, |candidate| candidate.p);
            let Some(so_far) = so_far.filter(|_| low > f32::MIN_POSITIVE) else { return };
            (sum, high, low) = (so_far, low, (low * BAND).max(f32::MIN_POSITIVE));
        }
    }

    /// As [`Candidates::fill_top_p`].
    fn fill_typical_p(&mut self, isa: Isa, row: Dense<'_>, m: f32, typical_p: f32) {
        let mass = mass(isa, row, m);
        let typical = Typical::new(m, mass, moment(isa, row, m));
        let (mut sum, mut near, mut far) = (0.0, 0.0, NEAR);
        loop {
            let first = self.list.len();
            let inside = |candidate: &Candidate| {
                let distance = typical.distance(candidate);
                candidate.p > 0.0 && distance >= near && distance < far
            };
            // The least likely that is not too far, and what has any mass.
            let floor = (typical.ln_mass - typical.entropy - far - MARGIN).max(EXP_LOWEST);
            collect(isa, row, m, floor, &inside, &mut self.list);
            self.list[first..].sort_unstable_by_key(|candidate| typical.order(candidate));
            let so_far = self.cut_at(first, sum, typical_p, |candidate| candidate.p / mass);
            let Some(so_far) = so_far.filter(|_| far < f32::INFINITY) else { return };
            // Nothing with mass is further from anything than some 190.
            (sum, near, far) = (so_far, far, if far < 256.0 { far * 2.0 } else { f32::INFINITY });
        }
    }

    /// Adds weights from place `first` on to `sum` and cuts behind the first place at which it reaches `target`. Returns the sum
    /// where it never does.
    fn cut_at(
        &mut self,
        first: usize,
        mut sum: f32,
        target: f32,
        weight: impl Fn(&Candidate) -> f32,
    ) -> Option<f32> {
        for place in first..self.list.len() {
            sum += weight(&self.list[place]);
            if sum >= target {
                self.list.truncate(place + 1);
                return None;
            }
        }
        Some(sum)
    }

    fn top_k(&mut self, k: usize) {
        if k < self.list.len() {
            self.list.select_nth_unstable_by_key(k - 1, by_y);
            self.list.truncate(k);
        }
        self.list.sort_unstable_by_key(by_y);
    }

    /// The sum of p in the list's order.
    pub(super) fn mass(&self) -> f32 {
        self.list.iter().fold(0.0, |sum, candidate| sum + candidate.p)
    }

    /// The largest logit of the list, the lowest id of equals.
    pub(super) fn best(&self) -> Option<Candidate> {
        self.list.iter().copied().min_by_key(by_y)
    }

    /// The token with the largest `y + noise`, the lowest id of equals.
    pub(super) fn draw(&self, isa: Isa, noise: Noise) -> Drawn {
        draw(isa, &self.list, noise)
    }
}

/// How typical a token is.
#[derive(Clone, Copy)]
struct Typical {
    m: f32,
    ln_mass: f32,
    entropy: f32,
}

impl Typical {
    fn new(m: f32, mass: f32, moment: f32) -> Typical {
        let ln_mass = ln(mass);
        Typical { m, ln_mass, entropy: ln_mass - moment / mass }
    }

    /// From the expected surprise.
    fn distance(&self, candidate: &Candidate) -> f32 {
        let surprise = self.ln_mass - (candidate.y - self.m);
        (surprise - self.entropy).abs()
    }

    /// Ascends with the distance, then with the id.
    fn order(&self, candidate: &Candidate) -> u64 {
        u64::from(self.distance(candidate).to_bits()) << 32 | u64::from(candidate.token)
    }
}

per_level! {
    fn draw(list: &[Candidate], noise: Noise) -> Drawn = draw_of;
}

#[inline(always)]
fn draw_of<V: Vector>(v: V, list: &[Candidate], noise: Noise) -> Drawn {
    let mut best = Drawn::default();
    for chunk in list.chunks(LANES) {
        let (mut ids, mut xs) = ([0.0; LANES], [f32::NEG_INFINITY; LANES]);
        for ((id, x), candidate) in ids.iter_mut().zip(&mut xs).zip(chunk) {
            (*id, *x) = (f32::from_bits(candidate.token), candidate.y);
        }
        let x = v.add(v.load(&xs), noise.of_ids(v, v.load(&ids)));
        v.store(x, &mut xs);
        for (&x, candidate) in xs.iter().zip(chunk) {
            if x > best.x || (x == best.x && candidate.token < best.token) {
                best = Drawn { x, token: candidate.token };
            }
        }
    }
    best
}

/// Ascends as y descends, then with the id. -0 counts as +0.
fn by_y(candidate: &Candidate) -> u64 {
    let bits = (candidate.y + 0.0).to_bits();
    let ascending = if bits >> 31 == 0 { bits | 0x8000_0000 } else { !bits };
    u64::from(!ascending) << 32 | u64::from(candidate.token)
}

/// Ascends as p, which is not negative, descends, then with the id.
fn by_p(candidate: &Candidate) -> u64 {
    u64::from(!candidate.p.to_bits()) << 32 | u64::from(candidate.token)
}
