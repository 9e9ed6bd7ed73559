//! Where outputs end: budgets, the context, end tokens and stop strings, also inside a block of drafts.

use paceline::{FinishReason, Request, TokenId};
use paceline_testkit::{Nasty, TEXT_END, ToyDrafter, ToyModel, toy_engine};

use crate::harness::{Case, check, drafted, nasty, sizes, statistics};

const DRAFTS: [usize; 8] = [0, 1, 2, 3, 5, 7, 8, 15];

#[test]
fn nothing_asked_for_is_nothing_done() {
    let model = ToyModel::default();
    let mut engine = toy_engine(&model, sizes(100, 1, 64, 4), &nasty(Nasty::Right), &[]);
    let id = engine.submit(Request::new(model.prompt(50, 1), 0)).unwrap();
    let mut events = Vec::new();
    engine.step(&mut events).unwrap();
    let [(found, paceline::Event::Finished(finished))] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((*found, finished.reason), (id, FinishReason::Length));
    assert_eq!((finished.usage.prompt_tokens, finished.usage.completion_tokens), (50, 0));
    assert!(engine.is_idle());
}

#[test]
fn any_budget_is_met_exactly() {
    let model = ToyModel::default();
    for drafter in [ToyDrafter::None, nasty(Nasty::Right), nasty(Nasty::RightThenWrong)] {
        for k in DRAFTS {
            let request = |n| drafted(model.prompt(20, n as u64), n, k);
            let requests = (0..20).map(request).collect();
            check(&Case::new(&model, sizes(100, 5, 64, 15), drafter.clone(), requests));
        }
    }
}

#[test]
fn the_context_cuts_like_a_budget() {
    let model = ToyModel::default();
    for k in DRAFTS {
        for n in [1, 60, 98, 99, 100] {
            let request = drafted(model.prompt(n, 3), usize::MAX, k);
            let case = Case::new(&model, sizes(100, 1, 64, 15), nasty(Nasty::Right), vec![request]);
            let completion = check(&case)[0].clone().unwrap();
            assert_eq!(completion.token_ids.len(), 100 - n);
            assert_eq!(completion.finished.unwrap().reason, FinishReason::Length);
        }
    }
    let mut engine = toy_engine(&model, sizes(100, 1, 64, 15), &nasty(Nasty::Right), &[]);
    let refused = engine.submit(drafted(model.prompt(101, 3), 1, 8)).unwrap_err();
    assert_eq!(refused.field(), "prompt");
}

#[test]
fn an_end_token_cuts_at_every_place_of_a_block() {
    for at in 20..40 {
        let model = ToyModel { ends_at: vec![at], ..ToyModel::default() };
        for k in DRAFTS {
            let request = drafted(model.prompt(20, 1), 60, k);
            let case = Case::new(&model, sizes(100, 1, 64, 15), nasty(Nasty::Right), vec![request]);
            let completions = check(&case);
            let completion = completions[0].as_ref().unwrap();
            assert_eq!(completion.token_ids.last(), Some(&TEXT_END));
            assert_eq!(completion.finished.as_ref().unwrap().reason, FinishReason::EndToken);
            // The first token comes with the prompt. A whole round emits k drafts and one more token, the cut one drafts only.
            let draft = statistics(&completions)[0];
            let emitted = if k == 0 { 0 } else { at - 20 };
            assert_eq!(draft.emitted as usize, emitted);
            assert_eq!(draft.accepted as usize, emitted / (k + 1) * k + emitted % (k + 1));
        }
    }
}

#[test]
fn end_tokens_that_are_ignored_or_suppressed_do_not_end() {
    let model = ToyModel { ends_at: vec![30, 35], ..ToyModel::default() };
    for drafter in [ToyDrafter::None, nasty(Nasty::Right), nasty(Nasty::End)] {
        let mut request = drafted(model.prompt(20, 1), 40, 5);
        request.ignore_eos = true;
        let case = Case::new(&model, sizes(100, 1, 64, 15), drafter.clone(), vec![request]);
        let completion = check(&case)[0].clone().unwrap();
        assert_eq!(completion.token_ids.iter().filter(|&&id| id == TEXT_END).count(), 2);

        let request = drafted(model.prompt(20, 1), 40, 5);
        let mut case = Case::new(&model, sizes(100, 1, 64, 15), drafter, vec![request]);
        case.suppress = vec![TEXT_END, TokenId(7)];
        let completion = check(&case)[0].clone().unwrap();
        assert_eq!(completion.token_ids.len(), 40);
        assert!(!completion.token_ids.iter().any(|id| case.suppress.contains(id)));
    }
}

#[test]
fn every_piece_of_the_text_is_a_stop_string_that_cuts_it() {
    let model = ToyModel::default();
    let prompt = model.prompt(20, 1);
    let plain =
        Case::new(&model, sizes(100, 1, 64, 15), ToyDrafter::None, vec![Request::new(prompt.clone(), 40)]);
    let text = check(&plain)[0].clone().unwrap().text.unwrap();
    let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    let mut stopped = 0;
    for k in [0, 3, 7] {
        for (n, &start) in starts.iter().enumerate().step_by(3) {
            let stop: String = text[start..].chars().take(1 + n % 9).collect();
            let mut request = drafted(prompt.clone(), 40, k);
            request.stop = vec!["never in it".into(), stop.clone()];
            let case = Case::new(&model, sizes(100, 1, 64, 15), nasty(Nasty::Right), vec![request]);
            let completion = check(&case)[0].clone().unwrap();
            assert_eq!(completion.finished.unwrap().reason, FinishReason::StopString(1));
            assert!(!completion.text.unwrap().contains(&stop));
            stopped += 1;
        }
    }
    assert!(stopped > 50, "{stopped} stop strings");
}

#[test]
fn statistics_count_nothing_behind_a_stop_string() {
    let model = ToyModel::default();
    let prompt = model.prompt(20, 1);
    let text = model.decode(&prompt, 40, &[]);
    // The stop string ends with the third token of the first block of eight.
    let stop: String = text[..4].iter().map(|&id| paceline_testkit::toy_text(id)).collect();
    let mut request = drafted(prompt, 40, 7);
    request.stop = vec![stop];
    let completions = check(&Case::new(&model, sizes(100, 1, 64, 7), nasty(Nasty::Right), vec![request]));
    let draft = statistics(&completions)[0];
    assert_eq!((draft.rounds, draft.drafted, draft.accepted, draft.emitted), (1, 7, 3, 3));
    assert_eq!(draft.accepted_by_position, [1, 1, 1, 0, 0, 0, 0]);
}
