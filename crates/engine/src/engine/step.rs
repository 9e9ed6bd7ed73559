//! What a step of the engine does: blocks and slots are handed out as planned, the round is run, and what happened in it is learned.

use paceline_backend::{Backend, SlotReport};

use super::Engine;
use crate::drafters::Drafter;
use crate::error::Broken;
use crate::events::Event;
use crate::inherit::{inherit, inheritable};
use crate::kept::hold_prompt;
use crate::request::RequestId;
use crate::round::{self, Lap, Players, RoundSlot};
use crate::scheduler::{self, Plan, PlannedRows, State};
use crate::sequence::Sequence;
use crate::statistics::RoundTimes;

impl Engine {
    pub(super) fn round(&mut self, events: &mut Vec<(RequestId, Event)>) -> Result<(), Broken> {
        let mut lap = Lap::new(self.clock);
        self.take_over();
        let plan = self.settle();
        if plan.is_empty() {
            return Err(Broken::NoProgress { running: self.running.len(), waiting: self.waiting.len() });
        }
        for sequence in self.running.split_off(plan.keep) {
            self.wait_again(sequence);
        }
        for _ in 0..plan.admit {
            self.admit();
        }
        let decodes = self.running.iter().any(|sequence| sequence.pending() == 1);
        let mut slots = self.prepare(&plan)?;
        let players = &mut Players {
            backend: self.backend.as_mut(),
            target: self.target.as_ref(),
            drafter: self.drafter.as_deref_mut(),
            clock: self.clock,
        };
        let (pass, mut times) = round::run(players, &mut slots, std::mem::take(&mut self.pass));
        self.pass = pass;
        self.collect(&slots, events)?;
        self.rounds += 1;
        times.host = lap.end().saturating_sub(times.rounds());
        self.times += match decodes {
            true => times,
            false => RoundTimes { prefill: times.rounds(), ..RoundTimes::default() },
        };
        Ok(())
    }

    /// Lets a sequence that is alone begin with what the last one left. Whatever is not taken over is given back.
    fn take_over(&mut self) {
        let Some(kept) = self.kept.take() else { return };
        let drafter_kv = self.drafter.as_ref().is_some_and(|drafter| !drafter.kv_groups().is_empty());
        let alone = self.running.is_empty() && self.waiting.len() == 1;
        let Some(next) = self.waiting.front_mut().filter(|_| alone) else {
            return kept.release(&mut self.kv);
        };
        let same = kept.shared_with(next, drafter_kv);
        (next.kv, next.len) = kept.take(same, &mut self.kv);
        debug_assert!(!self.kv.shares(), "nobody else is here");
        if next.len > 0 {
            self.shared_rows += next.len as u64;
            self.admit();
        }
    }

    /// The next plan. Where blocks are short, sharing ends first: a block that is shared is not free when one of its holders
    /// leaves, which plans do not know of.
    fn settle(&mut self) -> Plan {
        loop {
            let plan = self.plan();
            let short = plan.is_empty() || plan.keep < self.running.len();
            let keeps_out = plan.admit < self.waiting.len().min(self.free_slots.len());
            if (short || keeps_out) && self.give_up_prompts() {
                continue;
            }
            if !short || !self.give_up_sharing() {
                return plan;
            }
        }
    }

    /// Gives back blocks of prompts that are held for requests to come. False if there are none.
    fn give_up_prompts(&mut self) -> bool {
        let mut found = false;
        for mut prompt in self.running.iter_mut().filter_map(|sequence| sequence.prompt_kv.take()) {
            self.kv.release(&mut prompt.kv);
            found = true;
        }
        found
    }

    /// Takes away blocks that were inherited by sequences without a slot, or else the youngest sequence off its slot while anything is
    /// shared. False if there is nothing to do.
    fn give_up_sharing(&mut self) -> bool {
        let mut found = false;
        for heir in self.waiting.iter_mut().filter(|sequence| sequence.len > 0) {
            self.kv.release(&mut heir.kv);
            (heir.len, found) = (0, true);
        }
        if found {
            return true;
        }
        if !self.kv.shares() {
            return false;
        }
        let youngest = self.running.pop().expect("what is shared has holders, and those that wait have none");
        self.wait_again(youngest);
        true
    }

