//! The promise with sampling: the same seed gives the same text and the same log-probabilities, whatever drafts.

use paceline::{
    Completion, Distribution, LogprobOptions, Logprobs, Request, RequestId, SamplingOptions, Sizes, TokenId,
};
use paceline_testkit::{Nasty, TEXT_END, ToyDrafter, ToyLayer, ToyModel, ToyText};

use crate::harness::{Case, chains, check, drafted, nasty, sizes, soft_toy, statistics};

const TEMPERATURES: [f32; 6] = [0.0, 1e-6, 0.2, 0.7, 1.0, 1.5];
const DRAFTS: [usize; 8] = [0, 1, 2, 3, 5, 7, 15, usize::MAX]; // the last: another number every round
const BATCHES: [usize; 4] = [1, 2, 3, 5];

/// Filters that leave something out, one by one and together.
fn filters(index: usize, options: &mut SamplingOptions) {
    match index {
        0 => {}
        1 => options.top_k = 5,
        2 => options.top_p = 0.8,
        3 => options.min_p = 0.1,
        4 => options.typical_p = 0.7,
        5 => (options.top_k, options.top_p) = (20, 0.9),
        6 => (options.top_k, options.top_p, options.min_p, options.typical_p) = (30, 0.95, 0.02, 0.9),
        _ => options.allowed = Some((2..60).map(TokenId).collect()),
    }
}
const N_FILTERS: usize = 8;

fn penalties(index: usize, options: &mut SamplingOptions) {
    match index {
        0 => {}
        1 => options.repetition_penalty = 1.3,
        2 => options.presence_penalty = 1.5,
        3 => options.frequency_penalty = 0.7,
        4 => {
            (options.repetition_penalty, options.presence_penalty, options.frequency_penalty) =
                (0.9, -0.5, 0.4)
        }
        _ => {
            options.logit_bias = vec![(TokenId(7), 3.0), (TokenId(9), -100.0), (TEXT_END, 9.0)];
            options.min_tokens = 12;
        }
    }
}
const N_PENALTIES: usize = 6;

fn drafters() -> Vec<ToyDrafter> {
    let mut drafters: Vec<_> = Nasty::ALL.map(nasty).into();
    drafters.push(ToyDrafter::Assistant);
    drafters.push(ToyDrafter::Ngram);
    drafters.extend(chains());
    drafters
}

/// Levels of the factors, of which every pair has to come up.
fn n_levels() -> [usize; 6] {
    [TEMPERATURES.len(), N_FILTERS, N_PENALTIES, DRAFTS.len(), BATCHES.len(), drafters().len()]
}

/// Rows with a level for each factor, such that every pair of levels of two factors is in one of them.
fn covering_array() -> Vec<[usize; 6]> {
    let levels = n_levels();
    let pairs = |row: &[usize; 6]| -> Vec<(usize, usize, usize, usize)> {
        let of = |a: usize| (a + 1..6).map(move |b| (a, b));
        (0..6).flat_map(of).map(|(a, b)| (a, row[a], b, row[b])).collect()
    };
    let mut seen = std::collections::HashSet::new();
    let n_pairs: usize = (0..6).flat_map(|a| (a + 1..6).map(move |b| levels[a] * levels[b])).sum();
    let (mut rows, mut seed) = (Vec::new(), 1_u64);
    while seen.len() < n_pairs {
        // The best of some random rows.
        let row = (0..30).map(|_| {
            levels.map(|n| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (seed >> 33) as usize % n
            })
        });
        let new = |row: &[usize; 6]| pairs(row).iter().filter(|pair| !seen.contains(*pair)).count();
        let row = row.max_by_key(new).expect("there are rows");
        if new(&row) > 0 {
            seen.extend(pairs(&row));
            rows.push(row);
        }
    }
    rows
}

