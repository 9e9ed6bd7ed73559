//! The conversation of a chat request: what is checked here, the chat template does not have to survive.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::{Fields, describe};
use crate::model::Chat;

/// Takes the conversation and how it is to be rendered.
pub(crate) fn take(fields: &mut Fields) -> Result<Chat, ApiError> {
    let mut messages = match fields.value("messages") {
        Some(Value::Array(messages)) if !messages.is_empty() => messages,
        Some(other) => {
            let problem = format!("is {}; expected a list with at least one message", describe(&other));
            return Err(fields.error("messages", problem));
        }
        None => return Err(fields.error("messages", "is missing; expected a list of messages")),
    };
    for (index, message) in messages.iter_mut().enumerate() {
        check(message).map_err(|(at, problem)| ApiError::field(format!("messages[{index}]{at}"), problem))?;
    }
    let (add_generation_prompt, variables) = take_rendering(fields)?;
    Ok(Chat { messages: Value::Array(messages), add_generation_prompt, variables })
}

/// Takes how a conversation is to be rendered: whether an answer begins at its end, and variables for the template.
pub(crate) fn take_rendering(fields: &mut Fields) -> Result<(bool, Map<String, Value>), ApiError> {
    let add_generation_prompt = fields.flag("add_generation_prompt")?.unwrap_or(true);
    Ok((add_generation_prompt, fields.map("chat_template_kwargs")?.unwrap_or_default()))
}

/// Where in a message something is wrong, and what.
type Problem = (String, String);

/// Checks a message, and brings it into the form that templates know.
fn check(message: &mut Value) -> Result<(), Problem> {
    let found = describe(message);
    let Value::Object(fields) = message else {
        return Err((String::new(), format!("is {found}; expected an object with role and content")));
    };
    // What is null is left out, so that a template which asks whether it is there sees it right.
    fields.retain(|name, value| !value.is_null() || name == "content");
    match fields.get("role") {
        Some(Value::String(role)) => match role.as_str() {
            "system" | "user" | "assistant" => {}
            // OpenAI's newer name for the same.
            "developer" => drop(fields.insert("role".to_owned(), "system".into())),
            "tool" | "function" => return Err(unsupported("role", "tools are")),
            other => {
                let other = describe(&other.into());
                let problem = format!("is {other}; expected system, developer, user or assistant");
                return Err((".role".to_owned(), problem));
            }
        },
        Some(other) => {
            return Err((".role".to_owned(), format!("is {}; expected a string", describe(other))));
        }
        None => return Err((".role".to_owned(), "is missing".to_owned())),
    }
    if let Some(other) = fields.get("name").filter(|name| !name.is_string()) {
        return Err((".name".to_owned(), format!("is {}; expected a string", describe(other))));
    }
    for name in ["tool_calls", "function_call"] {
        let empty = fields.get(name).is_none_or(|calls| calls.as_array().is_some_and(Vec::is_empty));
        if !empty {
            return Err(unsupported(name, "tools are"));
        }
    }
    match fields.get("content") {
        Some(Value::String(_)) => Ok(()),
        Some(Value::Array(parts)) => parts.iter().enumerate().try_for_each(|(at, part)| check_part(at, part)),
        None | Some(Value::Null) => {
            Err((".content".to_owned(), "is missing; expected a string or a list of text parts".to_owned()))
        }
        Some(other) => {
            let problem = format!("is {}; expected a string or a list of text parts", describe(other));
            Err((".content".to_owned(), problem))
        }
    }
}

fn check_part(at: usize, part: &Value) -> Result<(), Problem> {
    let path = format!("content[{at}]");
    let Some(kind) = part.get("type").and_then(Value::as_str) else {
        return Err((format!(".{path}"), "expected an object with type and text".to_owned()));
    };
    match (kind, part.get("text")) {
        ("text", Some(Value::String(_))) => Ok(()),
        ("text", _) => Err((format!(".{path}.text"), "expected a string".to_owned())),
        ("image_url" | "image", _) => Err(unsupported(&path, "images are")),
        ("input_audio" | "audio_url" | "audio", _) => Err(unsupported(&path, "sounds are")),
        ("video_url" | "video", _) => Err(unsupported(&path, "videos are")),
        ("file", _) => Err(unsupported(&path, "files are")),
        (other, _) => {
            Err((format!(".{path}.type"), format!("is {}; expected text", describe(&other.into()))))
        }
    }
}

fn unsupported(at: &str, what: &str) -> Problem {
    (format!(".{at}"), format!("{what} not supported by this server"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(messages: &str) -> Result<Chat, ApiError> {
        let body = format!(r#"{{"messages": {messages}}}"#);
        take(&mut Fields::parse(body.as_bytes()).unwrap())
    }

    #[test]
    fn messages_come_in_the_form_that_templates_know() {
        let chat = taken(
            r#"[{"role": "developer", "content": "a", "name": null}, {"role": "user", "content": [{"type": "text", "text": "b"}]},
                {"role": "assistant", "content": "", "tool_calls": [], "refusal": null}]"#,
        )
        .unwrap();
        assert_eq!(chat.messages[0], serde_json::json!({"role": "system", "content": "a"}));
        assert_eq!(chat.messages[1]["content"][0]["text"], "b");
        assert_eq!(chat.messages[2].as_object().unwrap().len(), 3);
        assert!(chat.add_generation_prompt && chat.variables.is_empty());
    }

    #[test]
    fn what_is_wrong_is_named_where_it_stands() {
        for (messages, name) in [
            ("[]", "messages"),
            ("\"x\"", "messages"),
            ("null", "messages"),
            ("[5]", "messages[0]"),
            (r#"[{"content": "a"}]"#, "messages[0].role"),
            (r#"[{"role": "user", "content": "a"}, {"role": "king", "content": "a"}]"#, "messages[1].role"),
            (r#"[{"role": 1, "content": "a"}]"#, "messages[0].role"),
            (r#"[{"role": "tool", "content": "a"}]"#, "messages[0].role"),
            (r#"[{"role": "user", "content": "a", "name": {}}]"#, "messages[0].name"),
            (r#"[{"role": "user"}]"#, "messages[0].content"),
            (r#"[{"role": "user", "content": 5}]"#, "messages[0].content"),
            (r#"[{"role": "user", "content": [5]}]"#, "messages[0].content[0]"),
            (r#"[{"role": "user", "content": [{"type": "text"}]}]"#, "messages[0].content[0].text"),
            (
                r#"[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]"#,
                "messages[0].content[0]",
            ),
            (r#"[{"role": "user", "content": [{"type": "input_audio"}]}]"#, "messages[0].content[0]"),
            (r#"[{"role": "user", "content": [{"type": "x"}]}]"#, "messages[0].content[0].type"),
            (r#"[{"role": "assistant", "content": "", "tool_calls": [{}]}]"#, "messages[0].tool_calls"),
        ] {
            let error = taken(messages).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(name), "{messages}: {error}");
        }
    }
}
