//! Predicted outputs: followed while they hold, found again where they do not, and never more than a guess.

use paceline::{DraftStatistics, Request, TokenId};
use paceline_testkit::{ToyDrafter, ToyModel};

use crate::harness::{Case, check, drafted, sizes, soft_toy, statistics};

fn predicted(model: &ToyModel, i: u64, k: usize, change: impl FnOnce(&mut Vec<TokenId>)) -> Request {
    let mut request = drafted(model.prompt(20, i), 81, k);
    request.prediction = model.decode(&request.prompt, 81, &[]);
    change(&mut request.prediction);
    request
}

fn run(model: &ToyModel, request: Request) -> DraftStatistics {
    let case = Case::new(model, sizes(200, 1, 64, 8), ToyDrafter::Prediction, vec![request]);
    statistics(&check(&case))[0].clone()
}

#[test]
fn a_right_prediction_is_accepted_whole() {
    let model = ToyModel::default();
    let draft = run(&model, predicted(&model, 1, 4, |_| {}));
    // The first token comes with the prompt; 80 are left, five a round.
    assert_eq!((draft.kind, draft.rounds, draft.drafted, draft.accepted), ("prediction", 16, 64, 64));
    assert_eq!(draft.of("prediction").map(|source| source.accepted), Some(64));
    assert_eq!(draft.of("ngram"), None);
}

#[test]
fn differences_cost_a_few_rounds_each() {
    let model = ToyModel::default();
    // Not where a round's last token is, which no draft is compared with.
    let at = 32;
    let inserted = run(&model, predicted(&model, 1, 4, |tokens| tokens.insert(at, TokenId(96))));
    let removed = run(
        &model,
        predicted(&model, 1, 4, |tokens| {
            tokens.remove(at);
        }),
    );
    let replaced = run(&model, predicted(&model, 1, 4, |tokens| tokens[at] = TokenId(96)));
    for draft in [inserted, removed, replaced] {
        assert!(draft.accepted >= 50 && draft.accepted < draft.drafted, "{draft:?}");
    }
}

#[test]
fn predictions_that_are_wrong_short_or_out_of_the_vocabulary_change_nothing() {
    let model = ToyModel::default();
    for change in [
        (|tokens| tokens.truncate(3)) as fn(&mut Vec<TokenId>),
        |tokens| tokens.iter_mut().for_each(|token| token.0 = (token.0 + 1) % 97),
        |tokens| tokens[5] = TokenId(u32::MAX),
        |tokens| tokens.reverse(),
        |tokens| *tokens = vec![TokenId(7); 300_000],
    ] {
        run(&model, predicted(&model, 1, 4, change));
    }
}

#[test]
fn predictions_hold_after_preemptions_and_when_sampled() {
    let model = soft_toy();
    let requests = (0..4).map(|i| {
        let mut request = predicted(&model, i, 3, |_| {});
        if i % 2 == 1 {
            (request.sampling.temperature, request.sampling.seed) = (1.0, Some(i));
        }
        request
    });
    let mut case = Case::new(&model, sizes(200, 3, 16, 8), ToyDrafter::Prediction, requests.collect());
    case.preempt_every = Some(5);
    let completions = check(&case);
    for draft in statistics(&completions).into_iter().step_by(2) {
        assert_eq!(draft.accepted, draft.drafted, "{draft:?}");
        assert!(draft.accepted > 40, "{draft:?}");
    }
}

#[test]
fn who_predicts_nothing_is_drafted_for_by_the_others() {
    let model = ToyModel::default();
    let chain = ToyDrafter::Chain(vec![ToyDrafter::Prediction, ToyDrafter::Assistant]);
    let requests = vec![predicted(&model, 1, 4, |_| {}), drafted(model.prompt(20, 2), 60, 4)];
    let completions = check(&Case::new(&model, sizes(200, 2, 64, 8), chain, requests.clone()));
    let drafts = statistics(&completions);
    let rounds = |draft: &DraftStatistics| draft.sources.iter().map(|of| of.rounds).collect::<Vec<_>>();
    assert_eq!((drafts[0].kind, rounds(drafts[0])), ("assistant", vec![16, 0]));
    assert!(rounds(drafts[1])[0] == 0 && rounds(drafts[1])[1] > 20, "{:?}", drafts[1]);
    // Where there is nobody else, nothing is said of drafting.
    let completions =
        check(&Case::new(&model, sizes(200, 2, 64, 8), ToyDrafter::Prediction, requests[1..].to_vec()));
    assert_eq!(statistics(&completions), Vec::<&DraftStatistics>::new());
}
