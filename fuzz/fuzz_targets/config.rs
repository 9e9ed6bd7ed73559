//! Configs: of a model, an assistant, a DFlash drafter, and how to generate.
//!
//! ```text
//! "=" JSON       the bytes of a config
//! byte, JSON     the config with this number, changed: objects are merged, "~" takes a field away, other values stand
//!                in the place of those that were there
//! ```
//! Whatever is accepted has sizes that the engine can reckon with, or refuses.
#![no_main]

use std::path::Path;
use std::sync::OnceLock;

use libfuzzer_sys::{Corpus, fuzz_target};
use paceline::{Activation, Sizes};
use paceline_checkpoint::{GenerationConfig, ModelFolder, RawConfig};
use paceline_models::{AssistantConfig, DFlashConfig, Description, describe};
use serde_json::{Map, Value};

/// Configs to change: published sizes, wrappers, drafters, and the small models of the tests.
const CONFIGS: [&str; 16] = [
    include_str!("../../assets/shapes/gemma4-e2b.json"),
    include_str!("../../assets/shapes/gemma4-12b.json"),
    include_str!("../../assets/shapes/gemma4-26b-a4b.json"),
    include_str!("../../assets/shapes/gemma4-e2b-assistant.json"),
    include_str!("../../assets/shapes/gemma4-26b-a4b-assistant.json"),
    include_str!("../../crates/testkit/data/oracles/gemma3/config.json"),
    include_str!("../../crates/testkit/data/oracles/gemma3/config.hub_style.json"),
    include_str!("../../crates/testkit/data/oracles/gemma4_dense/config.json"),
    include_str!("../../crates/testkit/data/oracles/gemma4_e/config.json"),
    include_str!("../../crates/testkit/data/oracles/gemma4_e_wrapped/config.json"),
    include_str!("../../crates/testkit/data/oracles/gemma4_e_wrapped/config.hub_style.json"),
    include_str!("../../crates/testkit/data/oracles/gemma4_moe/config.json"),
    include_str!("../../crates/testkit/data/oracles/gemma4_e_assistant/config.json"),
    include_str!("../../crates/testkit/data/oracles/gemma4_moe_assistant/config.hub_style.json"),
    include_str!("../../crates/testkit/data/oracles/gemma4_dense_dflash/config.json"),
    include_str!("../../crates/testkit/data/oracles/gemma4_dense_dflash/config.new_style.json"),
];

fuzz_target!(|data: &[u8]| -> Corpus {
    let Some(bytes) = config(data) else { return Corpus::Reject };
    let Ok(raw) = RawConfig::parse(Path::new("config.json"), &bytes) else { return Corpus::Keep };
    if let Ok(description) = describe(&raw) {
        assert!(description.read_parameters() <= description.total_parameters(), "more is read than there is");
        for context in [1, description.max_positions] {
            let _ = Sizes::single(context).limits(&description, &[], Activation::F32);
        }
    }
    let _ = AssistantConfig::parse(&raw);
    let _ = DFlashConfig::describes(&raw);
    if let Ok(drafter) = DFlashConfig::parse(&raw) {
        let _ = drafter.fit(&raw, target());
        let _ = Sizes::single(64).limits(target(), &drafter.kv_groups(), Activation::Bf16);
    }
    let _ = GenerationConfig::read(&raw, Some(&raw));
    let files = [("config.json", b"{}".to_vec()), ("tokenizer_config.json", bytes)];
    let _ = ModelFolder::from_files("folder", files).expect("it has a config").chat_template();
    Corpus::Keep
});

fn config(data: &[u8]) -> Option<Vec<u8>> {
    let (&number, json) = data.split_first()?;
    if number == b'=' {
        return Some(json.to_vec());
    }
    static PARSED: OnceLock<Vec<Map<String, Value>>> = OnceLock::new();
    let parsed = PARSED.get_or_init(|| {
        CONFIGS.iter().map(|text| serde_json::from_str(text).expect("it is an object")).collect()
    });
    let changes: Map<String, Value> = serde_json::from_slice(json).ok()?;
    let mut config = parsed[usize::from(number) % parsed.len()].clone();
    change(&mut config, changes);
    Some(serde_json::to_vec(&config).expect("maps of text keys are JSON"))
}

fn change(config: &mut Map<String, Value>, changes: Map<String, Value>) {
    for (field, new) in changes {
        match (config.get_mut(&field), new) {
            (Some(Value::Object(inner)), Value::Object(changes)) => change(inner, changes),
            (_, Value::String(text)) if text == "~" => drop(config.shift_remove(&field)),
            (_, new) => drop(config.insert(field, new)),
        }
    }
}

/// A target for drafters to fit: the dense model of the tests.
fn target() -> &'static Description {
    static TARGET: OnceLock<Description> = OnceLock::new();
    TARGET.get_or_init(|| {
        let raw = RawConfig::parse(Path::new("target.json"), CONFIGS[7].as_bytes()).expect("it is a config");
        describe(&raw).expect("it is a target")
    })
}
