//! The fields that chat and completions share: how many outputs, how their tokens are chosen, where they end, who drafts.

use paceline::{DraftSettings, LogprobOptions, NumberError, Request, SamplingOptions, TokenId, draw_seed};
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Fields, MOST, describe, to_f32, whole};

/// Most stop strings of a request.
const MAX_STOPS: usize = 16;
/// Most characters of a stop string.
const MAX_STOP_CHARS: usize = 256;

/// Fields of a request for text.
#[derive(Clone, Debug)]
pub(crate) struct Parameters {
    /// Outputs for each prompt.
    pub(crate) n: usize,
    pub(crate) stream: bool,
    /// A stream ends with a chunk of usage.
    pub(crate) include_usage: bool,
    /// Token ids are part of the answer.
    pub(crate) return_token_ids: bool,
    pub(crate) stop: Vec<String>,
    ignore_eos: bool,
    pub(crate) seed_form: SeedForm,
    sampling: SamplingOptions,
    pub(crate) draft: DraftSettings,
}

impl Parameters {
    /// Takes the fields.
    pub(crate) fn take(
        fields: &mut Fields,
        defaults: &SamplingOptions,
        most_choices: usize,
    ) -> Result<Self, ApiError> {
        let n = fields.count("n", 1..=most_choices as u64)?.unwrap_or(1);
        if fields.count("best_of", 1..=MOST)?.is_some_and(|best| best != n) {
            return Err(fields.error("best_of", "is not supported by this server unless it equals n"));
        }
        let stream = fields.flag("stream")?.unwrap_or(false);
        let mut include_usage = false;
        if let Some(mut options) = fields.object("stream_options")? {
            include_usage = options.flag("include_usage")?.unwrap_or(false);
            if include_usage && !stream {
                return Err(fields.error("stream_options", "is for streams; expected stream: true with it"));
            }
        }
        let seed = seed(fields)?;
        Ok(Self {
            n,
            stream,
            seed_form: seed.map(|(_, form)| form).unwrap_or_default(),
            include_usage,
            return_token_ids: fields.flag("return_token_ids")?.unwrap_or(false),
            stop: stops(fields)?,
            ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
            sampling: sampling(fields, defaults, seed.map(|(seed, _)| seed))?,
            draft: draft(fields)?,
        })
    }

    /// The seed that all outputs share, so that they differ by their index alone. Drawn if there are several and none is given.
    pub(crate) fn share_seed(&mut self, outputs: usize) {
        if outputs > 1 && self.sampling.seed.is_none() && self.sampling.temperature != 0.0 {
            self.sampling.seed = Some(draw_seed());
        }
    }

    /// The engine's request for one output. `most_drafts` is what the engine was loaded for.
    pub(crate) fn request(
        &self,
        prompt: Vec<TokenId>,
        max_tokens: usize,
        logprobs: Option<LogprobOptions>,
        choice: usize,
        most_drafts: usize,
    ) -> Request {
        let mut request = Request::new(prompt, max_tokens);
        request.stop = self.stop.clone();
        request.ignore_eos = self.ignore_eos;
        request.sampling = self.sampling.clone();
        request.choice = u32::try_from(choice).expect("choices are few");
        request.logprobs = logprobs;
        request.draft = self.draft;
        // It is the most that the request wants, so a number above what is possible asks for what is possible.
        request.draft.tokens_per_round = self.draft.tokens_per_round.map(|most| most.min(most_drafts));
        request
    }
}

/// Fields of vLLM and OpenAI that would change the text and do not exist here, with values that ask for nothing.
const UNSUPPORTED: [(&str, &[&str]); 20] = [
    ("response_format", &["text"]),
    ("tools", &[]),
    ("tool_choice", &["none", "auto"]),
    ("functions", &[]),
    ("function_call", &["none", "auto"]),
    ("modalities", &["text"]),
    ("audio", &[]),
    ("web_search_options", &[]),
    ("stop_token_ids", &[]),
    ("bad_words", &[]),
    ("guided_json", &[]),
    ("guided_regex", &[]),
    ("guided_choice", &[]),
    ("guided_grammar", &[]),
    ("structured_outputs", &[]),
    ("grammar", &[]),
    ("use_beam_search", &[]),
    ("continue_final_message", &[]),
    ("suffix", &[]),
    ("prompt_embeds", &[]),
];

