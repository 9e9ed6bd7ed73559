//! What `run` says about an output: the object of `--json`.

use std::time::{Duration, Instant};

use paceline::{Completion, DraftStatistics, Logprobs, RoundTimes, SourceStatistics, TokenId};
use serde::Serialize;

use super::stream::{Place, Wanted};
use crate::sampling::InForce;

/// The line of `--json`. Scripts rely on names and meaning.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Place among the prompts of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    /// Place among several continuations of a prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    choice: Option<u32>,
    token_ids: Vec<u32>,
    text: Option<String>,
    finish_reason: &'static str,
    prompt_tokens: usize,
    seed: u64,
    sampling: InForce,
    level: String,
    logprobs: Option<Vec<TokenLogprobs>>,
    /// With `--echo`: of the prompt's tokens, `null` for the first one, which nothing comes before.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
    timings: Timings,
    peak_memory_bytes: Option<u64>,
    draft: Option<Draft>,
}

/// Log-probabilities at one place; `null` where one is minus infinity.
#[derive(Debug, Serialize)]
struct TokenLogprobs {
    token_id: u32,
    logprob: f32,
    top: Vec<TopLogprob>,
}

#[derive(Debug, Serialize)]
struct TopLogprob {
    token_id: u32,
    logprob: f32,
}

impl TokenLogprobs {
    fn new((&TokenId(token_id), of): (&TokenId, &Logprobs)) -> Self {
        let top = of.top.iter().map(|&(TokenId(token_id), logprob)| TopLogprob { token_id, logprob });
        TokenLogprobs { token_id, logprob: of.logprob, top: top.collect() }
    }
}

/// Times in milliseconds, speeds in tokens a second; `null` where nothing was done that had a speed.
#[derive(Debug, Serialize)]
struct Timings {
    load_ms: f64,
    prefill_ms: f64,
    prefill_tokens_per_s: Option<f64>,
    decode_ms: f64,
    decode_tokens_per_s: Option<f64>,
    /// Where the time of rounds went; only of a run with one output, since a batch shares its rounds.
    rounds: Option<Rounds>,
}

/// Milliseconds of all rounds of a run.
#[derive(Clone, Copy, Debug, Serialize)]
struct Rounds {
    draft_ms: f64,
    verify_ms: f64,
    choose_ms: f64,
    host_ms: f64,
}

impl From<RoundTimes> for Rounds {
    fn from(times: RoundTimes) -> Self {
        Rounds {
            draft_ms: milliseconds(times.draft),
            verify_ms: milliseconds(times.verify),
            choose_ms: milliseconds(times.choose),
            host_ms: milliseconds(times.host),
        }
    }
}

#[derive(Debug, Serialize)]
struct Draft {
    kind: &'static str,
    rounds: u64,
    drafted: u64,
    accepted: u64,
    accepted_by_position: Vec<u64>,
    accepted_per_round: Vec<u32>,
    tokens_per_round: f64,
    inactive_reason: Option<String>,
    sources: Vec<Source>,
    source_per_round: Vec<u32>,
}

/// One of several drafters, in the order in which they are asked.
#[derive(Debug, Serialize)]
struct Source {
    kind: &'static str,
    rounds: u64,
    drafted: u64,
    accepted: u64,
    inactive_reason: Option<String>,
}

impl From<SourceStatistics> for Source {
    fn from(from: SourceStatistics) -> Self {
        let SourceStatistics { kind, rounds, drafted, accepted, inactive_reason } = from;
        Source { kind, rounds, drafted, accepted, inactive_reason }
    }
}

impl From<DraftStatistics> for Draft {
    fn from(from: DraftStatistics) -> Self {
        Draft {
            kind: from.kind,
            rounds: from.rounds,
            drafted: from.drafted,
            accepted: from.accepted,
            tokens_per_round: from.tokens_per_round(),
            accepted_by_position: from.accepted_by_position,
            accepted_per_round: from.accepted_per_round,
            inactive_reason: from.inactive_reason,
            sources: from.sources.into_iter().map(Source::from).collect(),
            source_per_round: from.source_per_round,
        }
    }
}

/// When the tokens of an output came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Clock {
    /// The request goes in now.
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), first: None, last: None }
    }

    /// A token came.
    pub(crate) fn token(&mut self) {
        let now = Instant::now();
        self.first.get_or_insert(now);
        self.last = Some(now);
    }

    /// From the start to the first token.
    pub(crate) fn prefill(&self) -> Duration {
        self.first.map_or(Duration::ZERO, |first| first - self.start)
    }

    /// From the first to the last token.
    pub(crate) fn decode(&self) -> Duration {
        self.first.zip(self.last).map_or(Duration::ZERO, |(first, last)| last - first)
    }
}

/// What belongs to the run and not to one output.
#[derive(Clone, Debug)]
pub(crate) struct RunFacts {
    pub(crate) load: Duration,
    pub(crate) level: String,
    pub(crate) peak_memory_bytes: Option<u64>,
    pub(crate) rounds: RoundTimes,
}

impl Report {
    /// The report of a finished output.
    pub(crate) fn new(
        Wanted { place, request, .. }: Wanted,
        completion: Completion,
        clock: &Clock,
        facts: &RunFacts,
    ) -> Self {
        let finished = completion.finished.expect("a report is made when the output is complete");
        let token_ids: Vec<u32> = completion.token_ids.iter().map(|id| id.0).collect();
        let (prefill, decode) = (clock.prefill(), clock.decode());
        let told = |ids: &[TokenId], of: &[Logprobs]| -> Vec<_> {
            ids.iter().zip(of).map(TokenLogprobs::new).collect()
        };
        let logprobs = request.logprobs.map(|_| told(&completion.token_ids, &completion.logprobs));
        let prompt_logprobs = request.logprobs.filter(|wanted| wanted.prompt).map(|_| {
            let behind_first = told(&request.prompt[1..], &completion.prompt_logprobs);
            std::iter::once(None).chain(behind_first.into_iter().map(Some)).collect()
        });
        let timings = Timings {
            load_ms: milliseconds(facts.load),
            prefill_ms: milliseconds(prefill),
            prefill_tokens_per_s: speed(finished.usage.prompt_tokens, prefill),
            decode_ms: milliseconds(decode),
            // The first token came with the prompt.
            decode_tokens_per_s: speed(token_ids.len().saturating_sub(1), decode),
            rounds: (place == Place::default()).then(|| facts.rounds.into()),
        };
        Report {
            index: place.prompt,
            choice: place.choice,
            token_ids,
            text: completion.text,
            finish_reason: finished.reason.as_str(),
            prompt_tokens: finished.usage.prompt_tokens,
            seed: finished.seed,
            sampling: request.sampling.into(),
            level: facts.level.clone(),
            logprobs,
            prompt_logprobs,
            timings,
            peak_memory_bytes: facts.peak_memory_bytes,
            draft: finished.draft.map(Draft::from),
        }
    }
}

/// To the microsecond.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

/// Tokens a second.
pub(crate) fn speed(tokens: usize, time: Duration) -> Option<f64> {
    (tokens > 0 && !time.is_zero()).then(|| tokens as f64 / time.as_secs_f64())
}
