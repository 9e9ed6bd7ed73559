use std::path::Path;

use serde_json::{Value, json};

use super::*;

fn published() -> Value {
    json!({
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "vocab_size": 320,
        "block_size": 8, "dflash_config": {"mask_token_id": 4, "target_layer_ids": [0, 1, 3, 4]},
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "sliding_window": 16,
        "use_sliding_window": false, "rope_theta": 1e6, "rope_scaling": null, "final_logit_softcapping": 30.0,
        "num_target_layers": 6,
    })
}

fn raw(config: &Value) -> RawConfig {
    RawConfig::parse(Path::new("config.json"), config.to_string().as_bytes()).unwrap()
}

fn parse(config: &Value) -> Result<DFlashConfig, String> {
    DFlashConfig::parse(&raw(config)).map_err(|error| error.to_string())
}

fn changed(change: impl FnOnce(&mut Value)) -> Value {
    let mut config = published();
    change(&mut config);
    config
}

fn target() -> Description {
    Description {
        architecture: "a target".into(),
        n_layers: 6,
        layer_lines: vec![],
        vocab_size: 320,
        hidden_size: 64,
        max_positions: 1000,
        mask_token: None,
        parameters: vec![],
        kv_groups: vec![],
        sliding: None,
        full: None,
    }
}

fn layers(config: &Value) -> Vec<(Option<usize>, bool)> {
    parse(config).unwrap().layers.iter().map(|layer| (layer.window, layer.causal)).collect()
}

#[test]
fn both_published_layouts_give_the_same_drafter() {
    let newer = changed(|c| {
        for field in ["block_size", "num_target_layers"] {
            c["dflash_config"][field] = c[field].take();
        }
        c["rope_theta"] = Value::Null;
        c["rope_parameters"] = json!({"rope_theta": 1e6, "rope_type": "default"});
    });
    let (older, newer) = (parse(&published()).unwrap(), parse(&newer).unwrap());
    assert_eq!(older, newer);
    assert_eq!((older.block_size, older.mask_token, older.rope.theta), (8, Some(4), 1e6));
    let flat = changed(|c| {
        for field in ["mask_token_id", "target_layer_ids"] {
            c[field] = c["dflash_config"][field].take();
        }
    });
    assert_eq!(parse(&flat).unwrap(), older);
    assert!(DFlashConfig::describes(&raw(&flat)).unwrap());
    let untagged = changed(|c| c["architectures"] = json!(["Qwen3Model"]));
    assert!(DFlashConfig::describes(&raw(&untagged)).unwrap());
    assert!(!DFlashConfig::describes(&raw(&json!({"model_type": "qwen3"}))).unwrap());
}

#[test]
fn layers_with_a_window_are_causal_unless_the_config_says_otherwise() {
    let w = Some(16);
    assert_eq!(layers(&published()), [(w, true), (w, true), (None, false)]);
    let plain = changed(|c| c["layer_types"] = Value::Null);
    assert_eq!(layers(&plain), [(None, false); 3]);
    for (nested, field) in [(false, "is_causal"), (true, "causal"), (true, "dflash_query_causal")] {
        for causal in [true, false] {
            let declared = changed(|c| {
                let section = if nested { &mut c["dflash_config"] } else { c };
                section[field] = json!(causal);
            });
            assert_eq!(layers(&declared), [(w, causal), (w, causal), (None, causal)], "{field}");
        }
    }
    let swa = changed(|c| {
        c["dflash_config"]["use_swa"] = json!(true);
        c["dflash_config"]["swa_window_size"] = json!(40);
    });
    assert_eq!(layers(&swa), [(Some(40), false); 3]);
    assert_eq!(parse(&swa).unwrap().kv_groups().len(), 1);
    let groups: Vec<_> =
        parse(&published()).unwrap().kv_groups().iter().map(|g| (g.layers, g.window)).collect();
    assert_eq!(groups, [(2, w), (1, None)]);
}

#[test]
fn taps_that_are_not_named_follow_the_formula() {
    assert_eq!(default_taps(36, 5), [1, 9, 17, 25, 33]);
    assert_eq!(default_taps(64, 5), [1, 16, 31, 46, 61]);
    assert_eq!(default_taps(40, 5), [1, 10, 19, 28, 37]);
    assert_eq!(default_taps(7, 1), [3]);
    assert_eq!(default_taps(2, 2), [1, 0]);
    let unnamed = changed(|c| c["dflash_config"]["target_layer_ids"] = Value::Null);
    assert_eq!(parse(&unnamed).unwrap().fit(&raw(&unnamed), &target()).unwrap(), [1, 2, 3]);
}

