//! `tokenizer_config.json`: what belongs to the tokenizer and is not in `tokenizer.json`.

use crate::{Error, RawConfig, Section};

/// The fields of `tokenizer_config.json` that are used.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TokenizerConfig {
    /// Whether a plain text begins with the BOS token; `None` leaves it to `tokenizer.json`.
    pub(crate) add_bos_token: Option<bool>,
    /// Texts of the special tokens by role, as `bos_token`: variables of the chat template.
    pub(crate) special_tokens: Vec<(String, String)>,
    /// Chat templates by name; a single one is called `default`.
    pub(crate) chat_templates: Vec<(String, String)>,
}

impl TokenizerConfig {
    /// Reads the parsed file.
    pub(crate) fn read(raw: &RawConfig) -> Result<TokenizerConfig, Error> {
        let top = raw.top();
        let mut special_tokens = Vec::new();
        for role in top.names().filter(|name| name.ends_with("_token") && !name.starts_with("add_")) {
            if !top.has(role) {
                continue;
            }
            // Either the text itself, or an object around it.
            let text = match top.optional_section(role) {
                Ok(Some(token)) => token.required_str("content")?,
                _ => top.required_str(role)?,
            };
            special_tokens.push((role.to_owned(), text.to_owned()));
        }
        let add_bos_token = top.optional_bool("add_bos_token")?;
        Ok(TokenizerConfig { add_bos_token, special_tokens, chat_templates: chat_templates(&top)? })
    }

    /// Text of the special token of the given role.
    pub(crate) fn special_token(&self, role: &str) -> Option<&str> {
        self.special_tokens.iter().find(|token| token.0 == role).map(|token| &token.1[..])
    }
}

/// `chat_template` is one template, or a list of objects with `name` and `template`.
fn chat_templates(top: &Section<'_>) -> Result<Vec<(String, String)>, Error> {
    const FIELD: &str = "chat_template";
    let Ok(list) = top.optional_section_list(FIELD) else {
        return Ok(vec![("default".to_owned(), top.required_str(FIELD)?.to_owned())]);
    };
    list.iter()
        .flatten()
        .map(|item| Ok((item.required_str("name")?.to_owned(), item.required_str("template")?.to_owned())))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(text: &str) -> Result<TokenizerConfig, Error> {
        TokenizerConfig::read(&RawConfig::parse(Path::new("tokenizer_config.json"), text.as_bytes()).unwrap())
    }

    #[test]
    fn chat_templates_are_one_or_several() {
        let templates = |text: &str| read(text).unwrap().chat_templates;
        assert!(templates("{}").is_empty());
        assert!(templates(r#"{"chat_template": null}"#).is_empty());
        let one = [("default".to_owned(), "x".to_owned())];
        assert_eq!(templates(r#"{"chat_template": "x"}"#), one);
        assert_eq!(templates(r#"{"chat_template": [{"name": "default", "template": "x"}]}"#), one);
        assert!(read(r#"{"chat_template": 3}"#).is_err());
        assert!(read(r#"{"chat_template": [{"name": "default"}]}"#).is_err());
        assert!(read(r#"{"chat_template": ["x"]}"#).is_err());
    }

    #[test]
    fn special_tokens_are_texts_or_objects() {
        let config = read(
            r#"{"add_bos_token": true, "bos_token": {"content": "<bos>", "special": true}, "eos_token": "<eos>",
                "unk_token": null, "sot_token": "<|turn>", "additional_special_tokens": ["x"]}"#,
        )
        .unwrap();
        assert_eq!(config.add_bos_token, Some(true));
        assert_eq!(config.special_token("bos_token"), Some("<bos>"));
        assert_eq!(config.special_token("sot_token"), Some("<|turn>"));
        assert_eq!(config.special_tokens.len(), 3);
        assert!(read(r#"{"bos_token": 2}"#).is_err());
        assert!(read(r#"{"bos_token": {}}"#).is_err());
        assert!(read(r#"{"add_bos_token": "yes"}"#).is_err());
    }
}
