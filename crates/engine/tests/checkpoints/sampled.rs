//! Sampling on the tiny model and its assistant: any drafts, any company, the same text; and the texts that seeds stand for.

use paceline::{
    Activation, Completion, Distribution, LogprobOptions, ModelFolder, Request, RequestId, SamplingOptions,
    TokenId, Tokenizer,
};
use paceline_testkit::paths::asset;

use crate::setup::{draft, open, run, sizes};

fn tokenizer() -> Tokenizer {
    ModelFolder::open(&asset("tiny-gemma4")).unwrap().tokenizer().unwrap().expect("the tiny model has one")
}

fn requests(n: usize) -> Vec<Request> {
    let tokenizer = tokenizer();
    let prompts = ["Once upon a time", "The little dog", "One day, a girl named Lily", "Hello"];
    let options = [
        SamplingOptions { temperature: 0.7, ..SamplingOptions::default() },
        SamplingOptions { temperature: 1.0, top_k: 40, top_p: 0.9, ..SamplingOptions::default() },
        SamplingOptions { temperature: 1.5, min_p: 0.05, ..SamplingOptions::default() },
        SamplingOptions {
            temperature: 1.0,
            repetition_penalty: 1.2,
            frequency_penalty: 0.3,
            typical_p: 0.9,
            ..SamplingOptions::default()
        },
        SamplingOptions { presence_penalty: 1.0, ..SamplingOptions::default() },
    ];
    (0..n)
        .map(|i| {
            let prompt = tokenizer.encode(prompts[i % 4]).unwrap().into_iter().map(TokenId).collect();
            let mut request = Request::new(prompt, 40);
            request.sampling = SamplingOptions { seed: Some(7 + i as u64), ..options[i % 5].clone() };
            let of = if i % 2 == 0 { Distribution::Model } else { Distribution::Sampled };
            request.logprobs = Some(LogprobOptions { top: 3, of, prompt: false });
            request
        })
        .collect()
}

#[test]
fn drafts_batches_and_chunks_change_no_bit_of_text_and_log_probabilities() {
    let requests = requests(10);
    for activation in [Activation::Bf16, Activation::F32] {
        let mut engine = open(&asset("tiny-gemma4"), None, sizes(100, 1, 512, 0), activation);
        let plain = run(&mut engine, &requests, 0);
        for drafter in ["tiny-gemma4-assistant", "tiny-gemma4-dflash"] {
            let (mut accepted, mut rejected) = (0, 0);
            for (k, n_slots, chunk, stagger) in [(1, 1, 512, 0), (4, 5, 3, 2), (7, 2, 128, 1)] {
                let sizes = sizes(100, n_slots, chunk, k);
                let mut engine = open(&asset("tiny-gemma4"), Some(&asset(drafter)), sizes, activation);
                let drafted = run(&mut engine, &requests, stagger);
                for (i, (drafted, plain)) in drafted.iter().zip(&plain).enumerate() {
                    let what = format!("{drafter}, request {i}, {k} drafts, {n_slots} slots");
                    assert_eq!(drafted.token_ids, plain.token_ids, "{what}");
                    assert_eq!(drafted.logprobs, plain.logprobs, "{what}");
                    accepted += draft(drafted).accepted;
                    rejected += draft(drafted).drafted - draft(drafted).accepted;
                }
            }
            assert!(accepted > 150 && rejected > 100, "{drafter}: {accepted} accepted, {rejected} rejected");
        }
    }
}

#[test]
fn choices_that_share_their_prompt_are_those_that_read_it_alone() {
    let words = "Once upon a time there was a little fox who had a red ball. ".repeat(10);
    let prompt: Vec<TokenId> = tokenizer().encode(&words).unwrap().into_iter().map(TokenId).collect();
    assert!(prompt.len() > 140, "{} tokens", prompt.len());
    let request = |choice: u32, first: Option<RequestId>| {
        let mut request = Request::new(prompt.clone(), 24);
        (request.sampling.temperature, request.sampling.seed) = (1.2, Some(3));
        (request.choice, request.same_prompt_as) = (choice, first);
        request.logprobs = Some(LogprobOptions { top: 2, of: Distribution::Model, prompt: false });
        request
    };
    let assistant = asset("tiny-gemma4-assistant");
    for activation in [Activation::Bf16, Activation::F32] {
        let mut engine = open(&asset("tiny-gemma4"), None, sizes(250, 1, 512, 0), activation);
        let alone: Vec<_> = (0..4).flat_map(|choice| run(&mut engine, &[request(choice, None)], 0)).collect();
        assert!(alone.windows(2).all(|pair| pair[0].token_ids != pair[1].token_ids));
        for (drafter, k, chunk) in [(None, 0, 512), (Some(&*assistant), 4, 37)] {
            let mut engine = open(&asset("tiny-gemma4"), drafter, sizes(250, 4, chunk, k), activation);
            let requests: Vec<_> =
                (0..4).map(|choice| request(choice, (choice > 0).then_some(RequestId(0)))).collect();
            for (together, alone) in run(&mut engine, &requests, 0).iter().zip(&alone) {
                assert_eq!((&together.token_ids, &together.logprobs), (&alone.token_ids, &alone.logprobs));
            }
            let whole_blocks = (prompt.len() - 1) / 64 * 64;
            assert_eq!(engine.status().shared_rows, 3 * whole_blocks as u64);
        }
    }
}

