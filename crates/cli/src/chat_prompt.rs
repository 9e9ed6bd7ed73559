//! From a user's text to the tokens of a prompt.

use std::time::{SystemTime, UNIX_EPOCH};

use paceline_checkpoint::{ChatTemplate, Conversation, ModelFolder, Tokenizer};
use serde_json::{Map, Value, json};

use crate::failure::{Failure, note};
use crate::model::no_tokenizer;

/// Encodes texts, each as the first message of a conversation or as it is.
pub(crate) struct PromptEncoder<'a> {
    tokenizer: &'a Tokenizer,
    template: Option<ChatTemplate>,
}

impl<'a> PromptEncoder<'a> {
    /// The encoder of a model. With `raw`, or where the model has no chat template, texts are used as they are.
    pub(crate) fn new(
        folder: &ModelFolder,
        tokenizer: Option<&'a Tokenizer>,
        raw: bool,
    ) -> Result<Self, Failure> {
        let Some(tokenizer) = tokenizer else {
            let problem = no_tokenizer(folder);
            return Err(Failure::bad_input(format!(
                "{problem}; give token ids: `token_ids` in lines of --prompts-file, or --token-ids of `paceline run`"
            )));
        };
        let template = if raw { None } else { folder.chat_template()? };
        if !raw && template.is_none() {
            note("the model has no chat template; the prompt is used as it is, as with --raw");
        }
        Ok(Self { tokenizer, template })
    }

    /// The encoder of whole conversations, which need a chat template.
    pub(crate) fn for_conversation(folder: &ModelFolder, tokenizer: &'a Tokenizer) -> Result<Self, Failure> {
        let template = folder.chat_template()?;
        if template.is_none() {
            let folder = folder.origin().display();
            return Err(Failure::bad_input(format!(
                "{folder}: has no chat template, so there is no conversation; `paceline run` continues a text"
            )));
        }
        Ok(Self { tokenizer, template })
    }

    /// The tokens of a text, where there is a template as the first message of a conversation.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>, Failure> {
        match &self.template {
            None => Ok(self.tokenizer.encode(text)?),
            Some(template) => self.encode_with(template, &json!([{"role": "user", "content": text}])),
        }
    }

    /// The tokens of a conversation up to where its next answer begins.
    pub(crate) fn encode_messages(&self, messages: &Value) -> Result<Vec<u32>, Failure> {
        let template = self.template.as_ref().expect("encoders of conversations have a template");
        self.encode_with(template, messages)
    }

    fn encode_with(&self, template: &ChatTemplate, messages: &Value) -> Result<Vec<u32>, Failure> {
        let rendered = template.render(&Conversation {
            messages,
            tools: None,
            add_generation_prompt: true,
            variables: &Map::new(),
            unix_seconds: unix_seconds(),
        })?;
        Ok(self.tokenizer.encode(&rendered)?)
    }
}

/// The time for templates that ask for it.
pub(crate) fn unix_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