    fn plan(&self) -> Plan {
        let running: Vec<_> = self.running.iter().map(Sequence::view).collect();
        // Who waits for another's K/V goes in when it has that, and nobody overtakes.
        let ready = |sequence: &&Sequence| sequence.heir_of.is_none_or(|id| !self.is_here(id));
        let waiting = self.waiting.iter().take(self.free_slots.len()).take_while(ready);
        let waiting: Vec<_> = waiting.map(Sequence::pending).collect();
        let free_blocks: Vec<_> = self.kv.free().collect();
        scheduler::plan(&State {
            running: &running,
            waiting: &waiting,
            free_slots: self.free_slots.len(),
            groups: self.kv.sizes(),
            free_blocks: &free_blocks,
            prefill_rows: self.prefill_rows,
        })
    }

    /// Whether a request has neither ended nor gone.
    fn is_here(&self, id: RequestId) -> bool {
        self.running.iter().chain(&self.waiting).any(|sequence| sequence.id == id)
    }

    /// Whether a sequence can begin with the K/V of another. A drafter with K/V of its own would lack what it makes of those rows.
    pub(super) fn may_inherit(&self, sequence: &Sequence) -> bool {
        let drafter = self.drafter.as_ref().filter(|_| sequence.drafted());
        let drafter_has_none = drafter.is_none_or(|drafter| drafter.kv_groups().is_empty());
        self.target.is_all_kv() && drafter_has_none && inheritable(sequence) > 0
    }

    /// Gives the first waiting sequence a slot. It stands last among the running until [`Engine::prepare`].
    fn admit(&mut self) {
        let mut sequence = self.waiting.pop_front().expect("planned among the waiting");
        let slot = self.free_slots.pop().expect("planned within the free slots");
        sequence.slot = Some(slot);
        self.backend.open(slot, sequence.init());
        let put = |group, first, blocks: &[_]| self.backend.put_blocks(slot, group, first, blocks);
        self.kv.put_held(&mut sequence.kv, put);
        if let (Some(drafter), true) = (&mut self.drafter, sequence.drafted()) {
            drafter.open(self.backend.as_mut(), slot, &sequence.tokens);
            if sequence.len > 0 {
                drafter.resume(slot, sequence.len);
            }
            if !sequence.prediction.is_empty() {
                drafter.predicted(slot, &sequence.prediction, &sequence.tokens[sequence.n_prompt..]);
            }
            // Back after a preemption: who gave up before is not asked again.
            let given_up = sequence.drafting.iter().flat_map(|drafting| drafting.statistics.given_up());
            for source in given_up {
                drafter.give_up(self.backend.as_mut(), slot, source);
            }
        }
        self.running.push(sequence);
    }

    /// Hands out the planned rows and the blocks for them.
    fn prepare(&mut self, plan: &Plan) -> Result<Vec<RoundSlot>, Broken> {
        for (sequence, rows) in self.running.iter_mut().zip(&plan.rows) {
            sequence.planned = *rows;
        }
        self.running.sort_by_key(|sequence| sequence.id);
        let mut slots = Vec::with_capacity(self.running.len());
        for sequence in self.running.iter_mut().filter(|sequence| sequence.planned.n_known > 0) {
            let slot = sequence.slot.expect("running sequences have a slot");
            let PlannedRows { n_known, n_drafts: room } = sequence.planned;
            let end = sequence.len + n_known + room;
            let put = |group, first, blocks: &[_]| self.backend.put_blocks(slot, group, first, blocks);
            if !self.kv.grow(&mut sequence.kv, end, put) {
                return Err(Broken::Accounting {
                    what: format!("no blocks for the planned rows up to {end}"),
                });
            }
            let chooses = n_known == sequence.pending() && !sequence.only_scores();
            let scored = sequence.scores(n_known);
            let open_ended = sequence.drafting.as_ref().is_some_and(|drafting| drafting.open_ended);
            let (drafted, n_drafts) = (sequence.drafted(), sequence.wanted_drafts().min(room));
            let (source, failures) = (0, Vec::new());
            slots.push(RoundSlot {
                slot,
                n_known,
                chooses,
                scored,
                drafted,
                n_drafts,
                room,
                open_ended,
                source,
                failures,
            });
        }
        Ok(slots)
    }

