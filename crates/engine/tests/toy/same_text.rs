//! The promise: any drafter, any number of drafts, any company, any chunk, any order of arrival, with preemption.

use paceline::Request;
use paceline_testkit::{Nasty, ToyDrafter, ToyModel};

use crate::harness::{Case, chains, check, drafted, nasty, sizes, soft_toy, statistics};

/// Prompts of 1, 3, 17 and 50 tokens and around the toy's window of 80, with end tokens where `model` has them.
fn requests(model: &ToyModel, n: usize) -> Vec<Request> {
    let lengths = [17, 81, 1, 200, 3, 79, 50, 80];
    let request = |i: usize| {
        let mut request = Request::new(model.prompt(lengths[i % 8], i as u64), 60 + i % 3);
        request.ignore_eos = i % 4 == 3;
        if i % 3 == 1 {
            request.stop = vec!["cab".into(), "dd ea".into()];
        }
        request
    };
    (0..n).map(request).collect()
}

fn ending() -> ToyModel {
    ToyModel { ends_at: vec![52, 70, 120, 230], ..ToyModel::default() }
}

fn drafters() -> Vec<ToyDrafter> {
    let changing = vec![0, 5, 0, 1, 8];
    let mut drafters: Vec<_> = Nasty::ALL.map(nasty).into();
    drafters.push(ToyDrafter::Nasty(Nasty::RightThenWrong, changing));
    drafters.push(ToyDrafter::Assistant);
    drafters.push(ToyDrafter::OwnKv(vec![None, Some(20), Some(100)]));
    drafters.push(ToyDrafter::Ngram);
    drafters.extend(chains());
    drafters
}

#[test]
fn plain_decoding_of_one_and_of_many() {
    let model = ending();
    for n in [1, 2, 3, 5] {
        for chunk in [1, 7, 79, 80, 81, 512] {
            let case = Case::new(&model, sizes(400, 3, chunk, 0), ToyDrafter::None, requests(&model, n));
            assert_eq!(check(&case).iter().flatten().count(), n);
        }
    }
}

#[test]
fn any_drafter_any_number_of_drafts_any_batch() {
    let model = ending();
    let (mut accepted, mut rejected) = (0, 0);
    for drafter in drafters() {
        for k in [0, 1, 2, 3, 5, 7, 15] {
            for n in [1, 2, 3, 5] {
                let mut requests = requests(&model, n);
                requests.iter_mut().for_each(|request| request.draft.tokens_per_round = Some(k));
                let case = Case::new(&model, sizes(400, 4, 64, 15), drafter.clone(), requests);
                let completions = check(&case);
                for draft in statistics(&completions) {
                    accepted += draft.accepted;
                    rejected += draft.drafted - draft.accepted;
                }
            }
        }
    }
    assert!(accepted > 1000 && rejected > 1000, "{accepted} accepted, {rejected} rejected");
}

#[test]
fn drafts_that_the_drafter_is_not_sure_of_are_left_out() {
    let model = ToyModel { ends_at: vec![52, 70, 120, 230], ..soft_toy() };
    let mut all = drafters();
    all.retain(|drafter| drafter.drafts_on_the_backend());
    assert!(all.len() > 3);
    for drafter in all {
        let drafted_at = |confidence: &[f32]| {
            let (mut drafted, mut accepted) = (0, 0);
            for (k, n, chunk, every) in
                [(1, 1, 64, None), (3, 5, 7, None), (7, 8, 64, Some(3)), (15, 3, 512, None)]
            {
                let mut requests = requests(&model, n);
                for (i, request) in requests.iter_mut().enumerate() {
                    request.draft.tokens_per_round = Some(k);
                    request.draft.confidence = Some(confidence[i % confidence.len()]);
                }
                let mut case = Case::new(&model, sizes(400, 4, chunk, 15), drafter.clone(), requests);
                case.preempt_every = every;
                for draft in statistics(&check(&case)) {
                    drafted += draft.drafted;
                    accepted += draft.accepted;
                }
            }
            (drafted, accepted)
        };
        let [(all, _), (some, accepted), (few, _)] =
            [&[0.0][..], &[0.1, 0.0, 0.9, 0.02], &[0.9]].map(drafted_at);
        assert!(all > some && some > few && accepted > 10, "{drafter:?}: {all}, {some}, {few}, {accepted}");
    }
}

