//! How a checkpoint wants to be generated from: end tokens, suppressed tokens, sampling defaults.

use crate::{Error, RawConfig};

/// Least temperature above 0: below it quotients of logits leave the range of f32.
pub const LEAST_TEMPERATURE: f32 = 1e-6;
/// Largest temperature.
pub const MOST_TEMPERATURE: f32 = 1e6;

/// What `generation_config.json` says, with the fallbacks for what it leaves out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Tokens that end the text; empty when no file names one.
    pub end_token_ids: Vec<u32>,
    /// Token that begins a text.
    pub bos_token_id: Option<u32>,
    /// Tokens that must never be chosen.
    pub suppress_token_ids: Vec<u32>,
    /// Whether the checkpoint wants to be sampled from rather than read greedily.
    pub do_sample: Option<bool>,
    /// Default temperature.
    pub temperature: Option<f32>,
    /// Default number of most likely tokens to sample from.
    pub top_k: Option<usize>,
    /// Default probability mass to sample from.
    pub top_p: Option<f32>,
    /// Default least probability, relative to the most likely token.
    pub min_p: Option<f32>,
    /// Default mass of the tokens of nearly expected surprise.
    pub typical_p: Option<f32>,
    /// Default penalty on tokens that the text has.
    pub repetition_penalty: Option<f32>,
    /// In a drafter's folder: drafts a round.
    pub num_assistant_tokens: Option<usize>,
}

impl GenerationConfig {
    /// Reads `generation`, the parsed `generation_config.json` if the folder has one. Token ids that it does not give
    /// come from the top level of `config`, else from its `text_config`.
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::OutOfRange`].
    pub fn read(config: &RawConfig, generation: Option<&RawConfig>) -> Result<GenerationConfig, Error> {
        let ids = |field: &str| -> Result<Option<Vec<u32>>, Error> {
            for section in [generation.map(RawConfig::top), Some(config.top()), Some(config.text()?)] {
                if let Some(section) = section
                    && let Some(ids) = section.optional_token_ids(field)?
                {
                    return Ok(Some(ids));
                }
            }
            Ok(None)
        };
        let mut read = GenerationConfig {
            end_token_ids: ids("eos_token_id")?.unwrap_or_default(),
            bos_token_id: ids("bos_token_id")?.and_then(|ids| ids.first().copied()),
            ..GenerationConfig::default()
        };
        let Some(section) = generation.map(RawConfig::top) else { return Ok(read) };
        read.suppress_token_ids = section.optional_token_ids("suppress_tokens")?.unwrap_or_default();
        read.do_sample = section.optional_bool("do_sample")?;
        read.temperature = section.optional_f32("temperature", 0.0..=MOST_TEMPERATURE.into())?;
        if read.temperature.is_some_and(|temperature| temperature != 0.0 && temperature < LEAST_TEMPERATURE) {
            return Err(section
                .unsupported("temperature", format!("0, or {LEAST_TEMPERATURE} to {MOST_TEMPERATURE}")));
        }
        read.top_k = section.optional_usize("top_k", 0..=1 << 24)?;
        read.top_p = section.optional_f32("top_p", 0.0..=1.0)?;
        read.min_p = section.optional_f32("min_p", 0.0..=1.0)?;
        read.typical_p = section.optional_f32("typical_p", 0.0..=1.0)?;
        read.repetition_penalty = section.optional_f32("repetition_penalty", 1e-3..=1e3)?;
        read.num_assistant_tokens = section.optional_usize("num_assistant_tokens", 0..=1 << 16)?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(file: &str, text: &str) -> RawConfig {
        RawConfig::parse(Path::new(file), text.as_bytes()).unwrap()
    }

    fn ends(config_text: &str, generation_text: Option<&str>) -> Vec<u32> {
        let generation = generation_text.map(|text| config("generation_config.json", text));
        let read = GenerationConfig::read(&config("config.json", config_text), generation.as_ref());
        read.unwrap().end_token_ids
    }

    #[test]
    fn end_tokens_come_from_the_first_file_that_has_them() {
        let nested = r#"{"eos_token_id": [1, 106], "text_config": {"eos_token_id": 1}}"#;
        assert_eq!(ends(nested, Some(r#"{"eos_token_id": [1, 106, 50]}"#)), [1, 106, 50]);
        assert_eq!(ends(nested, Some("{}")), [1, 106]);
        assert_eq!(ends(nested, Some(r#"{"eos_token_id": null}"#)), [1, 106]);
        assert_eq!(ends(nested, None), [1, 106]);
        assert_eq!(ends(r#"{"text_config": {"eos_token_id": 7}}"#, None), [7]);
        assert_eq!(ends("{}", None), [0; 0]);
    }

    #[test]
    fn sampling_defaults_and_suppressed_tokens_are_read() {
        let text = r#"{"suppress_tokens": [258883, 258882], "do_sample": true, "temperature": 1.0, "top_k": 64,
                       "top_p": 0.95, "min_p": 0.1, "typical_p": 0.9, "repetition_penalty": 1.2,
                       "num_assistant_tokens": 3, "bos_token_id": 2}"#;
        let generation = config("generation_config.json", text);
        let read = GenerationConfig::read(&config("config.json", "{}"), Some(&generation)).unwrap();
        assert_eq!(read.suppress_token_ids, [258883, 258882]);
        assert_eq!((read.do_sample, read.temperature, read.top_k), (Some(true), Some(1.0), Some(64)));
        assert_eq!((read.top_p, read.num_assistant_tokens), (Some(0.95), Some(3)));
        assert_eq!(read.bos_token_id, Some(2));
        assert_eq!((read.min_p, read.typical_p, read.repetition_penalty), (Some(0.1), Some(0.9), Some(1.2)));
    }

    #[test]
    fn zero_is_greedy_however_it_is_written() {
        for zero in ["0", "0.0", "0e-400"] {
            let text = format!(r#"{{"temperature": {zero}}}"#);
            let generation = config("generation_config.json", &text);
            let read = GenerationConfig::read(&config("config.json", "{}"), Some(&generation)).unwrap();
            assert_eq!(read.temperature, Some(0.0), "{zero}");
        }
    }

    #[test]
    fn wrong_values_name_file_and_field() {
        for (text, part) in [
            (r#"{"eos_token_id": -1}"#, "`eos_token_id` is -1"),
            (r#"{"eos_token_id": "x"}"#, "`eos_token_id` is \"x\""),
            (r#"{"eos_token_id": [1, 4294967296]}"#, "`eos_token_id` is 4294967296"),
            (r#"{"top_p": 1.5}"#, "`top_p` is 1.5"),
            (r#"{"temperature": -0.5}"#, "`temperature` is -0.5"),
            // None of them is greedy, which 0 would be.
            (r#"{"temperature": 1e-20}"#, "`temperature` is 1e-20, expected 0, or 0.000001 to 1000000"),
            (
                r#"{"temperature": 1e-50}"#,
                "`temperature` is 1e-50, expected 0 itself or a number farther from it",
            ),
            (r#"{"temperature": 1e-400}"#, "`temperature` is 1e-400, expected 0 itself or a number farther"),
            (r#"{"min_p": 1e-400, "top_p": 0.0}"#, "`min_p` is 1e-400"),
            (r#"{"repetition_penalty": 0}"#, "`repetition_penalty` is 0"),
        ] {
            let generation = config("generation_config.json", text);
            let error = GenerationConfig::read(&config("config.json", "{}"), Some(&generation)).unwrap_err();
            let message = error.to_string();
            assert!(message.contains(part) && message.contains("generation_config.json"), "{message}");
        }
    }
}
