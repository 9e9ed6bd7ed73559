//! What a client asks for.

use paceline_backend::TokenId;

use crate::error::Refused;
use crate::sampling::{LogprobOptions, SamplingOptions};

/// Identifies a request of one engine. Ids ascend in order of submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// One text to generate. Checked when it is submitted.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Request {
    /// Token ids of the prompt, used as they are. Not empty.
    pub prompt: Vec<TokenId>,
    /// Most tokens to emit. 0 is legal: the request ends with reason "length" once its prompt is scored, if that is asked for.
    pub max_tokens: usize,
    /// Texts that end the output. They are not part of it.
    pub stop: Vec<String>,
    /// End tokens are emitted like any other and do not end the output.
    pub ignore_eos: bool,
    /// How tokens are chosen.
    pub sampling: SamplingOptions,
    /// Index among several continuations of one prompt and seed: each has noise of its own.
    pub choice: u32,
    /// A request submitted before with the same prompt, such as another choice of it: what that one has read of the prompt is not read
    /// again where it can be shared. Never changes the text.
    pub same_prompt_as: Option<RequestId>,
    /// What it has computed when it ends or is cancelled is left to the request that comes next: if that is alone and its prompt begins
    /// with the same tokens, as the next turn of a conversation does, they are not read again. Never changes a text.
    pub keep_kv: bool,
    /// Log-probabilities to report.
    pub logprobs: Option<LogprobOptions>,
    /// Whether and how far to draft. Never changes the text.
    pub draft: DraftSettings,
    /// What the output is expected to be, for a drafter that follows it ([`crate::DraftSource::Prediction`]); empty where nothing is.
    /// Never changes the text.
    pub prediction: Vec<TokenId>,
}

impl Request {
    /// A greedy request without stop strings, drafted for as the engine's drafter thinks best.
    pub fn new(prompt: Vec<TokenId>, max_tokens: usize) -> Self {
        Self {
            prompt,
            max_tokens,
            stop: Vec::new(),
            ignore_eos: false,
            sampling: SamplingOptions::default(),
            choice: 0,
            same_prompt_as: None,
            keep_kv: false,
            logprobs: None,
            draft: DraftSettings::default(),
            prediction: Vec::new(),
        }
    }

    /// Checks what can be checked before a model is loaded: the ranges of numbers. Submission checks it again, with all the rest.
    ///
    /// # Errors
    /// The first setting that can not be.
    pub fn check_settings(&self) -> Result<(), Refused> {
        self.sampling.check_values(self.max_tokens)?;
        self.logprobs.as_ref().map_or(Ok(()), LogprobOptions::check)
    }
}

/// How a request wants to be drafted for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftSettings {
    /// Draft at all, where the engine has a drafter.
    pub enabled: bool,
    /// Drafts a round at most; 0 is plain decoding. A drafter that cannot draft as many drafts what it can. `None`: what the drafter
    /// suggests.
    pub tokens_per_round: Option<usize>,
    /// How sure the drafter has to be that a draft and all before it are right, by its own probabilities, for it to be verified: at
    /// least 0, which verifies all, and below 1. `None`: what the engine was loaded with.
    pub confidence: Option<f32>,
}

impl Default for DraftSettings {
    fn default() -> Self {
        Self { enabled: true, tokens_per_round: None, confidence: None }
    }
}
