//! Runs requests through a toy engine and compares with plain decoding.

use std::collections::BTreeMap;

use paceline::{
    Completion, DraftStatistics, Engine, Event, FinishReason, Request, RequestId, SamplingOptions, Sizes,
    SourceStatistics, TokenId,
};
use paceline_backend::{Filters, Penalties, Sampling};
use paceline_testkit::{Nasty, TEXT_END, ToyDrafter, ToyModel, ToyText, toy_engine_for, toy_text};

/// A run of several requests.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) model: ToyModel,
    pub(crate) sizes: Sizes,
    pub(crate) drafter: ToyDrafter,
    pub(crate) suppress: Vec<TokenId>,
    /// What a nasty drafter takes all requests to ask for; `None`: what the first one asks for.
    pub(crate) known: Option<Sampling>,
    /// Step before which each request arrives.
    pub(crate) requests: Vec<(usize, Request)>,
    /// Every so many of the first 200 steps one running request is preempted.
    pub(crate) preempt_every: Option<usize>,
    /// `(step, index)` of requests that are cancelled before a step.
    pub(crate) cancel: Vec<(usize, usize)>,
}

impl Case {
    pub(crate) fn new(model: &ToyModel, sizes: Sizes, drafter: ToyDrafter, requests: Vec<Request>) -> Self {
        Self {
            model: model.clone(),
            sizes,
            drafter,
            suppress: Vec::new(),
            known: None,
            requests: requests.into_iter().map(|request| (0, request)).collect(),
            preempt_every: None,
            cancel: Vec::new(),
        }
    }

    /// The rules of one request.
    pub(crate) fn sampling_of(&self, request: &Request) -> Sampling {
        let SamplingOptions { logit_bias, suppress, allowed, .. } = &request.sampling;
        let ids = |tokens: &[TokenId]| {
            let mut ids: Vec<u32> = tokens.iter().map(|token| token.0).collect();
            ids.sort_unstable();
            ids
        };
        let mut logit_bias: Vec<_> = logit_bias.iter().map(|(token, bias)| (token.0, *bias)).collect();
        logit_bias.sort_unstable_by_key(|(token, _)| *token);
        let options = &request.sampling;
        Sampling {
            temperature: options.temperature,
            filters: Filters {
                top_k: options.top_k,
                top_p: options.top_p,
                min_p: options.min_p,
                typical_p: options.typical_p,
            },
            penalties: Penalties {
                repetition: options.repetition_penalty,
                presence: options.presence_penalty,
                frequency: options.frequency_penalty,
            },
            logit_bias,
            suppressed: ids(&[&self.suppress[..], suppress].concat()),
            allowed: allowed.as_deref().map(ids),
            min_tokens: options.min_tokens,
            seed: options.seed.unwrap_or(0),
            choice: request.choice,
        }
    }

    pub(crate) fn engine(&self) -> Engine {
        let first = || self.requests.first().map(|(_, first)| self.sampling_of(first));
        let known = self.known.clone().or_else(first).unwrap_or_default();
        toy_engine_for(&self.model, self.sizes, &self.drafter, &self.suppress, &known)
    }
}

/// Drafting statistics of each request that was drafted for.
pub(crate) fn statistics(completions: &[Option<Completion>]) -> Vec<&DraftStatistics> {
    let finished = completions.iter().flatten().filter_map(|completion| completion.finished.as_ref());
    finished.filter_map(|finished| finished.draft.as_ref()).collect()
}

/// A toy of which sampling sees more than the largest logit: habits are 4 above the others, which spread over 4.
pub(crate) fn soft_toy() -> ToyModel {
    ToyModel { scale: 1.0 / (1 << 22) as f32, ..ToyModel::default() }
}

/// A drafter without limits by round.
pub(crate) fn nasty(nasty: Nasty) -> ToyDrafter {
    ToyDrafter::Nasty(nasty, vec![])
}

/// Chains whose members take turns, fail, or fail for some slots.
pub(crate) fn chains() -> Vec<ToyDrafter> {
    let chains = [
        vec![ToyDrafter::Assistant, ToyDrafter::Ngram],
        vec![ToyDrafter::Ngram, ToyDrafter::Assistant],
        vec![nasty(Nasty::Sometimes), ToyDrafter::Ngram, ToyDrafter::Assistant],
        vec![nasty(Nasty::Failing), nasty(Nasty::FailingSlots), ToyDrafter::Assistant],
        vec![nasty(Nasty::Sometimes), ToyDrafter::OwnKv(vec![None, Some(20)])],
        vec![ToyDrafter::Nasty(Nasty::Wrong, vec![0, 3, 0, 1]), nasty(Nasty::Right)],
    ];
    chains.map(ToyDrafter::Chain).into()
}

/// A request with so many drafts a round.
pub(crate) fn drafted(prompt: Vec<TokenId>, max_tokens: usize, k: usize) -> Request {
    let mut request = Request::new(prompt, max_tokens);
    request.draft.tokens_per_round = Some(k);
    request
}

/// Sizes that hold all of the harness's requests.
pub(crate) fn sizes(context: usize, n_slots: usize, prefill_rows: usize, max_drafts: usize) -> Sizes {
    Sizes { n_slots, prefill_rows, max_drafts, ..Sizes::single(context) }
}

