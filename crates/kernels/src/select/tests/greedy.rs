use super::reference::Case;
use super::{Choice, Chooser, RowRules, Sampling, TILE, VOCABS, check};
use crate::isa::Isa;
use crate::testing::Random;

fn case(logits: Vec<f32>) -> Case {
    Case { logits, ..Case::default() }
}

fn suppressing(logits: Vec<f32>, suppressed: &[u32], softcap: Option<f32>) -> Case {
    let sampling = Sampling { suppressed: suppressed.to_vec(), ..Sampling::default() };
    Case { logits, softcap, sampling, ..Case::default() }
}

#[test]
fn choices_equal_the_plain_rule() {
    let mut random = Random::new(9);
    for vocab in VOCABS {
        for rows in [1, 2, 5] {
            let rows: Vec<Vec<f32>> = (0..rows).map(|_| random.fill(vocab, Random::wild)).collect();
            check(&rows.iter().map(|row| case(row.clone())).collect::<Vec<_>>(), 4);
            let suppressed = [0, 3, TILE as u32, u32::MAX];
            check(
                &rows.iter().map(|row| suppressing(row.clone(), &suppressed, Some(30.0))).collect::<Vec<_>>(),
                4,
            );
        }
    }
}

#[test]
fn equal_logits_go_to_the_lowest_id() {
    for vocab in VOCABS {
        let mut random = Random::new(10);
        let rows: Vec<Case> = (0..20)
            .map(|_| {
                let mut row = vec![-1.0; vocab];
                (0..3).for_each(|_| row[random.below(vocab)] = 2.0);
                case(row)
            })
            .collect();
        for (row, expected) in rows.iter().zip(check(&rows, 2)) {
            let first = row.logits.iter().position(|z| *z == 2.0);
            assert_eq!(Some(expected.choice.token as usize), first);
        }
    }
    check(&[case(vec![-0.0, 0.0, -0.0])], 1);
}

/// All logits -inf or NaN: an error, not a hang; an infinite logit is none of a working model.
#[test]
fn rows_without_a_choice_are_faults_and_their_neighbours_are_not() {
    for temperature in [0.0, 1.0] {
        for vocab in VOCABS {
            for at in [0, vocab / 2, vocab - 1] {
                let good: Vec<f32> = (0..vocab).map(|i| i as f32).collect();
                let mut bad = good.clone();
                bad[at] = f32::NAN;
                let nothing = vec![f32::NEG_INFINITY; vocab];
                let mut infinite = good.clone();
                infinite[at] = f32::INFINITY;
                let sampling = Sampling { temperature, ..Sampling::default() };
                let rows = [good, bad, nothing, infinite]
                    .map(|logits| Case { sampling: sampling.clone(), ..case(logits) });
                let faults = check(&rows, 2).into_iter().map(|row| row.choice.fault);
                assert_eq!(faults.collect::<Vec<_>>(), [false, true, true, true]);
            }
        }
    }
    let none_left = check(&[suppressing(vec![1.0, 2.0], &[0, 1], None)], 1);
    assert_eq!(none_left[0].choice, Choice { token: 0, fault: true });
}

/// With rules that change nothing, and with one that asks about each token.
#[test]
fn listed_tokens_are_chosen_by_logit_then_id() {
    let suppressing = Sampling { suppressed: vec![9], ..Sampling::default() };
    for sampling in [Sampling::default(), suppressing] {
        let rules = RowRules::new(&sampling);
        let choose = |listed: &[(u32, f32)]| {
            Chooser::default().choose_listed(Isa::best().0, listed.iter().copied(), &rules)
        };
        let chosen = |token| Choice { token, fault: false };
        assert_eq!(choose(&[(7, 1.0), (5, 2.0), (3, 2.0), (4, 2.0), (8, -1.0)]), chosen(3));
        assert_eq!(choose(&[(6, -0.0), (2, 0.0), (1, f32::NEG_INFINITY)]), chosen(2));
        let fault = Choice { token: 0, fault: true };
        assert_eq!(choose(&[(7, 1.0), (5, f32::NAN), (3, 2.0)]), fault);
        assert_eq!(choose(&[(7, 1.0), (5, f32::INFINITY)]), fault);
        assert_eq!(choose(&[(7, f32::NEG_INFINITY)]), fault);
        assert_eq!(choose(&[]), fault);
    }
}
