//! The Gemma 4 assistant as a drafter: `k` steps of one row a slot over the target's committed K/V.

use paceline_backend::{Backend, Op, Pass};
use paceline_models::{AssistantConfig, Exports, Gemma4Assistant};

use super::{DraftError, DraftSlot, Drafter};

/// Drafts a round where neither the request nor the checkpoint says.
const DEFAULT_DRAFTS: usize = 3;

/// A bound [`Gemma4Assistant`] and what it hears of the rounds.
///
/// A round begins from the target's final hidden state at the newest committed row, which [`Drafter::committed`] keeps for
/// each slot; each step leaves its own in the same place for the next. All steps stand at position `len` and see keys below
/// it, so nothing of a rejected row is ever read.
pub struct AssistantDrafter {
    network: Gemma4Assistant,
    exports: Exports,
    suggested: usize,
    pass: Pass,
}

impl AssistantDrafter {
    /// Of an assistant that is bound to the target with these exports. `num_assistant_tokens` is what its generation config says.
    pub fn new(network: Gemma4Assistant, exports: &Exports, num_assistant_tokens: Option<usize>) -> Self {
        let suggested = assistant_drafts(network.config(), num_assistant_tokens);
        Self { network, exports: exports.clone(), suggested, pass: Pass::default() }
    }
}

/// Drafts a round that a checkpoint suggests.
pub(crate) fn assistant_drafts(config: &AssistantConfig, num_assistant_tokens: Option<usize>) -> usize {
    num_assistant_tokens.or(config.block_drafts).unwrap_or(DEFAULT_DRAFTS)
}

impl Drafter for AssistantDrafter {
    fn kind(&self) -> &'static str {
        "assistant"
    }

    fn suggested_drafts(&self) -> usize {
        self.suggested
    }

    fn draft(&mut self, backend: &mut dyn Backend, slots: &mut [DraftSlot]) -> Result<(), DraftError> {
        let n_steps = slots.iter().map(DraftSlot::wanted).max().unwrap_or(0);
        for step in 0..n_steps {
            let mut pass = std::mem::take(&mut self.pass).rebuild();
            for slot in slots.iter().filter(|slot| slot.wanted() > step) {
                pass.borrowed(slot.slot(), step, 0);
            }
            self.pass = pass.build();
            backend.begin(&self.pass);
            self.network.step(backend, &self.pass, step);
        }
        for slot in slots {
            slot.proposed_on_backend(slot.wanted());
        }
        Ok(())
    }

    fn committed(&mut self, backend: &mut dyn Backend, pass: &Pass) {
        let (src, out) = (self.exports.hidden_post_norm, self.network.slot_hidden());
        backend.run(&Op::KeepCommitted { src, out }, pass.wanted_rows());
    }
}
