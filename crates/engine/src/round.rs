//! One round: draft, verify, choose, commit. Read this first.
//!
//! ```text
//! tokens of a slot   t[0] .......... t[len-1] | t[len]  | d1 .. dk
//!                    K/V committed            | anchor  | drafts
//!
//! draft    the drafter puts k drafts behind the anchor (k differs by slot and round; 0 is plain decoding)
//! verify   the target runs rows t[len], d1 .. dk at positions len .. len + k
//! choose   at each of these rows the target chooses its own token: c0 .. ck
//! commit   the first a drafts that equal c0 .. c(a-1) are accepted; c0 .. ca are emitted; len += a + 1; ca is the anchor
//! ```
//! The emitted tokens are the target's choices and never the drafter's, and a row's bits do not depend on the rows around it:
//! so the text is that of plain decoding. Rejected rows lie beyond `len`, where nobody looks, until they are rewritten.
//!
//! There is one path. A prompt is read by the same pass over known tokens, in chunks; a chunk that is not the last chooses
//! nothing, the last one chooses the first token. Sequences in all these states share a pass.
//!
//! Nothing here reads a value from the backend: counts go in, and what happened is told by `collect` afterwards.

use paceline_backend::{Backend, Op, Pass, RowSet, Rows, SlotId};
use paceline_models::Target;

use crate::drafters::{DraftError, DraftSlot, Drafter};

/// One slot's part of a round.
#[derive(Debug)]
pub(crate) struct RoundSlot {
    /// The slot.
    pub(crate) slot: SlotId,
    /// Known tokens: the anchor, or a chunk of the prompt.
    pub(crate) n_known: usize,
    /// The last known token is the newest there is, so the target chooses what follows.
    pub(crate) chooses: bool,
    /// Drafts: how many are wanted before the round, how many were verified after it.
    pub(crate) n_drafts: usize,
    /// Set by the round: why the slot can not be drafted for any more.
    pub(crate) draft_error: Option<DraftError>,
}

/// What takes part in every round.
pub(crate) struct Players<'a> {
    /// Holds all values.
    pub(crate) backend: &'a mut dyn Backend,
    /// Decides the text.
    pub(crate) target: &'a dyn Target,
    /// Proposes.
    pub(crate) drafter: Option<&'a mut (dyn Drafter + 'static)>,
}

/// Runs one round over `slots`. Takes the last pass to reuse its memory and returns the new one.
pub(crate) fn run(players: &mut Players<'_>, slots: &mut [RoundSlot], last: Pass) -> Pass {
    draft(players, slots);
    let Players { backend, target, drafter } = players;
    let taps = drafter.as_ref().is_some_and(|drafter| drafter.reads_taps());

    let mut pass = last.rebuild();
    for part in slots.iter() {
        pass.target(part.slot, part.n_known, part.n_drafts, part.chooses, taps);
    }
    let pass = pass.build();

    backend.begin(&pass);
    target.forward(*backend, &pass); // verify and choose
    if let Some(drafter) = drafter {
        drafter.verified(*backend, &pass);
    }
    backend.run(&Op::Commit, Rows { set: RowSet::All, start: 0, len: 0 });
    if let Some(drafter) = drafter {
        drafter.committed(*backend, &pass);
    }
    pass
}

/// Lets the drafter propose for the slots that want drafts, and sets their number of drafts to what there is.
fn draft(players: &mut Players<'_>, slots: &mut [RoundSlot]) {
    let Some(drafter) = &mut players.drafter else { return };
    let wanting = slots.iter().filter(|part| part.n_drafts > 0);
    let mut proposals: Vec<_> = wanting.map(|part| DraftSlot::new(part.slot, part.n_drafts)).collect();
    if proposals.is_empty() {
        return;
    }
    if let Err(error) = drafter.draft(players.backend, &mut proposals) {
        proposals.iter_mut().for_each(|proposal| proposal.fail(error.clone()));
    }
    let vocab_size = players.target.description().vocab_size;
    for (part, proposal) in slots.iter_mut().filter(|part| part.n_drafts > 0).zip(proposals) {
        match proposal.settle(players.backend, vocab_size) {
            Ok(n_drafts) => part.n_drafts = n_drafts,
            Err(error) => {
                part.n_drafts = 0;
                part.draft_error = Some(error);
            }
        }
    }
}
