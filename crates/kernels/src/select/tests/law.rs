//! What the rules mean: who may be drawn, and how often.

use super::reference::Case;
use super::*;
use crate::testing::Random;

fn drawing(logits: &[f32], sampling: &Sampling) -> Case {
    Case { logits: logits.to_vec(), sampling: sampling.clone(), ..Case::default() }
}

fn kept(logits: &[f32], filters: Filters) -> Vec<u32> {
    let sampling = Sampling { temperature: 1.0, filters, ..Sampling::default() };
    check(&[drawing(logits, &sampling)], 1).remove(0).kept
}

const ALL: Filters = Filters { top_k: 0, top_p: 1.0, min_p: 0.0, typical_p: 1.0 };

#[test]
fn top_k_ties_go_to_the_lower_ids() {
    let row = [1.0, 3.0, 2.0, 3.0, 2.0, 2.0, -1.0];
    assert_eq!(kept(&row, Filters { top_k: 1, ..ALL }), [1]);
    assert_eq!(kept(&row, Filters { top_k: 3, ..ALL }), [1, 3, 2]);
    assert_eq!(kept(&row, Filters { top_k: 4, ..ALL }), [1, 3, 2, 4]);
    assert_eq!(kept(&row, Filters { top_k: 100, ..ALL }).len(), 7);
}

#[test]
fn top_p_of_0_is_the_best_token_and_of_1_is_all() {
    let row: Vec<f32> = [0.5_f32, 0.2, 0.2, 0.1].map(f32::ln).to_vec();
    assert_eq!(kept(&row, Filters { top_p: 0.0, ..ALL }), [0]);
    assert_eq!(kept(&row, Filters { top_p: 0.5, ..ALL }), [0]);
    assert_eq!(kept(&row, Filters { top_p: 0.6, ..ALL }), [0, 1]);
    assert_eq!(kept(&row, Filters { top_p: 0.7, ..ALL }), [0, 1]);
    assert_eq!(kept(&row, Filters { top_p: 0.71, ..ALL }), [0, 1, 2]);
    assert_eq!(kept(&row, Filters { top_p: 1.0, ..ALL }).len(), 4);
}

#[test]
fn min_p_is_relative_to_the_best_token() {
    let row: Vec<f32> = [0.5_f32, 0.2, 0.25, 0.05].map(f32::ln).to_vec();
    assert_eq!(kept(&row, Filters { min_p: 1.0, ..ALL }), [0]);
    assert_eq!(kept(&row, Filters { min_p: 0.45, ..ALL }), [0, 2]);
    assert_eq!(kept(&row, Filters { min_p: 0.09, ..ALL }), [0, 2, 1, 3]);
}

#[test]
fn typical_p_prefers_the_expected_surprise() {
    // Entropy 1.16 nats: 0.3 (surprise 1.20) is nearest, then 0.5 (0.69), then 0.15 (1.90), then 0.05 (3.0).
    let row: Vec<f32> = [0.5_f32, 0.3, 0.15, 0.05].map(f32::ln).to_vec();
    assert_eq!(kept(&row, Filters { typical_p: 0.0, ..ALL }), [1]);
    assert_eq!(kept(&row, Filters { typical_p: 0.5, ..ALL }), [0, 1]);
    assert_eq!(kept(&row, Filters { typical_p: 0.9, ..ALL }), [0, 1, 2]);
}

#[test]
fn filters_apply_one_after_the_other() {
    let row: Vec<f32> = [0.4_f32, 0.3, 0.2, 0.1].map(f32::ln).to_vec();
    // Of the two that top-k leaves the first has 4/7 of the mass: enough for 0.55, not for 0.6.
    assert_eq!(kept(&row, Filters { top_k: 2, top_p: 0.55, ..ALL }), [0]);
    assert_eq!(kept(&row, Filters { top_k: 2, top_p: 0.6, ..ALL }), [0, 1]);
    assert_eq!(kept(&row, Filters { top_p: 0.85, min_p: 0.6, ..ALL }), [0, 1]);
}

