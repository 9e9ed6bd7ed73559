//! Habits of HTTP and of clients that are unusual and allowed.

use serde_json::{Value, json};

use crate::client::{JSON, Open, get};
use crate::setup::{shared, user};

const CHAT: &str = "/v1/chat/completions";

/// A request for two tokens, with more headers.
fn chat(version: &str, headers: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let length = body.len();
    format!("POST {CHAT} HTTP/{version}\r\nhost: x\r\n{JSON}content-length: {length}\r\n{headers}\r\n{body}")
        .into_bytes()
}

fn two_tokens() -> Value {
    json!({"messages": user("Hi"), "max_tokens": 2, "temperature": 0})
}

fn raw(bytes: &[u8]) -> String {
    let mut open = Open::raw(shared().address, bytes);
    String::from_utf8(open.read_some(usize::MAX)).unwrap()
}

#[test]
fn null_is_a_field_that_is_left_out() {
    let document = get(shared().address, "/openapi.json").ok();
    let nulls = |schema: &str, mut body: Value| {
        let properties = document["components"]["schemas"][schema]["properties"].as_object().unwrap();
        for name in properties.keys() {
            if body[name].is_null() {
                body[name] = Value::Null;
            }
        }
        body
    };
    let message = json!([{"role": "user", "content": "Hi", "name": null, "tool_calls": null, "function_call": null, "refusal": null}]);
    let plain = shared().chat(&two_tokens()).ok();
    let body = nulls("ChatRequest", json!({"messages": message, "max_tokens": 2, "temperature": 0}));
    assert!(body.as_object().unwrap().len() > 40);
    assert_eq!(shared().chat(&body).ok()["choices"], plain["choices"]);
    let plain = json!({"prompt": "Hi", "temperature": 0});
    let plain = shared().complete(&plain).ok();
    let body = nulls("CompletionRequest", json!({"prompt": "Hi", "temperature": 0}));
    assert_eq!(shared().complete(&body).ok()["choices"], plain["choices"]);
}

#[test]
fn whole_numbers_may_have_a_point() {
    let body = json!({"prompt": [2.0, 300.0], "max_tokens": 2.0, "n": 1.0, "top_k": 3.0, "seed": 4.0, "logprobs": 1.0, "temperature": 1});
    let pointed = shared().complete(&body).ok();
    let body = json!({"prompt": [2, 300], "max_tokens": 2, "n": 1, "top_k": 3, "seed": 4, "logprobs": 1, "temperature": 1.0});
    let plain = shared().complete(&body).ok();
    assert_eq!((&pointed["choices"], &pointed["seed"]), (&plain["choices"], &json!(4)));
}

#[test]
fn a_client_may_wait_for_leave_to_send() {
    let answer = raw(&chat("1.1", "connection: close\r\nexpect: 100-continue\r\n", &two_tokens()));
    assert!(answer.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK"), "{answer}");
    // Not for a body that is not wanted.
    let large = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\n{JSON}content-length: 99999999\r\nexpect: 100-continue\r\n\r\n"
    );
    let answer = raw(large.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[test]
fn old_clients_get_streams_without_parts() {
    let mut body = two_tokens();
    let whole = raw(&chat("1.0", "", &body));
    assert!(whole.starts_with("HTTP/1.0 200 OK") && whole.ends_with('}'), "{whole}");
    body["stream"] = json!(true);
    let streamed = raw(&chat("1.0", "", &body));
    assert!(streamed.ends_with("data: [DONE]\n\n") && !streamed.contains("transfer-encoding"), "{streamed}");
    // For proxies that would wait for more.
    assert!(streamed.contains("x-accel-buffering: no\r\n"), "{streamed}");
}

#[test]
fn requests_may_come_before_their_turn() {
    let one = chat("1.1", "", &two_tokens());
    let last = chat("1.1", "connection: close\r\n", &two_tokens());
    let health = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n".to_vec();
    let answers = raw(&[one, health, last].concat());
    let parts: Vec<_> = answers.split("HTTP/1.1 200 OK").collect();
    assert_eq!(parts.len(), 4, "{answers}");
    for (part, has) in parts[1..].iter().zip(["\"choices\"", "\"status\"", "\"choices\""]) {
        assert!(part.contains(has), "{answers}");
    }
}

#[test]
fn other_methods_say_which_there_are() {
    let ask = |method: &str, path: &str| {
        raw(format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes())
    };
    let head = ask("HEAD", "/health");
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
    // A browser asks first whether a page of elsewhere may ask; it may not.
    let preflight = ask("OPTIONS", CHAT);
    assert!(preflight.starts_with("HTTP/1.1 405") && preflight.contains("allow: POST\r\n"), "{preflight}");
    assert!(!preflight.contains("access-control"), "{preflight}");
}
