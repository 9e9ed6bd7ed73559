//! The oracle pairs: greedy ids and the counts of every round as recorded, in f32.

use std::fs;

use paceline::{Activation, Request};
use paceline_checkpoint::{FileBytes, Tensors};
use paceline_testkit::paths::oracle;
use serde_json::Value;

use crate::setup::{draft, open, run, sizes, tokens};

fn ids(tensors: &mut Tensors, name: &str, len: usize) -> Vec<u32> {
    let values = tensors.take(name, &[len]).unwrap().to_i64().unwrap();
    values.iter().map(|&id| u32::try_from(id).unwrap()).collect()
}

/// `(prompt, greedy ids)` of the recorded prompts.
pub(crate) fn prompts(target: &str) -> Vec<(Vec<u32>, Vec<u32>)> {
    let file = oracle(target).join("oracle.safetensors");
    let mut tensors = Tensors::from_bytes(&file, FileBytes::map(&file).unwrap()).unwrap();
    [1, 7, 40, 70]
        .iter()
        .enumerate()
        .map(|(i, &len)| {
            (
                ids(&mut tensors, &format!("p{i}.input_ids"), len),
                ids(&mut tensors, &format!("p{i}.greedy_ids"), 40),
            )
        })
        .collect()
}

/// Recorded rounds of `k` drafts behind prompt `i`, in the layout of assistants or in that of DFlash drafters.
fn recorded(rounds: &Value, k: usize, i: usize) -> &[Value] {
    let of_assistant = &rounds["conventions"]["bonus"][format!("K={k}")]["per_prompt"][i];
    let rounds = of_assistant.as_array().or(rounds["rounds"][format!("p{i}")][k.to_string()].as_array());
    rounds.expect("recorded in one of the layouts")
}

fn check_rounds(drafter: &str, target: &str) {
    let rounds: Value =
        serde_json::from_str(&fs::read_to_string(oracle(drafter).join("reference_rounds.json")).unwrap())
            .unwrap();
    let prompts = prompts(target);
    for k in [1, 3, 7] {
        for n_slots in [1, 4] {
            let mut engine =
                open(&oracle(target), Some(&oracle(drafter)), sizes(120, n_slots, 64, k), Activation::F32);
            let request = |(prompt, _): &(Vec<u32>, Vec<u32>)| {
                let mut request = Request::new(tokens(prompt), 40);
                request.ignore_eos = true;
                request.draft.tokens_per_round = Some(k);
                request
            };
            let requests: Vec<_> = prompts.iter().map(request).collect();
            for (i, completion) in run(&mut engine, &requests, 2).iter().enumerate() {
                let what = format!("{drafter}, prompt {i}, {k} drafts, {n_slots} slots");
                assert_eq!(completion.token_ids, tokens(&prompts[i].1), "{what}");
                // A last step without a draft is no round.
                let with_drafts = recorded(&rounds, k, i).iter();
                let with_drafts = with_drafts.filter(|round| round["drafts"] != Value::Array(vec![]));
                let (mut accepted, mut drafted) = (Vec::new(), 0);
                for round in with_drafts {
                    accepted.push(round["accepted"].as_u64().unwrap() as u32);
                    drafted += round["drafts"].as_array().unwrap().len() as u64;
                }
                assert_eq!(draft(completion).accepted_per_round, accepted, "{what}");
                assert_eq!(draft(completion).drafted, drafted, "{what}");
            }
        }
    }
}

#[test]
fn rounds_of_the_e_pair_are_as_recorded() {
    check_rounds("gemma4_e_assistant", "gemma4_e");
}

#[test]
fn rounds_of_the_dense_pair_are_as_recorded() {
    check_rounds("gemma4_dense_assistant", "gemma4_dense");
}

#[test]
fn rounds_of_the_moe_pair_are_as_recorded() {
    check_rounds("gemma4_moe_assistant", "gemma4_moe");
}

#[test]
fn rounds_of_the_dflash_pair_are_as_recorded() {
    check_rounds("gemma4_dense_dflash", "gemma4_dense");
}