fn requests(model: &ToyModel, row: [usize; 6]) -> Vec<Request> {
    let [temperature, filter, penalty, drafts, batch, _] = row;
    let lengths = [17, 81, 1, 3, 50];
    (0..BATCHES[batch])
        .map(|i| {
            let mut request = Request::new(model.prompt(lengths[i], i as u64), 40);
            request.sampling.temperature = TEMPERATURES[temperature];
            filters(filter, &mut request.sampling);
            penalties(penalty, &mut request.sampling);
            request.sampling.seed = Some(1000 * filter as u64 + 7 * penalty as u64 + i as u64 / 2);
            request.choice = i as u32 % 2;
            request.draft.tokens_per_round = Some(DRAFTS[drafts].min(15));
            request.logprobs = (i % 2 == 0).then_some(LogprobOptions {
                top: 3,
                of: if filter % 2 == 0 { Distribution::Model } else { Distribution::Sampled },
                prompt: false,
            });
            request
        })
        .collect()
}

fn logprobs(completions: &[Option<Completion>]) -> Vec<Vec<Logprobs>> {
    completions.iter().flatten().map(|completion| completion.logprobs.clone()).collect()
}

#[test]
fn every_pair_of_settings_gives_the_plain_text_and_log_probabilities() {
    let model = ToyModel { ends_at: vec![70], ..soft_toy() };
    let (mut accepted, mut rejected) = ([0; 6], [0; 6]);
    let rows = covering_array();
    assert!(rows.len() < 300, "{} rows", rows.len());
    for row in rows {
        let requests = requests(&model, row);
        let mut case = Case::new(&model, sizes(200, 4, 64, 15), drafters()[row[5]].clone(), requests.clone());
        if let (ToyDrafter::Nasty(_, cycle), true) = (&mut case.drafter, DRAFTS[row[3]] == usize::MAX) {
            *cycle = vec![0, 5, 0, 1, 8];
        }
        case.requests.iter_mut().enumerate().for_each(|(i, (step, _))| *step = i * (row[1] % 3));
        case.preempt_every = (row[2] == 3).then_some(4);
        let completions = check(&case);
        for draft in statistics(&completions) {
            accepted[row[0]] += draft.accepted;
            rejected[row[0]] += draft.drafted - draft.accepted;
        }
        let undrafted = requests.into_iter().map(|mut request| {
            request.draft.tokens_per_round = None;
            request
        });
        let plain = Case::new(&model, sizes(200, 1, 200, 0), ToyDrafter::None, undrafted.collect());
        assert_eq!(logprobs(&completions), logprobs(&check(&plain)), "log-probabilities of {case:?}");
    }
    assert!(
        accepted.iter().chain(&rejected).all(|n| *n > 100),
        "accepted {accepted:?}, rejected {rejected:?}"
    );
}

/// A drafter that shares the noise agrees more often than one that knows as much but draws its own.
#[test]
fn shared_noise_makes_drafts_agree() {
    let model = soft_toy();
    let accepted = |drafter: ToyDrafter, known: Option<u64>| -> f64 {
        let requests = (0..20).map(|i| {
            let mut request = Request::new(model.prompt(9, i), 60);
            (request.sampling.temperature, request.sampling.seed) = (1.0, Some(5));
            request.draft.tokens_per_round = Some(3);
            request
        });
        let mut case = Case::new(&model, sizes(200, 4, 64, 3), drafter, requests.collect());
        case.known = known.map(|seed| {
            let mut other = case.sampling_of(&case.requests[0].1);
            other.seed = seed;
            other
        });
        let completions = check(&case);
        let sum = |count: fn(&paceline::DraftStatistics) -> u64| -> f64 {
            statistics(&completions).into_iter().map(count).sum::<u64>() as f64
        };
        sum(|draft| draft.accepted) / sum(|draft| draft.drafted)
    };
    let (same, other) = (accepted(nasty(Nasty::Right), None), accepted(nasty(Nasty::Right), Some(6)));
    assert!(same == 1.0 && other < 0.3, "accepted {same} with its noise, {other} with other noise");
}

