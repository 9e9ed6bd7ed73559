//! The built-in model's folder, against texts and tokens recorded with the reference implementation.

use std::path::{Path, PathBuf};

use paceline_checkpoint::{Conversation, ModelFolder, SpecialTokens};
use serde_json::{Map, Value};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn recorded() -> Vec<Value> {
    let text = std::fs::read(repository().join("crates/testkit/data/expected.json")).unwrap();
    let recorded: Value = serde_json::from_slice(&text).unwrap();
    recorded["prompts"].as_array().unwrap().clone()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn prompts_and_texts_are_the_recorded_ones() {
    let folder = ModelFolder::open(&repository().join("assets/tiny-gemma4")).unwrap();
    let tokenizer = folder.tokenizer().unwrap().unwrap();
    tokenizer.check_vocabulary(4096).unwrap();
    let end_token_ids = folder.generation().unwrap().end_token_ids;
    let template = folder.chat_template().unwrap().unwrap();
    let mut n_compared = 0;
    for case in recorded() {
        let (Some(prompt), Some(text)) = (case["prompt"].as_str(), case["text"].as_str()) else { continue };
        assert_eq!(tokenizer.encode(prompt).unwrap(), ids(&case["prompt_ids"]), "{}", case["name"]);
        let output = ids(&case["greedy_f32"]);
        let output = output.strip_suffix(&end_token_ids[1..]).unwrap_or(&output);
        assert_eq!(tokenizer.decode(output, SpecialTokens::Skip), text, "{}", case["name"]);
        if case["messages"].is_array() {
            let rendered = template.render(&Conversation {
                messages: &case["messages"],
                tools: None,
                add_generation_prompt: true,
                variables: &Map::new(),
                unix_seconds: 0,
            });
            assert_eq!(rendered.unwrap(), prompt, "{}", case["name"]);
        }
        n_compared += 1;
    }
    assert!(n_compared >= 10, "{n_compared}");
}
