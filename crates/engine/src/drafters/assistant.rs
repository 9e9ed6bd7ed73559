//! The MTP assistant as a drafter: k steps of one row a slot over the target's K/V.
//!
//! ```text
//! committed   h[slot] = the target's final hidden state at the newest committed row
//! step 0      token t[len] (the anchor), h                -> draft 1, next h
//! step j      token d(j)                                  -> draft j+1, next h
//! ```
//! All steps of a round have one position and see the committed keys only, so nothing has to be rolled back: the next commit
//! replaces `h`.

use paceline_backend::{Backend, Buf, Op, Pass};
use paceline_models::{Exports, Gemma4Assistant};

use super::{DraftError, DraftSlot, Drafter};

/// Where implementations of the format differ (gemma4 spec 6.4 and 6.5). A choice changes how many drafts are accepted, never the
/// text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AssistantConventions {
    /// Rotary position of a round's queries.
    pub position: DraftPosition,
    /// The first hidden state of a round.
    pub hidden: DraftHidden,
}

/// Rotary position of the drafter's queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DraftPosition {
    /// That of the newest token, whose K/V does not exist yet: `len`. The format's definition.
    #[default]
    Bonus,
    /// That of the last committed row: `len - 1`.
    LastCommitted,
}

/// Which of the target's hidden states a round starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DraftHidden {
    /// After the final norm. The format's definition.
    #[default]
    PostNorm,
    /// Before it.
    PreNorm,
}

/// See the module documentation.
pub struct AssistantDrafter {
    network: Gemma4Assistant,
    position_offset: i32,
    /// Final hidden states of the target's wanted rows.
    hidden: Buf,
    suggested_drafts: usize,
    pass: Pass,
}

impl AssistantDrafter {
    /// Drafts of a round if neither the request nor the checkpoint says.
    pub const DEFAULT_DRAFTS: usize = 3;

    /// Drafts with a network that is bound to the target with these exports, `suggested_drafts` a round unless a request says
    /// otherwise.
    pub fn new(
        network: Gemma4Assistant,
        target: &Exports,
        conventions: AssistantConventions,
        suggested_drafts: usize,
    ) -> Self {
        Self {
            position_offset: match conventions.position {
                DraftPosition::Bonus => 0,
                DraftPosition::LastCommitted => -1,
            },
            hidden: match conventions.hidden {
                DraftHidden::PostNorm => target.hidden_post_norm,
                DraftHidden::PreNorm => target.hidden_pre_norm,
            },
            suggested_drafts,
            network,
            pass: Pass::default(),
        }
    }
}

impl Drafter for AssistantDrafter {
    fn kind(&self) -> &'static str {
        "assistant"
    }

    fn suggested_drafts(&self) -> usize {
        self.suggested_drafts
    }

    fn draft(&mut self, backend: &mut dyn Backend, slots: &mut [DraftSlot]) -> Result<(), DraftError> {
        let n_steps = slots.iter().map(DraftSlot::wanted).max().unwrap_or(0);
        for step in 0..n_steps {
            let mut pass = std::mem::take(&mut self.pass).rebuild();
            for slot in slots.iter().filter(|slot| slot.wanted() > step) {
                pass.borrowed(slot.slot(), step, self.position_offset);
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
        let keep = Op::KeepCommitted { src: self.hidden, out: self.network.slot_hidden() };
        backend.run(&keep, pass.all());
    }
}
