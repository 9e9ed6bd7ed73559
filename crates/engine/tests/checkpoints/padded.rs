//! Draft models whose tables are padded to another length than the target's, as those of one family are.

use std::fs;
use std::ops::Range;
use std::path::Path;

use paceline::{Activation, Completion, ModelFolder, Request, TokenId, load};
use paceline_testkit::paths::{asset, oracle};
use serde_json::Value;

use crate::files::resize_rows;
use crate::setup::{draft, options, run_preempted, sizes};

const TINY: &str = "tiny-gemma4";
/// Tokens of the tiny model, all of them real.
const N: usize = 4096;

/// A folder with tables of so many rows. Those behind the real ones are what `row` makes of the first ones.
fn resized(folder: &Path, tokenizer: Option<Vec<u8>>, rows: usize, row: fn(&[u8]) -> Vec<u8>) -> ModelFolder {
    let read = |name: &str| fs::read(folder.join(name)).unwrap();
    let mut config: Value = serde_json::from_slice(&read("config.json")).unwrap();
    let mut weights = read("model.safetensors");
    let text = if config["text_config"].is_object() { &mut config["text_config"] } else { &mut config };
    for (field, tensor) in [
        ("vocab_size", "model.embed_tokens.weight"),
        ("vocab_size_per_layer_input", "model.embed_tokens_per_layer.weight"),
    ] {
        if text[field].is_u64() {
            text[field] = rows.into();
            resize_rows(&mut weights, tensor, rows, row);
        }
    }
    let files = [
        ("config.json", config.to_string().into_bytes()),
        ("generation_config.json", read("generation_config.json")),
        ("model.safetensors", weights),
    ];
    let tokenizer = tokenizer.map(|bytes| ("tokenizer.json", bytes));
    ModelFolder::from_files("resized", files.into_iter().chain(tokenizer)).unwrap()
}

fn tiny_tokenizer() -> Option<Vec<u8>> {
    Some(fs::read(asset(TINY).join("tokenizer.json")).unwrap())
}

/// The first tokens of the tiny model's tokenizer.
fn small_tokenizer(n: u64) -> Option<Vec<u8>> {
    let mut tokenizer: Value = serde_json::from_slice(&tiny_tokenizer()?).unwrap();
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    vocabulary.retain(|_, id| id.as_u64().unwrap() < n);
    tokenizer["model"]["merges"] = Value::Array(Vec::new());
    Some(tokenizer.to_string().into_bytes())
}

fn zeros(row: &[u8]) -> Vec<u8> {
    vec![0; row.len()]
}

/// Four times a row, in bf16: its logit is four times as large.
fn louder(row: &[u8]) -> Vec<u8> {
    let quadruple = |value: &[u8]| {
        let value = f32::from_bits(u32::from(u16::from_le_bytes([value[0], value[1]])) << 16);
        ((value * 4.0).to_bits() >> 16) as u16
    };
    row.chunks_exact(2).flat_map(|value| quadruple(value).to_le_bytes()).collect()
}

fn requests(ids: Range<u32>) -> Vec<Request> {
    let requests = [1, 40, 7, 130].iter().enumerate().map(|(i, &len)| {
        let prompt = (0..len).map(|j| TokenId(ids.start + (j * 37 + i as u32 * 11) % (ids.end - ids.start)));
        let mut request = Request::new(prompt.collect(), 40);
        request.ignore_eos = true;
        if i == 3 {
            (request.sampling.temperature, request.sampling.seed) = (0.9, Some(5));
            request.sampling.repetition_penalty = 1.2;
        }
        request
    });
    requests.collect()
}

fn texts(target: &ModelFolder, drafter: Option<&ModelFolder>, requests: &[Request]) -> Vec<Completion> {
    let (sizes, progress) = (sizes(200, 3, 16, 4), &mut |_, _| {});
    let mut engine = load(target, options(target, drafter, sizes, Activation::Bf16, progress)).unwrap();
    run_preempted(&mut engine, requests, 1, 9)
}

