//! A model that drafts for itself chooses what it chooses as a target: so every draft is accepted, or a key of its own is wrong.

use paceline::drafters::NgramLengths;
use paceline::{Activation, Completion, DraftSource, Engine, ModelFolder, Request, Sizes, TokenId, load};
use paceline_testkit::paths::{asset, oracle};

use crate::setup::{draft, open, options, options_of, run, run_preempted, sizes};

const TARGETS: [&str; 4] = ["gemma4_e", "gemma4_dense", "gemma4_moe", "gemma3"];

/// Random prompts of lengths on both sides of the window of 16, of tokens that all these models take.
fn requests(n: usize, max_tokens: usize, k: usize) -> Vec<Request> {
    let lengths = [1, 15, 70, 3, 16, 33, 17];
    let mut state = 7_u64;
    (0..n)
        .map(|i| {
            let mut token = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                TokenId(30 + (state >> 33) as u32 % 200)
            };
            let prompt = (0..lengths[i % 7]).map(|_| token()).collect();
            let mut request = Request::new(prompt, max_tokens);
            request.ignore_eos = true;
            // Some draft less, and some not at all.
            request.draft.tokens_per_round = Some(if i % 5 == 4 { i % 2 } else { k });
            request.draft.confidence = (i % 3 == 1).then_some(0.3);
            if i % 2 == 1 {
                request.sampling.temperature = 0.9;
                request.sampling.seed = Some(i as u64);
            }
            request
        })
        .collect()
}

