//! How a request wants its tokens chosen: checked when it is submitted, then one set of rules for the backend.

use std::hash::{BuildHasher, Hasher, RandomState};

use paceline_backend::{Distribution, Filters, Penalties, Sampling, TokenId};
use paceline_checkpoint::{GenerationConfig, LEAST_TEMPERATURE, MOST_TEMPERATURE};

use crate::error::Refused;

/// Most entries of [`LogprobOptions::top`].
const MAX_TOP_LOGPROBS: usize = 100;
/// Largest magnitude of biases and penalties: keeps logits finite.
const MOST_CHANGE: f32 = 1e9;
/// Least repetition penalty.
const LEAST_REPETITION: f32 = 1e-3;
/// Largest repetition penalty.
const MOST_REPETITION: f32 = 1e3;

/// How tokens are chosen. The default is greedy: always the most likely token, the lowest id of equals.
///
/// Rules and filters apply in a fixed order: suppressed and allowed tokens and the minimum; bias; repetition penalty; presence and
/// frequency penalties; temperature; top-k; top-p; min-p; typical-p. Filters say nothing at temperature 0, all the rest holds there too.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingOptions {
    /// 0 is greedy; otherwise tokens are drawn from the softmax of logits over temperature.
    pub temperature: f32,
    /// Draw from the k most likely tokens; 0: from all.
    pub top_k: usize,
    /// Draw from the most likely tokens that have this probability together; 1: from all.
    pub top_p: f32,
    /// Draw from tokens at least this likely, relative to the most likely one; 0: from all.
    pub min_p: f32,
    /// Draw from the tokens of nearly expected surprise that have this probability together; 1: from all.
    pub typical_p: f32,
    /// Divides positive logits of tokens in prompt or output, multiplies negative ones; 1: none.
    pub repetition_penalty: f32,
    /// Subtracted from logits of tokens in the output; 0: none.
    pub presence_penalty: f32,
    /// Subtracted from logits for each time that the output has the token; 0: none.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Tokens that are never chosen, beside those of the checkpoint.
    pub suppress: Vec<TokenId>,
    /// The only tokens that may be chosen.
    pub allowed: Option<Vec<TokenId>>,
    /// End tokens are not chosen before the output has this many tokens.
    pub min_tokens: usize,
    /// The same seed gives the same text, whatever drafts and whatever else runs. `None`: one is drawn, and told at the end.
    pub seed: Option<u64>,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            suppress: Vec::new(),
            allowed: None,
            min_tokens: 0,
            seed: None,
        }
    }
}

/// Log-probabilities to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogprobOptions {
    /// How many of the most likely tokens, beside the chosen one; at most 100.
    pub top: usize,
    /// The model's distribution, or the one that is drawn from.
    pub of: Distribution,
    /// Those of the prompt's tokens too, of the model's distribution; needs [`crate::Sizes::score_prompts`].
    pub prompt: bool,
}

/// Log-probabilities of one token of a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logprobs {
    /// Of the token itself.
    pub logprob: f32,
    /// The most likely tokens, most likely first.
    pub top: Vec<(TokenId, f32)>,
}

impl From<&paceline_backend::TokenLogprobs> for Logprobs {
    fn from(from: &paceline_backend::TokenLogprobs) -> Self {
        let top = from.top.iter().map(|&(id, logprob)| (TokenId(id), logprob));
        Self { logprob: from.logprob, top: top.collect() }
    }
}

/// What the options are judged against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits<'a> {
    pub(crate) vocab_size: usize,
    pub(crate) max_tokens: usize,
    /// Tokens that the checkpoint suppresses.
    pub(crate) suppressed: &'a [TokenId],
    /// Tokens that end the request's text.
    pub(crate) end_tokens: &'a [TokenId],
}

/// A seed that nobody has chosen. At most 53 bits, so that every JSON reader keeps it whole.
pub fn draw_seed() -> u64 {
    RandomState::new().build_hasher().finish() >> 11
}

impl SamplingOptions {
    /// The range of [`SamplingOptions::temperature`], for errors.
    pub const TEMPERATURES: &str = "0, or 0.000001 to 1000000";

