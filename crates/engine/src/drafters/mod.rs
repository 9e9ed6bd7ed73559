//! What a drafter is to a round: [`Drafter`].
//!
//! A drafter proposes tokens; the target alone decides the text. So a drafter may be wrong, slow or broken without changing
//! a bit of any output, and nothing here lets it. It is bound to one target by its constructor, which checks that the two
//! fit; it works in the target's backend, with buffers of its own.
//!
//! Hooks of one round, in order:
//! ```text
//! draft       propose for the slots that are decoding; by host tokens (DraftSlot::propose) or on the backend
//! (verify)    the target's pass
//! verified    the pass's rows, taps and hidden states stand in the target's buffers
//! (commit)    the backend moves every slot's `len`
//! committed   Op::KeepCommitted keeps, for each slot, what belongs to the last committed row
//! collected   the emitted tokens of a slot, on the host
//! ```
//! `verified`, `committed` and `collected` come for prompt rows too: that is how a drafter learns the prompt without a pass
//! of its own.

mod assistant;

use paceline_backend::{Backend, Pass, SlotId, TokenId};
use paceline_models::OwnedGroup;
use thiserror::Error;

pub use assistant::{AssistantConventions, AssistantDrafter, DraftHidden, DraftPosition};

/// A slot that may be drafted for in this round.
#[derive(Debug)]
pub struct DraftSlot {
    slot: SlotId,
    wanted: usize,
    proposal: Proposal,
}

#[derive(Debug)]
enum Proposal {
    None,
    Host(Vec<TokenId>),
    Backend(usize),
    Failed(DraftError),
}

impl DraftSlot {
    pub(crate) fn new(slot: SlotId, wanted: usize) -> Self {
        Self { slot, wanted, proposal: Proposal::None }
    }

    /// The slot.
    pub fn slot(&self) -> SlotId {
        self.slot
    }

    /// Most drafts that the round verifies; at least 1. A longer proposal is cut.
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// Lowers the number of drafts for this round.
    pub fn lower(&mut self, wanted: usize) {
        self.wanted = self.wanted.min(wanted);
    }

    /// Proposes tokens that the host knows. What follows a token that is not in the vocabulary is dropped.
    pub fn propose(&mut self, tokens: &[TokenId]) {
        self.proposal = Proposal::Host(tokens.to_vec());
    }

    /// Says that `n` drafts stand in the slot's state, put there by `Op::ChooseDraft`.
    pub fn proposed_on_backend(&mut self, n: usize) {
        self.proposal = Proposal::Backend(n);
    }

    /// Gives up on this slot: it is decoded plainly from now on, and its statistics say why.
    pub fn fail(&mut self, error: DraftError) {
        self.proposal = Proposal::Failed(error);
    }

    /// Puts host tokens into the backend and says how many drafts there are.
    pub(crate) fn settle(self, backend: &mut dyn Backend, vocab_size: usize) -> Result<usize, DraftError> {
        match self.proposal {
            Proposal::None => Ok(0),
            Proposal::Backend(n) => Ok(n.min(self.wanted)),
            Proposal::Failed(error) => Err(error),
            Proposal::Host(mut tokens) => {
                let known = tokens.iter().take_while(|token| (token.0 as usize) < vocab_size).count();
                tokens.truncate(known.min(self.wanted));
                if !tokens.is_empty() {
                    backend.put_drafts(self.slot, &tokens);
                }
                Ok(tokens.len())
            }
        }
    }
}

/// Why a drafter gave up.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct DraftError(pub String);

/// Proposes drafts. Bound to one target in one backend.
pub trait Drafter: Send {
    /// `assistant`, `dflash`, `ngram` or `model`.
    fn kind(&self) -> &'static str;

    /// Drafts a round for a request that does not say; at most what the engine is built for.
    fn suggested_drafts(&self) -> usize;

    /// Whether the target's pass must leave its taps.
    fn reads_taps(&self) -> bool {
        false
    }

    /// K/V groups of its own, made by its constructor with [`paceline_models::Limits::drafter_kv_blocks`]. Every sequence has a block
    /// table in each of them, as in the target's: in [`Drafter::draft`] it reaches over the drafts that are wanted, in
    /// [`Drafter::verified`] over the rows of the pass. What is stored beyond `len` is dead once the round is committed, and a
    /// sequence that was preempted starts with empty tables.
    fn kv_groups(&self) -> &[OwnedGroup] {
        &[]
    }

    /// A sequence starts, or starts anew after it was preempted, with these known tokens.
    fn open(&mut self, _backend: &mut dyn Backend, _slot: SlotId, _tokens: &[TokenId]) {}

    /// A sequence has left its slot, or is no longer drafted for.
    fn close(&mut self, _backend: &mut dyn Backend, _slot: SlotId) {}

    /// Proposes for slots whose newest token was chosen by the target (so [`Drafter::committed`] has seen them). A slot left
    /// alone is decoded plainly in this round.
    ///
    /// # Errors
    /// The drafter can not go on; all these slots are decoded plainly from now on. [`DraftSlot::fail`] is for one slot.
    fn draft(&mut self, backend: &mut dyn Backend, slots: &mut [DraftSlot]) -> Result<(), DraftError>;

    /// The target's pass has run and is not committed. Of slots that are not drafted for nothing needs to be kept.
    fn verified(&mut self, _backend: &mut dyn Backend, _pass: &Pass) {}

    /// The pass is committed.
    fn committed(&mut self, _backend: &mut dyn Backend, _pass: &Pass) {}

    /// Tokens that a drafted slot emitted.
    fn collected(&mut self, _slot: SlotId, _emitted: &[TokenId]) {}
}
