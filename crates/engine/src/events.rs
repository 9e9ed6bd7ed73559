//! What a client hears about its request.

use paceline_backend::TokenId;

use crate::error::Failed;
use crate::sampling::Logprobs;
use crate::statistics::DraftStatistics;

/// Something that happened to a request. [`Event::Finished`] or [`Event::Failed`] is the last one.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A part of the prompt was read, and more is left. A preempted request reads its prompt again, its output included.
    Prefill {
        /// Tokens read so far.
        done: usize,
        /// Tokens to read.
        of: usize,
    },
    /// Log-probabilities of prompt tokens, in order from the second one on (nothing comes before the first). Only where they
    /// are asked for.
    Prompt(Vec<Logprobs>),
    /// A token was emitted.
    Token {
        /// Its id.
        id: TokenId,
        /// The text that is now certain; the texts of all tokens joined are the output. Often empty: a character may take
        /// several tokens, and what could be the beginning of a stop string is held back. `None` without a tokenizer.
        text: Option<String>,
        /// Its log-probabilities, where they are asked for.
        logprobs: Option<Logprobs>,
    },
    /// The output is complete.
    Finished(Finished),
    /// The request failed; what was emitted before stands.
    Failed(Failed),
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Why.
    pub reason: FinishReason,
    /// Tokens read and emitted.
    pub usage: Usage,
    /// The seed in force.
    pub seed: u64,
    /// How drafting went; `None` where it was not asked for or the engine has no drafter.
    pub draft: Option<DraftStatistics>,
}

/// Why an output ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model chose an end token, which is the last one emitted.
    EndToken,
    /// The stop string with this index in the request came up; the last emitted token completed it.
    StopString(usize),
    /// `max_tokens` or the context was reached.
    Length,
}

impl FinishReason {
    /// The word for it in APIs of this field: `stop` or `length`.
    pub fn as_str(self) -> &'static str {
        match self {
            FinishReason::EndToken | FinishReason::StopString(_) => "stop",
            FinishReason::Length => "length",
        }
    }
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Emitted tokens.
    pub completion_tokens: usize,
}

/// A whole output: events of one request, added up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Completion {
    /// Emitted tokens.
    pub token_ids: Vec<TokenId>,
    /// Their text; `None` without a tokenizer (and before the first token).
    pub text: Option<String>,
    /// Log-probabilities of the emitted tokens; empty where they are not asked for.
    pub logprobs: Vec<Logprobs>,
    /// Log-probabilities of the prompt from its second token on; empty where they are not asked for.
    pub prompt_logprobs: Vec<Logprobs>,
    /// How it ended; `None` while it has not.
    pub finished: Option<Finished>,
}

impl Completion {
    /// Adds an event.
    ///
    /// # Errors
    /// The failure that the event tells of.
    pub fn add(&mut self, event: Event) -> Result<(), Failed> {
        match event {
            Event::Prefill { .. } => {}
            Event::Prompt(logprobs) => self.prompt_logprobs.extend(logprobs),
            Event::Token { id, text, logprobs } => {
                self.token_ids.push(id);
                self.logprobs.extend(logprobs);
                if let Some(text) = text {
                    self.text.get_or_insert_default().push_str(&text);
                }
            }
            Event::Finished(finished) => self.finished = Some(finished),
            Event::Failed(failed) => return Err(failed),
        }
        Ok(())
    }
}