    /// Learns what happened to the slots of a round.
    fn collect(&mut self, slots: &[RoundSlot], events: &mut Vec<(RequestId, Event)>) -> Result<(), Broken> {
        let mut ended = Vec::new();
        let in_round = self.running.iter_mut().filter(|sequence| sequence.planned.n_known > 0);
        for (sequence, part) in in_round.zip(slots) {
            let report = self.backend.collect(part.slot);
            if let Some(drafter) = &mut self.drafter {
                keep_drafting(drafter.as_mut(), self.backend.as_mut(), sequence, part, &report);
            }
            let id = sequence.id;
            let end = sequence.take(&report, part, |event| events.push((id, event)))?;
            if let Some(drafting) = sequence.drafting.as_ref().filter(|_| report.verified > 0)
                && let Some(&accepted) = drafting.statistics.accepted_per_round.last()
            {
                self.drafts.record(report.verified, accepted as usize);
            }
            for heir in self.waiting.iter_mut().filter(|heir| heir.heir_of == Some(id)) {
                self.shared_rows += inherit(&mut self.kv, sequence, heir) as u64;
            }
            match end {
                Some(end) => {
                    // A value that is not finite left no K/V worth keeping.
                    sequence.keep &= !matches!(end, Event::Failed(_));
                    events.push((id, end));
                    ended.push(id);
                }
                None => {
                    hold_prompt(&mut self.kv, sequence);
                    self.kv.release_below(&mut sequence.kv, sequence.len);
                }
            }
        }
        for id in ended {
            self.cancel(id);
        }
        Ok(())
    }

    /// Puts a sequence that was running among the waiting.
    pub(super) fn wait_again(&mut self, mut sequence: Sequence) {
        self.preemptions += 1;
        self.leave(&mut sequence);
        sequence.rewind();
        let at = self.waiting.partition_point(|other| other.id < sequence.id);
        self.waiting.insert(at, sequence);
    }

    /// Takes a sequence off its slot and gives its blocks back.
    pub(super) fn leave(&mut self, sequence: &mut Sequence) {
        let slot = sequence.slot.take().expect("running sequences have a slot");
        if let (Some(drafter), true) = (&mut self.drafter, sequence.drafted()) {
            drafter.close(self.backend.as_mut(), slot);
        }
        self.backend.close(slot);
        self.kv.release(&mut sequence.kv);
        sequence.prompt_kv.take().iter_mut().for_each(|prompt| self.kv.release(&mut prompt.kv));
        self.free_slots.push(slot);
    }
}

/// Tells the drafter what a slot emitted, and drops for this request what gave up.
fn keep_drafting(
    drafter: &mut dyn Drafter,
    backend: &mut dyn Backend,
    sequence: &mut Sequence,
    part: &RoundSlot,
    report: &SlotReport,
) {
    let Some(drafting) = sequence.drafting.as_mut().filter(|drafting| drafting.active()) else { return };
    let failures = part.failures.iter().map(|(source, error)| (*source, error.to_string()));
    let faults = report.draft_faults;
    let logits = faults.logits.then(|| (part.source, "its logits were not finite".to_owned()));
    // Whoever proposed in this round: the context is that of the one who reads taps.
    let of_taps = drafter.tap_source().filter(|_| faults.context);
    let context = of_taps.map(|source| {
        (source, "the K/V that it made of the target's hidden states was not finite".to_owned())
    });
    for (source, why) in failures.chain(logits).chain(context).collect::<Vec<_>>() {
        if drafting.statistics.sources[source].inactive_reason.is_some() {
            continue; // The first reason stands.
        }
        let goes_on = drafter.give_up(backend, part.slot, source);
        drafting.statistics.give_up(source, format!("the drafter failed: {why}"), goes_on);
    }
    if drafting.active() {
        drafter.collected(part.slot, &report.emitted);
    }
}
