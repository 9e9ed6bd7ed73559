//! Requests that ask for all sorts of things, drafted for by all sorts of drafters, in one engine: each gets what it gets alone and plain.

use std::fs;

use paceline::drafters::{DraftBlock, NgramLengths};
use paceline::{
    Activation, Completion, Distribution, DraftSource, Engine, LogprobOptions, ModelFolder, Request,
    SourceStatistics, TokenId, load,
};
use paceline_testkit::paths::{asset, expected};
use serde_json::Value;

use crate::setup::{options_of, run, run_preempted, sizes};

const CONTEXT: usize = 220;
const MOST_DRAFTS: usize = 7;

/// The same choices from the same seed.
struct Choices(u64);

impl Choices {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

fn prompts() -> Vec<Vec<TokenId>> {
    let file: Value = serde_json::from_str(&fs::read_to_string(expected()).unwrap()).unwrap();
    let ids = |prompt: &Value| {
        let ids = prompt["prompt_ids"].as_array().unwrap();
        ids.iter().map(|id| TokenId(id.as_u64().unwrap() as u32)).collect()
    };
    file["prompts"].as_array().unwrap().iter().map(ids).collect()
}

fn request(from: &mut Choices, prompts: &[Vec<TokenId>]) -> Request {
    let mut prompt = prompts[from.below(prompts.len())].clone();
    prompt.truncate(1 + from.below(120));
    let room = CONTEXT - prompt.len();
    let max_tokens = [1, 2, room, 30, 45, 60][from.below(6)].min(room);
    let mut request = Request::new(prompt, max_tokens);
    request.ignore_eos = from.below(2) == 0;
    request.choice = from.below(3) as u32;
    let sampling = &mut request.sampling;
    sampling.seed = Some(from.below(1000) as u64);
    sampling.temperature = from.one_of(&[0.0, 0.0, 0.3, 0.9, 1.5]);
    sampling.top_k = from.one_of(&[0, 0, 3, 40]);
    sampling.top_p = from.one_of(&[1.0, 1.0, 0.8]);
    sampling.repetition_penalty = from.one_of(&[1.0, 1.0, 1.3]);
    sampling.presence_penalty = from.one_of(&[0.0, 0.0, 0.7]);
    sampling.frequency_penalty = from.one_of(&[0.0, 0.0, 0.4]);
    sampling.min_tokens = from.one_of(&[0, 0, 5]).min(max_tokens);
    if from.below(5) == 0 {
        sampling.logit_bias = vec![(TokenId(from.below(4000) as u32), 20.0), (TokenId(4095), -50.0)];
    }
    if from.below(8) == 0 {
        sampling.allowed = Some((20..400).map(TokenId).collect());
    }
    if from.below(4) == 0 {
        request.stop = vec![from.one_of(&["e", " the", "ing", "\n"]).to_owned()];
    }
    if from.below(3) == 0 {
        let of = from.one_of(&[Distribution::Model, Distribution::Sampled]);
        request.logprobs = Some(LogprobOptions { top: from.below(4), of, prompt: false });
    }
    request
}

/// The same request with some wish for its drafts.
fn drafted(from: &mut Choices, plain: &Request, text: &[TokenId]) -> Request {
    let mut request = plain.clone();
    request.draft.enabled = from.below(8) != 0;
    request.draft.tokens_per_round = from.one_of(&[None, None, Some(0), Some(1), Some(MOST_DRAFTS)]);
    request.draft.confidence = from.one_of(&[None, Some(0.0), Some(0.05), Some(0.5), Some(0.9999)]);
    if from.below(2) == 0 && !text.is_empty() {
        request.prediction = text.to_vec();
        request.prediction[from.below(text.len())] = TokenId(7);
    }
    request
}

fn assert_same(found: &Completion, plain: &Completion, what: &str) {
    assert_eq!((&found.token_ids, &found.text), (&plain.token_ids, &plain.text), "{what}");
    assert_eq!(found.logprobs, plain.logprobs, "{what}");
    let [found, plain] = [found, plain].map(|completion| completion.finished.as_ref().unwrap());
    assert_eq!((&found.reason, found.usage, found.seed), (&plain.reason, plain.usage, plain.seed), "{what}");
}

/// Drafts of all texts that were verified, and those that were accepted. The figures of each fit one another.
fn count(completions: &[Completion]) -> (u64, u64) {
    let (mut drafted, mut accepted) = (0, 0);
    for draft in completions.iter().filter_map(|completion| completion.finished.as_ref()?.draft.as_ref()) {
        let sum = |of: fn(&SourceStatistics) -> u64| draft.sources.iter().map(of).sum::<u64>();
        let sums = (sum(|source| source.rounds), sum(|source| source.drafted), sum(|source| source.accepted));
        assert_eq!(sums, (draft.rounds, draft.drafted, draft.accepted), "{draft:?}");
        assert_eq!(draft.accepted_per_round.len() as u64, draft.rounds, "{draft:?}");
        assert_eq!(draft.accepted_per_round.iter().map(|&n| u64::from(n)).sum::<u64>(), draft.accepted);
        assert!(draft.accepted <= draft.drafted && draft.drafted >= draft.rounds, "{draft:?}");
        drafted += draft.drafted;
        accepted += draft.accepted;
    }
    (drafted, accepted)
}

#[test]
fn any_wishes_and_any_drafters_together_change_nothing() {
    let [tiny, assistant, dflash] = ["tiny-gemma4", "tiny-gemma4-assistant", "tiny-gemma4-dflash"]
        .map(|name| ModelFolder::open(&asset(name)).unwrap());
    let [a, d, m] = [&assistant, &dflash, &tiny].map(DraftSource::Checkpoint);
    let ngram = DraftSource::Ngram(NgramLengths::new(1, 3).unwrap());
    let prediction = DraftSource::Prediction;
    let open = |sources: &[DraftSource<'_>],
                n_slots,
                chunk,
                change: &dyn Fn(&mut paceline::LoadOptions<'_>)|
     -> Engine {
        let progress = &mut |_, _| {};
        let sizes = sizes(CONTEXT, n_slots, chunk, MOST_DRAFTS);
        let mut options = options_of(&tiny, sources.to_vec(), sizes, Activation::Bf16, progress);
        change(&mut options);
        load(&tiny, options).unwrap()
    };
    let prompts = prompts();
    let (mut n_drafted, mut n_accepted) = (0, 0);
    for (case, (sources, n_slots, chunk, block, confidence, every)) in [
        (vec![a], 1, 512, DraftBlock::Short, 0.3, usize::MAX),
        (vec![d], 6, 20, DraftBlock::Full, 0.3, 7),
        (vec![m], 4, 64, DraftBlock::Short, 0.01, 3),
        (vec![prediction, a, ngram], 5, 130, DraftBlock::Short, 0.999, 20),
        (vec![d, m], 3, 7, DraftBlock::Short, 0.3, 7),
        (vec![m, d], 5, 100, DraftBlock::Full, 0.3, usize::MAX),
        (vec![ngram, d, m, a], 6, 33, DraftBlock::Full, 0.1, 20),
        (vec![prediction, m, a], 2, 200, DraftBlock::Short, 0.0, 3),
    ]
    .into_iter()
    .enumerate()
    {
        let from = &mut Choices(case as u64);
        let requests: Vec<_> = (0..8).map(|_| request(from, &prompts)).collect();
        let plain = run(&mut open(&[], 1, 512, &|_| {}), &requests, 0);
        let drafted: Vec<_> = requests
            .iter()
            .zip(&plain)
            .map(|(request, text)| drafted(from, request, &text.token_ids))
            .collect();
        let mut engine = open(&sources, n_slots, chunk, &|options| {
            let draft = options.draft.as_mut().expect("there are drafters");
            (draft.block, draft.confidence) = (block, confidence);
        });
        let found = run_preempted(&mut engine, &drafted, case % 4, every);
        for (i, (found, plain)) in found.iter().zip(&plain).enumerate() {
            assert_same(found, plain, &format!("case {case}, request {i}: {:?}", drafted[i]));
        }
        let (drafted, accepted) = count(&found);
        n_drafted += drafted;
        n_accepted += accepted;
    }
    assert!(n_accepted > 300 && n_drafted > n_accepted + 100, "{n_accepted} of {n_drafted}");
}
