//! The model that is served: its engine, and what turns bodies into prompts.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use paceline::{Engine, EngineHandle, ModelFolder, SamplingOptions, TokenId, Tokenizer};
use paceline_checkpoint::{ChatTemplate, Conversation, Error};
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::error::ApiError;
use crate::generation::Part;
use crate::post::Post;

/// A loaded model, ready to be served.
pub struct Model {
    pub(crate) name: String,
    pub(crate) engine: EngineHandle,
    /// Takes what the engine generates to those who asked.
    pub(crate) post: Arc<Post<Part>>,
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// What a request gets that does not say: what the checkpoint wants, else what OpenAI has.
    pub(crate) defaults: SamplingOptions,
    /// Tokens of a sequence, prompt and output, at most.
    pub(crate) context: usize,
    /// Outputs that run at one time.
    pub(crate) slots: usize,
    /// Who drafts for any request, in order of preference; predictions are drafted from without.
    pub(crate) drafters: Vec<LoadedDrafter>,
    /// Most drafts of a round that a request can ask for.
    pub(crate) most_drafts: usize,
    /// Figures for whoever asks what is loaded.
    pub(crate) facts: Facts,
    /// When it was loaded, in seconds since 1970.
    pub(crate) created: u64,
    template: Option<ChatTemplate>,
    /// The template reads a message's content as a list of parts too.
    reads_parts: bool,
}

/// A drafter of a loaded model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadedDrafter {
    pub(crate) kind: &'static str,
    /// Drafts of a round for a request that does not say.
    pub(crate) suggested: usize,
}

/// What was loaded.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) architecture: String,
    pub(crate) layers: usize,
    pub(crate) vocabulary: usize,
    /// What the context could be at most.
    pub(crate) largest_context: usize,
    pub(crate) level: String,
    pub(crate) threads: usize,
}

impl Model {
    /// Moves an engine to its thread. It should have been made with [`paceline::Sizes::score_prompts`], without which a
    /// prompt's log-probabilities are refused.
    ///
    /// # Errors
    /// A chat template or generation config that can not be read; no thread.
    pub fn new(
        name: String,
        folder: &ModelFolder,
        tokenizer: Arc<Tokenizer>,
        engine: Engine,
    ) -> Result<Self, ModelError> {
        let template = folder.chat_template()?;
        let reads_parts = template.as_ref().is_some_and(reads_parts);
        let info = engine.backend_info();
        let description = engine.description();
        let facts = Facts {
            architecture: description.architecture.clone(),
            layers: description.n_layers,
            vocabulary: description.vocab_size,
            largest_context: description.max_positions,
            level: info.level.clone(),
            threads: info.threads,
        };
        let sizes = *engine.sizes();
        let drafters = engine.drafters().into_iter();
        let drafters = drafters.map(|(kind, suggested)| LoadedDrafter { kind, suggested }).collect();
        let post = Arc::new(Post::default());
        let rounds = Rounds(Arc::clone(&post));
        Ok(Self {
            name,
            tokenizer,
            defaults: SamplingOptions::of_checkpoint(&folder.generation()?),
            context: sizes.context,
            slots: sizes.n_slots,
            drafters,
            most_drafts: sizes.max_drafts,
            facts,
            created: unix_seconds(),
            template,
            reads_parts,
            engine: EngineHandle::spawn_with(engine, move || rounds.0.round_over(Instant::now()))?,
            post,
        })
    }

    /// The tokens of a conversation up to where its next answer begins.
    pub(crate) fn encode_chat(&self, chat: &Chat) -> Result<Vec<TokenId>, ApiError> {
        let Some(template) = &self.template else {
            return Err(ApiError::field(
                "messages",
                "the model has no chat template, so it has no conversations; use /v1/completions",
            ));
        };
        let messages = if self.reads_parts { chat.messages.clone() } else { joined_parts(&chat.messages) };
        let conversation = Conversation {
            messages: &messages,
            tools: None,
            add_generation_prompt: chat.add_generation_prompt,
            variables: &chat.variables,
            unix_seconds: i64::try_from(unix_seconds()).unwrap_or(i64::MAX),
        };
        let text = template.render(&conversation).map_err(|error| match error {
            Error::TemplateRefused { message, .. } => {
                ApiError::field("messages", format!("the model's chat template says: {message}"))
            }
            other => ApiError::field("messages", format!("the model's chat template fails: {other}")),
        })?;
        ids(self.tokenizer.encode(&text), "messages")
    }