    /// How a checkpoint wants its tokens chosen. One that wants no draws gets the most likely token each time; what it leaves out
    /// filters nothing, at temperature 1.
    pub fn of_checkpoint(generation: &GenerationConfig) -> Self {
        let plain = Self::default();
        let draws = generation.do_sample != Some(false);
        Self {
            temperature: if draws { generation.temperature.unwrap_or(1.0) } else { 0.0 },
            top_k: generation.top_k.unwrap_or(plain.top_k),
            top_p: generation.top_p.unwrap_or(plain.top_p),
            min_p: generation.min_p.unwrap_or(plain.min_p),
            typical_p: generation.typical_p.unwrap_or(plain.typical_p),
            repetition_penalty: generation.repetition_penalty.unwrap_or(plain.repetition_penalty),
            ..plain
        }
    }

    /// Checks ids, and that there is always something to choose.
    pub(crate) fn check(&self, limits: Limits<'_>) -> Result<(), Refused> {
        self.check_values(limits.max_tokens)?;
        self.check_lists(limits)
    }

    /// Checks what can be checked without a model.
    pub(crate) fn check_values(&self, max_tokens: usize) -> Result<(), Refused> {
        let temperature = self.temperature;
        if temperature != 0.0 {
            within("temperature", temperature, LEAST_TEMPERATURE, MOST_TEMPERATURE, Self::TEMPERATURES)?;
        }
        within("top_p", self.top_p, 0.0, 1.0, "0 to 1")?;
        within("min_p", self.min_p, 0.0, 1.0, "0 to 1")?;
        within("typical_p", self.typical_p, 0.0, 1.0, "0 to 1")?;
        let repetition = self.repetition_penalty;
        within("repetition_penalty", repetition, LEAST_REPETITION, MOST_REPETITION, "0.001 to 1000")?;
        for (field, change) in
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)]
        {
            within(field, change, -MOST_CHANGE, MOST_CHANGE, "a number up to 1e9 in magnitude")?;
        }
        for (_, bias) in &self.logit_bias {
            within("logit_bias", *bias, -MOST_CHANGE, MOST_CHANGE, "numbers up to 1e9 in magnitude")?;
        }
        if self.min_tokens > max_tokens {
            let (found, expected) =
                (self.min_tokens.to_string(), format!("at most the {max_tokens} tokens allowed"));
            return Err(Refused::OutOfRange { field: "min_tokens", found, expected });
        }
        Ok(())
    }

    fn check_lists(&self, limits: Limits<'_>) -> Result<(), Refused> {
        let biased: Vec<_> = self.logit_bias.iter().map(|(id, _)| *id).collect();
        let allowed = self.allowed.as_deref().unwrap_or(&[]);
        for (field, ids) in [("logit_bias", &biased[..]), ("suppress", &self.suppress), ("allowed", allowed)]
        {
            if let Some(TokenId(id)) = ids.iter().copied().find(|id| id.0 as usize >= limits.vocab_size) {
                return Err(Refused::UnknownListedToken { field, id, vocab_size: limits.vocab_size });
            }
        }
        let ids = ascending(&biased);
        if let Some(twice) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            let expected = "each token once".to_owned();
            return Err(Refused::OutOfRange {
                field: "logit_bias",
                found: format!("twice for token {}", twice[0]),
                expected,
            });
        }
        self.check_choice(limits)
    }

    /// That some token is left at every place.
    fn check_choice(&self, limits: Limits<'_>) -> Result<(), Refused> {
        let held_back = if self.min_tokens > 0 { limits.end_tokens } else { &[] };
        let mut never: Vec<_> = limits.suppressed.iter().chain(&self.suppress).chain(held_back).collect();
        never.sort_unstable();
        never.dedup();
        let left = match &self.allowed {
            Some(allowed) => allowed.iter().any(|id| never.binary_search(&id).is_err()),
            None => never.len() < limits.vocab_size,
        };
        if left { Ok(()) } else { Err(Refused::NothingToChoose) }
    }

    /// The rules for the backend. `seed` is the one in force.
    pub(crate) fn rules(
        &self,
        suppressed: &[TokenId],
        seed: u64,
        choice: u32,
        vocab_size: usize,
    ) -> Sampling {
        let mut logit_bias: Vec<_> = self.logit_bias.iter().map(|(id, bias)| (id.0, *bias)).collect();
        logit_bias.sort_unstable_by_key(|(id, _)| *id);
        Sampling {
            temperature: self.temperature,
            filters: Filters {
                top_k: if self.top_k < vocab_size { self.top_k } else { 0 },
                top_p: self.top_p,
                min_p: self.min_p,
                typical_p: self.typical_p,
            },
            penalties: Penalties {
                repetition: self.repetition_penalty,
                presence: self.presence_penalty,
                frequency: self.frequency_penalty,
            },
            logit_bias,
            suppressed: ascending(&[suppressed, &self.suppress].concat()),
            allowed: self.allowed.as_deref().map(ascending),
            min_tokens: self.min_tokens,
            seed,
            choice,
        }
    }

    /// The seed in force: the one asked for, else a new one where it matters, else 0.
    pub(crate) fn seed_in_force(&self) -> u64 {
        self.seed.unwrap_or_else(|| if self.temperature == 0.0 { 0 } else { draw_seed() })
    }
}

