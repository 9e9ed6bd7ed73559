//! What a request asks of the choice of its tokens, and what becomes of logits before anything is drawn.
//!
//! In this order, each step in f32: softcap; suppressed tokens and end tokens that may not come yet to -inf (tokens outside
//! the allowed ones take no part at all); `z + bias`; repetition penalty for every token of prompt and output, `z / r` where
//! `z > 0`, else `z * r`; for tokens of the output `z - presence`, then `z - frequency * count`.

use super::counts::Seen;

/// Everything that a request says about the choice of its tokens. The default is greedy without any rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0: the largest logit. Above: a draw from the softmax of `z / temperature`.
    pub temperature: f32,
    /// Tokens that take part in a draw.
    pub filters: Filters,
    /// Penalties for repetition.
    pub penalties: Penalties,
    /// Added to the logits of these ids, which ascend.
    pub logit_bias: Vec<(u32, f32)>,
    /// Ids that are never chosen, ascending.
    pub suppressed: Vec<u32>,
    /// The only ids that may be chosen, ascending.
    pub allowed: Option<Vec<u32>>,
    /// End tokens are not chosen before the output has this many tokens.
    pub min_tokens: usize,
    /// Names the noise.
    pub seed: u64,
    /// Index among several continuations of one prompt: each has noise of its own.
    pub choice: u32,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 0.0,
            filters: Filters::default(),
            penalties: Penalties::default(),
            logit_bias: Vec::new(),
            suppressed: Vec::new(),
            allowed: None,
            min_tokens: 0,
            seed: 0,
            choice: 0,
        }
    }
}

/// Which tokens take part in a draw. Applied in the order of the fields; at temperature 0 they say nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Filters {
    /// The `k` most likely tokens, the lower ids of equals; 0: all.
    pub top_k: usize,
    /// The most likely tokens up to the one at which their probabilities add up to this; 1: all.
    pub top_p: f32,
    /// Tokens at least this likely, relative to the most likely one; 0: all.
    pub min_p: f32,
    /// The tokens whose surprise is nearest to the expected one, up to the one at which their probabilities add up to this; 1: all.
    pub typical_p: f32,
}

impl Default for Filters {
    fn default() -> Filters {
        Filters { top_k: 0, top_p: 1.0, min_p: 0.0, typical_p: 1.0 }
    }
}

impl Filters {
    /// Whether there is any.
    pub fn any(&self) -> bool {
        *self != Filters::default()
    }
}

/// Penalties for tokens that occurred before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// Divides positive logits and multiplies others of every token in prompt or output; 1: none.
    pub repetition: f32,
    /// Subtracted once for a token of the output; 0: none.
    pub presence: f32,
    /// Subtracted for each time that the output has the token; 0: none.
    pub frequency: f32,
}

impl Default for Penalties {
    fn default() -> Penalties {
        Penalties { repetition: 1.0, presence: 0.0, frequency: 0.0 }
    }
}

impl Penalties {
    /// Whether there is any: only then are tokens counted.
    pub fn any(&self) -> bool {
        *self != Penalties::default()
    }

    fn apply(&self, z: f32, n_output: u32) -> f32 {
        let z = if z > 0.0 { z / self.repetition } else { z * self.repetition };
        if n_output == 0 { z } else { z - self.presence - self.frequency * n_output as f32 }
    }
}

/// Log-probabilities to report with a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogprobsWanted {
    /// How many of the most likely tokens, beside the chosen one.
    pub top: usize,
    /// Of which distribution.
    pub of: Distribution,
}

/// A distribution over the vocabulary at one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// The model's: softmax of its logits after the softcap, before any rule.
    Model,
    /// The one that is drawn from: after all rules, temperature and filters. For a greedy request the softmax after the rules.
    Sampled,
}

/// What holds at one row.
#[derive(Clone, Copy, Debug)]
pub struct RowRules<'a> {
    /// `c * tanh(z / c)` with this c, if the model has one.
    pub softcap: Option<f32>,
    /// What its request says.
    pub sampling: &'a Sampling,
    /// End tokens that may not come yet.
    pub too_early: &'a [u32],
    /// Tokens before the row; needed where there are penalties.
    pub seen: Option<Seen<'a>>,
    /// Absolute position of the token to be chosen.
    pub position: u32,
    /// The token that is known to follow: nothing is chosen, only its log-probability is reported.
    pub known: Option<u32>,
    /// Log-probabilities to report.
    pub logprobs: Option<LogprobsWanted>,
}

impl<'a> RowRules<'a> {
    /// The rules of a row without a history.
    pub fn new(sampling: &'a Sampling) -> RowRules<'a> {
        RowRules {
            softcap: None,
            sampling,
            too_early: &[],
            seen: None,
            position: 0,
            known: None,
            logprobs: None,
        }
    }

    /// The log-probabilities of the row. A known token has nothing but the model's: no rule led to it.
    pub(super) fn logprobs(&self) -> Option<LogprobsWanted> {
        let wanted = self.logprobs?;
        let of = if self.known.is_some() { Distribution::Model } else { wanted.of };
        Some(LogprobsWanted { of, ..wanted })
    }

    fn penalised(&self) -> Option<(&'a Penalties, Seen<'a>)> {
        let penalties = &self.sampling.penalties;
        self.seen.filter(|_| penalties.any()).map(|seen| (penalties, seen))
    }

    /// Calls `change(token, f)` for each change `z = f(z)`, in order.
    pub(super) fn for_each_change(&self, mut change: impl FnMut(u32, &dyn Fn(f32) -> f32)) {
        for &token in self.sampling.suppressed.iter().chain(self.too_early) {
            change(token, &|_| f32::NEG_INFINITY);
        }
        for &(token, bias) in &self.sampling.logit_bias {
            change(token, &|z| z + bias);
        }
        if let Some((penalties, seen)) = self.penalised() {
            seen.for_each(|token, n_output| change(token, &|z| penalties.apply(z, n_output)));
        }
    }

    /// Whether [`RowRules::changed`] gives every logit back as it is.
    pub(super) fn change_nothing(&self) -> bool {
        let Sampling { suppressed, allowed, logit_bias, .. } = self.sampling;
        let lists = suppressed.is_empty() && allowed.is_none() && logit_bias.is_empty();
        lists && self.too_early.is_empty() && self.penalised().is_none()
    }

    /// A single token's logit after the rules: for rows that hold few tokens.
    pub(super) fn changed(&self, token: u32, z: f32) -> f32 {
        let Sampling { suppressed, allowed, logit_bias, .. } = self.sampling;
        let lists = |ids: &[u32]| ids.binary_search(&token).is_ok();
        if lists(suppressed)
            || self.too_early.contains(&token)
            || allowed.as_deref().is_some_and(|ids| !lists(ids))
        {
            return f32::NEG_INFINITY;
        }
        let bias = logit_bias.binary_search_by_key(&token, |(id, _)| *id);
        let z = bias.map_or(z, |place| z + logit_bias[place].1);
        let Some((penalties, seen)) = self.penalised() else { return z };
        seen.n_output(token).map_or(z, |n| penalties.apply(z, n))
    }
}
