//! The engine: requests in, rounds, events out. Synchronous: [`Engine::step`] is one round.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use paceline_backend::{Backend, BackendInfo, Pass, SlotId, SlotReport, TokenId};
use paceline_models::{Description, Target};

use crate::admission::Admission;
use crate::drafters::{Drafter, PredictionDrafter};
use crate::error::{Broken, BuildError, Failed, GenerateError, Refused};
use crate::events::{Completion, Event, FinishReason};
use crate::inherit::{inherit, inheritable};
use crate::kept::{Kept, hold_prompt};
use crate::kv::{KvCache, KvGroupSize, SequenceKv};
use crate::request::{Request, RequestId};
use crate::round::{self, Lap, Players, RoundSlot};
use crate::scheduler::{self, Plan, PlannedRows, State};
use crate::sequence::{Drafting, Output, Sequence};
use crate::sizes::Sizes;
use crate::statistics::RoundTimes;
use crate::status::{DraftTotals, EngineStatus, KvBlocks};
use crate::text::TextDecoder;

/// What an engine is made of.
pub struct EngineParts {
    /// Holds all values. Target and drafter are loaded into it; it is not reserved yet.
    pub backend: Box<dyn Backend>,
    /// Loaded with the limits of `sizes` and of the drafter's K/V groups, see [`Sizes::limits`].
    pub target: Box<dyn Target>,
    /// Bound to the target.
    pub drafter: Option<Box<dyn Drafter>>,
    /// The sizes.
    pub sizes: Sizes,
    /// Tokens that end a text.
    pub end_tokens: Vec<TokenId>,
    /// Tokens that are never chosen.
    pub suppress: Vec<TokenId>,
    /// Makes text of tokens.
    pub text: Option<Arc<dyn TextDecoder>>,
}

/// Generates text for many requests at a time.
pub struct Engine {
    backend: Box<dyn Backend>,
    target: Box<dyn Target>,
    drafter: Option<Box<dyn Drafter>>,
    text: Option<Arc<dyn TextDecoder>>,
    admission: Admission,
    sizes: Sizes,
    /// Prompt rows of a pass now.
    prefill_rows: usize,
    kv: KvCache,
    /// Sequences with a slot, oldest first.
    running: Vec<Sequence>,
    /// Sequences without, oldest first.
    waiting: VecDeque<Sequence>,
    free_slots: Vec<SlotId>,
    /// What the last request left, for the next round.
    kept: Option<Kept>,
    /// Events of requests that ended without running.
    at_once: Vec<(RequestId, Event)>,
    next_id: u64,
    pass: Pass,
    clock: Option<fn() -> Duration>,
    times: RoundTimes,
    rounds: u64,
    preemptions: u64,
    shared_rows: u64,
    drafts: DraftTotals,
}