impl LogprobOptions {
    pub(crate) fn check(&self) -> Result<(), Refused> {
        if self.top > MAX_TOP_LOGPROBS {
            let expected = format!("at most {MAX_TOP_LOGPROBS}");
            return Err(Refused::OutOfRange { field: "logprobs", found: self.top.to_string(), expected });
        }
        Ok(())
    }
}

/// NaN is not within anything.
fn within(field: &'static str, found: f32, least: f32, most: f32, expected: &str) -> Result<(), Refused> {
    if (least..=most).contains(&found) {
        return Ok(());
    }
    Err(Refused::OutOfRange { field, found: found.to_string(), expected: expected.to_owned() })
}

fn ascending(ids: &[TokenId]) -> Vec<u32> {
    let mut ids: Vec<u32> = ids.iter().map(|id| id.0).collect();
    ids.sort_unstable();
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut SamplingOptions)) -> Result<(), Refused> {
        let mut options = SamplingOptions::default();
        change(&mut options);
        let (suppressed, end_tokens) = (&[TokenId(3)], &[TokenId(1)]);
        options.check(Limits { vocab_size: 10, max_tokens: 20, suppressed, end_tokens })
    }

    #[test]
    fn values_out_of_range_name_their_field() {
        let refused = |change: fn(&mut SamplingOptions)| {
            let error = check(change).unwrap_err();
            assert!(error.to_string().starts_with(error.field()), "{error}");
            error.field()
        };
        assert_eq!(check(|_| ()), Ok(()));
        assert_eq!(refused(|o| o.temperature = -0.5), "temperature");
        assert_eq!(refused(|o| o.temperature = f32::NAN), "temperature");
        assert_eq!(refused(|o| o.temperature = f32::INFINITY), "temperature");
        assert_eq!(refused(|o| o.temperature = 1e-20), "temperature");
        assert_eq!(refused(|o| o.top_p = 1.5), "top_p");
        assert_eq!(refused(|o| o.top_p = -0.1), "top_p");
        assert_eq!(refused(|o| o.min_p = 1.01), "min_p");
        assert_eq!(refused(|o| o.typical_p = f32::NAN), "typical_p");
        assert_eq!(refused(|o| o.repetition_penalty = 0.0), "repetition_penalty");
        assert_eq!(refused(|o| o.repetition_penalty = -1.0), "repetition_penalty");
        assert_eq!(refused(|o| o.presence_penalty = f32::INFINITY), "presence_penalty");
        assert_eq!(refused(|o| o.frequency_penalty = f32::NAN), "frequency_penalty");
        assert_eq!(refused(|o| o.logit_bias = vec![(TokenId(2), f32::NEG_INFINITY)]), "logit_bias");
        assert_eq!(refused(|o| o.logit_bias = vec![(TokenId(2), 1.0), (TokenId(2), 2.0)]), "logit_bias");
        assert_eq!(refused(|o| o.min_tokens = 21), "min_tokens");
        for edge in [0.0, 1.0] {
            let all = |o: &mut SamplingOptions| {
                (o.temperature, o.top_p, o.min_p, o.typical_p) = (1.0, edge, edge, edge)
            };
            assert_eq!(check(all), Ok(()));
        }
        let top = |top| LogprobOptions { top, of: Distribution::Model, prompt: false }.check();
        assert_eq!((top(100), top(101).unwrap_err().field()), (Ok(()), "logprobs"));
    }

    #[test]
    fn a_checkpoint_that_wants_no_draws_gets_none() {
        let read = |change: fn(&mut GenerationConfig)| {
            let mut generation = GenerationConfig::default();
            change(&mut generation);
            SamplingOptions::of_checkpoint(&generation)
        };
        let plain = SamplingOptions { temperature: 1.0, ..SamplingOptions::default() };
        assert_eq!(read(|_| ()), plain);
        assert_eq!(read(|g| g.do_sample = Some(false)).temperature, 0.0);
        assert_eq!(read(|g| (g.do_sample, g.temperature) = (Some(false), Some(0.5))).temperature, 0.0);
        let gemma = read(|g| {
            (g.do_sample, g.temperature, g.top_k, g.top_p) = (Some(true), Some(0.5), Some(64), Some(0.95));
            (g.min_p, g.typical_p, g.repetition_penalty) = (Some(0.25), Some(0.75), Some(1.5));
        });
        let expected = SamplingOptions {
            temperature: 0.5,
            top_k: 64,
            top_p: 0.95,
            min_p: 0.25,
            typical_p: 0.75,
            repetition_penalty: 1.5,
            ..SamplingOptions::default()
        };
        assert_eq!(gemma, expected);
    }

    #[test]
    fn unknown_tokens_are_named_with_their_list() {
        let unknown = |field| Err(Refused::UnknownListedToken { field, id: 10, vocab_size: 10 });
        assert_eq!(
            check(|o| o.logit_bias = vec![(TokenId(9), 1.0), (TokenId(10), 1.0)]),
            unknown("logit_bias")
        );
        assert_eq!(check(|o| o.suppress = vec![TokenId(10)]), unknown("suppress"));
        assert_eq!(check(|o| o.allowed = Some(vec![TokenId(10)])), unknown("allowed"));
    }

    #[test]
    fn rules_that_leave_nothing_to_choose_are_refused() {
        let nothing = Err(Refused::NothingToChoose);
        assert_eq!(check(|o| o.allowed = Some(vec![])), nothing);
        assert_eq!(check(|o| o.allowed = Some(vec![TokenId(3)])), nothing, "the checkpoint suppresses 3");
        assert_eq!(check(|o| o.allowed = Some(vec![TokenId(1)])), Ok(()));
        assert_eq!(check(|o| (o.allowed, o.min_tokens) = (Some(vec![TokenId(1)]), 1)), nothing);
        assert_eq!(check(|o| o.suppress = (0..10).map(TokenId).collect()), nothing);
        assert_eq!(check(|o| o.suppress = (0..9).map(TokenId).collect()), Ok(()));
    }

    #[test]
    fn rules_are_in_ascending_order_and_seeds_are_kept() {
        let options = SamplingOptions {
            logit_bias: vec![(TokenId(5), 1.0), (TokenId(2), -1.0)],
            suppress: vec![TokenId(9), TokenId(0)],
            top_k: 10,
            seed: Some(u64::MAX),
            ..SamplingOptions::default()
        };
        let rules = options.rules(&[TokenId(4)], options.seed_in_force(), 2, 10);
        assert_eq!(rules.logit_bias, [(2, -1.0), (5, 1.0)]);
        assert_eq!(rules.suppressed, [0, 4, 9]);
        assert_eq!((rules.filters.top_k, rules.seed, rules.choice), (0, u64::MAX, 2));
        assert_eq!(SamplingOptions::default().seed_in_force(), 0);
        let drawing = SamplingOptions { temperature: 1.0, ..SamplingOptions::default() };
        let seeds: Vec<u64> = (0..20).map(|_| drawing.seed_in_force()).collect();
        assert!(seeds.iter().all(|seed| *seed < 1 << 53));
        assert!(seeds.windows(2).all(|pair| pair[0] != pair[1]), "{seeds:?}");
    }
}
