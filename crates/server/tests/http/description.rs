//! Real answers beside the published description.

use serde_json::{Value, json};

use crate::client::{get, post};
use crate::setup::{shared, user};

/// Whether a value is as a schema says, in the keywords that the description uses. An error says where it is not.
fn check(document: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    if let Some(name) = schema["$ref"].as_str() {
        let target = document.pointer(name.trim_start_matches('#')).ok_or_else(|| format!("no {name}"))?;
        return check(document, target, value, at);
    }
    if let Some(any) = schema["anyOf"].as_array()
        && any.iter().all(|option| check(document, option, value, at).is_err())
    {
        return Err(format!("{at}: {value} is none of {any:?}"));
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => vec![],
    };
    let is = |kind: &&str| match *kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    };
    if !kinds.is_empty() && !kinds.iter().any(is) {
        return Err(format!("{at}: {value} is no {kinds:?}"));
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        return Err(format!("{at}: {value} is not one of {words:?}"));
    }
    if let Some(object) = value.as_object() {
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        if let Some(name) = required.into_iter().find(|name| !object.contains_key(*name)) {
            return Err(format!("{at}: {name} is missing in {value}"));
        }
        for (name, item) in object {
            let at = format!("{at}.{name}");
            match (schema["properties"].get(name), &schema["additionalProperties"]) {
                (Some(inner), _) => check(document, inner, item, &at)?,
                (None, Value::Bool(false)) => return Err(format!("{at} is not described")),
                (None, more) => check(document, more, item, &at)?,
            }
        }
    }
    let mut items = value.as_array().into_iter().flatten().enumerate();
    items.try_for_each(|(index, item)| check(document, &schema["items"], item, &format!("{at}[{index}]")))
}

fn schema<'a>(document: &'a Value, method: &str, path: &str, status: u16, kind: &str) -> &'a Value {
    let schema = &document["paths"][path][method]["responses"][status.to_string()]["content"][kind]["schema"];
    assert!(schema.is_object(), "{method} {path} has no {status} in {kind}");
    schema
}

#[test]
fn answers_are_as_they_are_described() {
    let server = shared();
    let document = get(server.address, "/openapi.json").ok();
    let json_kind = "application/json";
    for path in ["/health", "/ready", "/v1/models"] {
        let answer = get(server.address, path).ok();
        check(&document, schema(&document, "get", path, 200, json_kind), &answer, path).unwrap();
    }
    let answer = get(server.address, "/v1/models/tiny-gemma4").ok();
    check(&document, schema(&document, "get", "/v1/models/{model}", 200, json_kind), &answer, "model")
        .unwrap();
    let chat = "/v1/chat/completions";
    let completions = "/v1/completions";
    for (path, body) in [
        (chat, json!({"messages": user("Hi"), "max_tokens": 5})),
        (
            chat,
            json!({"messages": user("Hi"), "max_tokens": 9, "n": 2, "logprobs": true, "top_logprobs": 2, "return_token_ids": true,
                      "stop": "e", "draft": {"enabled": false}, "stream_options": null}),
        ),
        (completions, json!({"prompt": "a", "max_tokens": 5})),
        (
            completions,
            json!({"prompt": ["a", "b"], "max_tokens": 5, "n": 2, "logprobs": 2, "echo": true, "return_token_ids": true, "stop": "e"}),
        ),
        ("/tokenize", json!({"prompt": "a", "return_token_strs": true})),
        ("/detokenize", json!({"tokens": [2, 300]})),
    ] {
        check(
            &document,
            schema(&document, "post", path, 200, json_kind),
            &post(server.address, path, &body).ok(),
            path,
        )
        .unwrap();
        if path.starts_with("/v1") {
            let mut body = body;
            body["stream"] = json!(true);
            body["stream_options"] = json!({"include_usage": true});
            let event = schema(&document, "post", path, 200, "text/event-stream")["$ref"].as_str().unwrap();
            let event = document.pointer(event.trim_start_matches('#')).unwrap();
            let data = event["properties"]["data"]["anyOf"].as_array().unwrap();
            assert_eq!(data[0]["enum"], json!(["[DONE]"]));
            let chunk = &data[1]["contentSchema"]["anyOf"][0];
            assert!(chunk["$ref"].is_string(), "{event}");
            for got in post(server.address, path, &body).chunks() {
                check(&document, chunk, &got, path).unwrap();
            }
        }
    }
    let wrong = post(server.address, chat, &json!({"messages": []}));
    check(&document, schema(&document, "post", chat, 400, json_kind), &wrong.json(), "error").unwrap();
}

#[test]
fn the_checker_sees_what_is_wrong() {
    let document = get(shared().address, "/openapi.json").ok();
    let usage = json!({"$ref": "#/components/schemas/Usage"});
    let fits = |value: Value| check(&document, &usage, &value, "usage").is_ok();
    assert!(fits(json!({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3})));
    assert!(!fits(json!({"prompt_tokens": 1, "completion_tokens": 2})));
    assert!(!fits(json!({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": "3"})));
    assert!(!fits(json!({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "more": 4})));
}

#[test]
fn what_a_request_may_say_of_drafts_is_described() {
    let server = shared();
    let document = get(server.address, "/openapi.json").ok();
    let draft = json!({"enabled": true, "max_tokens": 2, "confidence": 0.05});
    let bodies = [
        ("/v1/chat/completions", json!({"messages": user("Hi"), "max_tokens": 2, "draft": draft})),
        ("/v1/completions", json!({"prompt": "Hi", "max_tokens": 2, "draft": draft})),
    ];
    for (path, body) in bodies {
        let schema = &document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
        assert!(schema.is_object(), "{path}");
        check(&document, schema, &body, path).unwrap();
        post(server.address, path, &body).ok();
    }
}
