//! How tokens are chosen and what is told of it, in arguments and in lines of prompts.

use std::collections::BTreeMap;
use std::iter;
use std::num::ParseIntError;
use std::str::FromStr;
use std::sync::LazyLock;

use clap::{Args, Command, ValueEnum};
use paceline::{Distribution, LogprobOptions, NumberError, Refused, SamplingOptions, TokenId, parse_number};
use paceline_checkpoint::GenerationConfig;
use serde::de::value::MapDeserializer;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::failure::note;
use crate::json_map::UniqueKeys;
use crate::numbers::{of_json, whole};
use crate::prompts::{TokenIds, parse_ids, without_place};

/// The same refusal with the program's own names for the lists of tokens that it may be about.
pub(crate) fn under_own_name(refused: Refused) -> Refused {
    match refused {
        Refused::UnknownListedToken { field: "allowed", id, vocab_size } => {
            Refused::UnknownListedToken { field: "--allowed-tokens", id, vocab_size }
        }
        Refused::UnknownListedToken { field: "suppress", id, vocab_size } => {
            Refused::UnknownListedToken { field: "--suppress-tokens", id, vocab_size }
        }
        other => other,
    }
}

/// What is said about choosing tokens; what is left out is the default, or the checkpoint's with `sample`.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize)]
#[command(next_help_heading = "Choice of tokens")]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SamplingArgs {
    /// Draw tokens from the softmax of logits over T; 0, which it is if nothing is said, takes the most likely token each time
    #[arg(long, value_name = "T", value_parser = parse_temperature, allow_hyphen_values = true)]
    #[serde(deserialize_with = "temperature")]
    temperature: Option<Number>,
    /// Take temperature, filters and penalty from the model's generation_config.json where no option says otherwise, as `serve` does
    #[arg(long)]
    sample: bool,
    /// Same seed, same text, whatever drafts and whatever else runs; left out, one is drawn, which `run --json` tells
    #[arg(long, value_name = "N", value_parser = whole::<u64>, allow_hyphen_values = true)]
    #[serde(deserialize_with = "whole_number")]
    seed: Option<u64>,
    /// Draw from the N most likely tokens only; 0: from all
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_hyphen_values = true)]
    #[serde(deserialize_with = "whole_number")]
    top_k: Option<usize>,
    /// Draw from the most likely tokens that have probability P together; 1: from all
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    top_p: Option<Number>,
    /// Draw from tokens at least P times as likely as the most likely one; 0: from all
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    min_p: Option<Number>,
    /// Draw from the tokens of nearly expected surprise that have probability P together; 1: from all
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    typical_p: Option<Number>,
    /// Divide positive logits of tokens that prompt or output has by X, multiply negative ones; 1: no penalty
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    repetition_penalty: Option<Number>,
    /// Subtract X from the logits of tokens that the output has
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    presence_penalty: Option<Number>,
    /// Subtract X from the logit of a token for each time that the output has it
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    frequency_penalty: Option<Number>,
    /// Add B to the logit of token ID
    #[arg(long, value_name = "ID=B,...", value_parser = parse_logit_bias, allow_hyphen_values = true)]
    logit_bias: Option<LogitBias>,
    /// Choose no token that ends the text before the output has N tokens
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_hyphen_values = true)]
    #[serde(deserialize_with = "whole_number")]
    min_tokens: Option<usize>,
    /// Never choose these tokens
    #[arg(long, value_name = "ID,...", value_parser = parse_ids, allow_hyphen_values = true)]
    suppress_tokens: Option<TokenIds>,
    /// Choose only among these tokens
    #[arg(long, value_name = "ID,...", value_parser = parse_ids, allow_hyphen_values = true)]
    allowed_tokens: Option<TokenIds>,
}

/// A number of the sampling, read from its text: JSON's own numbers have become 0 where they were too small.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Number(f32);

impl FromStr for Number {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_number(text).map(Number).map_err(|error| format!("`{text}` {error}"))
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(from)?;
        text.get().parse().map_err(serde::de::Error::custom)
    }
}

/// Biases of tokens, each named once.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(from = "UniqueKeys<u32, Number>")]
struct LogitBias(BTreeMap<u32, Number>);

impl From<UniqueKeys<u32, Number>> for LogitBias {
    fn from(UniqueKeys(pairs): UniqueKeys<u32, Number>) -> Self {
        LogitBias(pairs.into_iter().collect())
    }
}

/// Parses a temperature. One that would be held as 0 is as far out of range as one that is merely too small.
fn parse_temperature(text: &str) -> Result<Number, String> {
    match parse_number(text) {
        Err(NumberError::Vanishes) => {
            Err(format!("`{text}` is not 0, but too near to it; expected {}", SamplingOptions::TEMPERATURES))
        }
        _ => text.parse(),
    }
}