/// Refuses what would change the text and does not exist here.
pub(crate) fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    UNSUPPORTED.iter().try_for_each(|(name, harmless)| fields.unsupported(name, harmless))
}

fn sampling(
    fields: &mut Fields,
    defaults: &SamplingOptions,
    seed: Option<u64>,
) -> Result<SamplingOptions, ApiError> {
    Ok(SamplingOptions {
        temperature: fields.number("temperature")?.unwrap_or(defaults.temperature),
        top_k: top_k(fields)?.unwrap_or(defaults.top_k),
        top_p: fields.number("top_p")?.unwrap_or(defaults.top_p),
        min_p: fields.number("min_p")?.unwrap_or(defaults.min_p),
        typical_p: fields.number("typical_p")?.unwrap_or(defaults.typical_p),
        repetition_penalty: fields.number("repetition_penalty")?.unwrap_or(defaults.repetition_penalty),
        presence_penalty: fields.number("presence_penalty")?.unwrap_or(defaults.presence_penalty),
        frequency_penalty: fields.number("frequency_penalty")?.unwrap_or(defaults.frequency_penalty),
        logit_bias: logit_bias(fields)?,
        suppress: Vec::new(),
        allowed: allowed(fields)?,
        min_tokens: fields.count("min_tokens", 0..=MOST)?.unwrap_or(0),
        seed,
    })
}

/// -1 is another way to say 0, as vLLM has it.
fn top_k(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    match fields.value_held("top_k")? {
        None => Ok(None),
        Some(value) if value.as_i64() == Some(-1) => Ok(Some(0)),
        Some(value) => match whole(&value) {
            Some(k) => Ok(Some(usize::try_from(k).unwrap_or(usize::MAX))),
            None => {
                let problem =
                    format!("is {}; expected a whole number, 0 or -1 for all tokens", describe(&value));
                Err(fields.error("top_k", problem))
            }
        },
    }
}

/// How a client writes its seeds, which are 64 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SeedForm {
    #[default]
    Unsigned,
    /// With a sign, as OpenAI's seeds may have.
    Signed,
}

impl SeedForm {
    /// A seed as it is told to the client.
    pub(crate) fn tell(self, seed: u64) -> Value {
        match self {
            SeedForm::Unsigned => seed.into(),
            SeedForm::Signed => seed.cast_signed().into(),
        }
    }
}

/// Any 64 bits, and how they were written.
fn seed(fields: &mut Fields) -> Result<Option<(u64, SeedForm)>, ApiError> {
    let Some(value) = fields.value("seed") else { return Ok(None) };
    let signed = value.as_i64().filter(|seed| *seed < 0).map(i64::cast_unsigned);
    let signed = signed.map(|seed| (seed, SeedForm::Signed));
    match signed.or_else(|| Some((whole(&value)?, SeedForm::Unsigned))) {
        Some(seed) => Ok(Some(seed)),
        None => {
            Err(fields.error("seed", format!("is {}; expected a whole number of 64 bits", describe(&value))))
        }
    }
}

fn logit_bias(fields: &mut Fields) -> Result<Vec<(TokenId, f32)>, ApiError> {
    let Some(object) = fields.map("logit_bias")? else { return Ok(Vec::new()) };
    let mut biases = Vec::with_capacity(object.len());
    for (key, bias) in &object {
        let shown = describe(&Value::String(key.clone()));
        let id = key
            .parse()
            .map_err(|_| fields.error("logit_bias", format!("has the key {shown}; expected token ids")))?;
        if fields.has_vanished(&format!("logit_bias.{key}")) {
            return Err(fields.error("logit_bias", format!("for token {id} {}", NumberError::Vanishes)));
        }
        let Some(bias) = to_f32(bias) else {
            let problem = format!("is {} for token {id}; expected numbers", describe(bias));
            return Err(fields.error("logit_bias", problem));
        };
        biases.push((TokenId(id), bias));
    }
    Ok(biases)
}

/// The only tokens that may be chosen, under vLLM's name.
fn allowed(fields: &mut Fields) -> Result<Option<Vec<TokenId>>, ApiError> {
    let Some(value) = fields.value("allowed_token_ids") else { return Ok(None) };
    token_ids(&value).map(Some).ok_or_else(|| {
        fields.error("allowed_token_ids", format!("is {}; expected token ids", describe(&value)))
    })
}

