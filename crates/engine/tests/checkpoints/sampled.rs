//! Sampling on the tiny model and its assistant: any drafts, any company, the same text; and the texts that seeds stand for.

use paceline::{
    Activation, Completion, Distribution, LogprobOptions, ModelFolder, Request, SamplingOptions, TokenId,
    Tokenizer,
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
    let assistant = asset("tiny-gemma4-assistant");
    let requests = requests(10);
    for activation in [Activation::Bf16, Activation::F32] {
        let mut engine = open(&asset("tiny-gemma4"), None, sizes(100, 1, 512, 0), activation);
        let plain = run(&mut engine, &requests, 0);
        let (mut accepted, mut rejected) = (0, 0);
        for (k, n_slots, chunk, stagger) in [(1, 1, 512, 0), (4, 5, 3, 2), (7, 2, 128, 1)] {
            let mut engine =
                open(&asset("tiny-gemma4"), Some(&assistant), sizes(100, n_slots, chunk, k), activation);
            for (i, (drafted, plain)) in run(&mut engine, &requests, stagger).iter().zip(&plain).enumerate() {
                assert_eq!(drafted.token_ids, plain.token_ids, "request {i}, {k} drafts, {n_slots} slots");
                assert_eq!(drafted.logprobs, plain.logprobs, "request {i}, {k} drafts, {n_slots} slots");
                accepted += draft(drafted).accepted;
                rejected += draft(drafted).drafted - draft(drafted).accepted;
            }
        }
        assert!(accepted > 200 && rejected > 100, "{accepted} accepted, {rejected} rejected");
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