fn temperature<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Number>, D::Error> {
    let text = Option::<Box<RawValue>>::deserialize(from)?;
    text.map(|text| parse_temperature(text.get())).transpose().map_err(serde::de::Error::custom)
}

fn whole_number<'de, D: Deserializer<'de>, T>(from: D) -> Result<Option<T>, D::Error>
where
    T: FromStr<Err = ParseIntError>,
{
    let text = Box::<RawValue>::deserialize(from)?;
    of_json(&text, whole).map_err(serde::de::Error::custom)
}

fn parse_logit_bias(word: &str) -> Result<LogitBias, String> {
    let mut biases = BTreeMap::new();
    for pair in word.split(',').map(str::trim) {
        let wrong =
            || format!("`{pair}` is no bias; expected ID=B with commas between, such as 7=-100,9=2.5");
        let (id, bias) = pair.split_once('=').ok_or_else(wrong)?;
        let id = id.trim().parse().map_err(|_| wrong())?;
        let bias = match parse_number(bias.trim()) {
            Err(NumberError::NotANumber) => return Err(wrong()),
            bias => bias.map_err(|error| format!("`{pair}`: the bias {error}"))?,
        };
        if biases.insert(id, Number(bias)).is_some() {
            return Err(format!("token {id} has two biases; expected one for each token"));
        }
    }
    Ok(LogitBias(biases))
}

impl SamplingArgs {
    /// The names of all fields.
    pub(crate) fn fields() -> &'static [String] {
        static FIELDS: LazyLock<Vec<String>> = LazyLock::new(|| {
            let all = SamplingArgs::augment_args(Command::new("fields"));
            all.get_arguments().map(|argument| argument.get_id().to_string()).collect()
        });
        &FIELDS
    }

    /// What one field of an object says. Errors begin with its name.
    pub(crate) fn of_field(name: &str, value: &RawValue) -> Result<SamplingArgs, String> {
        let object = MapDeserializer::new(iter::once((name, value)));
        Self::deserialize(object).map_err(|error| format!("`{name}`: {}", without_place(&error)))
    }

    /// What is said here, and `base` where nothing is.
    pub(crate) fn or(self, base: &SamplingArgs) -> SamplingArgs {
        SamplingArgs {
            temperature: self.temperature.or(base.temperature),
            sample: self.sample || base.sample,
            seed: self.seed.or(base.seed),
            top_k: self.top_k.or(base.top_k),
            top_p: self.top_p.or(base.top_p),
            min_p: self.min_p.or(base.min_p),
            typical_p: self.typical_p.or(base.typical_p),
            repetition_penalty: self.repetition_penalty.or(base.repetition_penalty),
            presence_penalty: self.presence_penalty.or(base.presence_penalty),
            frequency_penalty: self.frequency_penalty.or(base.frequency_penalty),
            logit_bias: self.logit_bias.or_else(|| base.logit_bias.clone()),
            min_tokens: self.min_tokens.or(base.min_tokens),
            suppress_tokens: self.suppress_tokens.or_else(|| base.suppress_tokens.clone()),
            allowed_tokens: self.allowed_tokens.or_else(|| base.allowed_tokens.clone()),
        }
    }

    /// Says which of the options here do nothing at a temperature of 0, if it is that.
    pub(crate) fn note_idle(&self, temperature: f32) {
        if temperature == 0.0
            && let Some(idle) = self.idle()
        {
            note(&idle);
        }
    }

    /// What says nothing where the most likely token is taken.
    fn idle(&self) -> Option<String> {
        let given = [
            ("--seed", self.seed.is_some()),
            ("--top-k", self.top_k.is_some()),
            ("--top-p", self.top_p.is_some()),
            ("--min-p", self.min_p.is_some()),
            ("--typical-p", self.typical_p.is_some()),
        ];
        let names: Vec<_> = given.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect();
        let does = if names.len() == 1 { "does" } else { "do" };
        let joined = match &names[..] {
            [] => return None,
            [one] => (*one).to_owned(),
            [some @ .., last] => format!("{} and {last}", some.join(", ")),
        };
        Some(format!(
            "{joined} {does} nothing at temperature 0, where the most likely token is taken each time; --temperature T draws"
        ))
    }

    /// The options for a request to a model that wants to be generated from like `generation`.
    pub(crate) fn options(&self, generation: &GenerationConfig) -> SamplingOptions {
        let usual =
            if self.sample { SamplingOptions::of_checkpoint(generation) } else { SamplingOptions::default() };
        let number = |said: Option<Number>, usual| said.map_or(usual, |Number(number)| number);
        let ids = |ids: &TokenIds| ids.0.iter().copied().map(TokenId).collect::<Vec<_>>();
        SamplingOptions {
            temperature: number(self.temperature, usual.temperature),
            top_k: self.top_k.unwrap_or(usual.top_k),
            top_p: number(self.top_p, usual.top_p),
            min_p: number(self.min_p, usual.min_p),
            typical_p: number(self.typical_p, usual.typical_p),
            repetition_penalty: number(self.repetition_penalty, usual.repetition_penalty),
            presence_penalty: number(self.presence_penalty, usual.presence_penalty),
            frequency_penalty: number(self.frequency_penalty, usual.frequency_penalty),
            logit_bias: self
                .logit_bias
                .iter()
                .flat_map(|of| &of.0)
                .map(|(&id, &Number(bias))| (TokenId(id), bias))
                .collect(),
            suppress: self.suppress_tokens.as_ref().map(ids).unwrap_or_default(),
            allowed: self.allowed_tokens.as_ref().map(ids),
            min_tokens: self.min_tokens.unwrap_or(usual.min_tokens),
            seed: self.seed,
        }
    }
}

