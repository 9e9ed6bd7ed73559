//! Choosing a token from the logits of each row.
//!
//! The vocabulary is cut into tiles of [`TILE`] ids and groups of [`GROUP`]. A tile's result does not depend on who computes
//! it, and tiles join in ascending order, so rows and tiles may be shared out among threads freely.
//!
//! ```text
//! 1  each (row, tile)   softcap; largest of each group, NaN; mass for the model's log-probabilities
//! 2  each row           rules to single logits; greedy choice, or filters and a draw from the few tokens that they keep,
//! 3  each (row, tile)   or, without filters, a draw from the whole vocabulary, in which groups that cannot win are skipped
//! ```
//! What is computed: rules in `rules`, filters in `candidates`, draws in `noise`, log-probabilities in `row`. The largest of each
//! group is what makes it cheap: top-k looks into some k groups, top-p sorts what it keeps, a draw makes no noise where it
//! cannot matter.

mod candidates;
mod counts;
mod dense;
mod noise;
mod philox;
mod row;
mod rules;
mod top;

use crate::act;
use crate::isa::Isa;
use crate::math::ln;
use crate::memory::Disjoint;
use crate::pool::Team;
use candidates::Candidates;
use dense::{Dense, Drawn};
use row::{RowLogits, RowState, Tile};

pub use counts::{Seen, TokenCounts};
pub use noise::Noise;
pub use philox::philox4x32;
pub use rules::{Distribution, Filters, LogprobsWanted, Penalties, RowRules, Sampling};
pub use top::Top;

/// Token ids of one vocabulary tile.
pub const TILE: usize = 4096;
/// Token ids of one group. Divides [`TILE`].
pub const GROUP: usize = 64;

/// The token of one row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The chosen id; 0 where `fault`.
    pub token: u32,
    /// The row has a NaN among its logits, or no finite largest one: there is no choice.
    pub fault: bool,
}

/// Log-probabilities of one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenLogprobs {
    /// Of the chosen token.
    pub logprob: f32,
    /// The most likely tokens, most likely first, the lower ids of equals.
    pub top: Vec<(u32, f32)>,
}

impl TokenLogprobs {
    fn clear(&mut self) {
        self.logprob = 0.0;
        self.top.clear();
    }
}

/// Scratch memory for choosing, made at load, and the log-probabilities of the last call. (Lists of candidates grow to the
/// longest that ever was.)
#[derive(Debug, Default)]
pub struct Chooser {
    tiles: Vec<Tile>,    // [rows, tiles of the vocabulary]
    maxima: Vec<f32>,    // [rows, groups of the vocabulary]
    drawn: Vec<Drawn>,   // [rows that draw from the whole vocabulary, tiles]
    streams: Vec<usize>, // those rows
    rows: Vec<RowState>,
    candidates: Vec<Candidates>, // [threads]
}

/// Sizes of a call.
#[derive(Clone, Copy)]
struct Shape {
    vocab: usize,
    tiles: usize,
    groups: usize,
}

impl Shape {
    fn new(vocab: usize) -> Shape {
        Shape { vocab, tiles: vocab.div_ceil(TILE), groups: vocab.div_ceil(GROUP) }
    }

    /// The logits of tile `tile` of a row: their first place among all rows' and how many.
    fn logits(self, row: usize, tile: usize) -> (usize, usize) {
        (row * self.vocab + tile * TILE, TILE.min(self.vocab - tile * TILE))
    }

    fn maxima(self, row: usize, tile: usize) -> (usize, usize) {
        let first = tile * (TILE / GROUP);
        (row * self.groups + first, (TILE / GROUP).min(self.groups - first))
    }
}

impl Chooser {
    /// Makes room for `max_rows` rows of `vocab` logits, beside what there is room for already.
    pub fn reserve(&mut self, max_rows: usize, vocab: usize) {
        let shape = Shape::new(vocab);
        grow(&mut self.tiles, max_rows * shape.tiles);
        grow(&mut self.maxima, max_rows * shape.groups);
        grow(&mut self.drawn, max_rows * shape.tiles);
        grow(&mut self.rows, max_rows);
        self.streams.reserve(max_rows);
    }

