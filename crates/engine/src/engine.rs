//! The engine: requests in, rounds, events out. Synchronous: [`Engine::step`] is one round, whose parts are in `step`.

mod step;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use paceline_backend::{Backend, BackendInfo, Pass, SlotId, TokenId};
use paceline_models::{Description, Target};

use crate::admission::Admission;
use crate::drafters::{Drafter, PredictionDrafter};
use crate::error::{Broken, BuildError, Failed, GenerateError, Refused};
use crate::events::{Completion, Event, FinishReason};
use crate::inherit::inherit;
use crate::kept::Kept;
use crate::kv::{KvCache, KvGroupSize, SequenceKv};
use crate::request::{Request, RequestId};
use crate::scheduler::PlannedRows;
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
    /// Of requests that do not say, see [`crate::DraftSettings::confidence`].
    pub draft_confidence: f32,
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
    draft_confidence: f32,
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
        let EngineParts { mut backend, target, drafter, draft_confidence, sizes, end_tokens, suppress, text } =
            parts;
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
            model_context: description.max_positions,
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
            draft_confidence,
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

    /// Who drafts for a request that predicts nothing, in order of preference, and the drafts of a round that each of them makes where
    /// the request does not say; empty where nobody does.
    pub fn drafters(&self) -> Vec<(&'static str, usize)> {
        let Some(drafter) = &self.drafter else { return Vec::new() };
        let of_all = drafter.sources().into_iter().zip(drafter.suggested_by_source());
        let of_any_request = of_all.filter(|(kind, _)| *kind != PredictionDrafter::KIND);
        of_any_request.map(|(kind, suggested)| (kind, suggested.min(self.sizes.max_drafts))).collect()
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
            let confidence = request.draft.confidence.unwrap_or(self.draft_confidence);
            let (asked, most) = (request.draft.tokens_per_round, self.sizes.max_drafts);
            Drafting::new(drafter.as_ref(), asked, most, confidence)
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

    fn fail_all(&mut self, broken: &Broken, events: &mut Vec<(RequestId, Event)>) {
        for sequence in self.running.drain(..).chain(self.waiting.drain(..)) {
            events.push((sequence.id, Event::Failed(Failed::Stopped(broken.clone()))));
        }
    }
}

fn known_tokens(list: &'static str, tokens: &[TokenId], vocab_size: usize) -> Result<(), BuildError> {
    match tokens.iter().find(|token| token.0 as usize >= vocab_size) {
        Some(&id) => Err(BuildError::UnknownToken { list, id, vocab_size }),
        None => Ok(()),
    }
}