/// Log-probabilities, in arguments.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(next_help_heading = "Log-probabilities")]
pub(crate) struct LogprobArgs {
    /// Tell each token's log-probability, and the N most likely tokens at its place
    #[arg(long, value_name = "N", requires = "json", value_parser = whole::<usize>, allow_hyphen_values = true)]
    logprobs: Option<usize>,
    /// Of the model's own distribution, or of the one that is drawn from: after bias, penalties, temperature and filters
    #[arg(long, value_name = "D", value_enum, default_value = "model", requires = "logprobs")]
    logprobs_of: DistributionArg,
    /// Tell the log-probabilities of the prompt's tokens too, always of the model's own distribution
    #[arg(long, requires = "json")]
    echo: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DistributionArg {
    Model,
    Sampled,
}

impl LogprobArgs {
    /// The options for a request.
    pub(crate) fn options(&self) -> Option<LogprobOptions> {
        let of = match self.logprobs_of {
            DistributionArg::Model => Distribution::Model,
            DistributionArg::Sampled => Distribution::Sampled,
        };
        let options = |top| LogprobOptions { top, of, prompt: self.echo };
        self.logprobs.or(self.echo.then_some(0)).map(options)
    }

    /// Whether prompts are scored.
    pub(crate) fn echo(&self) -> bool {
        self.echo
    }
}

/// The sampling that is in force, for `--json`: all that the text depends on beside model, prompt and seed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct InForce {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    typical_p: f32,
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    logit_bias: BTreeMap<u32, f32>,
    min_tokens: usize,
    /// Those of the request; the checkpoint's own are never chosen either.
    suppress_tokens: Vec<u32>,
    allowed_tokens: Option<Vec<u32>>,
}

