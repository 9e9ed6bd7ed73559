//! n-grams: what they propose on texts that repeat themselves, and that a text does not depend on them.

use paceline::Request;
use paceline_testkit::{ToyDrafter, ToyModel};

use crate::harness::{Case, check, drafted, sizes, statistics};

/// A toy whose next token always follows from the last one: its texts run into a circle.
fn circling() -> ToyModel {
    ToyModel { habits: 255, ..ToyModel::default() }
}

#[test]
fn a_text_that_runs_in_a_circle_is_drafted_whole() {
    let model = circling();
    let request = drafted(model.prompt(5, 1), 200, 4);
    let completions = check(&Case::new(&model, sizes(300, 1, 64, 4), ToyDrafter::Ngram, vec![request]));
    let draft = statistics(&completions)[0];
    assert_eq!((draft.kind, draft.inactive_reason.as_ref()), ("ngram", None));
    // Once around the circle there is nothing to find; then nearly every draft is right, five tokens a round.
    let n_plain = 199 - draft.emitted;
    assert!(n_plain < 40 && draft.accepted * 10 > draft.drafted * 9, "{draft:?}");
    // Only the budget may cut the last round: a circle goes on behind the end of the history.
    assert!(draft.drafted + 3 >= 4 * draft.rounds, "{draft:?}");
}

#[test]
fn a_prompt_is_looked_up_from_the_first_round_on() {
    let model = circling();
    let text = model.decode(&model.prompt(5, 1), 120, &[]);
    let prompt = [&model.prompt(5, 1)[..], &text[..]].concat();
    for chunk in [1, 7, 64] {
        let request = drafted(prompt.clone(), 21, 4);
        let completions =
            check(&Case::new(&model, sizes(300, 1, chunk, 4), ToyDrafter::Ngram, vec![request]));
        // The first token comes with the prompt; 20 are left, five a round.
        let draft = statistics(&completions)[0];
        assert!(draft.accepted_per_round.len() <= 6, "{draft:?}");
    }
}

#[test]
fn preempted_sequences_remember_what_they_said() {
    let model = circling();
    let requests = (0..4).map(|i| drafted(model.prompt(5, i), 120, 3)).collect();
    let mut case = Case::new(&model, sizes(200, 2, 16, 3), ToyDrafter::Ngram, requests);
    case.preempt_every = Some(7);
    for draft in statistics(&check(&case)) {
        assert!(draft.accepted > 60, "{draft:?}");
    }
}

#[test]
fn a_request_without_drafts_is_not_even_indexed() {
    let model = circling();
    let mut off = Request::new(model.prompt(5, 1), 60);
    off.draft.enabled = false;
    let none = drafted(model.prompt(5, 1), 60, 0);
    let on = drafted(model.prompt(5, 1), 60, 5);
    let case = Case::new(&model, sizes(100, 3, 64, 5), ToyDrafter::Ngram, vec![off, none, on]);
    let completions = check(&case);
    let drafts = statistics(&completions);
    assert_eq!(drafts.len(), 2);
    assert_eq!((drafts[0].rounds, drafts[0].inactive_reason.is_some()), (0, true));
    assert!(drafts[1].accepted > 10);
}
