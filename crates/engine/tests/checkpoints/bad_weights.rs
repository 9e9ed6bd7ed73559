//! Assistants and targets whose tensors are damaged: refused when they are loaded or, where only values are too large, found out while
//! they run.

use paceline::{Activation, Completion, Engine, Failed, GenerateError, ModelFolder, Request, load};
use paceline_testkit::paths::oracle;
use serde_json::Value;

use crate::files::{bytes_of, changed, fill, rename};
use crate::setup::{draft, options, sizes, tokens};

/// The largest finite number of bf16, and one that is none.
pub(crate) const LARGEST: u16 = 0x7F7F;
const NAN: u16 = 0x7FC0;

fn pair(target: &ModelFolder, drafter: Option<&ModelFolder>, k: usize) -> Result<Engine, String> {
    let progress = &mut |_, _| {};
    load(target, options(target, drafter, sizes(80, 2, 64, k), Activation::Bf16, progress))
        .map_err(|error| error.to_string())
}

fn target() -> ModelFolder {
    ModelFolder::open(&oracle("gemma4_e")).unwrap()
}

fn assistant(change: impl FnOnce(&mut Value, &mut Vec<u8>)) -> ModelFolder {
    changed(&oracle("gemma4_e_assistant"), change)
}

fn completion(engine: &mut Engine) -> Result<Completion, GenerateError> {
    let mut request = Request::new(tokens(&[2, 30, 31, 32]), 30);
    request.ignore_eos = true;
    engine.generate(request)
}

#[test]
fn damaged_assistants_are_refused_by_name() {
    let centroids = "masked_embedding.centroids.weight";
    let ordering = "masked_embedding.token_ordering";
    let q_proj = "model.layers.1.self_attn.q_proj.weight";
    type Change = Box<dyn FnOnce(&mut Value, &mut Vec<u8>)>;
    let cases: Vec<(Change, &[&str])> = vec![
        (
            Box::new(move |_, w| rename(w, centroids, "masked_embedding.centroidz.weight")),
            &["centroids.weight"],
        ),
        (Box::new(move |_, w| rename(w, ordering, "masked_embedding.token_orderinz")), &["token_ordering"]),
        (
            Box::new(move |_, w| bytes_of(w, ordering)[8..16].copy_from_slice(&7_i64.to_le_bytes())),
            &["model.safetensors", "token_ordering", "each of the 320 token ids once", "7 again at element "],
        ),
        (
            Box::new(move |_, w| bytes_of(w, ordering)[..8].copy_from_slice(&(-1_i64).to_le_bytes())),
            &["model.safetensors", "token_ordering", "found -1 at element 0"],
        ),
        (
            Box::new(move |_, w| rename(w, q_proj, "model.layers.1.self_attn.k_proj.weight")),
            &[
                "model.safetensors",
                "`model.layers.1.self_attn.k_proj.weight`",
                "does not belong into an assistant",
            ],
        ),
        (Box::new(move |_, w| fill(w, q_proj, NAN)), &["q_proj.weight", "finite"]),
        (Box::new(|c, _| c["num_centroids"] = 15.into()), &["num_centroids", "a divisor of vocab_size"]),
        (Box::new(|c, _| c["centroid_intermediate_top_k"] = 17.into()), &["centroid_intermediate_top_k"]),
        (Box::new(|c, _| c["backbone_hidden_size"] = 96.into()), &["backbone_hidden_size", "64", "96"]),
        (
            Box::new(|c, _| c["text_config"]["sliding_window"] = 32.into()),
            &["sliding_window", "needs 16,", "has 32"],
        ),
        (
            Box::new(|c, _| c["text_config"]["num_kv_shared_layers"] = 2.into()),
            &["num_kv_shared_layers", "4"],
        ),
        (
            Box::new(|c, _| c["model_type"] = "gemma9_assistant".into()),
            &["gemma9_assistant", "not a drafter"],
        ),
    ];
    for (change, words) in cases {
        let error = pair(&target(), Some(&assistant(change)), 3).err().expect("it was loaded");
        for word in words {
            assert!(error.contains(word), "no {word:?} in: {error}");
        }
    }
}

