//! Every level, thread count and company gives the bits of the reference.

use super::reference::{Case, choose};
use super::*;
use crate::isa::Level;
use crate::testing::Random;

/// Logits as of a model: a bulk, some likely tokens, now and then equals and -inf.
fn logits(random: &mut Random, vocab: usize) -> Vec<f32> {
    let spread = [0.01, 1.0, 4.0, 12.0][random.below(4)];
    let mut row = random.fill(vocab, |r| (r.uniform() + r.uniform() + r.uniform()) * spread);
    for _ in 0..random.below(30) {
        row[random.below(vocab)] = spread * 3.0 + random.uniform() * 2.0;
    }
    if random.below(4) == 0 {
        row.iter_mut().for_each(|z| *z = z.round());
    }
    if random.below(4) == 0 {
        (0..random.below(vocab)).for_each(|_| row[random.below(vocab)] = f32::NEG_INFINITY);
        row[random.below(vocab)] = 0.5;
    }
    row
}

fn ids(random: &mut Random, vocab: usize, most: usize) -> Vec<u32> {
    // Ids beyond the vocabulary say nothing.
    let mut ids: Vec<u32> = (0..random.below(most + 1)).map(|_| random.below(vocab + 3) as u32).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn one_of<T: Copy>(random: &mut Random, values: &[T]) -> T {
    values[random.below(values.len())]
}

fn sampling(random: &mut Random, vocab: usize) -> Sampling {
    let temperature = one_of(random, &[0.0, 1e-6, 0.2, 0.7, 1.0, 1.5, 50.0]);
    let filters = Filters {
        top_k: one_of(random, &[0, 0, 0, 1, 2, 40, 64, 65, 5000, vocab, vocab + 1]),
        top_p: one_of(random, &[1.0, 1.0, 0.0, 0.3, 0.9, 0.99, 0.999_999_9]),
        min_p: one_of(random, &[0.0, 0.0, 0.001, 0.05, 0.5, 1.0]),
        typical_p: one_of(random, &[1.0, 1.0, 0.0, 0.2, 0.9, 0.999]),
    };
    let penalties = if random.below(2) == 0 {
        Penalties::default()
    } else {
        Penalties {
            repetition: one_of(random, &[1.0, 1.3, 0.8]),
            presence: one_of(random, &[0.0, 0.7, -0.3]),
            frequency: one_of(random, &[0.0, 0.4, -0.1]),
        }
    };
    Sampling {
        temperature,
        filters,
        penalties,
        logit_bias: ids(random, vocab, 3).into_iter().map(|id| (id, (id % 7) as f32 - 3.0)).collect(),
        suppressed: ids(random, vocab, 2),
        allowed: (random.below(6) == 0).then(|| ids(random, vocab, 50)),
        min_tokens: 0,
        seed: random.bits(),
        choice: random.below(3) as u32,
    }
}

fn case(random: &mut Random, vocab: usize) -> Case {
    let history = |random: &mut Random, most: usize| -> Vec<u32> {
        (0..random.below(most)).map(|_| random.below(vocab) as u32).collect()
    };
    let logprobs = match random.below(3) {
        0 => None,
        1 => Some(LogprobsWanted { top: random.below(25), of: Distribution::Model }),
        _ => Some(LogprobsWanted { top: random.below(25), of: Distribution::Sampled }),
    };
    Case {
        logits: logits(random, vocab),
        softcap: one_of(random, &[None, Some(30.0)]),
        sampling: sampling(random, vocab),
        too_early: ids(random, vocab, 1),
        prompt: history(random, 20),
        output: history(random, 20),
        drafts: history(random, 5),
        position: random.below(100_000) as u32,
        known: (random.below(10) == 0).then(|| random.below(vocab + 1) as u32),
        logprobs,
    }
}

#[test]
fn every_rule_and_filter_equals_the_reference() {
    let mut random = Random::new(1234);
    let (mut faults, mut listed) = (0, 0);
    for vocab in VOCABS {
        for _ in 0..if vocab < 1000 { 40 } else { 6 } {
            let cases: Vec<Case> = (0..5).map(|_| case(&mut random, vocab)).collect();
            for (case, expected) in cases.iter().zip(check(&cases, 3)) {
                faults += usize::from(expected.choice.fault);
                listed += usize::from(expected.kept.len() < vocab && case.sampling.filters.any());
            }
        }
    }
    assert!(
        faults > 10 && listed > 300,
        "{faults} faults, {listed} rows with a filter that left something out"
    );
}

#[test]
fn a_large_vocabulary_equals_the_reference() {
    let mut random = Random::new(4321);
    let cases: Vec<Case> = (0..12).map(|_| case(&mut random, 262_144)).collect();
    check(&cases, 2);
}

/// Without a filter only the tail of the noise lifts a token out of a flat vocabulary; nothing that could win may be skipped.
#[test]
fn draws_from_flat_and_from_peaked_rows_equal_the_reference() {
    let mut random = Random::new(77);
    for vocab in [TILE + 70, 262_144] {
        let mut cases = Vec::new();
        for gap in [0.0, 10.0, 20.0, 22.0, 22.5, 23.0, 24.0, 26.0, 30.0] {
            let mut logits = vec![-gap; vocab];
            logits[random.below(vocab)] = 0.0;
            let sampling = Sampling { temperature: 1.0, seed: random.bits(), ..Sampling::default() };
            cases.push(Case { logits, sampling, position: 9, ..Case::default() });
        }
        check(&cases, 2);
    }
}

#[test]
fn a_row_does_not_depend_on_its_company() {
    let mut random = Random::new(31);
    let vocab = TILE + 100;
    let mut cases: Vec<Case> = (0..6).map(|_| case(&mut random, vocab)).collect();
    cases[2].logits[5] = f32::NAN;
    check(&cases, 2);
    cases.rotate_left(3);
    check(&cases, 2);
    check(&cases[..1], 2);
}

/// A row that holds few tokens (a clustered head) follows the same rules as the whole row with the others at -inf.
#[test]
fn listed_tokens_follow_the_rules_of_whole_rows() {
    let mut random = Random::new(55);
    let (mut drawn, mut chooser) = (0, Chooser::default());
    for _ in 0..400 {
        let vocab = one_of(&mut random, &[20, 300, TILE + 9]);
        let mut case = case(&mut random, vocab);
        case.softcap = None;
        case.known = None;
        case.logprobs = None;
        let mut tokens: Vec<u32> = (0..vocab as u32).collect();
        (0..vocab).for_each(|i| tokens.swap(i, random.below(vocab)));
        tokens.truncate(1 + random.below(vocab));
        let listed: Vec<(u32, f32)> = tokens.iter().map(|id| (*id, case.logits[*id as usize])).collect();
        // The allowed tokens of the whole row are those of the list: its sums add in the same order.
        let within = |id: &u32| case.sampling.allowed.as_ref().is_none_or(|ids| ids.contains(id));
        let mut allowed: Vec<u32> = tokens.iter().copied().filter(within).collect();
        allowed.sort_unstable();
        let sampling = Sampling { allowed: Some(allowed), ..case.sampling.clone() };
        let expected = choose(&Case { sampling, ..case.clone() }).choice;
        let counts = counts(&case);
        for isa in available_levels() {
            let found = chooser.choose_listed(isa, listed.iter().copied(), &rules(&case, &counts));
            assert_eq!(found, expected, "{:?}", case.sampling);
        }
        drawn += usize::from(!expected.fault);
    }
    assert!(drawn > 300);
}

#[test]
fn the_share_of_a_listed_logit_is_that_of_the_reference() {
    let mut random = Random::new(29);
    let scalar = Isa::new(Level::Scalar).unwrap();
    for n in [1, 2, 15, 16, 63, 64, 65, 512, 4096, 4097, 5000] {
        let row = logits(&mut random, n);
        let place = (0..n).find(|&place| row[place].is_finite()).expect("one is");
        let of = |isa| Chooser::default().listed_logprob(isa, &row, row[place]);
        let expected = of(scalar);
        let mass: f64 = row.iter().map(|z| (f64::from(*z) - f64::from(row[place])).exp()).sum();
        let distance = (f64::from(expected) + mass.ln()).abs();
        assert!(distance < 1e-5 * mass.ln().abs().max(1.0), "{n}: {expected} and {}", -mass.ln());
        for isa in available_levels() {
            assert_eq!(of(isa).to_bits(), expected.to_bits(), "{n} at {:?}", isa.level());
        }
    }
}