/// The texts of `target`, drafted and plain the same; and how many drafts there were and were accepted.
fn drafted(target: &ModelFolder, drafter: &ModelFolder, requests: &[Request]) -> (Vec<Completion>, u64, u64) {
    let (plain, found) = (texts(target, None, requests), texts(target, Some(drafter), requests));
    for (plain, found) in plain.iter().zip(&found) {
        assert_eq!(found.token_ids, plain.token_ids);
        assert_eq!(draft(found).inactive_reason, None);
    }
    let sum = |of: fn(&Completion) -> u64| found.iter().map(of).sum();
    let (drafted, accepted) = (sum(|found| draft(found).drafted), sum(|found| draft(found).accepted));
    (plain, drafted, accepted)
}

#[test]
fn what_the_target_lacks_is_never_proposed() {
    let target = ModelFolder::open(&asset(TINY)).unwrap();
    // Padding that would win over every real token.
    let drafter = resized(&asset(TINY), tiny_tokenizer(), 2 * N, louder);
    let (_, drafted, accepted) = drafted(&target, &drafter, &requests(20..4000));
    assert!(drafted > 100 && accepted == drafted, "{accepted} of {drafted}");
}

#[test]
fn padding_of_the_target_changes_nothing_and_other_tokens_there_only_drafts() {
    let drafter = ModelFolder::open(&asset(TINY)).unwrap();
    let target = resized(&asset(TINY), tiny_tokenizer(), N + 64, zeros);
    let (_, n_drafted, accepted) = drafted(&target, &drafter, &requests(20..4000));
    assert!(n_drafted > 100 && accepted == n_drafted, "{accepted} of {n_drafted}");
    // A target that chooses nearly nothing but what the drafter lacks, after prompts of it.
    let target = resized(&asset(TINY), tiny_tokenizer(), 2 * N, louder);
    let (plain, n_drafted, accepted) = drafted(&target, &drafter, &requests(4000..8000));
    let beyond = |found: &Completion| found.token_ids.iter().filter(|id| id.0 as usize >= N).count();
    assert!(plain.iter().map(beyond).sum::<usize>() > 40);
    assert!(n_drafted > 100 && accepted < n_drafted, "{accepted} of {n_drafted}");
}

#[test]
fn both_families_draft_for_a_target_of_another_length() {
    for name in ["gemma3", "gemma4_e", "gemma4_dense"] {
        let of = |rows, row| resized(&oracle(name), small_tokenizer(300), rows, row);
        let target = of(320, zeros);
        for longer in [of(384, zeros), of(640, louder)] {
            let (_, n_drafted, accepted) = drafted(&target, &longer, &requests(30..290));
            assert!(n_drafted > 60 && accepted == n_drafted, "{name}: {accepted} of {n_drafted}");
        }
        let (_, n_drafted, accepted) = drafted(&target, &of(300, zeros), &requests(30..320));
        assert!(n_drafted > 60 && accepted > 0, "{name}: {accepted} of {n_drafted}");
    }
}

#[test]
fn more_than_padding_is_refused() {
    let refusal = |target: &ModelFolder, drafter: &ModelFolder| {
        let (sizes, progress) = (sizes(200, 1, 16, 2), &mut |_, _| {});
        let loaded = load(target, options(target, Some(drafter), sizes, Activation::Bf16, progress));
        loaded.err().expect("it was loaded").to_string()
    };
    let tiny = ModelFolder::open(&asset(TINY)).unwrap();
    let short = resized(&asset(TINY), tiny_tokenizer(), N - 96, zeros);
    for (target, drafter) in [(&tiny, &short), (&short, &tiny)] {
        let message = refusal(target, drafter);
        assert!(message.contains("token 4000 is `") && message.contains("more than padding"), "{message}");
    }
    let other = resized(&asset(TINY), small_tokenizer(4090), N + 64, zeros);
    let message = refusal(&tiny, &other);
    assert!(message.contains("token 4090 is no token in its tokenizer.json"), "{message}");
    let without = ModelFolder::open(&oracle("gemma4_e")).unwrap();
    let message = refusal(&without, &resized(&oracle("gemma4_e"), None, 384, zeros));
    assert!(message.contains("it has 384 tokens and the target 320"), "{message}");
}