impl Engine {
    /// Puts an engine together and reserves the backend's per-slot memory.
    ///
    /// # Errors
    /// Sizes that do not fit the model, end or suppressed tokens that it does not have, no memory.
    pub fn new(parts: EngineParts) -> Result<Self, BuildError> {
        let EngineParts { mut backend, target, drafter, sizes, end_tokens, suppress, text } = parts;
        let description = target.description();
        let owned = drafter.as_ref().map_or(&[][..], |drafter| drafter.kv_groups());
        let owned_specs: Vec<_> = owned.iter().map(|owned| owned.spec).collect();
        let limits = sizes.limits(description, &owned_specs, backend.info().activation)?;
        known_tokens("end tokens", &end_tokens, description.vocab_size)?;
        known_tokens("suppressed tokens", &suppress, description.vocab_size)?;
        backend.reserve(sizes.n_slots, sizes.context + sizes.max_drafts, limits.max_rows)?;

        let groups = target.kv_groups().iter().zip(&description.kv_groups).zip(&limits.kv_blocks);
        let groups =
            groups.map(|((&group, spec), &n_blocks)| KvGroupSize { group, window: spec.window, n_blocks });
        let owned = owned.iter().zip(&limits.drafter_kv_blocks).map(|(owned, &n_blocks)| KvGroupSize {
            group: owned.group,
            window: owned.spec.window,
            n_blocks,
        });
        let kv = KvCache::new(groups.chain(owned).collect());
        let admission = Admission {
            vocab_size: description.vocab_size,
            context: sizes.context,
            max_drafts: sizes.max_drafts,
            refused: target.refused_tokens().into(),
            has_text: text.is_some(),
            scores_prompts: sizes.score_prompts,
            end_tokens: end_tokens.into(),
            suppressed: suppress.into(),
        };
        Ok(Self {
            backend,
            target,
            drafter,
            text,
            admission,
            sizes,
            prefill_rows: sizes.prefill_rows,
            kv,
            running: Vec::new(),
            waiting: VecDeque::new(),
            free_slots: (0..sizes.n_slots as u32).rev().map(SlotId).collect(),
            kept: None,
            at_once: Vec::new(),
            next_id: 0,
            pass: Pass::default(),
            clock: None,
            times: RoundTimes::default(),
            rounds: 0,
            preemptions: 0,
            shared_rows: 0,
            drafts: DraftTotals::default(),
        })
    }

    /// The target.
    pub fn description(&self) -> &Description {
        self.target.description()
    }

    /// The backend: level, threads, activation type, bytes.
    pub fn backend_info(&self) -> BackendInfo {
        self.backend.info()
    }

    /// The sizes that it was made with.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Who drafts and how far it suggests to; `None` where nobody drafts for a request that predicts nothing.
    pub fn drafter(&self) -> Option<(&'static str, usize)> {
        let drafter = self.drafter.as_ref().filter(|drafter| drafter.kind() != PredictionDrafter::KIND)?;
        Some((drafter.kind(), drafter.suggested_drafts().min(self.sizes.max_drafts)))
    }

    /// What it is doing, and its totals.
    pub fn status(&self) -> EngineStatus {
        let mut status = EngineStatus::default();
        self.write_status(&mut status);
        status
    }

    /// The same without new memory after the first time.
    pub(crate) fn write_status(&self, status: &mut EngineStatus) {
        (status.running, status.waiting) = self.n_requests();
        status.free_slots = self.free_slots.len();
        let groups = self.kv.free().zip(self.kv.sizes());
        status.kv_blocks.clear();
        status.kv_blocks.extend(groups.map(|(free, group)| KvBlocks { free, all: group.n_blocks }));
        (status.rounds, status.preemptions) = (self.rounds, self.preemptions);
        status.shared_rows = self.shared_rows;
        status.drafts.clone_from(&self.drafts);
    }

    /// Measures from now on where time goes. `clock` gives the time since some fixed moment; the engine reads no other one, and
    /// what it says changes no text.
    pub fn set_clock(&mut self, clock: fn() -> Duration) {
        self.clock = Some(clock);
    }

    /// Where time went since [`Engine::set_clock`].
    pub fn times(&self) -> RoundTimes {
        self.times
    }

    /// Reads prompts in other chunks from now on: at least 1 row and at most what the engine was made with. Never changes a text.
    pub fn set_prefill_rows(&mut self, rows: usize) {
        self.prefill_rows = rows.clamp(1, self.sizes.prefill_rows);
    }