#[test]
fn penalties_act_on_greedy_too() {
    let row = [2.0, 1.9, 1.0, -1.0];
    let penalties = |repetition, presence, frequency| Sampling {
        penalties: Penalties { repetition, presence, frequency },
        ..Sampling::default()
    };
    let chosen = |sampling: Sampling, prompt: &[u32], output: &[u32], drafts: &[u32]| {
        let (prompt, output, drafts) = (prompt.to_vec(), output.to_vec(), drafts.to_vec());
        check(&[Case { prompt, output, drafts, ..drawing(&row, &sampling) }], 1)[0].choice.token
    };
    assert_eq!(chosen(penalties(1.1, 0.0, 0.0), &[0], &[], &[]), 1);
    assert_eq!(chosen(penalties(1.0, 0.2, 0.0), &[0], &[], &[]), 0, "presence is for the output only");
    assert_eq!(chosen(penalties(1.0, 0.2, 0.0), &[], &[0], &[]), 1);
    assert_eq!(chosen(penalties(1.0, 0.0, 0.06), &[], &[0], &[]), 0);
    assert_eq!(chosen(penalties(1.0, 0.0, 0.06), &[], &[0], &[0]), 1, "a draft before the row counts");
    assert_eq!(chosen(penalties(1.0, 0.2, 0.0), &[], &[0], &[1, 1]), 0);
}

/// Chi-square of `counts` against `p`, places of little expectation joined; its degrees of freedom.
fn chi_square(counts: &[usize], p: &[f64]) -> (f64, usize) {
    let n: usize = counts.iter().sum();
    let (mut statistic, mut cells, mut rest) = (0.0, 0, (0.0, 0.0));
    for (&count, &p) in counts.iter().zip(p) {
        let expected = p * n as f64;
        if expected < 10.0 {
            rest = (rest.0 + count as f64, rest.1 + expected);
        } else {
            statistic += (count as f64 - expected).powi(2) / expected;
            cells += 1;
        }
    }
    if rest.1 >= 10.0 {
        statistic += (rest.0 - rest.1).powi(2) / rest.1;
        cells += 1;
    }
    (statistic, cells - 1)
}

/// Ten standard deviations above what chance gives: fixed seeds keep it from ever being close.
#[track_caller]
fn assert_follows(counts: &[usize], p: &[f64], what: &str) {
    let (statistic, freedom) = chi_square(counts, p);
    let bound = freedom as f64 + 4.0 * (2.0 * freedom as f64).sqrt() + 8.0;
    assert!(statistic < bound, "{what}: chi-square {statistic:.1} with {freedom} degrees of freedom");
}

fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|z| (f64::from(*z) / temperature).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|w| w / sum).collect()
}

/// Draws at many positions of many seeds.
fn draw_counts(logits: &[f32], sampling: &Sampling, n_draws: usize) -> Vec<usize> {
    let isa = *available_levels().last().unwrap();
    let (mut team, mut chooser) = (Team::new(1).unwrap(), Chooser::default());
    let rows = (4096 / logits.len()).max(1);
    chooser.reserve(rows, logits.len());
    let mut counts = vec![0; logits.len()];
    let (mut all, mut choices) = (Vec::new(), vec![Choice::default(); rows]);
    for call in 0..n_draws.div_ceil(rows) {
        let sampling = Sampling { seed: (call / 7) as u64, ..sampling.clone() };
        all.clear();
        (0..rows).for_each(|_| all.extend_from_slice(logits));
        let position = |row: usize| (call % 7 * rows + row) as u32;
        let rules = |row| RowRules { position: position(row), ..RowRules::new(&sampling) };
        chooser.choose(isa, &mut team, &mut all, rules, &mut choices);
        choices.iter().for_each(|choice| counts[choice.token as usize] += usize::from(!choice.fault));
    }
    counts
}

#[test]
fn draws_follow_the_softmax() {
    let mut random = Random::new(3);
    for temperature in [0.3_f32, 1.0, 1.7] {
        let logits = random.fill(37, |r| r.uniform() * 3.0);
        let sampling = Sampling { temperature, ..Sampling::default() };
        let counts = draw_counts(&logits, &sampling, 200_000);
        assert_follows(
            &counts,
            &softmax(&logits, f64::from(temperature)),
            &format!("temperature {temperature}"),
        );
    }
}

