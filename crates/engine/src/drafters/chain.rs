//! Several drafters in order of preference: for each slot and round, the first that proposes something.
//!
//! How sure a drafter is stands on the backend: where a member proposes there and is not sure of its first draft, the round goes without
//! drafts, and no other member is asked.
//!
//! Every member hears of every pass, whoever drafted in it, so one that was passed over or proposed nothing for a while knows where
//! its slots stand when it is asked again. A member that gives up on a slot is left out there; the others go on.

use paceline_backend::{Backend, Pass, SlotId, TokenId};
use paceline_models::OwnedGroup;

use super::{DraftError, DraftSlot, Drafter, PredictionDrafter, SettledSlot};
use crate::request::Request;

/// See the module documentation.
pub struct Chain {
    members: Vec<Member>,
    /// Those of all members.
    kv_groups: Vec<OwnedGroup>,
}

struct Member {
    drafter: Box<dyn Drafter>,
    /// By slot: it drafts there.
    open: Vec<bool>,
}

impl Member {
    fn is_open(&self, slot: SlotId) -> bool {
        self.open.get(slot.0 as usize).is_some_and(|open| *open)
    }

    fn close(&mut self, backend: &mut dyn Backend, slot: SlotId) {
        if std::mem::take(&mut self.open[slot.0 as usize]) {
            self.drafter.close(backend, slot);
        }
    }

    /// Lets the member propose for slots for which nobody did before.
    fn draft(&mut self, source: usize, backend: &mut dyn Backend, slots: &mut [DraftSlot]) {
        let is_asked = |slot: &&mut DraftSlot| !slot.proposal.is_something() && self.is_open(slot.slot);
        let most = self.drafter.suggested_drafts();
        let mut asked: Vec<_> = slots.iter_mut().filter(is_asked).collect();
        let own = |slot: &&mut DraftSlot| {
            let wanted = if slot.open_ended { slot.wanted.min(most) } else { slot.wanted };
            DraftSlot { source, ..DraftSlot::new(slot.slot, wanted, slot.room, slot.open_ended) }
        };
        let mut own: Vec<_> = asked.iter().map(own).filter(|own| own.wanted > 0).collect();
        if own.is_empty() {
            return;
        }
        if let Err(error) = self.drafter.draft(backend, &mut own) {
            own.iter_mut().for_each(|slot| slot.fail(error.clone()));
        }
        for own in own {
            let slot = asked.iter_mut().find(|slot| slot.slot == own.slot).expect("made from these");
            slot.failures.extend(own.failures);
            if own.proposal.is_something() {
                (slot.proposal, slot.source, slot.wanted) = (own.proposal, own.source, own.wanted);
            }
        }
    }
}

impl Chain {
    /// Asks these in order.
    ///
    /// # Panics
    /// Without a member, or with one that is a chain.
    pub fn new(members: Vec<Box<dyn Drafter>>) -> Self {
        assert!(!members.is_empty(), "a chain has at least one member");
        assert!(members.iter().all(|member| member.sources().len() == 1), "a chain holds no chain");
        let kv_groups = members.iter().flat_map(|member| member.kv_groups()).copied().collect();
        let members = members.into_iter().map(|drafter| Member { drafter, open: Vec::new() });
        Self { members: members.collect(), kv_groups }
    }

    fn drafters(&mut self) -> impl Iterator<Item = &mut Box<dyn Drafter>> {
        self.members.iter_mut().map(|member| &mut member.drafter)
    }
}

