//! What all answers have in common: the object around the choices, usage, and the text of single tokens.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use paceline::drafters::PredictionDrafter;
use paceline::{FinishReason, Finished, TokenId};
use serde::Serialize;
use serde_json::Value;

use crate::model::{Model, unix_seconds};

/// The lowest log-probability that is told: JSON has no infinity.
const LEAST_LOGPROB: f64 = -9999.0;

/// Names the answer and says what made it.
#[derive(Clone, Debug)]
pub(crate) struct Envelope {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    /// The same fingerprint, seed and request give the same text.
    pub(crate) fingerprint: String,
}

impl Envelope {
    /// A new one. `prefix` is the kind of answer.
    pub(crate) fn new(prefix: &str, model: &Model) -> Self {
        Self {
            id: format!("{prefix}-{}", random_id()),
            created: unix_seconds(),
            model: model.name.clone(),
            fingerprint: format!("paceline-{}", env!("CARGO_PKG_VERSION")),
        }
    }
}

/// An answer, or a chunk of one.
#[derive(Debug, Serialize)]
pub(crate) struct Answer<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
    choices: &'a [C],
    /// Left out; null; or there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Option<Usage>>,
    /// The seed in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seed: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<&'a [TokenIdJson]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<Value>,
}

impl<'a, C> Answer<'a, C> {
    pub(crate) fn new(envelope: &'a Envelope, object: &'static str, choices: &'a [C]) -> Self {
        Self {
            id: &envelope.id,
            object,
            created: envelope.created,
            model: &envelope.model,
            system_fingerprint: &envelope.fingerprint,
            choices,
            usage: None,
            seed: None,
            prompt_token_ids: None,
            timings: None,
        }
    }
}

/// A token id in an answer.
pub(crate) type TokenIdJson = u32;

/// Ids as answers have them.
pub(crate) fn plain_ids(ids: &[TokenId]) -> Vec<TokenIdJson> {
    ids.iter().map(|id| id.0).collect()
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    /// Only of a request that predicts its answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<PredictionTokens>,
}

/// Tokens of a prediction that were tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct PredictionTokens {
    /// Those that are part of the answer.
    accepted_prediction_tokens: u64,
    /// Those that are not.
    rejected_prediction_tokens: u64,
}

impl Usage {
    /// Of a request none of whose outputs has ended yet.
    pub(crate) fn new(prompt_tokens: usize, predicts: bool) -> Self {
        let completion_tokens_details = predicts.then(PredictionTokens::default);
        Self { prompt_tokens, completion_tokens: 0, total_tokens: prompt_tokens, completion_tokens_details }
    }

    /// An output has ended.
    pub(crate) fn add(&mut self, finished: &Finished) {
        self.completion_tokens += finished.usage.completion_tokens;
        self.total_tokens += finished.usage.completion_tokens;
        let predicted = finished.draft.as_ref().and_then(|draft| draft.of(PredictionDrafter::KIND));
        if let (Some(details), Some(predicted)) = (&mut self.completion_tokens_details, predicted) {
            details.accepted_prediction_tokens += predicted.accepted;
            details.rejected_prediction_tokens += predicted.drafted - predicted.accepted;
        }
    }
}

/// The stop string that ended an output; null for anything else.
pub(crate) fn stop_reason(reason: FinishReason, stops: &[String]) -> Option<String> {
    match reason {
        FinishReason::StopString(index) => stops.get(index).cloned(),
        _ => None,
    }
}

/// A token as text, and its bytes. A token that is only a part of a character is written as OpenAI does: `bytes:\xe2`.
pub(crate) fn token_text(model: &Model, id: TokenId) -> (String, Vec<u8>) {
    let bytes = model.tokenizer.token_bytes(id.0).unwrap_or_default();
    let text = match std::str::from_utf8(&bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let digits: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("bytes:{digits}")
        }
    };
    (text, bytes)
}

/// A log-probability as a number that JSON has.
pub(crate) fn finite(logprob: f32) -> f64 {
    f64::from(logprob).max(LEAST_LOGPROB)
}

/// 24 hexadecimal digits that do not come twice.
pub(crate) fn random_id() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let bits = RandomState::new().hash_one(count);
    format!("{bits:016x}{:08x}", count & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use paceline::{DraftStatistics, SourceStatistics};

    use super::*;

    /// Of an output some drafts were from a prediction, and others were not.
    fn finished() -> Finished {
        let source = |kind, drafted, accepted| SourceStatistics {
            kind,
            rounds: 3,
            drafted,
            accepted,
            inactive_reason: None,
        };
        let draft = DraftStatistics {
            kind: "ngram",
            rounds: 6,
            drafted: 16,
            accepted: 9,
            accepted_by_position: vec![6, 3],
            accepted_per_round: vec![2, 2, 2, 1, 1, 1],
            emitted: 15,
            inactive_reason: None,
            sources: vec![source(PredictionDrafter::KIND, 11, 7), source("ngram", 5, 2)],
            source_per_round: vec![0, 0, 0, 1, 1, 1],
        };
        let usage = paceline::Usage { prompt_tokens: 4, completion_tokens: 20 };
        Finished { reason: FinishReason::Length, usage, seed: 0, draft: Some(draft) }
    }

    #[test]
    fn tokens_of_all_outputs_and_predictions_are_added_up() {
        let told = |predicts| {
            let mut usage = Usage::new(4, predicts);
            (0..2).for_each(|_| usage.add(&finished()));
            serde_json::to_value(usage).unwrap()
        };
        let mut expected =
            serde_json::json!({"prompt_tokens": 4, "completion_tokens": 40, "total_tokens": 44});
        assert_eq!(told(false), expected);
        expected["completion_tokens_details"] =
            serde_json::json!({"accepted_prediction_tokens": 14, "rejected_prediction_tokens": 8});
        assert_eq!(told(true), expected);
    }
}