const TEMPERATURES: [f32; 6] = [0.0, 1e-6, 0.2, 0.7, 1.0, 1.5];

/// Requests in which every temperature meets every filter and every penalty, and every filter every penalty and every seed.
fn array() -> Vec<Request> {
    let filter = |index: usize, options: &mut SamplingOptions| match index {
        0 => {}
        1 => options.top_k = 40,
        2 => options.top_p = 0.9,
        3 => options.min_p = 0.05,
        4 => options.typical_p = 0.9,
        _ => (options.top_k, options.top_p, options.min_p, options.typical_p) = (300, 0.97, 0.01, 0.95),
    };
    let penalty = |index: usize, options: &mut SamplingOptions| match index {
        0 => {}
        1 => options.repetition_penalty = 1.2,
        2 => options.presence_penalty = 1.0,
        3 => options.frequency_penalty = 0.5,
        _ => {
            (options.repetition_penalty, options.frequency_penalty) = (0.9, 0.2);
            options.logit_bias = vec![(TokenId(286), 2.0), (TokenId(369), -100.0)];
            options.min_tokens = 10;
        }
    };
    let seeds = [0, 12_345, u64::MAX];
    let mut requests = requests(36);
    let mut seen = std::collections::HashSet::new();
    for (i, request) in requests.iter_mut().enumerate() {
        let (t, f) = (i / 6, i % 6);
        let (p, s) = ((t + f) % 5, (t + 2 * f) % 3);
        let mut options = SamplingOptions { temperature: TEMPERATURES[t], ..SamplingOptions::default() };
        filter(f, &mut options);
        penalty(p, &mut options);
        options.seed = Some(seeds[s]);
        (request.sampling, request.max_tokens) = (options, 24);
        seen.extend([("tf", t, f), ("tp", t, p), ("ts", t, s), ("fp", f, p), ("fs", f, s), ("ps", p, s)]);
    }
    assert_eq!(seen.len(), 36 + 30 + 18 + 30 + 18 + 15, "not every pair comes up");
    requests
}

#[test]
fn every_pair_of_temperature_filter_penalty_and_seed_gives_the_plain_text() {
    let assistant = asset("tiny-gemma4-assistant");
    let requests = array();
    let mut engine = open(&asset("tiny-gemma4"), None, sizes(80, 1, 512, 0), Activation::Bf16);
    let plain = run(&mut engine, &requests, 0);
    let mut counts = [[0; 2]; TEMPERATURES.len()];
    for (k, n_slots, chunk, stagger) in [(1, 3, 5, 1), (4, 8, 512, 0), (7, 1, 2, 0)] {
        let sizes = sizes(80, n_slots, chunk, k);
        let mut engine = open(&asset("tiny-gemma4"), Some(&assistant), sizes, Activation::Bf16);
        for (i, (drafted, plain)) in run(&mut engine, &requests, stagger).iter().zip(&plain).enumerate() {
            let what = format!("{k} drafts, {n_slots} slots, {:?}", requests[i].sampling);
            assert_eq!((&drafted.token_ids, &drafted.text), (&plain.token_ids, &plain.text), "{what}");
            assert_eq!(drafted.logprobs, plain.logprobs, "{what}");
            let (drafted, plain) = (drafted.finished.as_ref().unwrap(), plain.finished.as_ref().unwrap());
            assert_eq!(
                (drafted.reason, drafted.usage, drafted.seed),
                (plain.reason, plain.usage, plain.seed),
                "{what}"
            );
            let draft = drafted.draft.as_ref().expect("it was drafted for");
            let [accepted, rejected] = &mut counts[i / 6];
            (*accepted, *rejected) = (*accepted + draft.accepted, *rejected + draft.drafted - draft.accepted);
        }
    }
    for (temperature, [accepted, rejected]) in TEMPERATURES.iter().zip(counts) {
        assert!(
            accepted > 50 && rejected > 50,
            "temperature {temperature}: {accepted} drafts accepted, {rejected} rejected"
        );
    }
}

/// A seed's text must survive releases: whatever changes these has changed the numeric contract, and says so.
#[test]
fn seeds_stand_for_these_texts() {
    let golden: [[u32; 8]; 5] = [
        [284, 525, 409, 369, 1080, 1014, 532, 2334],
        [415, 369, 1034, 286, 534, 1356, 428, 369],
        [640, 408, 377, 1071, 286, 955, 559, 712],
        [273, 1955, 723, 415, 3255, 2107, 285, 319],
        [284, 525, 409, 369, 734, 1014, 532, 2545],
    ];
    let mut engine = open(&asset("tiny-gemma4"), None, sizes(100, 5, 512, 0), Activation::Bf16);
    let texts = run(&mut engine, &requests(5), 0);
    let first = |text: &Completion| -> Vec<u32> { text.token_ids.iter().take(8).map(|id| id.0).collect() };
    assert_eq!(texts.iter().map(first).collect::<Vec<_>>(), golden.map(|ids| ids.to_vec()));
}