    /// For each row of `logits: [choices.len(), vocab]`, a token as its rules say. Leaves the logits as they are after the rules (the
    /// allowed tokens aside), before temperature and filters.
    ///
    /// # Panics
    /// If the sizes do not fit one another, or there are more rows than there is room for.
    pub fn choose<'a>(
        &mut self,
        isa: Isa,
        team: &mut Team,
        logits: &mut [f32],
        rules: impl Fn(usize) -> RowRules<'a> + Sync,
        choices: &mut [Choice],
    ) {
        let n_rows = choices.len();
        let shape = Shape::new(logits.len().checked_div(n_rows).unwrap_or(0));
        assert_eq!(logits.len(), n_rows * shape.vocab, "one row of logits per choice");
        let fits = n_rows <= self.rows.len()
            && n_rows * shape.tiles <= self.tiles.len()
            && n_rows * shape.groups <= self.maxima.len();
        assert!(fits, "more rows than the chooser has room for");
        if shape.vocab == 0 {
            choices.fill(Choice { token: 0, fault: true });
            return;
        }
        grow(&mut self.candidates, team.threads());
        self.look(isa, team, logits, shape, n_rows, &rules);
        self.decide(isa, team, logits, shape, n_rows, &rules);
        self.draw(isa, team, logits, shape, &rules);
        choices.iter_mut().zip(&self.rows).for_each(|(choice, row)| *choice = row.choice);
    }

    /// The log-probabilities of row `row` of the last call, where its rules ask for them and it has a choice.
    pub fn logprobs(&self, row: usize) -> &TokenLogprobs {
        &self.rows[row].logprobs
    }

    /// The log-probability of a logit `z` among the logits of a few tokens, by their softmax.
    pub fn listed_logprob(&mut self, isa: Isa, logits: &[f32], z: f32) -> f32 {
        let n_groups = logits.len().div_ceil(GROUP);
        grow(&mut self.maxima, n_groups);
        let maxima = &mut self.maxima[..n_groups];
        dense::group_maxima(isa, logits, maxima);
        let m = maxima.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mass = dense::mass(isa, Dense { logits, maxima, temperature: 1.0 }, m);
        (z - m) - ln(mass)
    }

    /// As [`Chooser::choose`] for one row that has the logits of a few tokens only.
    pub fn choose_listed(
        &mut self,
        isa: Isa,
        tokens: impl Iterator<Item = (u32, f32)>,
        rules: &RowRules<'_>,
    ) -> Choice {
        grow(&mut self.candidates, 1);
        let (candidates, sampling) = (&mut self.candidates[0], rules.sampling);
        if sampling.temperature == 0.0 {
            return choose_greedily(tokens, rules);
        }
        let mut has_nan = false;
        let changed = tokens.map(|(token, z)| {
            has_nan |= z.is_nan();
            (token, rules.changed(token, z))
        });
        let filtered = sampling.filters.any();
        let m = if filtered {
            candidates.fill(changed, sampling.temperature)
        } else {
            candidates.fill_unweighed(changed, sampling.temperature)
        };
        let Some(m) = m.filter(|m| m.is_finite() && !has_nan) else {
            return Choice { token: 0, fault: true };
        };
        if filtered {
            candidates.keep(m, &sampling.filters);
        }
        let noise = Noise { seed: sampling.seed, position: rules.position, choice: sampling.choice };
        Choice { token: candidates.draw(isa, noise).token, fault: false }
    }

    /// Pass 1.
    fn look<'a>(
        &mut self,
        isa: Isa,
        team: &mut Team,
        logits: &mut [f32],
        shape: Shape,
        n_rows: usize,
        rules: &(impl Fn(usize) -> RowRules<'a> + Sync),
    ) {
        let (logits, maxima) = (Disjoint::new(logits), Disjoint::new(&mut self.maxima));
        team.run_pieces(&mut self.tiles[..n_rows * shape.tiles], 1, |_, piece, tile| {
            let (row, index) = (piece / shape.tiles, piece % shape.tiles);
            let ((from, len), (first_max, n_maxima)) = (shape.logits(row, index), shape.maxima(row, index));
            // SAFETY: these logits and maxima belong to this piece only, and `run_pieces` runs each piece once.
            let (logits, maxima) =
                unsafe { (logits.slice_mut(from, len), maxima.slice_mut(first_max, n_maxima)) };
            let rules = rules(row);
            if let Some(cap) = rules.softcap {
                act::softcap(isa, cap, logits);
            }
            let has_nan = dense::group_maxima(isa, logits, maxima);
            let of_model = matches!(rules.logprobs(), Some(LogprobsWanted { of: Distribution::Model, .. }));
            tile[0] = Tile::new(isa, Dense { logits, maxima, temperature: 1.0 }, has_nan, of_model);
        });
    }

    /// Pass 2.
    fn decide<'a>(
        &mut self,
        isa: Isa,
        team: &mut Team,
        logits: &mut [f32],
        shape: Shape,
        n_rows: usize,
        rules: &(impl Fn(usize) -> RowRules<'a> + Sync),
    ) {
        let Self { tiles, maxima, rows, candidates, .. } = self;
        let (logits, maxima) = (Disjoint::new(logits), Disjoint::new(maxima));
        let candidates = Disjoint::new(candidates);
        team.run_pieces(&mut rows[..n_rows], 1, |thread, row, state| {
            // SAFETY: the logits and maxima of row `row` belong to this piece only, and `run_pieces` runs each piece once.
            let (logits, maxima) = unsafe {
                (
                    logits.slice_mut(row * shape.vocab, shape.vocab),
                    maxima.slice_mut(row * shape.groups, shape.groups),
                )
            };
            // SAFETY: no two calls with the same thread run at once (`Team::run`).
            let candidates = unsafe { candidates.slice_mut(thread, 1) };
            let tiles = &tiles[row * shape.tiles..(row + 1) * shape.tiles];
            state[0].decide(RowLogits { isa, logits, maxima }, tiles, &rules(row), &mut candidates[0]);
        });
        self.streams.clear();
        self.streams.extend((0..n_rows).filter(|row| self.rows[*row].stream.is_some()));
    }

    /// Pass 3.
    fn draw<'a>(
        &mut self,
        isa: Isa,
        team: &mut Team,
        logits: &[f32],
        shape: Shape,
        rules: &(impl Fn(usize) -> RowRules<'a> + Sync),
    ) {
        let Self { maxima, rows, drawn, streams, .. } = self;
        let states = &*rows;
        team.run_pieces(&mut drawn[..streams.len() * shape.tiles], 1, |_, piece, drawn| {
            let (row, index) = (streams[piece / shape.tiles], piece % shape.tiles);
            let Some(stream) = states[row].stream else { return };
            let ((from, len), (first_max, n_maxima)) = (shape.logits(row, index), shape.maxima(row, index));
            let (logits, maxima) = (&logits[from..from + len], &maxima[first_max..first_max + n_maxima]);
            let tile = Dense { logits, maxima, temperature: stream.temperature };
            drawn[0] = dense::draw(isa, tile, index * (TILE / GROUP), stream.noise, stream.threshold);
        });
        for (&row, tiles) in streams.iter().zip(drawn.chunks(shape.tiles)) {
            let best =
                tiles.iter().fold(Drawn::default(), |best, tile| if tile.x > best.x { *tile } else { best });
            let state = &mut rows[row];
            state.choice = Choice { token: best.token, fault: false };
            state.report_chosen(&logits[row * shape.vocab..(row + 1) * shape.vocab], rules(row).logprobs());
        }
    }
}

/// The token with the largest logit after the rules, the lowest id of equals.
fn choose_greedily(tokens: impl Iterator<Item = (u32, f32)>, rules: &RowRules<'_>) -> Choice {
    let (mut has_nan, mut most, mut best) = (false, f32::NEG_INFINITY, u32::MAX);
    let mut see = |token, z: f32| {
        if z > most || (z == most && token < best) {
            (most, best) = (z, token);
        }
    };
    // Asking the rules about each token takes some ten times as long as looking at it. (`for_each`, as it goes through nested
    // iterators list by list.)
    if rules.change_nothing() {
        tokens.for_each(|(token, z)| {
            has_nan |= z.is_nan();
            see(token, z);
        });
    } else {
        tokens.for_each(|(token, z)| {
            has_nan |= z.is_nan();
            see(token, rules.changed(token, z));
        });
    }
    let fault = has_nan || !most.is_finite();
    Choice { token: if fault { 0 } else { best }, fault }
}

fn grow<T: Default>(list: &mut Vec<T>, len: usize) {
    list.resize_with(list.len().max(len), T::default);
}

#[cfg(test)]
mod tests;