#[test]
fn choices_of_one_prompt_differ_and_each_is_the_same_alone() {
    let model = soft_toy();
    let request = |choice: u32| {
        let mut request = Request::new(model.prompt(20, 1), 40);
        (request.sampling.temperature, request.sampling.seed) = (1.0, Some(11));
        (request.choice, request.draft.tokens_per_round) = (choice, Some(4));
        request
    };
    let together =
        Case::new(&model, sizes(100, 3, 16, 4), ToyDrafter::Assistant, (0..5).map(request).collect());
    let mut texts: Vec<_> =
        check(&together).into_iter().map(|completion| completion.unwrap().token_ids).collect();
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), 5);
}

/// Choices read their prompt together: only the first one computes the rows of whole blocks.
#[test]
fn choices_share_the_rows_of_their_prompt_and_no_text_changes() {
    let model = soft_toy();
    // Rows of whole blocks below the last token of each prompt.
    for (n_prompt, n_shared) in [(64, 0), (65, 64), (128, 64), (200, 192)] {
        for (drafter, chunk) in [(ToyDrafter::Assistant, 200), (ToyDrafter::Ngram, 7), (ToyDrafter::None, 64)]
        {
            let case = choices(&model, n_prompt, sizes(260, 5, chunk, 4), drafter);
            check(&case);
            assert_eq!(rows_shared(&case), 4 * n_shared, "{n_prompt} tokens in chunks of {chunk}");
        }
    }
    // A drafter with own K/V lacks what it would have made of those rows.
    let own = ToyDrafter::OwnKv(vec![None, Some(20)]);
    assert_eq!(rows_shared(&choices(&model, 200, sizes(260, 5, 64, 4), own)), 0);
    let recurrent = ToyModel { layers: vec![ToyLayer::Recurrent], ..soft_toy() };
    let case = choices(&recurrent, 200, sizes(260, 5, 64, 4), ToyDrafter::None);
    check(&case);
    assert_eq!(rows_shared(&case), 0);
}

#[test]
fn choices_may_be_preempted_cancelled_and_short_of_memory() {
    let model = soft_toy();
    for (seed, every) in [None, Some(2), Some(5)].into_iter().enumerate() {
        for n_slots in [2, 5] {
            // The toy's blocks take 2048 bytes.
            for blocks in [12, 16, 40] {
                let mut case = choices(&model, 200, sizes(260, n_slots, 50, 4), ToyDrafter::Assistant);
                case.sizes.kv_memory = Some(blocks * 2048);
                case.preempt_every = every;
                // The first one, while it reads or later, and another.
                case.cancel = vec![(2 + 3 * seed, 0), (9, 3)];
                // Others arrive in between, and behind them one that asks for a prompt that is another.
                for i in 0..2 {
                    case.requests.push((1 + i, drafted(model.prompt(90, 77 + i as u64), 30, 3)));
                }
                let mut stranger = drafted(model.prompt(200, 5), 30, 3);
                stranger.same_prompt_as = Some(RequestId(0));
                case.requests.push((3, stranger));
                check(&case);
            }
        }
    }
}

/// Five choices of one prompt.
fn choices(model: &ToyModel, n_prompt: usize, sizes: Sizes, drafter: ToyDrafter) -> Case {
    let request = |choice: u32| {
        let mut request = drafted(model.prompt(n_prompt, 1), 40, 4);
        (request.sampling.temperature, request.sampling.seed) = (1.0, Some(11));
        (request.choice, request.same_prompt_as) = (choice, (choice > 0).then_some(RequestId(0)));
        request
    };
    Case::new(model, sizes, drafter, (0..5).map(request).collect())
}

/// Rows of prompts that were not computed.
fn rows_shared(case: &Case) -> u64 {
    let mut engine = case.engine();
    for (_, request) in &case.requests {
        engine.submit(request.clone()).unwrap();
    }
    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events).unwrap();
    }
    engine.status().shared_rows
}

