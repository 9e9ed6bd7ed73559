//! Live sequences as a backend sees them.

use std::ops::Range;
use std::sync::Arc;

use paceline_kernels::select::{LogprobsWanted, Sampling, TokenLogprobs};

/// A token id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct TokenId(pub u32);

/// Index of a live sequence in a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// Index of a K/V block inside its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KvBlockId(pub u32);

/// What a slot starts with.
#[derive(Clone, Debug)]
pub struct SlotInit {
    /// The prompt, and for a sequence that was preempted also what it has emitted. Not empty.
    pub tokens: Vec<TokenId>,
    /// How many of them are the prompt.
    pub n_prompt: usize,
    /// How many of them are committed: their K/V stands in blocks that come by [`crate::Backend::put_blocks`] before the first pass.
    /// Less than all.
    pub len: usize,
    /// The sequence ends with [`Finish::Length`] when it has this many tokens in all.
    pub limit: usize,
    /// Choosing one of these ends the sequence with [`Finish::Stop`].
    pub end_tokens: Arc<[TokenId]>,
    /// How its tokens are chosen.
    pub sampling: Arc<Sampling>,
    /// Log-probabilities to report of emitted tokens.
    pub logprobs: Option<LogprobsWanted>,
    /// How sure a drafter on the backend has to be of a draft and all before it, by its own probabilities, for it to be verified: drafts
    /// behind the first of which it is less sure are dropped. 0 verifies all.
    pub draft_confidence: f32,
    /// Places of prompt tokens whose log-probabilities are reported too, where a pass wants the logits of the rows before them.
    pub scored: Range<usize>,
}

impl SlotInit {
    /// A prompt whose continuation is chosen greedily, up to `limit` tokens in all.
    pub fn greedy(tokens: Vec<TokenId>, limit: usize) -> Self {
        Self {
            n_prompt: tokens.len(),
            len: 0,
            tokens,
            limit,
            end_tokens: [].into(),
            sampling: Arc::default(),
            logprobs: None,
            draft_confidence: 0.0,
            scored: 0..0,
        }
    }
}

/// Why a sequence ended on the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// An end token was chosen (it is the last emitted token).
    Stop,
    /// The limit of tokens was reached.
    Length,
}

/// Values of drafters that were not finite. Several drafters may work for a slot, so both can come in one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DraftFaults {
    /// The logits from which a draft had to be chosen.
    pub logits: bool,
    /// K/V that was made of the target's taps at a committed row.
    pub context: bool,
}

/// What happened to a slot since the last [`crate::Backend::collect`].
#[derive(Clone, Debug, PartialEq, Default)]
pub struct SlotReport {
    /// Committed tokens whose K/V is valid.
    pub len: usize,
    /// Emitted tokens in order.
    pub emitted: Vec<TokenId>,
    /// Log-probabilities of the emitted tokens, where they are asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// Log-probabilities of the prompt tokens of [`SlotInit::scored`] that were read, in order.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// Drafts that were verified: fewer than the pass allowed for where the drafter was not sure of them.
    pub verified: usize,
    /// Emitted tokens that were drafts, that is, drafts that survived the cut at an end.
    pub accepted: usize,
    /// Set when the sequence ended.
    pub finish: Option<Finish>,
    /// A value of this sequence was not finite: its request must fail. Other slots are untouched.
    pub fault: bool,
    /// What a drafter computed for this slot that was not finite. The text is not touched.
    pub draft_faults: DraftFaults,
}
