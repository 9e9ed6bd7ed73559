//! Three kinds of failure: a request that is refused ([`Refused`]), a request that failed ([`Failed`]) while others go on,
//! and an engine that can not go on ([`Broken`]).

use paceline_backend::{BackendError, TokenId};
use thiserror::Error;

/// A request was not taken. Nothing of it ran.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refused {
    /// There is no token to start from.
    #[error("the prompt is empty; expected at least one token")]
    EmptyPrompt,
    /// A token id that the model does not have.
    #[error(
        "token {id} at index {index} of the prompt is not in the vocabulary; expected ids below {vocab_size}"
    )]
    UnknownToken {
        /// Index in the prompt.
        index: usize,
        /// The id.
        id: u32,
        /// Entries of the vocabulary.
        vocab_size: usize,
    },
    /// A token that stands for something the model can not be given here.
    #[error("token {id} at index {index} of the prompt stands for an image or a sound; expected text only")]
    UnsupportedToken {
        /// Index in the prompt.
        index: usize,
        /// The id.
        id: u32,
    },
    /// More prompt than context.
    #[error("{}", too_long(*found, *context, *model_context))]
    PromptTooLong {
        /// Tokens of the prompt.
        found: usize,
        /// Tokens that a sequence can have in all.
        context: usize,
        /// The most that the model allows for that.
        model_context: usize,
    },
    /// A stop string that every text contains.
    #[error("stop string {index} is empty; expected at least one character")]
    EmptyStop {
        /// Index in the list.
        index: usize,
    },
    /// Stop strings where no text is made.
    #[error("stop strings need a tokenizer, and the model has none; stop by token count instead")]
    StopWithoutText,
    /// A setting of sampling or log-probabilities that can not be.
    #[error("{field} is {found}; expected {expected}")]
    OutOfRange {
        /// The setting.
        field: &'static str,
        /// Its value.
        found: String,
        /// What would do.
        expected: String,
    },
    /// A list of sampling settings has a token that the model does not have.
    #[error("token {id} in {field} is not in the vocabulary; expected ids below {vocab_size}")]
    UnknownListedToken {
        /// The setting.
        field: &'static str,
        /// The id.
        id: u32,
        /// Entries of the vocabulary.
        vocab_size: usize,
    },
    /// Rules that contradict one another.
    #[error(
        "no token could be chosen: every allowed token is suppressed, or is an end token that min_tokens holds back; allow more"
    )]
    NothingToChoose,
    /// Log-probabilities of a prompt where the engine has no room for its logits.
    #[error("log-probabilities of the prompt need an engine that was made with `score_prompts`")]
    NoPromptLogprobs,
    /// More drafts a round than the engine was loaded for.
    #[error("{found} drafts a round were asked for; the engine was loaded for at most {most}")]
    TooManyDrafts {
        /// Drafts asked for.
        found: usize,
        /// Largest possible number.
        most: usize,
    },
}

impl Refused {
    /// The field of the request that was at fault.
    pub fn field(&self) -> &'static str {
        match self {
            Refused::EmptyPrompt
            | Refused::UnknownToken { .. }
            | Refused::UnsupportedToken { .. }
            | Refused::PromptTooLong { .. } => "prompt",
            Refused::EmptyStop { .. } | Refused::StopWithoutText => "stop",
            Refused::OutOfRange { field, .. } | Refused::UnknownListedToken { field, .. } => field,
            Refused::NothingToChoose => "allowed",
            Refused::NoPromptLogprobs => "logprobs.prompt",
            Refused::TooManyDrafts { .. } => "draft.tokens_per_round",
        }
    }
}

/// In the unit in which programs are told it, rounded up.
fn mib(bytes: u64) -> String {
    format!("{} MiB ({bytes} bytes)", bytes.div_ceil(1 << 20))
}

/// A larger context helps only as far as the model has one.
fn too_long(found: usize, context: usize, model_context: usize) -> String {
    match found <= model_context {
        true => format!(
            "the prompt has {found} tokens, the context holds {context}; shorten the prompt or load with a larger context, up to the \
             model's {model_context}"
        ),
        false => format!(
            "the prompt has {found} tokens, and the model reads {model_context} at most; shorten the prompt or take a model with a longer \
             context"
        ),
    }
}

/// A request that was taken did not come to its end. Other requests go on and their text does not change.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Failed {
    /// A value was NaN or infinite.
    #[error(
        "a value that was not finite came up after {tokens} tokens; the weights are damaged or the activation type is \
         too narrow for them"
    )]
    NotFinite {
        /// Tokens of the sequence at that point, prompt included.
        tokens: usize,
    },
    /// The engine broke.
    #[error("the engine stopped: {0}")]
    Stopped(#[from] Broken),
}

/// The engine can not go on: this is a bug in it or in its backend. All its requests have failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Broken {
    /// There is work, and no way to do any of it.
    #[error(
        "{running} running and {waiting} waiting requests, and none can go on: this is a bug, please report it"
    )]
    NoProgress {
        /// Sequences with a slot.
        running: usize,
        /// Sequences without.
        waiting: usize,
    },
    /// K/V blocks were lost, or counted twice.
    #[error("K/V accounting is inconsistent: {what}; this is a bug, please report it")]
    Accounting {
        /// What does not add up.
        what: String,
    },
    /// The backend committed another number of tokens than the round allowed.
    #[error(
        "slot {slot} has {found} committed tokens after a round, expected {expected}: this is a bug, please report it"
    )]
    Commit {
        /// The slot.
        slot: u32,
        /// Tokens that the emitted ones account for.
        expected: usize,
        /// Tokens that the backend reports.
        found: usize,
    },
    /// The engine's thread ended.
    #[error("its thread has ended")]
    ThreadEnded,
}

/// An engine could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A size that can not be.
    #[error("{field} is {found}; expected {expected}")]
    Size {
        /// The option.
        field: &'static str,
        /// Its value.
        found: usize,
        /// What would do.
        expected: String,
    },
    /// The K/V memory is too small.
    #[error(
        "{} of K/V memory were allowed; one sequence at full context needs {}: allow more or load with a smaller context",
        mib(*bytes), mib(*needed)
    )]
    KvMemory {
        /// Bytes allowed.
        bytes: u64,
        /// Bytes for one sequence at full context.
        needed: u64,
    },
    /// An end or suppressed token is not in the vocabulary.
    #[error("token {} in the list of {list} is not in the vocabulary of {vocab_size}", .id.0)]
    UnknownToken {
        /// Which list.
        list: &'static str,
        /// The token.
        id: TokenId,
        /// Entries of the vocabulary.
        vocab_size: usize,
    },
    /// The backend refused.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Anything that a call which submits and waits can fail with.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GenerateError {
    /// The request was not taken.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The request failed.
    #[error(transparent)]
    Failed(#[from] Failed),
}