/// A list of token ids.
pub(crate) fn token_ids(value: &Value) -> Option<Vec<TokenId>> {
    let id = |value: &Value| whole(value).and_then(|id| u32::try_from(id).ok()).map(TokenId);
    value.as_array()?.iter().map(id).collect()
}

fn stops(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let stops = match fields.value("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(stop)) => vec![stop],
        Some(Value::Array(items)) => items
            .into_iter()
            .map(|item| match item {
                Value::String(stop) => Ok(stop),
                other => {
                    Err(fields.error("stop", format!("has {} in it; expected strings", describe(&other))))
                }
            })
            .collect::<Result<_, _>>()?,
        Some(other) => {
            let problem = format!("is {}; expected a string or a list of strings", describe(&other));
            return Err(fields.error("stop", problem));
        }
    };
    if stops.len() > MAX_STOPS || stops.iter().any(|stop| stop.chars().count() > MAX_STOP_CHARS) {
        let problem = format!("expected at most {MAX_STOPS} strings of at most {MAX_STOP_CHARS} characters");
        return Err(fields.error("stop", problem));
    }
    if stops.iter().any(String::is_empty) {
        return Err(fields.error("stop", "has an empty string; expected at least one character"));
    }
    Ok(stops)
}

fn draft(fields: &mut Fields) -> Result<DraftSettings, ApiError> {
    let mut settings = DraftSettings::default();
    if let Some(mut draft) = fields.object("draft")? {
        settings.enabled = draft.flag("enabled")?.unwrap_or(true);
        settings.tokens_per_round = draft.count("max_tokens", 0..=MOST)?;
        settings.confidence = draft.number("confidence")?;
        if let Some(unknown) = draft.unknown().next() {
            return Err(ApiError::field(
                unknown,
                "is unknown; expected `enabled`, `max_tokens` and `confidence`",
            ));
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults() -> SamplingOptions {
        SamplingOptions { temperature: 0.7, top_k: 64, top_p: 0.9, ..SamplingOptions::default() }
    }

    fn take(text: &str) -> Result<Parameters, ApiError> {
        let mut fields = Fields::parse(text.as_bytes()).unwrap();
        refuse_unsupported(&mut fields)?;
        let taken = Parameters::take(&mut fields, &defaults(), 8)?;
        assert_eq!(fields.unknown().collect::<Vec<_>>(), [""; 0]);
        Ok(taken)
    }

    #[test]
    fn what_is_left_out_comes_from_the_checkpoint() {
        let plain = take("{}").unwrap();
        assert_eq!((plain.n, plain.stream, plain.draft), (1, false, DraftSettings::default()));
        let sampling = &plain.sampling;
        assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p), (0.7, 64, 0.9));
        let nulls = r#"{"temperature": null, "stop": null, "seed": null, "logit_bias": null, "stream_options": null}"#;
        assert_eq!(take(nulls).unwrap().sampling, *sampling);
        // Options of a stream that ask for nothing are as good as none.
        for options in ["{}", r#"{"include_usage": false}"#, r#"{"include_usage": null}"#] {
            assert!(!take(&format!(r#"{{"stream_options": {options}}}"#)).unwrap().include_usage);
        }
    }

    #[test]
    fn whole_numbers_may_be_written_with_a_point() {
        let taken =
            take(r#"{"n": 2.0, "top_k": 5.0, "min_tokens": 3.0, "seed": 7.0, "temperature": 1}"#).unwrap();
        let sampling = &taken.sampling;
        assert_eq!((taken.n, sampling.top_k, sampling.min_tokens, sampling.seed), (2, 5, 3, Some(7)));
        assert_eq!(take(r#"{"seed": 18446744073709551615}"#).unwrap().sampling.seed, Some(u64::MAX));
    }

    #[test]
    fn each_field_arrives() {
        let taken = take(
            r#"{"n": 3, "best_of": 3, "stream": true, "stream_options": {"include_usage": true}, "return_token_ids": true,
                "stop": ["a", "b"], "ignore_eos": true, "temperature": 0.5, "top_k": -1, "top_p": 0.8, "min_p": 0.1,
                "typical_p": 0.9, "repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3,
                "logit_bias": {"5": -100, "7": 1.5}, "allowed_token_ids": [5, 7], "min_tokens": 2, "seed": -1,
                "draft": {"enabled": true, "max_tokens": 9, "confidence": 0.25}, "response_format": {"type": "text"}, "tools": []}"#,
        )
        .unwrap();
        let request = taken.request(vec![TokenId(2)], 10, None, 2, 4);
        assert_eq!(request.stop, ["a", "b"]);
        assert_eq!(request.draft.confidence, Some(0.25));
        assert_eq!((request.choice, request.ignore_eos, request.draft.tokens_per_round), (2, true, Some(4)));
        let expected = SamplingOptions {
            temperature: 0.5,
            top_k: 0,
            top_p: 0.8,
            min_p: 0.1,
            typical_p: 0.9,
            repetition_penalty: 1.1,
            presence_penalty: 0.2,
            frequency_penalty: 0.3,
            logit_bias: vec![(TokenId(5), -100.0), (TokenId(7), 1.5)],
            suppress: vec![],
            allowed: Some(vec![TokenId(5), TokenId(7)]),
            min_tokens: 2,
            seed: Some(u64::MAX),
        };
        assert_eq!(request.sampling, expected);
    }

    #[test]
    fn several_outputs_share_a_drawn_seed() {
        let mut taken = take(r#"{"n": 2}"#).unwrap();
        taken.share_seed(1);
        assert_eq!(taken.sampling.seed, None);
        taken.share_seed(2);
        assert!(taken.sampling.seed.is_some());
        let mut greedy = take(r#"{"n": 2, "temperature": 0}"#).unwrap();
        greedy.share_seed(2);
        assert_eq!(greedy.sampling.seed, None);
    }

    #[test]
    fn wrong_values_name_their_field() {
        for (text, name) in [
            (r#"{"n": 0}"#, "n"),
            (r#"{"n": 9}"#, "n"),
            (r#"{"n": 2, "best_of": 3}"#, "best_of"),
            (r#"{"stream": "yes"}"#, "stream"),
            (r#"{"stream_options": {"include_usage": true}}"#, "stream_options"),
            (r#"{"stream": true, "stream_options": {"include_usage": 1}}"#, "stream_options.include_usage"),
            (r#"{"stop": 5}"#, "stop"),
            (r#"{"stop": ["a", 5]}"#, "stop"),
            (r#"{"stop": ""}"#, "stop"),
            (r#"{"temperature": "hot"}"#, "temperature"),
            (r#"{"temperature": 1e-400}"#, "temperature"),
            (r#"{"top_k": -2}"#, "top_k"),
            (r#"{"top_k": 1e-400}"#, "top_k"),
            (r#"{"seed": "x"}"#, "seed"),
            (r#"{"seed": 1.5}"#, "seed"),
            (r#"{"logit_bias": {"x": 1}}"#, "logit_bias"),
            (r#"{"logit_bias": {"5": "x"}}"#, "logit_bias"),
            (r#"{"logit_bias": [5]}"#, "logit_bias"),
            (r#"{"logit_bias": {"5": 1e-400}}"#, "logit_bias"),
            (r#"{"logit_bias": {"5": -1e-50}}"#, "logit_bias"),
            (r#"{"draft": {"confidence": 1e-50}}"#, "draft.confidence"),
            (r#"{"allowed_token_ids": [-1]}"#, "allowed_token_ids"),
            (r#"{"draft": true}"#, "draft"),
            (r#"{"draft": {"max_tokens": -1}}"#, "draft.max_tokens"),
            (r#"{"draft": {"tokens": 1}}"#, "draft.tokens"),
            (r#"{"response_format": {"type": "json_object"}}"#, "response_format"),
            (r#"{"tools": [{"type": "function"}]}"#, "tools"),
            (r#"{"tool_choice": "required"}"#, "tool_choice"),
            (r#"{"stop_token_ids": [5]}"#, "stop_token_ids"),
            (r#"{"use_beam_search": true}"#, "use_beam_search"),
        ] {
            let error = take(text).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(name), "{text}: {error}");
            assert_eq!(error.status.as_u16(), 400);
        }
        let many = format!(r#"{{"stop": [{}]}}"#, vec!["\"a\""; MAX_STOPS + 1].join(","));
        assert_eq!(take(&many).unwrap_err().param.as_deref(), Some("stop"));
    }
}