#[test]
fn staggered_arrivals_short_memory_preemption_and_cancellation() {
    let model = ending();
    for drafter in drafters() {
        for (chunk, every) in [(16, 3), (64, 2), (300, 5)] {
            let mut case = Case::new(&model, sizes(300, 4, chunk, 5), drafter.clone(), requests(&model, 8));
            for (index, (step, _)) in case.requests.iter_mut().enumerate() {
                *step = index * 3;
            }
            // The toy's blocks take 2048 bytes: ten of them for four slots of up to five in one group and three in the other, and as
            // short for a drafter's own.
            case.sizes.kv_memory = Some(if drafter.kv_groups().is_empty() { 10 } else { 20 } * 2048);
            case.preempt_every = Some(every);
            case.cancel = vec![(9, 1), (12, 4), (40, 6)];
            let completions = check(&case);
            assert_eq!(completions.iter().flatten().count(), 5);
        }
    }
}

#[test]
fn right_drafts_are_all_accepted_and_wrong_ones_never() {
    let model = ToyModel::default();
    let run = |kind, k| {
        let request = drafted(model.prompt(20, 1), 49, k);
        let completions = check(&Case::new(&model, sizes(100, 1, 64, 15), nasty(kind), vec![request]));
        statistics(&completions)[0].clone()
    };
    let right = run(Nasty::Right, 3);
    // The first token comes with the prompt; 48 are left, four a round.
    assert_eq!((right.rounds, right.drafted, right.accepted, right.emitted), (12, 36, 36, 48));
    assert_eq!(right.accepted_by_position, [12, 12, 12]);
    assert_eq!(right.tokens_per_round(), 4.0);
    let wrong = run(Nasty::Wrong, 3);
    // Three drafts while four tokens are left, then 2 and 1; the last token has none.
    assert_eq!((wrong.rounds, wrong.drafted, wrong.accepted, wrong.emitted), (47, 3 * 45 + 2 + 1, 0, 47));
    let long = run(Nasty::TooLong, 3);
    assert_eq!((long.rounds, long.drafted, long.accepted), (12, 36, 36));
    let unknown = run(Nasty::OutOfVocabulary, 3);
    assert_eq!((unknown.rounds, unknown.drafted, unknown.accepted), (24, 24, 24));
    let none = run(Nasty::Right, 0);
    assert_eq!((none.rounds, none.drafted), (0, 0));
}

#[test]
fn a_drafter_that_fails_is_dropped_and_says_so() {
    let model = ToyModel::default();
    for drafter in [nasty(Nasty::Failing), nasty(Nasty::FailingSlots)] {
        let requests = (0..3).map(|i| Request::new(model.prompt(20, i), 60)).collect();
        let case = Case::new(&model, sizes(300, 3, 64, 5), drafter, requests);
        let completions = check(&case);
        for draft in statistics(&completions) {
            let reason = draft.inactive_reason.as_deref().expect("it failed");
            assert!(reason.contains("planned to fail"), "{reason}");
            assert!(draft.rounds >= 1, "it drafted before");
        }
    }
}

#[test]
fn a_drafter_whose_values_overflow_is_dropped_and_says_so() {
    let model = ToyModel::default();
    let prompt = model.prompt(20, 1);
    let text = model.decode(&prompt, 60, &[]);
    let model = ToyModel { drafter_overflows: Some(text[20]), ..model };
    for k in [1, 4] {
        let requests = vec![drafted(prompt.clone(), 60, k), drafted(model.prompt(5, 7), 60, k)];
        let completions = check(&Case::new(&model, sizes(100, 2, 64, 5), ToyDrafter::Assistant, requests));
        let draft = statistics(&completions)[0];
        assert_eq!(draft.inactive_reason.as_deref(), Some("the drafter failed: its logits were not finite"));
        assert!(draft.rounds > 1 && draft.emitted < 59);
    }
}

#[test]
fn acceptance_does_not_depend_on_the_company() {
    let model = ToyModel::default();
    let accepted = |case: &Case| -> Vec<Vec<u32>> {
        let completions = check(case);
        statistics(&completions).iter().map(|draft| draft.accepted_per_round.clone()).collect()
    };
    let requests = requests(&model, 5);
    let alone: Vec<_> = requests
        .iter()
        .flat_map(|request| {
            let sizes = sizes(300, 1, 512, 4);
            accepted(&Case::new(&model, sizes, ToyDrafter::Assistant, vec![request.clone()]))
        })
        .collect();
    assert!(alone.iter().flatten().any(|&n| n == 3) && alone.iter().flatten().any(|&n| n == 0));
    for chunk in [7, 80, 512] {
        let mut together =
            Case::new(&model, sizes(300, 3, chunk, 4), ToyDrafter::Assistant, requests.clone());
        for (index, (step, _)) in together.requests.iter_mut().enumerate() {
            *step = index * 4;
        }
        assert_eq!(accepted(&together), alone, "chunk {chunk}");
    }
}