#[test]
fn a_missing_seed_is_drawn_and_told_and_repeats_the_text() {
    let model = soft_toy();
    let mut request = Request::new(model.prompt(20, 1), 40);
    request.sampling.temperature = 1.0;
    let run = |request: &Request| {
        let case = Case::new(&model, sizes(100, 1, 64, 4), ToyDrafter::Assistant, vec![]);
        case.engine().generate(request.clone()).unwrap()
    };
    let (first, second) = (run(&request), run(&request));
    let seed = |completion: &Completion| completion.finished.as_ref().unwrap().seed;
    assert_ne!(seed(&first), seed(&second));
    assert_ne!(first.token_ids, second.token_ids);
    request.sampling.seed = Some(seed(&first));
    assert_eq!(run(&request).token_ids, first.token_ids);
}

/// Log-softmax in f64 of what the toy gives.
fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|z| (z - max).exp()).sum();
    logits.iter().map(|z| z - max - sum.ln()).collect()
}

fn near(found: f32, truth: f64, what: &str) {
    assert!((f64::from(found) - truth).abs() < 1e-4, "{what}: {found}, not {truth}");
}

#[test]
fn prompts_are_scored_alike_in_any_chunk_company_and_after_preemption() {
    let model = soft_toy();
    let request = |i: u64| {
        let mut request = Request::new(model.prompt(90 + i as usize, i), 12);
        request.sampling.temperature = 1.0;
        request.sampling.seed = Some(i);
        request.logprobs = Some(LogprobOptions { top: 2, of: Distribution::Sampled, prompt: true });
        request
    };
    let mut plain = None;
    for (slots, chunk, k, preempt_every) in
        [(1, 200, 0, None), (1, 1, 0, None), (3, 7, 4, Some(3)), (2, 64, 2, Some(2))]
    {
        let mut requests: Vec<_> = (0..3).map(request).collect();
        requests.iter_mut().for_each(|request| request.draft.tokens_per_round = Some(k));
        let mut case = Case::new(&model, sizes(200, slots, chunk, 4), ToyDrafter::Assistant, requests);
        case.sizes.score_prompts = true;
        case.preempt_every = preempt_every;
        let scored: Vec<_> =
            check(&case).into_iter().map(|completion| completion.unwrap().prompt_logprobs).collect();
        assert_eq!(scored, *plain.get_or_insert_with(|| scored.clone()), "chunk {chunk}");
    }
    for (i, scored) in plain.unwrap().iter().enumerate() {
        let prompt = request(i as u64).prompt;
        assert_eq!(scored.len(), prompt.len() - 1);
        for (place, entry) in scored.iter().enumerate() {
            let mut text = ToyText::new(&model, &prompt[..place + 1]);
            let logits: Vec<f64> = text.next_logits().iter().map(|z| f64::from(*z)).collect();
            near(entry.logprob, log_softmax(&logits)[prompt[place + 1].0 as usize], "prompt");
            assert!(entry.top.len() == 2 && entry.top[0].1 >= entry.top[1].1);
        }
    }
}

#[test]
fn a_prompt_is_scored_without_room_for_a_token() {
    let model = soft_toy();
    let request = |n: usize, max_tokens| {
        let mut request = Request::new(model.prompt(n, 5), max_tokens);
        request.logprobs = Some(LogprobOptions { top: 2, of: Distribution::Model, prompt: true });
        request
    };
    for (chunk, preempt_every) in [(200, None), (1, Some(7)), (16, Some(2))] {
        let requests = vec![request(100, 1), request(100, 0), request(1, 0), request(2, 0), request(101, 9)];
        let mut case = Case::new(&model, sizes(101, 2, chunk, 4), ToyDrafter::Assistant, requests);
        case.sizes.score_prompts = true;
        case.preempt_every = preempt_every;
        let done: Vec<_> = check(&case).into_iter().map(Option::unwrap).collect();
        let scored: Vec<_> = done.iter().map(|completion| &completion.prompt_logprobs).collect();
        assert_eq!(scored[0], scored[1]);
        assert_eq!(scored.iter().map(|scores| scores.len()).collect::<Vec<_>>(), [99, 99, 0, 1, 100]);
        assert_eq!(
            (scored[3][0].logprob, scored[4][..99].to_vec()),
            (scored[0][0].logprob, scored[0].clone())
        );
    }
}
