//! The law of what is drawn through drafted rounds: that of the target, enumerated.

use std::collections::HashMap;

use paceline::{Event, Request, SamplingOptions, TokenId};
use paceline_backend::Sampling;
use paceline_testkit::{Nasty, ToyDrafter, ToyModel, ToyText};

use crate::harness::{Case, nasty, sizes};

/// Tokens of a text: the first comes with the prompt, the others out of rounds.
const N_TOKENS: usize = 4;
/// Texts drawn for each drafter: 200,000 draws.
const N_TEXTS: usize = 50_000;

fn tiny_toy() -> ToyModel {
    // Habits are 2 above the others, which spread over 2.
    ToyModel { vocab_size: 5, scale: 1.0 / (1 << 23) as f32, ..ToyModel::default() }
}

/// Probabilities of the next token, in f64 and by the definition of the rules.
fn law(model: &ToyModel, options: &SamplingOptions, prompt: &[TokenId], output: &[TokenId]) -> Vec<f64> {
    let mut text = ToyText::new(model, &[prompt, output].concat());
    let count = |id: u32| output.iter().filter(|token| token.0 == id).count() as f64;
    let weight = |(id, z): (u32, &f32)| {
        let penalty = f64::from(options.frequency_penalty) * count(id);
        ((f64::from(*z) - penalty) / f64::from(options.temperature)).exp()
    };
    let weights: Vec<f64> = (0..).zip(text.next_logits()).map(weight).collect();
    let mass: f64 = weights.iter().sum();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
    let (mut sum, mut p) = (0.0, vec![0.0; weights.len()]);
    for id in order {
        p[id] = weights[id];
        sum += weights[id];
        if sum >= f64::from(options.top_p) * mass {
            break;
        }
    }
    p.iter().map(|p| p / sum).collect()
}

/// Every text of [`N_TOKENS`] with its probability.
fn enumerate(model: &ToyModel, options: &SamplingOptions, prompt: &[TokenId]) -> HashMap<Vec<TokenId>, f64> {
    let mut texts = HashMap::from([(vec![], 1.0)]);
    for _ in 0..N_TOKENS {
        let longer = texts.iter().flat_map(|(text, p)| {
            let next = law(model, options, prompt, text);
            (0..).zip(next).map(|(id, q)| ([&text[..], &[TokenId(id)]].concat(), p * q)).collect::<Vec<_>>()
        });
        texts = longer.filter(|(_, p)| *p > 0.0).collect();
    }
    texts
}

/// Draws texts with seed after seed, many at a time.
fn draw(
    case: &Case,
    options: &SamplingOptions,
    prompt: &[TokenId],
) -> (HashMap<Vec<TokenId>, usize>, [u64; 2]) {
    let mut engine = case.engine();
    let request = |seed: usize| {
        let mut request = Request::new(prompt.to_vec(), N_TOKENS);
        request.sampling = SamplingOptions { seed: Some(seed as u64), ..options.clone() };
        (request.ignore_eos, request.draft.tokens_per_round) = (true, Some(2));
        request
    };
    let (mut texts, mut counts, mut drafts, mut events) =
        (HashMap::new(), HashMap::new(), [0; 2], Vec::new());
    let mut next = 0;
    while next < N_TEXTS || !engine.is_idle() {
        while next < N_TEXTS && engine.n_requests().1 < 16 {
            let id = engine.submit(request(next)).expect("a request that fits");
            texts.insert(id, Vec::new());
            next += 1;
        }
        engine.step(&mut events).expect("the engine is sound");
        for (id, event) in events.drain(..) {
            match event {
                Event::Token { id: token, .. } => texts.get_mut(&id).expect("submitted").push(token),
                Event::Finished(finished) => {
                    *counts.entry(texts.remove(&id).expect("submitted")).or_default() += 1;
                    let draft = finished.draft.expect("it is drafted for");
                    drafts = [drafts[0] + draft.drafted, drafts[1] + draft.accepted];
                }
                _ => {}
            }
        }
    }
    (counts, drafts)
}

/// Chi-square of the counts of texts against their probabilities, rare ones joined; its degrees of freedom.
fn chi_square(counts: &HashMap<Vec<TokenId>, usize>, law: &HashMap<Vec<TokenId>, f64>) -> (f64, usize) {
    let (mut statistic, mut cells, mut rest) = (0.0, 0, (0.0, 0.0));
    for (text, p) in law {
        let (found, expected) = (*counts.get(text).unwrap_or(&0) as f64, p * N_TEXTS as f64);
        if expected < 10.0 {
            rest = (rest.0 + found, rest.1 + expected);
        } else {
            statistic += (found - expected).powi(2) / expected;
            cells += 1;
        }
    }
    if rest.1 >= 10.0 {
        statistic += (rest.0 - rest.1).powi(2) / rest.1;
        cells += 1;
    }
    (statistic, cells - 1)
}

fn check_law(options: &SamplingOptions) {
    let model = tiny_toy();
    let prompt = model.prompt(4, 3);
    let law = enumerate(&model, options, &prompt);
    assert!(law.len() > 20 && (law.values().sum::<f64>() - 1.0).abs() < 1e-9);
    // Good: shares the noise. Bad: never right but by chance. Mode only: always the most likely token.
    let mode = Some(Sampling::default());
    let drafters = [(ToyDrafter::Assistant, None), (nasty(Nasty::Random), None), (nasty(Nasty::Right), mode)];
    for (drafter, known) in drafters {
        let mut case = Case::new(&model, sizes(20, 16, 64, 2), drafter, vec![]);
        case.known = known;
        let (counts, [drafted, accepted]) = draw(&case, options, &prompt);
        assert!(counts.keys().all(|text| law.contains_key(text)), "a text of probability 0 was drawn");
        assert!(accepted > drafted / 20 && accepted < drafted, "{accepted} of {drafted} drafts accepted");
        let (statistic, freedom) = chi_square(&counts, &law);
        // Four standard deviations above the mean; the seeds are fixed.
        let bound = freedom as f64 + 4.0 * (2.0 * freedom as f64).sqrt();
        assert!(
            statistic < bound,
            "{:?}: chi-square {statistic:.1} at {freedom} degrees of freedom",
            case.drafter
        );
        println!(
            "{:?}: chi-square {statistic:.1} at {freedom}, {accepted} of {drafted} accepted",
            case.drafter
        );
    }
}

#[test]
fn texts_follow_the_softmax_with_good_bad_and_mode_only_drafters() {
    check_law(&SamplingOptions { temperature: 0.9, ..SamplingOptions::default() });
}

#[test]
fn texts_follow_the_filtered_and_penalised_law_too() {
    check_law(&SamplingOptions {
        temperature: 1.2,
        top_p: 0.8,
        frequency_penalty: 0.8,
        ..SamplingOptions::default()
    });
}
