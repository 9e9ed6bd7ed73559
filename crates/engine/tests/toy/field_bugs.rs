//! Faults that other implementations had in the field, each as a test of its own.

use paceline::Request;
use paceline_testkit::{Nasty, ToyDrafter, ToyLayer, ToyModel};

use crate::harness::{Case, check, drafted, nasty, sizes, statistics};

#[test]
fn two_logits_one_ulp_apart() {
    let model = ToyModel { near_ties: true, ..ToyModel::default() };
    for k in [0, 1, 4, 8] {
        let requests = (0..3).map(|i| drafted(model.prompt(20, i), 60, k)).collect();
        check(&Case::new(&model, sizes(100, 3, 64, 8), nasty(Nasty::RightThenWrong), requests));
    }
}

#[test]
fn a_drafted_end_token_is_rejected() {
    let model = ToyModel { ends_at: vec![70], ..ToyModel::default() };
    let request = drafted(model.prompt(20, 1), 60, 4);
    let completions = check(&Case::new(&model, sizes(100, 1, 64, 8), nasty(Nasty::End), vec![request]));
    let draft = statistics(&completions)[0];
    // Only the last round may end the text: its first draft is the end token.
    assert_eq!((draft.accepted, draft.accepted_per_round.last()), (1, Some(&1)));
}

#[test]
fn the_first_token_after_a_prompt_at_a_chunk_border() {
    let model = ToyModel::default();
    for chunk in [16, 64] {
        for n in [chunk - 1, chunk, chunk + 1, 2 * chunk - 1, 2 * chunk, 2 * chunk + 1] {
            let request = drafted(model.prompt(n, n as u64), 20, 3);
            check(&Case::new(&model, sizes(200, 1, chunk, 3), nasty(Nasty::Right), vec![request]));
        }
    }
}

#[test]
fn the_window_wraps_while_every_draft_is_rejected() {
    for window in [1, 2, 63, 64, 65, 80] {
        let layers = vec![ToyLayer::Owns { window: Some(window) }, ToyLayer::Owns { window: None }];
        let model = ToyModel { layers, ..ToyModel::default() };
        let request = drafted(model.prompt(30, 1), 260, 8);
        let completions = check(&Case::new(&model, sizes(300, 1, 64, 8), nasty(Nasty::Wrong), vec![request]));
        assert_eq!(statistics(&completions)[0].accepted, 0);
    }
}

#[test]
fn one_prefill_longer_than_the_window() {
    let model = ToyModel::default();
    for n in [160, 161, 300] {
        let request = drafted(model.prompt(n, 1), 40, 5);
        check(&Case::new(&model, sizes(400, 1, 512, 5), nasty(Nasty::RightThenWrong), vec![request]));
    }
}

#[test]
fn the_draft_count_changes_every_round() {
    let model = ToyModel::default();
    let drafter = ToyDrafter::Nasty(Nasty::RightThenWrong, vec![0, 5, 0, 1, 8]);
    let requests = (0..3).map(|i| drafted(model.prompt(20, i), 100, 8)).collect();
    let completions = check(&Case::new(&model, sizes(200, 3, 64, 8), drafter, requests));
    assert!(statistics(&completions).iter().all(|draft| draft.accepted_by_position.len() == 8));
}

#[test]
fn a_step_without_drafts_is_followed_by_drafts() {
    let model = ToyModel::default();
    let request = drafted(model.prompt(20, 1), 60, 4);
    let completions = check(&Case::new(&model, sizes(200, 1, 64, 8), nasty(Nasty::Sometimes), vec![request]));
    let draft = statistics(&completions)[0];
    assert_eq!(draft.accepted, draft.drafted);
    assert!(draft.rounds > 5 && draft.emitted < 59);
}

#[test]
fn a_cancellation_in_mid_block_leaves_the_others_alone() {
    let model = ToyModel::default();
    for step in 1..8 {
        let requests = (0..4).map(|i| drafted(model.prompt(20, i), 60, 6)).collect();
        let mut case = Case::new(&model, sizes(100, 4, 64, 8), nasty(Nasty::RightThenWrong), requests);
        case.cancel = vec![(step, 1)];
        assert_eq!(check(&case).iter().flatten().count(), 3);
    }
}

#[test]
fn rows_of_different_acceptance_see_no_stale_keys() {
    let model = ToyModel::default();
    let requests = (0..5).map(|i| drafted(model.prompt(60, i), 120, 1 + 3 * i as usize)).collect();
    let completions =
        check(&Case::new(&model, sizes(200, 5, 64, 15), nasty(Nasty::RightThenWrong), requests));
    let counts: Vec<_> =
        statistics(&completions).iter().map(|draft| draft.accepted_per_round.clone()).collect();
    assert!(counts.windows(2).all(|pair| pair[0] != pair[1]), "{counts:?}");
}

#[test]
fn a_prompt_of_one_token_and_a_draft_at_once() {
    let model = ToyModel::default();
    for drafter in [nasty(Nasty::Right), ToyDrafter::Assistant] {
        let request = drafted(model.prompt(1, 1), 30, 7);
        check(&Case::new(
            &model,
            sizes(100, 1, 64, 8),
            drafter,
            vec![request, Request::new(model.prompt(1, 2), 1)],
        ));
    }
}
