mod bits;
mod greedy;
mod law;
mod reference;

use super::*;
use crate::isa::available_levels;
use crate::testing::assert_same_bits;
use reference::{Case, Expected};

/// Vocabularies around every border of lanes, groups and tiles.
const VOCABS: [usize; 11] = [1, 15, 17, 63, 64, 65, 300, TILE - 1, TILE, TILE + 1, 3 * TILE + 5];

/// Runs all cases as rows of one call, at every level and with 1 to `max_threads` threads, and compares every bit with the
/// reference. Returns what is expected.
#[track_caller]
fn check(cases: &[Case], max_threads: usize) -> Vec<Expected> {
    let vocab = cases[0].logits.len();
    let expected: Vec<Expected> = cases.iter().map(reference::choose).collect();
    let counts: Vec<TokenCounts> = cases.iter().map(counts).collect();
    for threads in 1..=max_threads {
        let mut team = Team::new(threads).unwrap();
        let mut chooser = Chooser::default();
        chooser.reserve(cases.len() + 1, vocab);
        for isa in available_levels() {
            let mut logits: Vec<f32> = cases.iter().flat_map(|case| case.logits.clone()).collect();
            let mut choices = vec![Choice { token: 7, fault: true }; cases.len()];
            chooser.choose(isa, &mut team, &mut logits, |row| rules(&cases[row], &counts[row]), &mut choices);
            for (row, (case, expected)) in cases.iter().zip(&expected).enumerate() {
                let what =
                    format!("row {row} of {vocab}, {threads} threads, {}: {:?}", isa.level(), case.sampling);
                assert_eq!(choices[row], expected.choice, "{what}");
                assert_same_bits(&logits[row * vocab..(row + 1) * vocab], &expected.logits, &what);
                if case.logprobs.is_some() && !expected.choice.fault {
                    assert_same_logprobs(chooser.logprobs(row), &expected.logprobs, &what);
                }
            }
        }
    }
    expected
}

fn counts(case: &Case) -> TokenCounts {
    let mut counts = TokenCounts::of_prompt(case.prompt.iter().copied());
    case.output.iter().for_each(|token| counts.add_output(*token));
    counts
}

fn rules<'a>(case: &'a Case, committed: &'a TokenCounts) -> RowRules<'a> {
    RowRules {
        softcap: case.softcap,
        sampling: &case.sampling,
        too_early: &case.too_early,
        seen: Some(Seen { committed, drafts: &case.drafts }),
        position: case.position,
        known: case.known,
        logprobs: case.logprobs,
    }
}

#[track_caller]
fn assert_same_logprobs(found: &TokenLogprobs, expected: &TokenLogprobs, what: &str) {
    let ids = |logprobs: &TokenLogprobs| logprobs.top.iter().map(|(id, _)| *id).collect::<Vec<_>>();
    let values = |l: &TokenLogprobs| l.top.iter().map(|(_, x)| *x).chain([l.logprob]).collect::<Vec<_>>();
    assert_eq!(ids(found), ids(expected), "{what}: most likely tokens");
    assert_same_bits(&values(found), &values(expected), &format!("{what}: log-probabilities"));
}