impl From<SamplingOptions> for InForce {
    fn from(from: SamplingOptions) -> Self {
        let ids = |ids: Vec<TokenId>| ids.into_iter().map(|id| id.0).collect();
        InForce {
            temperature: from.temperature,
            top_k: from.top_k,
            top_p: from.top_p,
            min_p: from.min_p,
            typical_p: from.typical_p,
            repetition_penalty: from.repetition_penalty,
            presence_penalty: from.presence_penalty,
            frequency_penalty: from.frequency_penalty,
            logit_bias: from.logit_bias.into_iter().map(|(id, bias)| (id.0, bias)).collect(),
            min_tokens: from.min_tokens,
            suppress_tokens: ids(from.suppress),
            allowed_tokens: from.allowed.map(ids),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<SamplingArgs, String> {
        let UniqueKeys(fields) = serde_json::from_str::<UniqueKeys<String, Box<RawValue>>>(json).unwrap();
        fields.iter().try_fold(SamplingArgs::default(), |all, (name, value)| {
            Ok(SamplingArgs::of_field(name, value)?.or(&all))
        })
    }

    fn line(json: &str) -> SamplingArgs {
        parse(json).unwrap()
    }

    #[test]
    fn nothing_said_is_greedy_whatever_the_checkpoint_wants() {
        let generation = GenerationConfig { temperature: Some(0.6), top_k: Some(64), ..Default::default() };
        assert_eq!(SamplingArgs::default().options(&generation), SamplingOptions::default());
        let warm = line(r#"{"temperature": 0.5}"#).options(&generation);
        assert_eq!((warm.temperature, warm.top_k), (0.5, 0));
    }

    #[test]
    fn options_that_do_nothing_are_named() {
        assert_eq!(line("{}").idle(), None);
        assert_eq!(line(r#"{"temperature": 0, "repetition_penalty": 2, "min_tokens": 3}"#).idle(), None);
        for (json, start) in [
            (r#"{"top_k": 5}"#, "--top-k does nothing at temperature 0"),
            (r#"{"top_p": 0.5, "seed": 7}"#, "--seed and --top-p do nothing"),
            (r#"{"min_p": 0.5, "seed": 7, "typical_p": 0.1}"#, "--seed, --min-p and --typical-p do nothing"),
        ] {
            let idle = line(json).idle().unwrap();
            assert!(idle.starts_with(start), "{idle}");
        }
    }

    #[test]
    fn sample_takes_what_the_checkpoint_says_where_nothing_else_does() {
        let generation = GenerationConfig {
            temperature: Some(0.6),
            top_k: Some(64),
            top_p: Some(0.95),
            repetition_penalty: Some(1.1),
            ..Default::default()
        };
        let got = line(r#"{"sample": true, "top_k": 5}"#).options(&generation);
        assert_eq!((got.temperature, got.top_k, got.top_p), (0.6, 5, 0.95));
        assert_eq!((got.repetition_penalty, got.min_p, got.typical_p), (1.1, 0.0, 1.0));
        // Files that say nothing, or only that they want it, mean the model's own distribution.
        assert_eq!(line(r#"{"sample": true}"#).options(&GenerationConfig::default()).temperature, 1.0);
    }

    #[test]
    fn a_line_says_more_than_the_arguments() {
        let all = r#"{"temperature": 1.0, "seed": 3, "top_k": 1, "top_p": 0.1, "min_p": 0.2, "typical_p": 0.3,
            "repetition_penalty": 1.1, "presence_penalty": 0.4, "frequency_penalty": 0.5, "logit_bias": {"7": -1.5},
            "min_tokens": 2, "suppress_tokens": [8], "allowed_tokens": [7, 9], "sample": true}"#;
        let full = line(all);
        assert_eq!(SamplingArgs::default().or(&full), full);
        assert_eq!(full.clone().or(&line(r#"{"temperature": 0.1, "seed": 4, "min_tokens": 9}"#)), full);
        let got = full.options(&GenerationConfig::default());
        assert_eq!((got.seed, got.min_tokens), (Some(3), 2));
        assert_eq!((got.suppress, got.allowed), (vec![TokenId(8)], Some(vec![TokenId(7), TokenId(9)])));
        assert_eq!(got.logit_bias, [(TokenId(7), -1.5)]);
    }

    #[test]
    fn a_wrong_field_is_named() {
        for (json, part) in [
            (r#"{"temprature": 1}"#, "unknown field"),
            (r#"{"top_p": "much"}"#, "`\"much\"` is not a number"),
            (r#"{"temperature": 1e-400}"#, "`1e-400` is not 0"),
            (
                r#"{"temperature": 1e-50}"#,
                "`1e-50` is not 0, but too near to it; expected 0, or 0.000001 to 1000000",
            ),
            (r#"{"logit_bias": {"7": 1e-400}}"#, "`1e-400` is not 0"),
            (r#"{"top_k": -1}"#, "`-1`: expected a whole number of at least 0"),
            (r#"{"min_tokens": "x"}"#, "`\"x\"`: expected a whole number of at least 0"),
            (r#"{"seed": 1.5}"#, "`1.5`: expected a whole number of at least 0"),
            (r#"{"seed": 18446744073709551616}"#, "`18446744073709551616`: larger than any number"),
            (r#"{"sample": 1}"#, "a boolean"),
            (r#"{"logit_bias": {"x": 1}}"#, "x"),
            (r#"{"logit_bias": {"7": 1, "8": 1, "7": 1}}"#, "`7` stands twice"),
            (r#"{"suppress_tokens": [-1]}"#, "-1"),
        ] {
            let name = json.split('"').nth(1).unwrap();
            let error = parse(json).unwrap_err();
            assert!(error.starts_with(&format!("`{name}`: ")) && error.contains(part), "{json}: {error}");
            assert!(!error.contains("column"), "{error}");
        }
    }

    #[test]
    fn biases_are_pairs_with_commas() {
        let got = parse_logit_bias("7=-100, 9=2.5").unwrap();
        assert_eq!(got.0.into_iter().collect::<Vec<_>>(), [(7, Number(-100.0)), (9, Number(2.5))]);
        for (word, part) in [
            ("", "``"),
            ("7", "`7`"),
            ("x=1", "`x=1`"),
            ("7=y", "`7=y`"),
            ("7=1,7=2", "token 7"),
            ("7=1e-99", "`7=1e-99`"),
        ] {
            let error = parse_logit_bias(word).unwrap_err();
            assert!(error.contains(part), "{word}: {error}");
        }
    }
}
