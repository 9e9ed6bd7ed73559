//! A target with recurrent layers, whose state is stepped by the accepted count instead of being cut back.

use paceline::Request;
use paceline_testkit::{Nasty, ToyDrafter, ToyLayer, ToyModel};

use crate::harness::{Case, check, drafted, nasty, sizes, statistics};

/// Recurrent layers alone, and between layers with K/V.
fn models() -> [ToyModel; 2] {
    let mixed = vec![
        ToyLayer::Recurrent,
        ToyLayer::Owns { window: None },
        ToyLayer::Recurrent,
        ToyLayer::Owns { window: Some(80) },
        ToyLayer::Shares { layer: 1 },
        ToyLayer::Recurrent,
    ];
    [vec![ToyLayer::Recurrent], mixed].map(|layers| ToyModel {
        layers,
        ends_at: vec![300],
        ..ToyModel::default()
    })
}

#[test]
fn a_state_commit_of_every_count_equals_plain_decoding() {
    for model in models() {
        for k in [0, 1, 2, 3, 5, 7, 15] {
            let requests = (0..3).map(|i| drafted(model.prompt(20 + i, i as u64), 200, k)).collect();
            let case = Case::new(&model, sizes(300, 3, 64, 15), nasty(Nasty::RightThenWrong), requests);
            let completions = check(&case);
            let counts: Vec<u32> =
                statistics(&completions).iter().flat_map(|draft| draft.accepted_per_round.clone()).collect();
            let missing = (0..=k as u32).find(|count| k > 0 && !counts.contains(count));
            assert_eq!(missing, None, "a count of {k} that never came up in {counts:?}");
        }
    }
}

#[test]
fn states_survive_chunks_company_preemption_and_cancellation() {
    let drafters = [
        ToyDrafter::None,
        nasty(Nasty::Wrong),
        ToyDrafter::Nasty(Nasty::RightThenWrong, vec![0, 5, 0, 1, 8]),
        ToyDrafter::Assistant,
    ];
    for model in models() {
        for drafter in &drafters {
            for (chunk, every) in [(1, 4), (16, 3), (64, 2)] {
                let lengths = [17, 81, 1, 130, 3];
                let request = |(i, n): (usize, &usize)| Request::new(model.prompt(*n, i as u64), 50);
                let requests = lengths.iter().enumerate().map(request).collect();
                let mut case = Case::new(&model, sizes(300, 3, chunk, 8), drafter.clone(), requests);
                for (index, (step, _)) in case.requests.iter_mut().enumerate() {
                    *step = index * 3;
                }
                case.preempt_every = Some(every);
                case.cancel = vec![(9, 1)];
                assert_eq!(check(&case).iter().flatten().count(), 4);
            }
        }
    }
}
