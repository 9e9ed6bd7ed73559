//! Several drafters in order: who is asked, who is left out, and what the statistics say of it.

use paceline::{DraftStatistics, Request};
use paceline_testkit::{Nasty, ToyDrafter, ToyModel};

use crate::harness::{Case, check, drafted, nasty, sizes, statistics};

/// One request of 48 tokens after the first, drafted by a chain.
fn run(members: Vec<ToyDrafter>, k: Option<usize>) -> DraftStatistics {
    run_on(&ToyModel::default(), 49, members, k)
}

fn run_on(model: &ToyModel, n: usize, members: Vec<ToyDrafter>, k: Option<usize>) -> DraftStatistics {
    let mut request = Request::new(model.prompt(20, 1), n);
    request.draft.tokens_per_round = k;
    let case = Case::new(model, sizes(300, 1, 64, 15), ToyDrafter::Chain(members), vec![request]);
    statistics(&check(&case))[0].clone()
}

/// `(rounds, drafted, accepted)` of each source.
fn counts(draft: &DraftStatistics) -> Vec<(u64, u64, u64)> {
    draft.sources.iter().map(|source| (source.rounds, source.drafted, source.accepted)).collect()
}

#[test]
fn the_second_is_asked_where_the_first_proposes_nothing() {
    let draft = run(vec![nasty(Nasty::Sometimes), nasty(Nasty::Right)], Some(3));
    assert_eq!((draft.rounds, draft.drafted, draft.accepted), (12, 36, 36));
    assert_eq!(counts(&draft), [(6, 18, 18), (6, 18, 18)]);
    assert_eq!(draft.source_per_round, [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]);
    let draft = run(vec![nasty(Nasty::Right), nasty(Nasty::Right)], Some(3));
    assert_eq!(counts(&draft), [(12, 36, 36), (0, 0, 0)]);
}

#[test]
fn what_one_lowers_does_not_bind_the_next() {
    // The first has no draft to give in any round.
    let draft = run(vec![ToyDrafter::Nasty(Nasty::Right, vec![0]), nasty(Nasty::Right)], Some(3));
    assert_eq!(counts(&draft), [(0, 0, 0), (12, 36, 36)]);
}

#[test]
fn each_drafts_as_many_as_it_suggests_unless_the_request_says() {
    // Nasty drafters suggest 3; n-grams 5, from when the text has gone once around its circle.
    let circling = ToyModel { habits: 255, ..ToyModel::default() };
    let members = || vec![nasty(Nasty::Sometimes), ToyDrafter::Ngram, nasty(Nasty::Right)];
    let run = |k| run_on(&circling, 200, members(), k);
    let draft = run(None);
    assert_eq!(draft.kind, "nasty");
    assert_eq!(draft.sources.iter().map(|of| of.kind).collect::<Vec<_>>(), ["nasty", "ngram", "nasty"]);
    let per_round = |draft: &DraftStatistics| {
        let most = |of: &(u64, u64, u64)| of.1.div_ceil(of.0.max(1));
        counts(draft).iter().map(most).collect::<Vec<_>>()
    };
    assert_eq!(per_round(&draft), [3, 5, 3]);
    assert_eq!(per_round(&run(Some(2))), [2, 2, 2]);
    assert_eq!(per_round(&run(Some(7))), [7, 7, 7]);
}

#[test]
fn one_that_fails_is_left_out_and_the_others_go_on() {
    for failing in [Nasty::Failing, Nasty::FailingSlots] {
        let draft = run(vec![nasty(failing), nasty(Nasty::Right)], Some(3));
        assert_eq!(counts(&draft), [(2, 6, 6), (10, 30, 30)], "{failing:?}");
        assert_eq!(draft.inactive_reason, None);
        let reason = draft.sources[0].inactive_reason.as_deref().expect("it failed");
        assert!(reason.contains("planned to fail"), "{reason}");
        assert_eq!(draft.sources[1].inactive_reason, None);
    }
    let draft = run(vec![nasty(Nasty::Failing), nasty(Nasty::Failing)], Some(3));
    assert!(draft.inactive_reason.expect("nobody is left").contains("planned to fail"));
    assert!(draft.sources.iter().all(|source| source.inactive_reason.is_some()));
}

#[test]
fn one_whose_values_overflow_is_left_out_and_the_others_go_on() {
    let model = ToyModel::default();
    let prompt = model.prompt(20, 1);
    let text = model.decode(&prompt, 60, &[]);
    let model = ToyModel { drafter_overflows: Some(text[20]), ..model };
    let chain = ToyDrafter::Chain(vec![ToyDrafter::Assistant, nasty(Nasty::Right)]);
    let requests = vec![drafted(prompt, 60, 4), drafted(model.prompt(5, 7), 60, 4)];
    let completions = check(&Case::new(&model, sizes(100, 2, 64, 5), chain, requests));
    let draft = statistics(&completions)[0];
    assert_eq!(draft.inactive_reason, None);
    let reason = draft.sources[0].inactive_reason.as_deref();
    assert_eq!(reason, Some("the drafter failed: its logits were not finite"));
    assert!(draft.sources[1].accepted > 20, "{draft:?}");
}

#[test]
fn who_gave_up_is_not_asked_again_after_a_preemption() {
    let model = ToyModel::default();
    let requests = (0..3).map(|i| drafted(model.prompt(20, i), 90, 1)).collect();
    let chain = ToyDrafter::Chain(vec![nasty(Nasty::FailingSlots), nasty(Nasty::Right)]);
    let mut case = Case::new(&model, sizes(300, 3, 64, 5), chain, requests);
    case.preempt_every = Some(4);
    for draft in statistics(&check(&case)) {
        assert!(draft.sources[0].inactive_reason.is_some() && draft.sources[0].rounds < 10, "{draft:?}");
        let first_of_second = draft.source_per_round.iter().position(|of| *of == 1).expect("it goes on");
        assert!(draft.source_per_round[first_of_second..].iter().all(|of| *of == 1), "{draft:?}");
    }
}
