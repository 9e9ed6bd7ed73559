//! A smaller model with the target's vocabulary as a drafter: k steps of one row a slot over K/V of its own.
//!
//! ```text
//! K/V of the model    0 ............ valid | len | len+1 .. len+k-1
//! step 0              tokens valid .. len (the anchor)              -> draft 1
//! step j              token len+j (draft j)                         -> draft j+1
//! (commit)            valid = min(len + k, new len): short by one token where all k drafts were accepted
//! ```
//! The last draft of a round needs no row of its own: where it is accepted, the next round's first step has two rows. Rounds that
//! this model did not draft for, and chunks of prompts, are read by it beside the target's pass ([`Drafter::settled`]), so it is
//! never more than that one token behind. As with the target, rows of rejected drafts lie beyond `len`, where nobody looks,
//! and a window of its own gives back no block that it will need.
//!
//! Tables are often padded, and a family's models to different lengths. The model is loaded with as many tokens as the target has: rows
//! that it has beyond them are left out, so that it never proposes them; a token that it has no row for is read as zeros, which
//! makes worse drafts behind it and nothing else. Such a token's logit is 0, so it is proposed only where all others are below.

use paceline_backend::{Backend, DraftChoice, Pass, PassBuilder, SlotId, TokenId};
use paceline_models::{OwnedGroup, Target};

use super::{DraftError, DraftSlot, Drafter, SettledSlot};

/// See the module documentation.
pub struct ModelDrafter {
    model: Box<dyn Target>,
    groups: Vec<OwnedGroup>,
    /// Rows of its largest pass.
    max_rows: usize,
    suggested_drafts: usize,
    /// By slot; `None` where it does not draft.
    slots: Vec<Option<Place>>,
    pass: Pass,
}

/// Where a slot stands. All are numbers of tokens from the beginning.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// Committed by the target.
    len: usize,
    /// Committed, and their K/V is there.
    valid: usize,
    /// K/V that this round leaves, as far as its tokens are accepted; 0 before it has read any.
    reach: usize,
    /// Known tokens in this round.
    n_known: usize,
}

impl Place {
    /// Rows from the first token without K/V up to `end`: their first place relative to `len`, and how many.
    fn rows_to(self, end: usize) -> (i32, usize) {
        (self.valid as i32 - self.len as i32, end - self.valid)
    }

    /// The round is over.
    fn commit(&mut self, n_emitted: usize) {
        // A chunk of a prompt that is not the last emits nothing; the first emitted token is not read yet.
        self.len += self.n_known + n_emitted.saturating_sub(1);
        self.valid = self.reach.min(self.len);
        (self.reach, self.n_known) = (0, 0);
    }
}

impl ModelDrafter {
    /// Drafts of a round if the request does not say.
    pub const DEFAULT_DRAFTS: usize = 4;

    /// Drafts with a model that was loaded into the target's backend, for as many slots, with passes of up to `max_rows` rows.
    /// That its vocabulary is the target's is the caller's to check.
    pub fn new(model: Box<dyn Target>, max_rows: usize, suggested_drafts: usize) -> Self {
        let groups = model.kv_groups().iter().zip(&model.description().kv_groups);
        let groups = groups.map(|(&group, &spec)| OwnedGroup { group, spec }).collect();
        Self { model, groups, max_rows, suggested_drafts, slots: Vec::new(), pass: Pass::default() }
    }

    fn place(&mut self, slot: SlotId) -> Option<&mut Place> {
        self.slots.get_mut(slot.0 as usize)?.as_mut()
    }

    fn begin_pass(&mut self) -> PassBuilder {
        std::mem::take(&mut self.pass).rebuild()
    }

    /// Runs the model over the rows of a pass, at whose wanted rows it chooses the drafts of `step`.
    fn run(&mut self, backend: &mut dyn Backend, pass: PassBuilder, step: usize) {
        self.pass = pass.build();
        if self.pass.rows().is_empty() {
            return;
        }
        backend.begin(&self.pass);
        self.model.forward(&mut DraftChoice::new(backend, step), &self.pass);
    }
}

impl Drafter for ModelDrafter {
    fn kind(&self) -> &'static str {
        "model"
    }

    fn suggested_drafts(&self) -> usize {
        self.suggested_drafts
    }

    fn kv_groups(&self) -> &[OwnedGroup] {
        &self.groups
    }

    fn open(&mut self, _backend: &mut dyn Backend, slot: SlotId, _tokens: &[TokenId]) {
        let at = slot.0 as usize;
        if self.slots.len() <= at {
            self.slots.resize(at + 1, None);
        }
        self.slots[at] = Some(Place::default());
    }

    fn resume(&mut self, slot: SlotId, len: usize) {
        // The last of these tokens may be the one that it was behind.
        self.slots[slot.0 as usize] = Some(Place { len, valid: len - 1, ..Place::default() });
    }

    fn close(&mut self, _backend: &mut dyn Backend, slot: SlotId) {
        self.slots[slot.0 as usize] = None;
    }

    fn draft(&mut self, backend: &mut dyn Backend, slots: &mut [DraftSlot]) -> Result<(), DraftError> {
        let n_steps = slots.iter().map(DraftSlot::wanted).max().unwrap_or(0);
        for step in 0..n_steps {
            let mut pass = self.begin_pass();
            for slot in slots.iter().filter(|slot| slot.wanted() > step) {
                let place = self.place(slot.slot()).expect("only open slots are drafted for");
                let end = place.len + step + 1;
                let (first, n_rows) = if step == 0 { place.rows_to(end) } else { (step as i32, 1) };
                place.reach = end;
                pass.drafter(slot.slot(), first, n_rows, true);
            }
            self.run(backend, pass, step);
        }
        for slot in slots {
            slot.proposed_on_backend(slot.wanted());
        }
        Ok(())
    }

    fn settled(&mut self, backend: &mut dyn Backend, parts: &[SettledSlot]) {
        let max_rows = self.max_rows;
        let mut pass = self.begin_pass();
        for part in parts {
            let Some(place) = self.place(part.slot) else { continue };
            place.n_known = part.n_known;
            if place.reach > 0 {
                continue; // It drafted here itself.
            }
            place.reach = place.len + part.n_known + part.n_drafts;
            let (first, n_rows) = place.rows_to(place.reach);
            // The target's rows fit into a pass, but a slot may have one more here.
            if pass.n_rows() + n_rows > max_rows {
                self.run(backend, pass, 0);
                pass = self.begin_pass();
            }
            pass.drafter(part.slot, first, n_rows, false);
        }
        self.run(backend, pass, 0);
    }

    fn collected(&mut self, slot: SlotId, emitted: &[TokenId]) {
        if let Some(place) = self.place(slot) {
            place.commit(emitted.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_at_most_one_token_behind() {
        let mut place = Place { n_known: 5, reach: 5, ..Place::default() };
        place.commit(0);
        assert_eq!((place.len, place.valid), (5, 5), "a chunk of the prompt");
        (place.n_known, place.reach) = (3, 8);
        place.commit(1);
        assert_eq!((place.len, place.valid), (8, 8), "its last chunk, with the first token chosen");
        for (accepted, behind) in [(0, 0), (1, 0), (3, 1)] {
            let mut place = place;
            (place.n_known, place.reach) = (1, place.len + 3);
            place.commit(accepted + 1);
            assert_eq!((place.len, place.len - place.valid), (9 + accepted, behind), "{accepted} of 3");
            assert_eq!(place.rows_to(place.len + 1), (-(behind as i32), behind + 1));
        }
    }
}
