//! What is decided about a whole row, between the passes over its tiles.

use super::candidates::Candidates;
use super::dense::{Dense, mass};
use super::noise::Noise;
use super::rules::{Distribution, LogprobsWanted, RowRules, Sampling};
use super::{Choice, GROUP, TokenLogprobs};
use crate::isa::Isa;
use crate::math::{exp, ln};

/// What the first pass finds in a tile.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tile {
    pub(super) has_nan: bool,
    /// The largest logit, NaN aside, and the sum of `exp(z - max)`: both only where the model's distribution is asked for.
    pub(super) max: f32,
    pub(super) mass: f32,
}

impl Tile {
    pub(super) fn new(isa: Isa, tile: Dense<'_>, has_nan: bool, of_model: bool) -> Tile {
        let found = Tile { has_nan, ..Tile::default() };
        if !of_model {
            return found;
        }
        let max = tile.maxima.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mass = if max > f32::NEG_INFINITY { mass(isa, tile, max) } else { 0.0 };
        Tile { max, mass, ..found }
    }
}

/// A draw from the whole vocabulary, left to the passes over tiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub(super) temperature: f32,
    pub(super) noise: Noise,
    /// What the likeliest token reaches: the largest of the row is not below it.
    pub(super) threshold: f32,
}

/// Turns a logit into a log-probability: `(z / temperature - m) - ln_mass`.
#[derive(Clone, Copy, Debug, Default)]
struct Normaliser {
    temperature: f32,
    m: f32,
    ln_mass: f32,
}

impl Normaliser {
    /// Of the whole vocabulary from its tiles, ascending: `m` the largest, mass the sum of `mass * exp(max - m)`.
    fn of_model(tiles: &[Tile]) -> Normaliser {
        let m = tiles.iter().map(|tile| tile.max).fold(f32::NEG_INFINITY, f32::max);
        let mass = tiles.iter().fold(0.0, |sum, tile| sum + tile.mass * exp(tile.max - m));
        Normaliser { temperature: 1.0, m, ln_mass: ln(mass) }
    }

    fn logprob(self, z: f32) -> f32 {
        (z / self.temperature - self.m) - self.ln_mass
    }
}

/// A row between the passes, and its result.
#[derive(Debug, Default)]
pub(super) struct RowState {
    pub(super) choice: Choice,
    pub(super) stream: Option<Stream>,
    pub(super) logprobs: TokenLogprobs,
    normaliser: Normaliser,
    /// Logits from before their changes, first change first; only where the model's log-probabilities are asked for.
    original: Vec<(u32, f32)>,
    /// Groups with a changed logit.
    changed: Vec<bool>,
}

/// A row's logits, to be changed by its rules.
pub(super) struct RowLogits<'a> {
    pub(super) isa: Isa,
    pub(super) logits: &'a mut [f32],
    pub(super) maxima: &'a mut [f32],
}

impl RowLogits<'_> {
    fn dense(&self, temperature: f32) -> Dense<'_> {
        Dense { logits: self.logits, maxima: self.maxima, temperature }
    }
}

impl RowState {
    /// Applies the rules, and chooses, unless the draw is over the whole vocabulary: then [`RowState::stream`] says what is left to do.
    pub(super) fn decide(
        &mut self,
        mut row: RowLogits<'_>,
        tiles: &[Tile],
        rules: &RowRules<'_>,
        candidates: &mut Candidates,
    ) {
        self.choice = Choice { token: 0, fault: true };
        self.stream = None;
        self.logprobs.clear();
        self.original.clear();
        if tiles.iter().any(|tile| tile.has_nan) {
            return;
        }
        let wanted = rules.logprobs();
        if let Some(LogprobsWanted { top, of: Distribution::Model }) = wanted {
            self.normaliser = Normaliser::of_model(tiles);
            if !self.normaliser.m.is_finite() {
                return;
            }
            candidates.fill_largest(row.isa, row.dense(1.0), self.normaliser.m, top);
            self.report_top(candidates, top);
        }
        if let Some(token) = rules.known {
            return self.report_known(&row, token);
        }
        self.change(&mut row, rules);
        if rules.sampling.temperature == 0.0 {
            self.decide_greedy(&row, rules, candidates);
        } else {
            self.decide_draw(&row, rules, candidates);
        }
        if self.stream.is_none() && !self.choice.fault {
            self.report_chosen(row.logits, wanted);
        }
    }

