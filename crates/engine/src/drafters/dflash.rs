//! DFlash as a drafter: one pass over a block of masks drafts a whole round.
//!
//! ```text
//! committed   context K/V of rows 0 .. len - 1, made of the target's taps inside its own passes
//! draft       [t[len], mask, .. mask] at positions len .. len + k          -> drafts 1 .. k
//! verify      the target's rows, and from their taps the context K/V at len .. len + k, over the block's own
//! commit      what stands at len or beyond is dead
//! ```
//! So every committed row has context K/V whoever drafted, prompts and plain rounds included, and a rejected row never has any that
//! somebody sees.

use paceline_backend::{Backend, Pass};
use paceline_models::{DFlash, OwnedGroup};

use super::{DraftError, DraftSlot, Drafter};

/// How many masks a round's block has. The choice changes how many drafts are accepted, never the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DraftBlock {
    /// One for each draft that is verified.
    #[default]
    Short,
    /// As many as the drafter was trained with; the first drafts are verified.
    Full,
}

/// See the module documentation.
pub struct DFlashDrafter {
    network: DFlash,
    block: DraftBlock,
    suggested_drafts: usize,
    pass: Pass,
}

impl DFlashDrafter {
    /// Drafts with a bound network, `suggested_drafts` a round unless a request says otherwise. It never drafts more than its block has
    /// masks.
    pub fn new(network: DFlash, block: DraftBlock, suggested_drafts: usize) -> Self {
        Self { network, block, suggested_drafts, pass: Pass::default() }
    }

    /// Drafts of a full block.
    fn most(&self) -> usize {
        self.network.config().most_drafts()
    }
}

impl Drafter for DFlashDrafter {
    fn kind(&self) -> &'static str {
        "dflash"
    }

    fn suggested_drafts(&self) -> usize {
        self.suggested_drafts
    }

    fn block_drafts(&self) -> usize {
        match self.block {
            DraftBlock::Short => 0,
            DraftBlock::Full => self.most(),
        }
    }

    fn reads_taps(&self) -> bool {
        true
    }

    fn kv_groups(&self) -> &[OwnedGroup] {
        self.network.kv_groups()
    }

    fn draft(&mut self, backend: &mut dyn Backend, slots: &mut [DraftSlot]) -> Result<(), DraftError> {
        let most = self.most();
        let mut pass = std::mem::take(&mut self.pass).rebuild();
        for slot in slots.iter_mut() {
            slot.lower(most);
            let n_masks = match self.block {
                DraftBlock::Short => slot.wanted(),
                DraftBlock::Full => slot.room().min(most),
            };
            pass.draft_block(slot.slot(), n_masks, self.network.mask());
            slot.proposed_on_backend(slot.wanted());
        }
        self.pass = pass.build();
        backend.begin(&self.pass);
        self.network.draft(backend, &self.pass);
        Ok(())
    }

    fn verified(&mut self, backend: &mut dyn Backend, pass: &Pass) {
        self.network.take_in(backend, pass);
    }
}
