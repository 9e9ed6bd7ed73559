//! What a drafter is to a round: [`Drafter`].
//!
//! A drafter proposes tokens; the target alone decides the text. So a drafter may be wrong, slow or broken without changing
//! a bit of any output, and nothing here lets it. It is bound to one target by its constructor, which checks that the two
//! fit; it works in the target's backend, with buffers of its own.
//!
//! Hooks of one round, in order:
//! ```text
//! draft       propose for the slots that are decoding; by host tokens (DraftSlot::propose) or on the backend
//! settled     the drafts stand, whoever proposed them: the tokens of the target's pass are known
//! (verify)    the target's pass
//! verified    the pass's rows, taps and hidden states stand in the target's buffers
//! (commit)    the backend moves every slot's `len`
//! committed   Op::KeepCommitted keeps, for each slot, what belongs to the last committed row
//! collected   the emitted tokens of a slot, on the host
//! ```
//! All but the first come for prompt rows too: that is how a drafter learns the prompt.

mod assistant;
mod chain;
mod dflash;
mod model;
mod ngram;
mod prediction;

use paceline_backend::{Backend, Pass, SlotId, TokenId};
use paceline_models::OwnedGroup;
use thiserror::Error;

pub use assistant::{AssistantConventions, AssistantDrafter, DraftHidden, DraftPosition};
pub use chain::Chain;
pub use dflash::{DFlashDrafter, DraftBlock};
pub use model::ModelDrafter;
pub use ngram::{NgramDrafter, NgramLengths};
pub use prediction::PredictionDrafter;

use crate::request::Request;

/// A slot that may be drafted for in this round.
#[derive(Debug)]
pub struct DraftSlot {
    slot: SlotId,
    wanted: usize,
    room: usize,
    /// The request leaves the number of drafts to the drafter.
    open_ended: bool,
    proposal: Proposal,
    /// Which source proposed, see [`Drafter::sources`].
    source: usize,
    /// Sources that gave up on this slot.
    failures: Vec<(usize, DraftError)>,
}

#[derive(Debug)]
enum Proposal {
    None,
    Host(Vec<TokenId>),
    Backend(usize),
}

impl Proposal {
    fn is_something(&self) -> bool {
        match self {
            Proposal::None => false,
            Proposal::Host(tokens) => !tokens.is_empty(),
            Proposal::Backend(n) => *n > 0,
        }
    }
}

impl DraftSlot {
    pub(crate) fn new(slot: SlotId, wanted: usize, room: usize, open_ended: bool) -> Self {
        Self { slot, wanted, room, open_ended, proposal: Proposal::None, source: 0, failures: Vec::new() }
    }

    /// The slot.
    pub fn slot(&self) -> SlotId {
        self.slot
    }

    /// Most drafts that the round verifies; at least 1. A longer proposal is cut.
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// Rows behind the anchor for which there are K/V blocks: at least as many as drafts are wanted, and as many as
    /// [`Drafter::block_drafts`] where blocks are not short.
    pub fn room(&self) -> usize {
        self.room
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

    /// Gives up on this slot: this drafter does not draft for it any more, and its statistics say why.
    pub fn fail(&mut self, error: DraftError) {
        self.proposal = Proposal::None;
        self.failures.push((self.source, error));
    }

    /// Puts host tokens into the backend and says what there is.
    pub(crate) fn settle(self, backend: &mut dyn Backend, vocab_size: usize) -> Settled {
        let n_drafts = match self.proposal {
            Proposal::None => 0,
            Proposal::Backend(n) => n.min(self.wanted),
            Proposal::Host(mut tokens) => {
                let known = tokens.iter().take_while(|token| (token.0 as usize) < vocab_size).count();
                tokens.truncate(known.min(self.wanted));
                if !tokens.is_empty() {
                    backend.put_drafts(self.slot, &tokens);
                }
                tokens.len()
            }
        };
        Settled { n_drafts, source: self.source, failures: self.failures }
    }
}

/// A slot's tokens in a round, see [`Drafter::settled`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettledSlot {
    /// The slot. It need not be one that is drafted for.
    pub slot: SlotId,
    /// Known tokens: the anchor, or a chunk of the prompt.
    pub n_known: usize,
    /// Drafts behind them.
    pub n_drafts: usize,
}