    /// Applies the changes of the rules to single logits, and brings the maxima of their groups up to date.
    fn change(&mut self, row: &mut RowLogits<'_>, rules: &RowRules<'_>) {
        let Self { original, changed, .. } = self;
        let keeps_original = matches!(rules.logprobs(), Some(LogprobsWanted { of: Distribution::Model, .. }));
        changed.clear();
        changed.resize(row.maxima.len(), false);
        rules.for_each_change(|token, f| {
            let Some(logit) = row.logits.get_mut(token as usize) else { return };
            if keeps_original {
                original.push((token, *logit));
            }
            *logit = f(*logit);
            changed[token as usize / GROUP] = true;
        });
        let groups = row.logits.chunks(GROUP).zip(&mut *row.maxima).zip(changed);
        for ((group, max), _) in groups.filter(|(_, changed)| **changed) {
            *max = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        }
    }

    fn decide_greedy(&mut self, row: &RowLogits<'_>, rules: &RowRules<'_>, candidates: &mut Candidates) {
        let dense = row.dense(1.0);
        let best = match &rules.sampling.allowed {
            Some(ids) => {
                candidates.fill(allowed_of(dense, ids), 1.0);
                candidates.best().map(|candidate| (candidate.y, candidate.token))
            }
            None => dense.largest().map(|(logit, place)| (logit, place as u32)),
        };
        let Some((m, token)) = best.filter(|(m, _)| m.is_finite()) else { return };
        self.choice = Choice { token, fault: false };
        let listed = rules.sampling.allowed.is_some();
        self.report_sampled(row, rules, 1.0, m, listed, candidates);
    }

    fn decide_draw(&mut self, row: &RowLogits<'_>, rules: &RowRules<'_>, candidates: &mut Candidates) {
        let Sampling { temperature, filters, allowed, seed, choice, .. } = rules.sampling;
        let noise = Noise { seed: *seed, position: rules.position, choice: *choice };
        let dense = row.dense(*temperature);
        let (m, likeliest) = match allowed {
            Some(ids) => (candidates.fill(allowed_of(dense, ids), *temperature), 0),
            None => {
                let (z, place) = dense.largest().unzip();
                (z.map(|z| z / temperature), place.unwrap_or(0) as u32)
            }
        };
        let Some(m) = m.filter(|m| m.is_finite()) else { return };
        let listed = allowed.is_some() || filters.any();
        if allowed.is_some() {
            candidates.keep(m, filters);
        } else if listed {
            candidates.fill_filtered(row.isa, dense, m, filters);
        } else {
            let threshold = m + noise.of(likeliest);
            self.stream = Some(Stream { temperature: *temperature, noise, threshold });
        }
        if listed {
            self.choice = Choice { token: candidates.draw(row.isa, noise).token, fault: false };
        }
        self.report_sampled(row, rules, *temperature, m, listed, candidates);
    }

    /// Where the distribution that is drawn from is asked for: its normaliser and most likely tokens.
    fn report_sampled(
        &mut self,
        row: &RowLogits<'_>,
        rules: &RowRules<'_>,
        temperature: f32,
        m: f32,
        listed: bool,
        candidates: &mut Candidates,
    ) {
        let Some(LogprobsWanted { top, of: Distribution::Sampled }) = rules.logprobs() else { return };
        if listed {
            candidates.rank();
        }
        let mass = if listed { candidates.mass() } else { mass(row.isa, row.dense(temperature), m) };
        self.normaliser = Normaliser { temperature, m, ln_mass: ln(mass) };
        if !listed {
            candidates.fill_largest(row.isa, row.dense(temperature), m, top);
        }
        self.report_top(candidates, top);
    }

    fn report_top(&mut self, candidates: &Candidates, top: usize) {
        let Normaliser { m, ln_mass, .. } = self.normaliser;
        let top = candidates.list.iter().take(top);
        self.logprobs.top.extend(top.map(|candidate| (candidate.token, (candidate.y - m) - ln_mass)));
    }

    fn report_known(&mut self, row: &RowLogits<'_>, token: u32) {
        let Some(&z) = row.logits.get(token as usize) else { return };
        self.logprobs.logprob = self.normaliser.logprob(z);
        self.choice = Choice { token, fault: false };
    }

    /// The log-probability of the chosen token, once there is one. `logits` are those after the changes.
    pub(super) fn report_chosen(&mut self, logits: &[f32], wanted: Option<LogprobsWanted>) {
        if wanted.is_some() {
            let token = self.choice.token;
            let original = self.original.iter().find(|(changed, _)| *changed == token);
            let z = original.map_or(logits[token as usize], |(_, z)| *z);
            self.logprobs.logprob = self.normaliser.logprob(z);
        }
    }
}

/// The allowed tokens with their logits.
fn allowed_of(row: Dense<'_>, ids: &[u32]) -> impl Iterator<Item = (u32, f32)> {
    ids.iter().filter_map(move |&id| row.logits.get(id as usize).map(|z| (id, *z)))
}
