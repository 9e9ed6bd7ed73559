//! Faults of sampling that other implementations had in the field, each as a test of its own.

use paceline::{Completion, Distribution, Failed, LogprobOptions, Request, SamplingOptions};
use paceline_testkit::{Nasty, ToyDrafter, ToyModel, ToyText};

use crate::harness::{Case, check, nasty, sizes, soft_toy};

fn sampled(model: &ToyModel, prompt_seed: u64, temperature: f32, seed: u64, k: usize) -> Request {
    let mut request = Request::new(model.prompt(20, prompt_seed), 40);
    (request.sampling.temperature, request.sampling.seed) = (temperature, Some(seed));
    request.draft.tokens_per_round = Some(k);
    request
}

fn run(drafter: ToyDrafter, requests: Vec<Request>) -> Vec<Completion> {
    let case = Case::new(&soft_toy(), sizes(100, 4, 64, 8), drafter, requests);
    check(&case).into_iter().map(|completion| completion.expect("nothing is cancelled")).collect()
}

#[test]
fn the_seed_is_not_ignored_while_drafting() {
    let model = soft_toy();
    for drafter in [ToyDrafter::Assistant, nasty(Nasty::Right), nasty(Nasty::Wrong)] {
        let texts = [1, 12_345, 54_321].map(|seed| {
            let [first, again] = [(); 2]
                .map(|()| run(drafter.clone(), vec![sampled(&model, 1, 1.0, seed, 4)]).remove(0).token_ids);
            assert_eq!(first, again);
            first
        });
        assert!(texts[0] != texts[1] && texts[1] != texts[2] && texts[0] != texts[2]);
    }
}

#[test]
fn neighbouring_and_high_seeds_change_the_text() {
    let model = soft_toy();
    let seeds = [0, 1, 2, 1 << 31, 1 << 32, (1 << 32) + 1, 1 << 63, u64::MAX];
    let requests = seeds.map(|seed| sampled(&model, 1, 1.0, seed, 0)).to_vec();
    let mut texts: Vec<_> = run(ToyDrafter::None, requests).into_iter().map(|text| text.token_ids).collect();
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), seeds.len());
}

#[test]
fn streams_of_parallel_requests_are_not_mixed() {
    let model = soft_toy();
    let request = |i: u64| sampled(&model, i % 2, 1.0, i / 2, 4);
    let together = run(ToyDrafter::Assistant, (0..8).map(request).collect());
    for (i, text) in together.iter().enumerate() {
        let alone = run(ToyDrafter::Assistant, vec![request(i as u64)]).remove(0);
        assert_eq!(text.token_ids, alone.token_ids, "request {i}");
    }
    // Two requests of one prompt and one seed are the same text, not two places of one stream.
    let twins = run(ToyDrafter::Assistant, vec![request(3), request(5), request(3)]);
    assert_eq!(twins[0].token_ids, twins[2].token_ids);
}

#[test]
fn a_batch_does_not_share_one_temperature() {
    let model = soft_toy();
    let request = |i: usize| sampled(&model, 1, [0.0, 1.5, 0.2, 1.0][i], 9, 4);
    let together = run(ToyDrafter::Assistant, (0..4).map(request).collect());
    let greedy = model.decode(&model.prompt(20, 1), 40, &[]);
    assert_eq!(together[0].token_ids, greedy);
    assert!(together[1..].iter().all(|text| text.token_ids != greedy));
    assert_ne!(together[1].token_ids, together[3].token_ids);
}

/// Log-probabilities of what is drawn from, from the toy's logits and a count of what stands before, in f64.
fn penalised_logprobs(model: &ToyModel, request: &Request, output: &[paceline::TokenId]) -> Vec<f64> {
    let SamplingOptions { repetition_penalty, presence_penalty, frequency_penalty, temperature, .. } =
        request.sampling;
    let [repetition, presence, frequency, temperature] =
        [repetition_penalty, presence_penalty, frequency_penalty, temperature].map(f64::from);
    (0..output.len())
        .map(|i| {
            let before = &output[..i];
            let mut text = ToyText::new(model, &[&request.prompt[..], before].concat());
            let y: Vec<f64> = (0..)
                .zip(text.next_logits())
                .map(|(id, &z)| {
                    let token = paceline::TokenId(id);
                    let count = before.iter().filter(|other| **other == token).count();
                    let mut z = f64::from(z);
                    if count > 0 || request.prompt.contains(&token) {
                        z = if z > 0.0 { z / repetition } else { z * repetition };
                    }
                    if count > 0 {
                        z -= presence + frequency * count as f64;
                    }
                    z / temperature
                })
                .collect();
            let max = y.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let mass: f64 = y.iter().map(|y| (y - max).exp()).sum();
            y[output[i].0 as usize] - max - mass.ln()
        })
        .collect()
}