/// What came of a [`DraftSlot`].
#[derive(Debug)]
pub(crate) struct Settled {
    /// Drafts to verify.
    pub(crate) n_drafts: usize,
    /// Whose they are.
    pub(crate) source: usize,
    /// Sources that gave up on the slot.
    pub(crate) failures: Vec<(usize, DraftError)>,
}

/// Why a drafter gave up.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct DraftError(pub String);

/// Proposes drafts. Bound to one target in one backend.
pub trait Drafter: Send {
    /// `assistant`, `dflash`, `ngram`, `model` or `prediction`.
    fn kind(&self) -> &'static str;

    /// Who proposes, by [`Drafter::kind`]: itself, or the members of a [`Chain`].
    fn sources(&self) -> Vec<&'static str> {
        vec![self.kind()]
    }

    /// Drafts a round for a request that does not say; at most what the engine is built for.
    fn suggested_drafts(&self) -> usize;

    /// The same for each of the [`Drafter::sources`].
    fn suggested_by_source(&self) -> Vec<usize> {
        vec![self.suggested_drafts()]
    }

    /// Drafts that it makes in any round, if it makes any, however few of them are verified: K/V blocks are taken for as many. At most
    /// what the engine is built for.
    fn block_drafts(&self) -> usize {
        0
    }

    /// Whether the target's pass must leave its taps, at every row of a slot that is drafted for.
    fn reads_taps(&self) -> bool {
        false
    }

    /// The source that reads the taps: what it makes of them may fail in a round that another source drafted.
    fn tap_source(&self) -> Option<usize> {
        self.reads_taps().then_some(0)
    }

    /// K/V groups of its own, made by its constructor with [`paceline_models::Limits::drafter_kv_blocks`]. Every sequence has a block
    /// table in each of them, as in the target's: in [`Drafter::draft`] it reaches over the drafts that are wanted, in
    /// [`Drafter::settled`] and [`Drafter::verified`] over the rows of the pass. What is stored beyond `len` is dead once the round is committed, and a
    /// sequence that was preempted starts with empty tables.
    fn kv_groups(&self) -> &[OwnedGroup] {
        &[]
    }

    /// A sequence starts, or starts anew after it was preempted, with these known tokens.
    fn open(&mut self, _backend: &mut dyn Backend, _slot: SlotId, _tokens: &[TokenId]) {}

    /// The sequence that was just opened begins with `len` committed tokens. Their rows are in its block tables, those of the drafter's groups
    /// included, as this drafter left them for the sequence that they were computed for, which had at least as many.
    fn resume(&mut self, _slot: SlotId, _len: usize) {}

    /// Whether it can propose anything at all for a request.
    fn serves(&self, _request: &Request) -> bool {
        true
    }

    /// Behind [`Drafter::open`], for a request that says what it expects: its prediction, and its output so far.
    fn predicted(&mut self, _slot: SlotId, _prediction: &[TokenId], _output: &[TokenId]) {}

    /// A sequence has left its slot, or is no longer drafted for.
    fn close(&mut self, _backend: &mut dyn Backend, _slot: SlotId) {}

    /// One of the sources does not draft for an open slot any more. False if none is left, and the slot is closed with that.
    fn give_up(&mut self, backend: &mut dyn Backend, slot: SlotId, _source: usize) -> bool {
        self.close(backend, slot);
        false
    }

    /// Proposes for slots whose newest token was chosen by the target (so [`Drafter::committed`] has seen them). A slot left
    /// alone is decoded plainly in this round.
    ///
    /// # Errors
    /// The drafter can not go on; it drafts for none of these slots any more. [`DraftSlot::fail`] is for one slot.
    fn draft(&mut self, backend: &mut dyn Backend, slots: &mut [DraftSlot]) -> Result<(), DraftError>;

    /// The drafts of this round stand in the slots, whoever proposed them; the target's pass comes next. A drafter that reads the tokens
    /// with a network of its own does so here, also for slots that it did not draft for.
    fn settled(&mut self, _backend: &mut dyn Backend, _parts: &[SettledSlot]) {}

    /// The target's pass has run and is not committed. Of slots that are not drafted for nothing needs to be kept.
    fn verified(&mut self, _backend: &mut dyn Backend, _pass: &Pass) {}

    /// The pass is committed.
    fn committed(&mut self, _backend: &mut dyn Backend, _pass: &Pass) {}

    /// Tokens that a drafted slot emitted.
    fn collected(&mut self, _slot: SlotId, _emitted: &[TokenId]) {}
}
