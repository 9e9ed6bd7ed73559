//! How an answer came about, for the `timings` of a response.

use std::time::Duration;

use paceline::drafters::PredictionDrafter;
use paceline::{DraftStatistics, SourceStatistics};
use serde_json::{Value, json};

use crate::model::LoadedDrafter;

/// Measures of all outputs of a request together.
#[derive(Clone, Debug)]
pub(crate) struct Timings {
    /// From the request to the first token, time in the queue included.
    pub(crate) first_token: Option<Duration>,
    /// From the first to the last token.
    pub(crate) decode: Option<Duration>,
    pub(crate) n_tokens: usize,
    pub(crate) n_outputs: usize,
    /// Of the outputs that were drafted for.
    pub(crate) draft: Vec<DraftStatistics>,
    /// The request said what it expects.
    pub(crate) predicted: bool,
}

/// To the microsecond.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

/// To a hundredth.
fn rounded(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

impl Timings {
    /// The object of a response. `asked` says whether the request let drafts be made.
    pub(crate) fn json(&self, loaded: Option<LoadedDrafter>, asked: bool) -> Value {
        let ms = |time: Option<Duration>| time.map(milliseconds);
        // The first token of each output belongs to the prompt.
        let decoded = self.n_tokens.saturating_sub(self.n_outputs) as f64;
        let seconds = self.decode.map(|time| time.as_secs_f64()).filter(|seconds| *seconds > 0.0);
        json!({
            "first_token_ms": ms(self.first_token),
            "decode_ms": ms(self.decode),
            "decode_tokens_per_s": seconds.filter(|_| decoded > 0.0).map(|seconds| rounded(decoded / seconds)),
            "draft": self.drafts(loaded, asked),
        })
    }

    /// Drafting of all outputs together; null where no drafter is loaded and nothing was predicted.
    fn drafts(&self, loaded: Option<LoadedDrafter>, asked: bool) -> Value {
        let of_outputs = self.draft.first().map(|draft| draft.kind);
        let Some(kind) = loaded.map(|loaded| loaded.kind).or(of_outputs) else { return Value::Null };
        let sum = |of: fn(&DraftStatistics) -> u64| self.draft.iter().map(of).sum::<u64>();
        let (rounds, emitted) = (sum(|draft| draft.rounds), sum(|draft| draft.emitted));
        let n_positions = self.draft.iter().map(|draft| draft.accepted_by_position.len()).max().unwrap_or(0);
        let mut by_position = vec![0_u64; n_positions];
        for draft in &self.draft {
            by_position.iter_mut().zip(&draft.accepted_by_position).for_each(|(sum, count)| *sum += count);
        }
        let inactive_reason = match asked {
            true => self.draft.iter().find_map(|draft| draft.inactive_reason.clone()),
            false => Some("the request turned drafting off".to_owned()),
        };
        json!({
            "kind": kind,
            "rounds": rounds,
            "drafted": sum(|draft| draft.drafted),
            "accepted": sum(|draft| draft.accepted),
            "accepted_by_position": by_position,
            "tokens_per_round": if rounds == 0 { 0.0 } else { rounded(emitted as f64 / rounds as f64) },
            "inactive_reason": inactive_reason,
            "sources": self.sources(),
        })
    }

    /// Who proposed what, in the order in which they are asked. Nobody is asked for a prediction that there is not.
    fn sources(&self) -> Vec<Value> {
        let n_sources = self.draft.iter().map(|draft| draft.sources.len()).max().unwrap_or(0);
        let is_asked = |index: &usize| {
            let kind =
                self.draft.iter().find_map(|draft| draft.sources.get(*index)).map(|source| source.kind);
            self.predicted || kind != Some(PredictionDrafter::KIND)
        };
        let of = |index: usize| {
            let each = || self.draft.iter().filter_map(move |draft| draft.sources.get(index));
            let sum = |of: fn(&SourceStatistics) -> u64| each().map(of).sum::<u64>();
            json!({
                "kind": each().next().map(|source| source.kind),
                "rounds": sum(|source| source.rounds),
                "drafted": sum(|source| source.drafted),
                "accepted": sum(|source| source.accepted),
                "inactive_reason": each().find_map(|source| source.inactive_reason.clone()),
            })
        };
        (0..n_sources).filter(is_asked).map(of).collect()
    }
}
