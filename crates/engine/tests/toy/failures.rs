//! Requests that fail do so alone.

use paceline::{Completion, Event, Failed, Request};
use paceline_testkit::{Nasty, ToyDrafter, ToyModel, toy_engine};

use crate::harness::{drafted, nasty, sizes};

/// A toy that overflows at a token of one text only, with that prompt and two that never meet it.
fn overflowing() -> (ToyModel, usize, Vec<Request>) {
    let model = ToyModel::default();
    let prompts: Vec<_> = (0..3).map(|i| model.prompt(20 + i, i as u64)).collect();
    let texts: Vec<_> = prompts.iter().map(|prompt| model.decode(prompt, 50, &[])).collect();
    let elsewhere = |id| prompts.iter().chain(&texts[1..]).any(|tokens| tokens.contains(&id));
    let at = (5..40).find(|&at| !texts[0][..at].contains(&texts[0][at]) && !elsewhere(texts[0][at]));
    let at = at.expect("a token of the first text alone");
    let model = ToyModel { overflows: Some(texts[0][at]), ..model };
    (model, at, prompts.into_iter().map(|prompt| drafted(prompt, 50, 5)).collect())
}

#[test]
fn an_overflow_fails_its_request_and_moves_nobody_elses_bits() {
    let (model, at, requests) = overflowing();
    for drafter in [ToyDrafter::None, nasty(Nasty::Right), nasty(Nasty::Random), ToyDrafter::Assistant] {
        let mut engine = toy_engine(&model, sizes(100, 3, 64, 5), &drafter, &[]);
        let ids: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
        let mut completions = vec![Completion::default(); 3];
        let mut failures = Vec::new();
        let mut events = Vec::new();
        while !engine.is_idle() {
            engine.step(&mut events).unwrap();
            engine.check_integrity().unwrap();
            for (id, event) in events.drain(..) {
                let index = ids.iter().position(|other| *other == id).unwrap();
                if let Err(failed) = completions[index].add(event) {
                    failures.push((index, failed));
                }
            }
        }
        // The token itself is emitted; the row that reads it overflows.
        let n_prompt = requests[0].prompt.len();
        assert_eq!(failures.len(), 1, "{drafter:?}");
        let (0, Failed::NotFinite { tokens }) = failures[0] else { panic!("{failures:?}") };
        assert!((n_prompt + 1..=n_prompt + at + 1).contains(&tokens), "{tokens}");
        let text = model.decode(&requests[0].prompt, 50, &[]);
        assert!(text.starts_with(&completions[0].token_ids));
        for index in [1, 2] {
            assert_eq!(completions[index].token_ids, model.decode(&requests[index].prompt, 50, &[]));
        }
    }
}

#[test]
fn an_overflow_in_the_prompt_fails_in_any_chunk() {
    let (model, _, requests) = overflowing();
    let mut prompt = model.prompt(100, 9);
    prompt[60] = model.overflows.unwrap();
    for chunk in [1, 60, 61, 512] {
        let mut engine = toy_engine(&model, sizes(200, 2, chunk, 0), &ToyDrafter::None, &[]);
        engine.submit(Request::new(prompt.clone(), 5)).unwrap();
        let completion = engine.generate(requests[1].clone());
        assert_eq!(
            completion.err(),
            Some(paceline::GenerateError::Refused(paceline::Refused::TooManyDrafts { found: 5, most: 0 }))
        );
        let mut plain = requests[1].clone();
        plain.draft.enabled = false;
        assert_eq!(engine.generate(plain).unwrap().token_ids, model.decode(&requests[1].prompt, 50, &[]));
        let failed = engine.generate(Request::new(prompt.clone(), 5)).unwrap_err();
        assert!(failed.to_string().contains("not finite"), "{failed}");
    }
}

#[test]
fn events_of_a_failed_request_end_with_the_failure() {
    let (model, _, requests) = overflowing();
    let mut engine = toy_engine(&model, sizes(100, 1, 8, 5), &nasty(Nasty::Right), &[]);
    engine.submit(requests[0].clone()).unwrap();
    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events).unwrap();
    }
    let (last, before) = events.split_last().unwrap();
    assert!(matches!(last.1, Event::Failed(Failed::NotFinite { .. })));
    assert!(before.iter().all(|(_, event)| matches!(event, Event::Prefill { .. } | Event::Token { .. })));
}