    /// The tokens of a text; `special` puts a BOS token in front where the model wants one.
    pub(crate) fn encode_text(&self, text: &str, special: bool) -> Result<Vec<TokenId>, ApiError> {
        let encoded = if special { self.tokenizer.encode(text) } else { self.tokenizer.encode_part(text) };
        ids(encoded, "prompt")
    }

    /// The tokens of a text that an answer is expected to be.
    pub(crate) fn encode_prediction(&self, text: &str) -> Result<Vec<TokenId>, ApiError> {
        ids(self.tokenizer.encode_part(text), "prediction.content")
    }

    /// Checks the name that a request gives.
    pub(crate) fn check_name(&self, found: Option<&str>) -> Result<(), ApiError> {
        match found {
            Some(found) if !found.is_empty() && found != self.name => {
                Err(ApiError::no_such_model(found, &self.name))
            }
            _ => Ok(()),
        }
    }
}

/// Why a model can not be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file of its folder is not in order.
    #[error(transparent)]
    Checkpoint(#[from] Error),
    /// The system gives no thread.
    #[error("no thread for the engine: {0}")]
    Thread(#[from] std::io::Error),
}

/// The engine's end of the post: when it goes, the engine has ended, and what is left is carried.
struct Rounds(Arc<Post<Part>>);

impl Drop for Rounds {
    fn drop(&mut self) {
        self.0.last_round_over();
    }
}

/// A conversation of a request.
#[derive(Clone, Debug)]
pub(crate) struct Chat {
    pub(crate) messages: Value,
    pub(crate) add_generation_prompt: bool,
    pub(crate) variables: Map<String, Value>,
}

/// Places for outputs, running and waiting.
#[derive(Debug)]
pub(crate) struct Places {
    pub(crate) free: Arc<Semaphore>,
    pub(crate) all: usize,
}

impl Places {
    pub(crate) fn new(all: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(all)), all }
    }
}

fn ids(encoded: Result<Vec<u32>, Error>, field: &'static str) -> Result<Vec<TokenId>, ApiError> {
    match encoded {
        Ok(ids) => Ok(ids.into_iter().map(TokenId).collect()),
        Err(error) => Err(ApiError::field(field, error.to_string())),
    }
}

/// Whether a template gives the same text for a content that is a string and one that is a list with the same text.
fn reads_parts(template: &ChatTemplate) -> bool {
    let render = |content: Value| {
        let messages = json!([{"role": "user", "content": content}]);
        let conversation = Conversation {
            messages: &messages,
            tools: None,
            add_generation_prompt: true,
            variables: &Map::new(),
            unix_seconds: 0,
        };
        template.render(&conversation).ok()
    };
    let parts = render(json!([{"type": "text", "text": "one"}]));
    parts.is_some() && parts == render(json!("one"))
}

/// The same messages with the texts of each list of parts in one string.
fn joined_parts(messages: &Value) -> Value {
    let mut messages = messages.clone();
    for message in messages.as_array_mut().into_iter().flatten() {
        if let Some(content) = message.get_mut("content")
            && let Some(parts) = content.as_array()
        {
            let texts: Vec<_> =
                parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str)).collect();
            *content = Value::String(texts.join("\n"));
        }
    }
    messages
}

pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn parts_are_joined_only_where_the_template_needs_it() {
        let template = |source: &str| ChatTemplate::parse(Path::new("t"), source, &[]).unwrap();
        let plain = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}";
        assert!(!reads_parts(&template(plain)));
        let both = "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}\
                    {% for p in m['content'] %}{{ p['text'] }}{% endfor %}{% endif %}{% endfor %}";
        assert!(reads_parts(&template(both)));
        let messages = json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
        assert_eq!(joined_parts(&messages), json!([{"role": "user", "content": "a\nb"}]));
    }
}
