//! A chat template and a conversation, with a 0 byte between them. Without a template the built-in model's is taken, without a
//! conversation a short one.
//!
//! What a template may do is limited in steps and memory, so an input that takes long or much is a finding too.
#![no_main]

use std::path::Path;

use libfuzzer_sys::{Corpus, fuzz_target};
use paceline_checkpoint::{ChatTemplate, Conversation};
use serde_json::{Map, Value};

const TEMPLATE: &str = include_str!("../../assets/tiny-gemma4/chat_template.jinja");
const CONVERSATION: &str = r#"{"messages":[{"role":"user","content":"Hi"}],"tools":[{"type":"function"}]}"#;

fuzz_target!(|data: &[u8]| -> Corpus {
    let mut parts = data.splitn(2, |&byte| byte == 0);
    let template = parts.next().unwrap_or_default();
    let Ok(template) = str::from_utf8(template) else { return Corpus::Reject };
    let conversation = parts.next().unwrap_or(CONVERSATION.as_bytes());
    let Ok(conversation) = serde_json::from_slice(conversation) else { return Corpus::Reject };
    let source = if template.is_empty() { TEMPLATE } else { template };
    let tokens = [("bos_token".to_owned(), "<bos>".to_owned())];
    let Ok(parsed) = ChatTemplate::parse(Path::new("t.jinja"), source, &tokens) else { return Corpus::Keep };
    render(&parsed, conversation);
    Corpus::Keep
});

fn render(template: &ChatTemplate, mut variables: Map<String, Value>) {
    let messages = variables.remove("messages").unwrap_or_default();
    let tools = variables.remove("tools");
    let add_generation_prompt = variables.remove("add_generation_prompt") != Some(Value::Bool(false));
    let conversation = Conversation {
        messages: &messages,
        tools: tools.as_ref(),
        add_generation_prompt,
        variables: &variables,
        unix_seconds: 1_709_251_199,
    };
    // Whether it has a text for this conversation is its own business.
    let _ = template.render(&conversation);
}
