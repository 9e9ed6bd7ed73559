//! The tiny model against `expected.json`: what transformers computed in f32.

use std::fs;

use paceline::{Activation, Completion, Request};
use paceline_testkit::paths::{asset, expected};
use serde_json::Value;

use crate::setup::{draft, open, run, sizes, tokens};

/// A recorded run.
struct Recorded {
    request: Request,
    token_ids: Vec<u32>,
    text: Option<String>,
    /// Steps at which the two largest logits nearly tie, so that another order of summation may choose otherwise.
    near_ties: Vec<u64>,
    /// Accepted drafts of each round with the assistant and four drafts, before the cut of the last round.
    accepted: Vec<u32>,
    /// The same with the DFlash drafter and seven drafts.
    accepted_dflash: Vec<u32>,
}

fn numbers<T: TryFrom<u64, Error: std::fmt::Debug>>(value: &Value) -> Vec<T> {
    value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap().try_into().unwrap()).collect()
}

fn recorded() -> Vec<Recorded> {
    let file: Value = serde_json::from_str(&fs::read_to_string(expected()).unwrap()).unwrap();
    let prompt = |prompt: &Value| Recorded {
        request: Request::new(
            tokens(&numbers::<u32>(&prompt["prompt_ids"])),
            prompt["max_new_tokens"].as_u64().unwrap() as usize,
        ),
        token_ids: numbers(&prompt["greedy_f32"]),
        text: prompt["text"].as_str().map(str::to_owned),
        near_ties: numbers(&prompt["near_ties_f32"]),
        accepted: numbers(&prompt["mtp_k4"]["accepted"]),
        accepted_dflash: numbers(&prompt["dflash_k7"]["accepted"]),
    };
    file["prompts"].as_array().unwrap().iter().map(prompt).collect()
}

/// Compares up to the first near tie that went the other way; says whether it came to that.
fn same_as_recorded(completion: &Completion, recorded: &Recorded, what: &str) -> bool {
    let ids: Vec<u32> = completion.token_ids.iter().map(|id| id.0).collect();
    match (0..ids.len().max(recorded.token_ids.len())).find(|&i| ids.get(i) != recorded.token_ids.get(i)) {
        None => {
            if let Some(text) = &recorded.text {
                assert_eq!(completion.text.as_deref(), Some(text.as_str()), "{what}");
            }
            true
        }
        Some(at) => {
            assert!(
                recorded.near_ties.contains(&(at as u64)),
                "{what} differs at step {at}, which is no near tie"
            );
            false
        }
    }
}

#[test]
fn fourteen_prompts_at_once_equal_the_reference() {
    let recorded = recorded();
    let mut engine = open(&asset("tiny-gemma4"), None, sizes(512, 4, 100, 0), Activation::F32);
    let requests: Vec<_> = recorded.iter().map(|recorded| recorded.request.clone()).collect();
    let completions = run(&mut engine, &requests, 0);
    let equal = recorded.iter().zip(&completions).enumerate();
    let equal = equal
        .filter(|(i, (recorded, completion))| same_as_recorded(completion, recorded, &format!("prompt {i}")));
    assert!(equal.count() >= 12, "most texts have no near tie that goes the other way");
}

/// Text and accepted drafts of each round as recorded, up to near ties of the target.
fn check_accepted(drafter: &str, k: usize, accepted: fn(&Recorded) -> &[u32]) {
    let recorded = recorded();
    let mut engine =
        open(&asset("tiny-gemma4"), Some(&asset(drafter)), sizes(512, 4, 100, k), Activation::F32);
    let requests: Vec<_> = recorded
        .iter()
        .map(|recorded| {
            let mut request = recorded.request.clone();
            request.draft.tokens_per_round = Some(k);
            request
        })
        .collect();
    let completions = run(&mut engine, &requests, 3);
    let mut compared = 0;
    for (i, (recorded, completion)) in recorded.iter().zip(&completions).enumerate() {
        if !same_as_recorded(completion, recorded, &format!("prompt {i}")) {
            continue;
        }
        // The reference counts before it cuts the last round.
        let (found, accepted) = (&draft(completion).accepted_per_round, accepted(recorded));
        let n = accepted.len() - 1;
        assert_eq!(found[..n], accepted[..n], "{drafter}, prompt {i}");
        compared += 1;
    }
    assert!(compared >= 12, "{compared} prompts compared");
}

#[test]
fn the_assistant_changes_no_token_and_accepts_as_recorded() {
    check_accepted("tiny-gemma4-assistant", 4, |recorded| &recorded.accepted);
}

#[test]
fn the_dflash_drafter_changes_no_token_and_accepts_as_recorded() {
    check_accepted("tiny-gemma4-dflash", 7, |recorded| &recorded.accepted_dflash);
}

#[test]
fn drafts_batches_chunks_and_arrivals_change_no_bit_in_bf16() {
    let mut requests: Vec<_> = recorded().into_iter().map(|recorded| recorded.request).take(6).collect();
    requests.iter_mut().for_each(|request| request.max_tokens = 40);
    let mut engine = open(&asset("tiny-gemma4"), None, sizes(400, 1, 512, 0), Activation::Bf16);
    let plain = run(&mut engine, &requests, 0);
    for drafter in ["tiny-gemma4-assistant", "tiny-gemma4-dflash"] {
        let (mut accepted, mut rejected) = (0, 0);
        for (k, n_slots, chunk, stagger, confidence) in [
            (1, 1, 512, 0, [0.0; 3]),
            (2, 3, 7, 2, [0.0; 3]),
            (4, 6, 127, 5, [0.0; 3]),
            (7, 2, 128, 0, [0.0; 3]),
            (5, 5, 129, 1, [0.0, 0.2, 0.6]),
            (7, 4, 64, 2, [0.1, 0.5, 0.0]),
        ] {
            let sizes = sizes(400, n_slots, chunk, k);
            let mut engine = open(&asset("tiny-gemma4"), Some(&asset(drafter)), sizes, Activation::Bf16);
            let mut requests = requests.clone();
            for (i, request) in requests.iter_mut().enumerate() {
                request.draft.tokens_per_round = Some(k);
                request.draft.confidence = Some(confidence[i % 3]);
            }
            for (i, (drafted, plain)) in run(&mut engine, &requests, stagger).iter().zip(&plain).enumerate() {
                let what = format!("{drafter}, prompt {i}, {k} drafts, {n_slots} slots, chunk {chunk}");
                assert_eq!(drafted.token_ids, plain.token_ids, "{what}");
                assert_eq!(drafted.text, plain.text, "{what}");
                accepted += draft(drafted).accepted;
                rejected += draft(drafted).drafted - draft(drafted).accepted;
            }
        }
        assert!(accepted > 100 && rejected > 20, "{drafter}: {accepted} accepted, {rejected} rejected");
    }
}