impl Drafter for Chain {
    /// The first member's, if that needs no prediction.
    fn kind(&self) -> &'static str {
        let mut kinds = self.members.iter().map(|member| member.drafter.kind());
        kinds.find(|kind| *kind != PredictionDrafter::KIND).unwrap_or(PredictionDrafter::KIND)
    }

    fn sources(&self) -> Vec<&'static str> {
        self.members.iter().map(|member| member.drafter.kind()).collect()
    }

    fn suggested_drafts(&self) -> usize {
        self.suggested_by_source().into_iter().max().unwrap_or(0)
    }

    fn suggested_by_source(&self) -> Vec<usize> {
        self.members.iter().map(|member| member.drafter.suggested_drafts()).collect()
    }

    fn block_drafts(&self) -> usize {
        self.members.iter().map(|member| member.drafter.block_drafts()).max().unwrap_or(0)
    }

    fn reads_taps(&self) -> bool {
        self.members.iter().any(|member| member.drafter.reads_taps())
    }

    fn tap_source(&self) -> Option<usize> {
        self.members.iter().position(|member| member.drafter.reads_taps())
    }

    fn kv_groups(&self) -> &[OwnedGroup] {
        &self.kv_groups
    }

    fn open(&mut self, backend: &mut dyn Backend, slot: SlotId, tokens: &[TokenId]) {
        let at = slot.0 as usize;
        for member in &mut self.members {
            if member.open.len() <= at {
                member.open.resize(at + 1, false);
            }
            member.open[at] = true;
            member.drafter.open(backend, slot, tokens);
        }
    }

    fn resume(&mut self, slot: SlotId, len: usize) {
        self.drafters().for_each(|drafter| drafter.resume(slot, len));
    }

    fn serves(&self, request: &Request) -> bool {
        self.members.iter().any(|member| member.drafter.serves(request))
    }

    fn predicted(&mut self, slot: SlotId, prediction: &[TokenId], output: &[TokenId]) {
        self.drafters().for_each(|drafter| drafter.predicted(slot, prediction, output));
    }

    fn close(&mut self, backend: &mut dyn Backend, slot: SlotId) {
        self.members.iter_mut().for_each(|member| member.close(backend, slot));
    }

    fn give_up(&mut self, backend: &mut dyn Backend, slot: SlotId, source: usize) -> bool {
        self.members[source].close(backend, slot);
        self.members.iter().any(|member| member.is_open(slot))
    }

    fn draft(&mut self, backend: &mut dyn Backend, slots: &mut [DraftSlot]) -> Result<(), DraftError> {
        for (source, member) in self.members.iter_mut().enumerate() {
            member.draft(source, backend, slots);
        }
        Ok(())
    }

    fn settled(&mut self, backend: &mut dyn Backend, parts: &[SettledSlot]) {
        self.drafters().for_each(|drafter| drafter.settled(backend, parts));
    }

    fn verified(&mut self, backend: &mut dyn Backend, pass: &Pass) {
        self.drafters().for_each(|drafter| drafter.verified(backend, pass));
    }

    fn committed(&mut self, backend: &mut dyn Backend, pass: &Pass) {
        self.drafters().for_each(|drafter| drafter.committed(backend, pass));
    }

    fn collected(&mut self, slot: SlotId, emitted: &[TokenId]) {
        let open = self.members.iter_mut().filter(|member| member.is_open(slot));
        open.for_each(|member| member.drafter.collected(slot, emitted));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Notes where slots go on.
    struct Noting(Arc<Mutex<Vec<(u32, usize)>>>);

    impl Drafter for Noting {
        fn kind(&self) -> &'static str {
            "noting"
        }
        fn suggested_drafts(&self) -> usize {
            1
        }
        fn resume(&mut self, slot: SlotId, len: usize) {
            self.0.lock().unwrap().push((slot.0, len));
        }
        fn draft(&mut self, _: &mut dyn Backend, _: &mut [DraftSlot]) -> Result<(), DraftError> {
            Ok(())
        }
    }

    #[test]
    fn every_member_hears_where_a_slot_goes_on() {
        let heard = [(); 2].map(|()| Arc::default());
        let member = |heard: &Arc<_>| Box::new(Noting(Arc::clone(heard))) as Box<dyn Drafter>;
        Chain::new(heard.iter().map(member).collect()).resume(SlotId(3), 40);
        assert_eq!(heard.map(|heard| heard.lock().unwrap().clone()), [[(3, 40)], [(3, 40)]]);
    }
}