/// An assistant that takes V for the key projection belongs to another target, even where all shapes are the same.
#[test]
fn an_assistant_for_another_kind_of_values_is_refused() {
    for (name, needs, has) in [("gemma4_e", "false", "true"), ("gemma4_dense", "true", "false")] {
        let target = ModelFolder::open(&oracle(name)).unwrap();
        let of = |value_is_key: bool| {
            changed(&oracle(&format!("{name}_assistant")), |config, _| {
                let text = &mut config["text_config"];
                text["attention_k_eq_v"] = value_is_key.into();
                // As the other form of configs would have it.
                text["num_global_key_value_heads"] = 1.into();
            })
        };
        assert!(pair(&target, Some(&of(needs == "true")), 3).is_ok(), "{name}");
        let error = pair(&target, Some(&of(has == "true")), 3).err().expect("it was loaded");
        let message = format!("attention_k_eq_v: the target needs {needs}, the drafter has {has}");
        assert!(error.contains(&message), "{error}");
    }
}

/// A checkpoint may suggest more drafts than a round can have: nobody asked for that number.
#[test]
fn a_suggestion_beyond_all_rounds_is_cut() {
    let assistant = assistant(|config, _| config["block_size"] = 101.into());
    let progress = &mut |_, _| {};
    let target = target();
    let mut options = options(&target, Some(&assistant), sizes(80, 1, 64, 0), Activation::Bf16, progress);
    options.draft.as_mut().unwrap().tokens_per_round = None;
    let completion = completion(&mut load(&target, options).unwrap()).unwrap();
    // 29 tokens are left behind the first, of which the last is never drafted.
    assert_eq!(draft(&completion).accepted_by_position.len(), 28);
}

#[test]
fn a_drafter_whose_values_overflow_is_dropped_and_the_text_goes_on() {
    let plain = completion(&mut pair(&target(), None, 0).unwrap()).unwrap();
    for tensor in
        ["pre_projection.weight", "model.layers.0.mlp.down_proj.weight", "model.embed_tokens.weight"]
    {
        let drafter = assistant(|_, weights| fill(weights, tensor, LARGEST));
        let drafted = completion(&mut pair(&target(), Some(&drafter), 3).unwrap()).unwrap();
        assert_eq!(drafted.token_ids, plain.token_ids, "{tensor}");
        let reason = draft(&drafted).inactive_reason.as_deref();
        assert_eq!(reason, Some("the drafter failed: its logits were not finite"), "{tensor}");
    }
}

#[test]
fn a_target_whose_values_overflow_fails_its_request() {
    for tensor in ["model.layers.1.mlp.down_proj.weight", "model.layers.2.self_attn.v_proj.weight"] {
        let target = changed(&oracle("gemma4_e"), |_, weights| fill(weights, tensor, LARGEST));
        for k in [0, 3] {
            let drafter = assistant(|_, _| {});
            let mut engine = pair(&target, Some(&drafter), k).unwrap();
            let failed = completion(&mut engine);
            assert!(
                matches!(failed, Err(GenerateError::Failed(Failed::NotFinite { tokens: 4.. }))),
                "{tensor}: {failed:?}"
            );
            assert!(engine.is_idle());
            engine.check_integrity().unwrap();
        }
    }
    let target = changed(&oracle("gemma4_e"), |_, weights| {
        fill(weights, "model.layers.1.mlp.down_proj.weight", NAN);
    });
    let error = pair(&target, None, 0).err().expect("it was loaded");
    assert!(error.contains("down_proj.weight") && error.contains("finite"), "{error}");
}

#[test]
fn no_drafts_a_round_is_plain_decoding_and_says_so() {
    let drafter = assistant(|_, _| {});
    let plain = completion(&mut pair(&target(), None, 0).unwrap()).unwrap();
    let drafted = completion(&mut pair(&target(), Some(&drafter), 0).unwrap()).unwrap();
    assert_eq!(drafted.token_ids, plain.token_ids);
    assert_eq!(draft(&drafted).rounds, 0);
    assert_eq!(draft(&drafted).inactive_reason.as_deref(), Some("0 drafts a round were asked for"));
}