fn for_itself(
    folder: &ModelFolder,
    others: &[DraftSource<'_>],
    sizes: Sizes,
    activation: Activation,
) -> Engine {
    let sources = others.iter().copied().chain([DraftSource::Checkpoint(folder)]).collect();
    load(folder, options_of(folder, sources, sizes, activation, &mut |_, _| {})).unwrap()
}

fn plain(folder: &ModelFolder, requests: &[Request], activation: Activation) -> Vec<Completion> {
    let mut engine = open(folder.origin(), None, sizes(200, 1, 512, 0), activation);
    let mut requests = requests.to_vec();
    requests.iter_mut().for_each(|request| request.draft.tokens_per_round = None);
    run(&mut engine, &requests, 0)
}

fn assert_same_and_all_accepted(found: &[Completion], plain: &[Completion], what: &str) {
    for (i, (found, plain)) in found.iter().zip(plain).enumerate() {
        assert_eq!(found.token_ids, plain.token_ids, "request {i}, {what}");
        let draft = draft(found);
        let own = draft.sources.iter().find(|source| source.kind == "model").expect("a model drafts");
        assert_eq!(own.accepted, own.drafted, "request {i}, {what}: {draft:?}");
    }
}

#[test]
fn it_is_always_right_in_any_chunk_company_and_number_of_drafts() {
    for target in TARGETS {
        let folder = ModelFolder::open(&oracle(target)).unwrap();
        for activation in [Activation::Bf16, Activation::F32] {
            let requests = requests(7, 40, 5);
            let plain = plain(&folder, &requests, activation);
            for (n_slots, chunk, stagger) in [(1, 512, 0), (7, 5, 2), (3, 64, 1)] {
                let what = format!("{target}, {activation:?}, {n_slots} slots, chunks of {chunk}");
                let mut engine = for_itself(&folder, &[], sizes(200, n_slots, chunk, 5), activation);
                let found = run(&mut engine, &requests, stagger);
                assert_same_and_all_accepted(&found, &plain, &what);
                // The first token comes with the prompt; of the other 39 six come in each round.
                assert_eq!(draft(&found[0]).accepted_per_round, [5, 5, 5, 5, 5, 5, 2], "{what}");
            }
        }
    }
}

#[test]
fn it_is_always_right_after_preemptions_and_with_short_memory() {
    let folder = ModelFolder::open(&oracle("gemma4_e")).unwrap();
    let requests = requests(7, 90, 3);
    let plain = plain(&folder, &requests, Activation::Bf16);
    for (every, share) in [(3, 1), (5, 2)] {
        let mut sizes = sizes(200, 4, 16, 3);
        let engine = for_itself(&folder, &[], sizes, Activation::Bf16);
        sizes.kv_memory = Some(engine.backend_info().kv_bytes as u64 / share);
        let mut engine = for_itself(&folder, &[], sizes, Activation::Bf16);
        let found = run_preempted(&mut engine, &requests, 1, every);
        assert_same_and_all_accepted(&found, &plain, &format!("every {every}, 1/{share} of the memory"));
    }
}

#[test]
fn it_is_always_right_behind_rounds_of_another_drafter() {
    let ngram = DraftSource::Ngram(NgramLengths::new(1, 2).unwrap());
    for target in ["gemma4_e", "gemma3"] {
        let folder = ModelFolder::open(&oracle(target)).unwrap();
        let requests = requests(7, 100, 4);
        let plain = plain(&folder, &requests, Activation::Bf16);
        let mut engine = for_itself(&folder, &[ngram], sizes(200, 4, 16, 4), Activation::Bf16);
        let found = run_preempted(&mut engine, &requests, 1, 20);
        assert_same_and_all_accepted(&found, &plain, target);
        let rounds = |kind: &str| -> u64 {
            let sources = found.iter().flat_map(|completion| &draft(completion).sources);
            sources.filter(|source| source.kind == kind).map(|source| source.rounds).sum()
        };
        assert!(rounds("ngram") > 20 && rounds("model") > 20, "{} and {}", rounds("ngram"), rounds("model"));
    }
}

#[test]
fn another_model_changes_no_text() {
    // The same shape with other weights: a drafter that is wrong, and at home in the same vocabulary.
    let target = ModelFolder::open(&oracle("gemma4_dense")).unwrap();
    let drafter = ModelFolder::open(&oracle("gemma4_moe")).unwrap();
    let requests = requests(7, 40, 4);
    let plain = plain(&target, &requests, Activation::Bf16);
    let mut engine = open(target.origin(), Some(drafter.origin()), sizes(200, 4, 16, 4), Activation::Bf16);
    let found = run_preempted(&mut engine, &requests, 1, 7);
    for (found, plain) in found.iter().zip(&plain) {
        assert_eq!(found.token_ids, plain.token_ids);
        assert_eq!(draft(found).kind, "model");
    }
    assert!(found.iter().any(|found| draft(found).accepted < draft(found).drafted));
}

#[test]
fn other_vocabularies_and_too_few_positions_are_refused() {
    let refusal = |target: &ModelFolder, drafter: &ModelFolder, context| {
        let (sizes, progress) = (sizes(context, 1, 64, 2), &mut |_, _| {});
        match load(target, options(target, Some(drafter), sizes, Activation::Bf16, progress)) {
            Ok(_) => panic!("{} drafts for {}", drafter.origin().display(), target.origin().display()),
            Err(error) => error.to_string(),
        }
    };
    let tiny = ModelFolder::open(&asset("tiny-gemma4")).unwrap();
    let small = ModelFolder::open(&oracle("gemma4_e")).unwrap();
    let message = refusal(&small, &tiny, 64);
    assert!(message.contains("it has a tokenizer.json and the target has none"), "{message}");
    let message = refusal(&tiny, &small, 64);
    assert!(message.contains("it has no tokenizer.json and the target has one"), "{message}");

    // Two tokens swapped: as many tokens, and others.
    let read = |name: &str| std::fs::read(asset("tiny-gemma4").join(name)).unwrap();
    let mut tokenizer: serde_json::Value = serde_json::from_slice(&read("tokenizer.json")).unwrap();
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    let of = |id: u64| vocabulary.iter().find(|(_, value)| value.as_u64() == Some(id)).unwrap().0.clone();
    let (a, b) = (of(1000), of(2000));
    vocabulary[&a] = 2000.into();
    vocabulary[&b] = 1000.into();
    let names = ["config.json", "generation_config.json", "model.safetensors", "tokenizer_config.json"];
    let files = names.iter().map(|&name| (name, read(name)));
    let files = files.chain([("tokenizer.json", tokenizer.to_string().into_bytes())]);
    let swapped = ModelFolder::from_files("swapped", files).unwrap();
    let message = refusal(&tiny, &swapped, 64);
    assert!(message.contains(&format!("token 1000 is `{b}`")) && message.contains(&a), "{message}");
    assert!(message.contains("vocabulary of its target"), "{message}");
}
