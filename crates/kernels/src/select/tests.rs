use super::*;
use crate::isa::available_levels;
use crate::math::tanh;
use crate::testing::{Random, assert_same_bits};

/// The rule in plain code.
fn reference(logits: &[f32]) -> Choice {
    let fault = Choice { token: 0, fault: true };
    if logits.iter().any(|x| x.is_nan()) {
        return fault;
    }
    let mut best: Option<usize> = None;
    for (i, x) in logits.iter().enumerate() {
        if *x > best.map_or(f32::NEG_INFINITY, |b| logits[b]) {
            best = Some(i);
        }
    }
    best.map_or(fault, |token| Choice { token: token as u32, fault: false })
}

fn check(rows: &[Vec<f32>], rules: LogitRules<'_>) {
    let vocab = rows[0].len();
    let ruled: Vec<Vec<f32>> = rows
        .iter()
        .map(|row| {
            let capped = row.iter().map(|z| rules.softcap.map_or(*z, |c| c * tanh(z / c)));
            let suppressed = |i: usize| rules.suppressed.contains(&(i as u32));
            capped.enumerate().map(|(i, z)| if suppressed(i) { f32::NEG_INFINITY } else { z }).collect()
        })
        .collect();
    let expected: Vec<Choice> = ruled.iter().map(|row| reference(row)).collect();
    for threads in 1..=4 {
        let mut team = Team::new(threads).unwrap();
        let mut chooser = Chooser::default();
        chooser.reserve(rows.len() + 1, vocab);
        for isa in available_levels() {
            let mut logits = rows.concat();
            let mut choices = vec![Choice { token: 7, fault: true }; rows.len()];
            chooser.greedy(isa, &mut team, &mut logits, |_| rules, &mut choices);
            let what = format!("{} rows of {vocab}, {threads} threads, {}", rows.len(), isa.level());
            assert_eq!(choices, expected, "{what}");
            assert_same_bits(&logits, &ruled.concat(), &what);
        }
    }
}

const VOCABS: [usize; 9] = [1, 15, 16, 17, 300, TILE - 1, TILE, TILE + 1, 3 * TILE + 5];

#[test]
fn choices_equal_the_plain_rule() {
    let mut random = Random::new(9);
    for vocab in VOCABS {
        for rows in [1, 2, 5] {
            let rows: Vec<_> = (0..rows).map(|_| random.fill(vocab, Random::wild)).collect();
            check(&rows, LogitRules::default());
            check(&rows, LogitRules { softcap: Some(30.0), suppressed: &[0, 3, TILE as u32, u32::MAX] });
        }
    }
}

#[test]
fn equal_logits_go_to_the_lowest_id() {
    for vocab in VOCABS {
        let mut random = Random::new(10);
        for _ in 0..20 {
            let mut row = vec![-1.0; vocab];
            for _ in 0..3 {
                row[random.below(vocab)] = 2.0;
            }
            check(&[row], LogitRules::default());
        }
    }
    check(&[vec![-0.0, 0.0, -0.0]], LogitRules::default());
}

#[test]
fn rows_without_a_choice_are_faults_and_their_neighbours_are_not() {
    for vocab in VOCABS {
        for at in [0, vocab / 2, vocab - 1] {
            let good: Vec<f32> = (0..vocab).map(|i| i as f32).collect();
            let mut bad = good.clone();
            bad[at] = f32::NAN;
            let nothing = vec![f32::NEG_INFINITY; vocab];
            let mut infinite = good.clone();
            infinite[at] = f32::INFINITY;
            check(&[good, bad, nothing, infinite], LogitRules::default());
        }
    }
    check(&[vec![1.0, 2.0]], LogitRules { softcap: None, suppressed: &[1, 0] });
}