#[test]
fn penalties_are_not_dropped_while_drafting_and_the_last_token_counts_once() {
    let model = ToyModel { vocab_size: 11, ..soft_toy() };
    for (k, drafter) in [
        (0, ToyDrafter::None),
        (1, nasty(Nasty::Right)),
        (5, ToyDrafter::Assistant),
        (4, nasty(Nasty::RightThenWrong)),
    ] {
        let mut request = sampled(&model, 1, 0.9, 4, k);
        request.prompt.truncate(4);
        request.logprobs = Some(LogprobOptions { top: 0, of: Distribution::Sampled, prompt: false });
        let free = check(&Case::new(&model, sizes(100, 1, 64, 8), drafter.clone(), vec![request.clone()]));
        (request.sampling.repetition_penalty, request.sampling.presence_penalty) = (1.2, 0.3);
        request.sampling.frequency_penalty = 0.5;
        let held = check(&Case::new(&model, sizes(100, 1, 64, 8), drafter, vec![request.clone()]));
        let (free, held) = (free[0].as_ref().unwrap(), held[0].as_ref().unwrap());
        assert_ne!(free.token_ids, held.token_ids);
        let truth = penalised_logprobs(&model, &request, &held.token_ids);
        for (i, (found, truth)) in held.logprobs.iter().zip(truth).enumerate() {
            assert!(
                (f64::from(found.logprob) - truth).abs() < 1e-4,
                "token {i}, {k} drafts: {found:?}, not {truth}"
            );
        }
    }
}

#[test]
fn top_p_of_0_is_greedy_and_top_p_of_1_leaves_nothing_out() {
    let model = soft_toy();
    let with = |top_p: f32| {
        let mut request = sampled(&model, 1, 1.5, 9, 4);
        request.sampling.top_p = top_p;
        run(ToyDrafter::Assistant, vec![request]).remove(0).token_ids
    };
    assert_eq!(with(0.0), model.decode(&model.prompt(20, 1), 40, &[]));
    assert_eq!(with(1.0), run(ToyDrafter::None, vec![sampled(&model, 1, 1.5, 9, 0)]).remove(0).token_ids);
}

#[test]
fn logits_that_are_not_finite_are_an_error_and_no_hang() {
    let soft = soft_toy();
    let plain = run(ToyDrafter::None, vec![sampled(&soft, 1, 1.0, 3, 0)]).remove(0).token_ids;
    let prompt = soft.prompt(20, 1);
    let is_new = |at: &usize| !plain[..*at].contains(&plain[*at]) && !prompt.contains(&plain[*at]);
    let at = (8..40).find(is_new).expect("some token comes late");
    let model = ToyModel { overflows: Some(plain[at]), ..soft.clone() };
    for k in [0, 1, 4, 8] {
        let case = Case::new(&model, sizes(100, 2, 64, 8), nasty(Nasty::Right), vec![]);
        let error = case.engine().generate(sampled(&soft, 1, 1.0, 3, k)).unwrap_err();
        let paceline::GenerateError::Failed(Failed::NotFinite { tokens }) = error else { panic!("{error}") };
        // The token itself was chosen from good logits; a round tells of its tokens only if it ends well.
        assert!((20 + at - k..=20 + at + 1).contains(&tokens), "{tokens} tokens, {k} drafts");
    }
}

#[test]
fn log_probabilities_are_not_0_while_drafting() {
    let model = soft_toy();
    for of in [Distribution::Model, Distribution::Sampled] {
        let with = |k: usize, drafter: ToyDrafter| {
            let mut request = sampled(&model, 1, 1.0, 9, k);
            request.logprobs = Some(LogprobOptions { top: 4, of, prompt: false });
            run(drafter, vec![request]).remove(0)
        };
        let plain = with(0, ToyDrafter::None);
        assert_eq!(plain.logprobs.len(), plain.token_ids.len());
        for k in [1, 4, 7] {
            let drafted = with(k, ToyDrafter::Assistant);
            assert!(drafted.logprobs.iter().all(|entry| entry.logprob < 0.0 && entry.top.len() == 4));
            assert_eq!(drafted.logprobs, plain.logprobs);
        }
    }
}

#[test]
fn end_tokens_wait_for_the_minimum_in_every_row_of_a_round() {
    let model = soft_toy();
    for k in [0, 1, 4, 7] {
        for min_tokens in [0, 1, 5, 19, 20] {
            let mut request = sampled(&model, 1, 0.0, 9, k);
            request.sampling.logit_bias = vec![(paceline_testkit::TEXT_END, 100.0)];
            request.sampling.min_tokens = min_tokens;
            let text = run(nasty(Nasty::Right), vec![request]).remove(0);
            assert_eq!(text.token_ids.len(), min_tokens + 1, "{k} drafts");
        }
    }
}
