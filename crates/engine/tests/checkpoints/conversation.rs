//! Turns of a conversation that begin with the K/V of the turn before, target's and drafter's: nothing tells them from turns that read
//! everything, neither the text nor the drafts.

use std::path::{Path, PathBuf};

use paceline::{Activation, Request, TokenId};
use paceline_testkit::paths::{asset, oracle};

use crate::setup::{draft, open, sizes};

/// Tokens of the questions and of their answers.
const TURNS: [(usize, usize); 5] = [(20, 30), (5, 40), (1, 3), (33, 25), (2, 20)];

/// A target, its drafter, and whether every draft must be right.
fn pairs() -> Vec<(PathBuf, Option<PathBuf>, bool)> {
    let mut pairs = vec![
        (asset("tiny-gemma4"), Some(asset("tiny-gemma4-dflash")), false),
        (oracle("gemma4_dense"), Some(oracle("gemma4_dense_dflash")), false),
        (oracle("gemma4_dense"), None, false),
        (asset("tiny-gemma4"), Some(asset("tiny-gemma4-assistant")), false),
    ];
    for target in ["gemma4_e", "gemma4_moe"] {
        pairs.push((oracle(target), Some(oracle(&format!("{target}_assistant"))), false));
    }
    // A model that drafts for itself is right as long as its own K/V is.
    for target in ["gemma4_e", "gemma4_dense", "gemma3"] {
        pairs.push((oracle(target), Some(oracle(target)), true));
    }
    pairs
}

#[test]
fn no_turn_can_be_told_from_one_that_reads_everything() {
    for (target, drafter, always_right) in pairs() {
        for chunk in [7, 64] {
            let case = format!("{target:?} with {drafter:?} in chunks of {chunk}");
            turns(&target, drafter.as_deref(), chunk, always_right, &case);
        }
    }
}

fn turns(target: &Path, drafter: Option<&Path>, chunk: usize, always_right: bool, case: &str) {
    let engine = || open(target, drafter, sizes(256, 1, chunk, 3), Activation::Bf16);
    let mut talking = engine();
    let (mut text, mut read) = (Vec::new(), 0);
    for (turn, (question, answer)) in TURNS.into_iter().enumerate() {
        text.extend((0..question).map(|i| TokenId(30 + ((turn * 31 + i * 17) % 200) as u32)));
        let mut request = Request::new(text.clone(), answer);
        request.ignore_eos = true;
        request.keep_kv = true;
        let shared_before = talking.status().shared_rows;
        let found = talking.generate(request.clone()).unwrap();
        let fresh = engine().generate(request).unwrap();
        assert_eq!(found.token_ids, fresh.token_ids, "{case}, turn {turn}");
        assert_eq!((talking.status().shared_rows - shared_before) as usize, read, "{case}, turn {turn}");
        if drafter.is_some() {
            let (found, fresh) = (draft(&found), draft(&fresh));
            assert_eq!(found.accepted_per_round, fresh.accepted_per_round, "{case}, turn {turn}");
            assert!(!always_right || found.accepted == found.drafted, "{case}, turn {turn}: {found:?}");
        }
        read = text.len() + answer - 1;
        text.extend(found.token_ids);
    }
}