    pub(crate) fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Id of the next request.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Takes a request. It runs in the steps that follow.
    ///
    /// # Errors
    /// What is wrong with the request.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, Refused> {
        self.admission.check(&request)?;
        let id = RequestId(self.next_id);
        self.submit_checked(id, request);
        Ok(id)
    }

    /// Takes a request that was checked, under an id above all earlier ones.
    pub(crate) fn submit_checked(&mut self, id: RequestId, request: Request) {
        self.next_id = id.0 + 1;
        let same_prompt_as = request.same_prompt_as;
        let mut sequence = self.sequence(id, request);
        if self.may_inherit(&sequence) {
            sequence.heir_of = same_prompt_as.filter(|other| *other < id);
            let from = self.running.iter().find(|other| Some(other.id) == sequence.heir_of);
            let shared = from.map(|from| inherit(&mut self.kv, from, &mut sequence));
            self.shared_rows += shared.unwrap_or(0) as u64;
        }
        if sequence.is_empty() {
            self.at_once.push((id, Event::Finished(sequence.finished(FinishReason::Length))));
        } else {
            self.waiting.push_back(sequence);
        }
    }

    fn sequence(&self, id: RequestId, request: Request) -> Sequence {
        let limit = self.admission.limit(&request);
        let detokenizer = self.text.as_ref().map(|text| text.detokenizer());
        let drafter =
            self.drafter.as_ref().filter(|drafter| request.draft.enabled && drafter.serves(&request));
        let drafting = drafter.map(|drafter| {
            Drafting::new(drafter.as_ref(), request.draft.tokens_per_round, self.sizes.max_drafts)
        });
        let end_tokens = self.admission.end_tokens(&request);
        let sampling = Arc::new(self.admission.rules(&request));
        Sequence {
            id,
            n_prompt: request.prompt.len(),
            tokens: request.prompt,
            prediction: request.prediction,
            len: 0,
            limit,
            end_tokens,
            sampling,
            logprobs: request.logprobs,
            n_scored: 0,
            kv: SequenceKv::default(),
            heir_of: None,
            keep: request.keep_kv && self.target.is_all_kv(),
            prompt_kv: None,
            slot: None,
            planned: PlannedRows::default(),
            output: Output::new(detokenizer, request.stop),
            drafting,
        }
    }

    /// Drops a request: no more events come for it. False if it is not there (any more).
    pub fn cancel(&mut self, id: RequestId) -> bool {
        self.at_once.retain(|(other, _)| *other != id);
        if let Some(index) = self.waiting.iter().position(|sequence| sequence.id == id) {
            let sequence = self.waiting.remove(index);
            sequence.into_iter().for_each(|mut sequence| self.kv.release(&mut sequence.kv));
            return true;
        }
        let Some(index) = self.running.iter().position(|sequence| sequence.id == id) else { return false };
        let mut sequence = self.running.remove(index);
        if sequence.keep {
            let before = self.kept.replace(Kept::of(&mut sequence));
            before.into_iter().for_each(|kept| kept.release(&mut self.kv));
        }
        self.leave(&mut sequence);
        true
    }

    /// Takes a running request off its slot. It waits for its turn, reads its tokens anew and goes on; its text does not
    /// change. False if it is not running.
    pub fn preempt(&mut self, id: RequestId) -> bool {
        let Some(index) = self.running.iter().position(|sequence| sequence.id == id) else { return false };
        let sequence = self.running.remove(index);
        self.wait_again(sequence);
        true
    }

    /// Requests that are running and waiting.
    pub fn n_requests(&self) -> (usize, usize) {
        (self.running.len(), self.waiting.len())
    }

    /// Whether a step would do nothing.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty() && self.at_once.is_empty()
    }

    /// Runs one round and adds what happened to `events`. Does nothing when idle.
    ///
    /// # Errors
    /// The engine is broken. Every request has failed, which `events` tells.
    pub fn step(&mut self, events: &mut Vec<(RequestId, Event)>) -> Result<(), Broken> {
        events.append(&mut self.at_once);
        if self.is_idle() {
            return Ok(());
        }
        let result =
            self.round(events).and_then(|()| if self.is_idle() { self.check_integrity() } else { Ok(()) });
        if let Err(broken) = &result {
            self.fail_all(broken, events);
        }
        result
    }

    /// Runs one request to its end, together with all others that were submitted. Their events are lost.
    ///
    /// # Errors
    /// The request is refused or fails.
    pub fn generate(&mut self, request: Request) -> Result<Completion, GenerateError> {
        let id = self.submit(request)?;
        let mut completion = Completion::default();
        let mut events = Vec::new();
        while completion.finished.is_none() {
            self.step(&mut events).map_err(Failed::from)?;
            for (_, event) in events.drain(..).filter(|(other, _)| *other == id) {
                completion.add(event)?;
            }
        }
        Ok(completion)
    }

    /// Checks that every K/V block is free or held exactly once. A broken engine says so by itself when it becomes idle; this is
    /// for tests.
    ///
    /// # Errors
    /// What does not add up.
    pub fn check_integrity(&self) -> Result<(), Broken> {
        let sequences = self.running.iter().chain(&self.waiting);
        let prompts = sequences.clone().flat_map(|sequence| &sequence.prompt_kv).map(|prompt| &prompt.kv);
        let live = sequences.map(|sequence| &sequence.kv).chain(prompts);
        let live = live.chain(self.kept.iter().flat_map(Kept::tables));
        self.kv.check_integrity(live).map_err(|what| Broken::Accounting { what })
    }

    fn round(&mut self, events: &mut Vec<(RequestId, Event)>) -> Result<(), Broken> {
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
    fn may_inherit(&self, sequence: &Sequence) -> bool {
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
            let (source, on_backend, failures) = (0, false, Vec::new());
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
                on_backend,
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
            if let Some(drafting) = sequence.drafting.as_ref().filter(|_| part.n_drafts > 0)
                && let Some(&accepted) = drafting.statistics.accepted_per_round.last()
            {
                self.drafts.record(part.n_drafts, accepted as usize);
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
    fn wait_again(&mut self, mut sequence: Sequence) {
        self.preemptions += 1;
        self.leave(&mut sequence);
        sequence.rewind();
        let at = self.waiting.partition_point(|other| other.id < sequence.id);
        self.waiting.insert(at, sequence);
    }

    /// Takes a sequence off its slot and gives its blocks back.
    fn leave(&mut self, sequence: &mut Sequence) {
        let slot = sequence.slot.take().expect("running sequences have a slot");
        if let (Some(drafter), true) = (&mut self.drafter, sequence.drafted()) {
            drafter.close(self.backend.as_mut(), slot);
        }
        self.backend.close(slot);
        self.kv.release(&mut sequence.kv);
        sequence.prompt_kv.take().iter_mut().for_each(|prompt| self.kv.release(&mut prompt.kv));
        self.free_slots.push(slot);
    }

    fn fail_all(&mut self, broken: &Broken, events: &mut Vec<(RequestId, Event)>) {
        for sequence in self.running.drain(..).chain(self.waiting.drain(..)) {
            events.push((sequence.id, Event::Failed(Failed::Stopped(broken.clone()))));
        }
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
    let not_finite = report.draft_fault.then(|| {
        // Host tokens cannot fail that way: then it is what somebody else made of the target's pass.
        let of_taps = drafter.tap_source().filter(|_| !part.on_backend);
        (of_taps.unwrap_or(part.source), "its logits were not finite".to_owned())
    });
    for (source, why) in failures.chain(not_finite).collect::<Vec<_>>() {
        let goes_on = drafter.give_up(backend, part.slot, source);
        drafting.statistics.give_up(source, format!("the drafter failed: {why}"), goes_on);
    }
    if drafting.active() {
        drafter.collected(part.slot, &report.emitted);
    }
}

fn known_tokens(list: &'static str, tokens: &[TokenId], vocab_size: usize) -> Result<(), BuildError> {
    match tokens.iter().find(|token| token.0 as usize >= vocab_size) {
        Some(&id) => Err(BuildError::UnknownToken { list, id, vocab_size }),
        None => Ok(()),
    }
}
