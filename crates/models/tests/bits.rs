//! The promise at the level of logits: whatever the chunks of a prompt and the CPU level, every bit is that of one row at a
//! time. And what the bf16 activations are worth beside the reference's.

mod common;

use common::{Model, asset, ids, open, oracle, recorded};
use paceline_backend::{Activation, Isa, Level};
use serde_json::Value;

/// Window of the oracle models.
const WINDOW: usize = 16;

fn levels() -> Vec<Isa> {
    let levels = Level::ALL.into_iter().filter_map(|level| Isa::new(level).ok());
    levels.collect()
}

fn assert_same_bits(found: &[Vec<f32>], expected: &[Vec<f32>], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: rows");
    for (row, (found, expected)) in found.iter().zip(expected).enumerate() {
        let differs = found.iter().zip(expected).position(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(differs, None, "{what}: row {row} differs at this token");
    }
}

#[test]
fn logits_do_not_depend_on_chunks_or_levels() {
    for name in ["gemma4_e", "gemma4_dense", "gemma4_moe", "gemma3"] {
        let prompt = ids(&mut recorded(name), "p3.input_ids", 70);
        for activation in [Activation::Bf16, Activation::F32] {
            let mut one_by_one: Option<Vec<Vec<f32>>> = None;
            for isa in levels() {
                let mut model = open(&oracle(name), isa, activation);
                for chunk in [1, 7, WINDOW - 1, WINDOW, WINDOW + 1, 512] {
                    let logits = model.logits(&prompt, chunk);
                    let what = format!("{name}, {activation:?}, {}, chunks of {chunk}", isa.level());
                    match &one_by_one {
                        Some(expected) => assert_same_bits(&logits, expected, &what),
                        None => one_by_one = Some(logits),
                    }
                }
            }
        }
    }
}

/// A prompt of the tiny model that crosses blocks, splits and windows.
#[test]
fn long_prompts_have_the_same_bits_at_every_level() {
    let prompt: Vec<u32> = std::iter::once(2).chain((0..599).map(|i| 20 + i * 97 % 4000)).collect();
    let mut expected: Option<Vec<Vec<f32>>> = None;
    for isa in levels().into_iter().rev().filter(|isa| isa.level() != Level::Scalar) {
        let mut model = open(&asset("tiny-gemma4"), isa, Activation::Bf16);
        for chunk in [512, 129, 33] {
            let logits = model.logits(&prompt, chunk);
            let what = format!("{}, chunks of {chunk}", isa.level());
            match &expected {
                Some(expected) => assert_same_bits(&logits, expected, &what),
                None => expected = Some(logits),
            }
        }
    }
}

fn token_ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// On the texts of the reference: our bf16 goes with our f32 at least as far as the reference's bf16 with its f32.
#[test]
fn bf16_agrees_with_f32_as_the_reference_does() {
    let file = oracle("../expected.json");
    let expected: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let [mut bf16, mut f32] = [Activation::Bf16, Activation::F32]
        .map(|activation| open(&asset("tiny-gemma4"), Isa::best().0, activation));
    let (mut rows, mut theirs) = (0, 0);
    for prompt in expected["prompts"].as_array().unwrap() {
        let ids = token_ids(&prompt["prompt_ids"]);
        let [reference_f32, reference_bf16] =
            ["greedy_f32", "greedy_bf16"].map(|name| token_ids(&prompt[name]));
        let n = reference_f32.len();
        let greedy = |model: &mut Model| model.greedy(&ids, n, 512);
        rows += common_prefix(&greedy(&mut bf16), &greedy(&mut f32));
        theirs += common_prefix(&reference_bf16, &reference_f32);
    }
    assert!(rows >= theirs, "{rows} tokens agree, {theirs} of the reference");
}