#[test]
fn a_mask_that_is_not_named_is_the_targets_or_refused() {
    let with_mask = |mask_token| Description { mask_token, ..target() };
    let unnamed = changed(|c| c["dflash_config"]["mask_token_id"] = Value::Null);
    let (config, raw) = (parse(&unnamed).unwrap(), raw(&unnamed));
    assert_eq!(config.mask(&raw, Some(7)).unwrap(), 7);
    config.fit(&raw, &with_mask(Some(7))).unwrap();
    for none in [None, Some(320)] {
        let message = config.fit(&raw, &with_mask(none)).unwrap_err().to_string();
        assert!(message.contains("mask_token_id") && message.contains("expected a token id"), "{message}");
    }
    assert_eq!(parse(&published()).unwrap().mask(&raw, Some(7)).unwrap(), 4, "a named one goes first");
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    type Change = fn(&mut Value);
    let cases: [(Change, &[&str]); 19] = [
        (|c| c["block_size"] = json!(1), &["block_size` is 1", "from 2"]),
        (|c| c["block_size"] = Value::Null, &["block_size"]),
        (|c| c["dflash_config"]["mask_token_id"] = json!(320), &["mask_token_id", "below vocab_size = 320"]),
        (|c| c["dflash_config"]["target_layer_ids"] = json!([]), &["target_layer_ids", "1 to"]),
        (|c| c["dflash_config"]["target_layer_ids"] = json!([-1]), &["target_layer_ids"]),
        (|c| c["sliding_window"] = Value::Null, &["sliding_window"]),
        (|c| c["layer_types"] = json!(["full_attention"]), &["layer_types", "3 entries"]),
        (|c| c["layer_types"][0] = json!("linear_attention"), &["layer_types", "linear_attention"]),
        (|c| c["rope_scaling"] = json!({"type": "yarn", "factor": 64.0}), &["rope_scaling.type", "yarn"]),
        (|c| c["rope_parameters"] = json!({"rope_type": "yarn"}), &["rope_parameters.rope_type", "yarn"]),
        (|c| c["attention_bias"] = json!(true), &["attention_bias"]),
        (|c| c["dflash_config"]["attention_sink_bias"] = json!(true), &["attention_sink_bias"]),
        (|c| c["is_neox_style"] = json!(false), &["is_neox_style"]),
        (|c| c["hidden_act"] = json!("gelu"), &["hidden_act", "silu"]),
        (|c| c["head_dim"] = json!(20), &["head_dim", "multiple of 8"]),
        (|c| c["num_key_value_heads"] = json!(3), &["num_key_value_heads", "divisor"]),
        (|c| c["speculators_model_type"] = json!("dflash"), &["speculators layout", "not supported"]),
        (|c| c["dflash_config"]["sample_from_anchor"] = json!(true), &["DSpark", "not supported"]),
        (|c| c["conv_kernel_size"] = json!(2), &["DFlash 2", "not supported"]),
    ];
    for (change, words) in cases {
        let message = parse(&changed(change)).unwrap_err();
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
}

#[test]
fn a_drafter_of_another_target_is_refused_before_anything_is_loaded() {
    let (config, raw) = (parse(&published()).unwrap(), raw(&published()));
    assert_eq!(config.fit(&raw, &target()).unwrap(), [0, 1, 3, 4]);
    for (other, field) in [
        (Description { hidden_size: 128, ..target() }, "hidden_size"),
        (Description { vocab_size: 321, ..target() }, "vocab_size"),
        (Description { n_layers: 7, ..target() }, "num_target_layers"),
    ] {
        let message = config.fit(&raw, &other).unwrap_err().to_string();
        assert!(
            message.contains("does not fit the target (a target)") && message.contains(field),
            "{message}"
        );
    }
    let deep = changed(|c| c["dflash_config"]["target_layer_ids"] = json!([1, 6]));
    let message = parse(&deep).unwrap().fit(&raw, &target()).unwrap_err().to_string();
    assert!(message.contains("target_layer_ids") && message.contains("layers below 6"), "{message}");
}