#[test]
fn draws_follow_the_filtered_softmax() {
    let mut random = Random::new(4);
    let logits = random.fill(37, |r| r.uniform() * 3.0);
    for filters in [
        Filters { top_k: 9, ..ALL },
        Filters { top_p: 0.8, ..ALL },
        Filters { min_p: 0.1, ..ALL },
        Filters { typical_p: 0.7, ..ALL },
        Filters { top_k: 20, top_p: 0.9, min_p: 0.05, typical_p: 0.95 },
    ] {
        let sampling = Sampling { temperature: 1.0, filters, ..Sampling::default() };
        let kept = kept(&logits, filters);
        assert!(kept.len() > 2 && kept.len() < 37, "{filters:?} keeps {}", kept.len());
        let mut p = softmax(&logits, 1.0);
        let mass: f64 = kept.iter().map(|id| p[*id as usize]).sum();
        for (id, p) in p.iter_mut().enumerate() {
            *p = if kept.contains(&(id as u32)) { *p / mass } else { 0.0 };
        }
        let counts = draw_counts(&logits, &sampling, 200_000);
        assert!(
            counts.iter().zip(&p).all(|(n, p)| *p > 0.0 || *n == 0),
            "{filters:?} draws what it leaves out"
        );
        assert_follows(&counts, &p, &format!("{filters:?}"));
    }
}

/// At the size of published vocabularies: half of the mass on one token, half on all the others together, where only the tail of
/// the noise decides. Ids must come up evenly.
#[test]
fn the_tail_of_a_large_vocabulary_is_drawn_as_often_as_it_should() {
    let vocab = 262_144;
    let mut logits = vec![0.0; vocab];
    logits[100_000] = (vocab as f32 - 1.0).ln();
    let n = 3000;
    let counts = draw_counts(&logits, &Sampling { temperature: 1.0, ..Sampling::default() }, n);
    assert_follows(&[counts[100_000], n - counts[100_000]], &[0.5, 0.5], "likely token against the rest");
    let spread: Vec<usize> = (0..16)
        .map(|part| counts[part * vocab / 16..(part + 1) * vocab / 16].iter().sum::<usize>())
        .enumerate()
        .map(|(part, n)| if part == 100_000 * 16 / vocab { n - counts[100_000] } else { n })
        .collect();
    assert_follows(&spread, &[1.0 / 16.0; 16], "sixteenths of the vocabulary");
}

#[test]
fn another_seed_position_or_choice_changes_the_draw_and_the_same_repeats_it() {
    let logits = vec![0.0; 5000];
    let at = |seed: u64, position: u32, choice: u32| {
        let sampling = Sampling { temperature: 1.0, seed, choice, ..Sampling::default() };
        check(&[Case { position, ..drawing(&logits, &sampling) }], 1)[0].choice.token
    };
    let base = at(7, 3, 0);
    assert_eq!(at(7, 3, 0), base);
    let others = [at(8, 3, 0), at(7 | 1 << 40, 3, 0), at(7, 4, 0), at(7, 3, 1)];
    assert!(others.iter().all(|token| *token != base), "{base}: {others:?}");
}

/// Pins the noise and the order of the filters: a seed's text must survive releases.
#[test]
fn golden_draws() {
    let logits: Vec<f32> =
        (0..1000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as f32 / 32.0).collect();
    let drawn = |filters: Filters| -> Vec<u32> {
        let sampling = Sampling { temperature: 0.8, filters, seed: 42, ..Sampling::default() };
        let rows: Vec<Case> =
            (0..6).map(|position| Case { position, ..drawing(&logits, &sampling) }).collect();
        check(&rows, 1).iter().map(|row| row.choice.token).collect()
    };
    let found = [
        drawn(ALL),
        drawn(Filters { top_k: 20, ..ALL }),
        drawn(Filters { top_p: 0.5, ..ALL }),
        drawn(Filters { min_p: 0.2, ..ALL }),
        drawn(Filters { typical_p: 0.5, ..ALL }),
    ];
    let golden: [[u32; 6]; 5] = [
        [448, 642, 435, 174, 21, 199],
        [110, 110, 521, 432, 487, 199],
        [42, 110, 521, 707, 21, 199],
        [448, 110, 435, 707, 21, 199],
        [448, 503, 435, 707, 105, 961],
    ];
    assert_eq!(found, golden.map(|tokens| tokens.to_vec()));
}