/// What plain decoding gives.
pub(crate) struct Plain {
    pub(crate) token_ids: Vec<TokenId>,
    pub(crate) text: String,
    pub(crate) reason: FinishReason,
}

/// Decodes a request plainly, with the toy's definition and string search alone.
pub(crate) fn plain(case: &Case, request: &Request) -> Plain {
    let limit = request.prompt.len().saturating_add(request.max_tokens).min(case.sizes.context);
    let sampling = case.sampling_of(request);
    let mut toy = ToyText::new(&case.model, &request.prompt);
    let mut text = String::new();
    let mut reason = FinishReason::Length;
    while toy.tokens().len() < limit {
        let ends: &[TokenId] = if request.ignore_eos { &[] } else { &[TEXT_END] };
        let token = toy.extend(&sampling, ends).expect("no overflow in this case");
        text.push_str(&toy_text(token));
        let ends = |(index, stop): (usize, &String)| {
            text.find(stop.as_str()).map(|start| (start + stop.len(), start, index))
        };
        if let Some((_, start, index)) = request.stop.iter().enumerate().filter_map(ends).min() {
            text.truncate(start);
            reason = FinishReason::StopString(index);
            break;
        }
        if token == TEXT_END && !request.ignore_eos {
            reason = FinishReason::EndToken;
            break;
        }
    }
    Plain { token_ids: toy.tokens()[request.prompt.len()..].to_vec(), text, reason }
}

/// Runs a case, checks every output against plain decoding, and returns the completions of what was not cancelled.
pub(crate) fn check(case: &Case) -> Vec<Option<Completion>> {
    let completions = run(case);
    for (index, ((_, request), completion)) in case.requests.iter().zip(&completions).enumerate() {
        let Some(completion) = completion else { continue };
        let plain = plain(case, request);
        let finished = completion.finished.as_ref().expect("run ends when all have finished");
        let what = || format!("request {index} of {case:?}");
        assert_eq!(completion.token_ids, plain.token_ids, "token ids, {}", what());
        assert_eq!(completion.text.as_deref().unwrap_or(""), plain.text, "text, {}", what());
        assert_eq!(finished.reason, plain.reason, "reason, {}", what());
        assert_eq!(finished.usage.prompt_tokens, request.prompt.len(), "{}", what());
        assert_eq!(finished.usage.completion_tokens, plain.token_ids.len(), "{}", what());
        if let Some(draft) = &finished.draft {
            assert_eq!(draft.accepted_per_round.len() as u64, draft.rounds, "{}", what());
            assert_eq!(draft.accepted_per_round.iter().map(|&n| u64::from(n)).sum::<u64>(), draft.accepted);
            assert_eq!(draft.accepted_by_position.iter().sum::<u64>(), draft.accepted, "{}", what());
            assert!(draft.accepted <= draft.drafted && draft.accepted <= draft.emitted, "{}", what());
            assert!(draft.emitted as usize <= plain.token_ids.len(), "{}", what());
            let sum = |count: fn(&SourceStatistics) -> u64| draft.sources.iter().map(count).sum::<u64>();
            let sums = [sum(|of| of.rounds), sum(|of| of.drafted), sum(|of| of.accepted)];
            assert_eq!(sums, [draft.rounds, draft.drafted, draft.accepted], "{}", what());
            for (index, source) in draft.sources.iter().enumerate() {
                let rounds = draft.source_per_round.iter().filter(|of| **of as usize == index);
                assert_eq!(rounds.count() as u64, source.rounds, "source {index}, {}", what());
            }
        }
    }
    completions
}

/// Runs a case to its end.
fn run(case: &Case) -> Vec<Option<Completion>> {
    let mut engine = case.engine();
    let mut ids = BTreeMap::new();
    let mut completions: Vec<Option<Completion>> = vec![None; case.requests.len()];
    let mut events: Vec<(RequestId, Event)> = Vec::new();
    // Every step emits a token or reads a row, preempted rows anew: this many steps mean that it hangs.
    let last_arrival = case.requests.iter().map(|(step, _)| *step).max().unwrap_or(0);
    for step in 0..last_arrival + 20_000 {
        for (index, (_, request)) in case.requests.iter().enumerate().filter(|(_, (at, _))| *at == step) {
            let id = engine.submit(request.clone()).expect("a request that fits");
            ids.insert(id, index);
            completions[index] = Some(Completion::default());
        }
        for &(_, index) in case.cancel.iter().filter(|(at, _)| *at == step) {
            let id = *ids.iter().find(|(_, other)| **other == index).expect("cancelled after it arrived").0;
            engine.cancel(id);
            completions[index] = None;
        }
        if step < 200 && case.preempt_every.is_some_and(|every| step % every == every - 1) {
            let mut running = ids.keys().cycle().skip(step % ids.len().max(1)).take(ids.len());
            running.find(|&&id| engine.preempt(id));
        }
        if engine.is_idle() && step >= last_arrival {
            return completions;
        }
        engine.step(&mut events).expect("the engine is sound");
        engine.check_integrity().expect("blocks add up");
        for (id, event) in events.drain(..) {
            let completion = completions[ids[&id]].as_mut().expect("no event after a cancellation");
            assert!(completion.finished.is_none(), "an event after the last one");
            completion.add(event).expect("no failure in this case");
        }
    }
    panic!("the engine does not come to an end: {case:?}")
}
