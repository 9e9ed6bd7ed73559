//! Requests that no client should send. None of them may be answered with a 500, crash, or hang.

use std::io::Write;

use serde_json::{Value, json};

use crate::client::{JSON, Open, get, post, post_bytes};
use crate::setup::{Dice, Running, Setup, shared, user};

const PATHS: [&str; 4] = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"];

/// What every field is tried with.
fn odd_values() -> Vec<Value> {
    vec![
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(1),
        json!(2.5),
        json!(1e300),
        json!(-1e-300),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(""),
        json!("x"),
        json!("\u{0}\u{fffd}😀"),
        json!("a".repeat(5000)),
        json!([]),
        json!([null]),
        json!([[]]),
        json!([[[1]]]),
        json!([0, 1, 2]),
        json!([4_294_967_296_u64]),
        json!({}),
        json!({"type": "json_object"}),
        json!({"role": "user"}),
        json!({"0": 1e9, "1": -1e9}),
        json!({"999999999": 1}),
        json!([{"role": "user", "content": "{{ messages }}{% for %}<bos><|turn>"}]),
    ]
}

fn fields(document: &Value, path: &str) -> Vec<String> {
    let name =
        document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            .as_str();
    let schema = document.pointer(name.unwrap().trim_start_matches('#')).unwrap();
    schema["properties"].as_object().unwrap().keys().cloned().collect()
}

fn decent(path: &str) -> Value {
    match path {
        "/v1/chat/completions" => json!({"messages": user("Hi"), "max_tokens": 2}),
        "/v1/completions" => json!({"prompt": "Hi", "max_tokens": 2}),
        "/tokenize" => json!({"prompt": "Hi"}),
        _ => json!({"tokens": [2]}),
    }
}

/// Fine, or an error of the client's that says so in the shape that clients read.
fn is_civil(answer: &crate::client::Answer, what: &str) {
    let civil = answer.status == 200 || (400..500).contains(&answer.status);
    assert!(civil, "{what}: {} {}", answer.status, answer.text());
    if answer.status != 200 {
        answer.error(answer.status);
    }
}

fn is_unharmed(server: &Running, before: &paceline::EngineStatus) {
    server.settles(before);
    get(server.address, "/health").ok();
    let text =
        server.chat(&json!({"messages": user("What is the capital of France?"), "temperature": 0})).ok();
    assert!(text["choices"][0]["message"]["content"].as_str().unwrap().contains("Paris"));
}

#[test]
fn every_field_bears_every_value() {
    // Little context, so that what is fine ends soon.
    let server = Setup { context: 64, ..Setup::default() }.start();
    let before = server.status();
    let document = get(server.address, "/openapi.json").ok();
    let mut statuses = [0; 2];
    for path in PATHS {
        for field in fields(&document, path) {
            for value in odd_values() {
                let mut body = decent(path);
                body[&field] = value;
                let answer = post(server.address, path, &body);
                is_civil(&answer, &format!("{path} {body}"));
                if answer.status == 400 {
                    let param = answer.json()["error"]["param"].clone();
                    let param = param.as_str().unwrap_or_else(|| panic!("no field is named: {body}"));
                    let related = param.starts_with(field.as_str())
                        || [
                            "n",
                            "prompt",
                            "messages",
                            "max_tokens",
                            "min_tokens",
                            "stop",
                            "top_logprobs",
                            "allowed_token_ids",
                            "logprobs",
                        ]
                        .contains(&param);
                    assert!(related, "{path}: {param} is named, and {field} is odd");
                }
                statuses[usize::from(answer.status != 200)] += 1;
            }
        }
    }
    assert!(statuses.iter().all(|&count| count > 300), "{statuses:?}");
    is_unharmed(&server, &before);
}

#[test]
fn what_the_engine_refuses_is_said_of_the_field_once() {
    for (field, value, expected) in [
        (
            "allowed_token_ids",
            json!([5, 99_999]),
            "allowed_token_ids: has token 99999, which is not in the vocabulary; expected ids below 4096",
        ),
        (
            "logit_bias",
            json!({"99999": 1}),
            "logit_bias: has token 99999, which is not in the vocabulary; expected ids below 4096",
        ),
        ("temperature", json!(-1), "temperature: is -1; expected 0, or 0.000001 to 1000000"),
        ("min_tokens", json!(5), "min_tokens: is 5; expected at most the 2 tokens allowed"),
        ("draft", json!({"confidence": 1}), "draft.confidence: is 1; expected at least 0 and below 1"),
        (
            "allowed_token_ids",
            json!([]),
            "allowed_token_ids: no token could be chosen: every allowed token is suppressed, or is an end token that \
             min_tokens holds back; allow more",
        ),
    ] {
        let mut body = decent(PATHS[0]);
        body[field] = value;
        let error = shared().chat(&body).error(400);
        assert_eq!(error["message"], expected);
        assert!(error["param"].as_str().unwrap().starts_with(field), "{error}");
    }
}

#[test]
fn random_pairs_of_fields_and_cut_bodies() {
    let server = Setup { context: 64, ..Setup::default() }.start();
    let before = server.status();
    let document = get(server.address, "/openapi.json").ok();
    let values = odd_values();
    let mut dice = Dice::new(7);
    for _ in 0..1500 {
        let path = *dice.one_of(&PATHS);
        let names = fields(&document, path);
        let mut body = decent(path);
        for _ in 0..2 {
            body[dice.one_of(&names)] = dice.one_of(&values).clone();
        }
        let mut bytes = body.to_string().into_bytes();
        match dice.below(4) {
            0 => bytes.truncate(dice.below(bytes.len() as u64) as usize),
            1 => {
                let at = dice.below(bytes.len() as u64) as usize;
                bytes[at] = dice.below(256) as u8;
            }
            _ => {}
        }
        is_civil(&post_bytes(server.address, path, &bytes), &String::from_utf8_lossy(&bytes));
    }
    is_unharmed(&server, &before);
}

#[test]
fn bodies_that_are_no_json() {
    let server = Setup::default().start();
    let before = server.status();
    let deep = "[".repeat(100_000);
    let nested = "{\"a\":".repeat(5_000);
    let in_field = format!("{{\"metadata\": {}}}", "[".repeat(200) + &"]".repeat(200));
    for body in [
        &b""[..],
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"{\"prompt\": \"\xff\"}",
        b"{\"prompt\": \"\\ud800\"}",
        b"{\"prompt\": 1e999}",
        b"{} {}",
        deep.as_bytes(),
        nested.as_bytes(),
        in_field.as_bytes(),
    ] {
        for path in PATHS {
            post_bytes(server.address, path, body).error(400);
        }
    }
    is_unharmed(&server, &before);
}

#[test]
fn what_is_hardly_http() {
    let server = Setup::default().start();
    let before = server.status();
    let chat = json!({"messages": user("Hi"), "max_tokens": 2}).to_string();
    let twice = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{JSON}content-length: 3\r\ncontent-length: 4\r\n\r\n{{}}"
    );
    let short =
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{JSON}content-length: 999\r\n\r\n{{");
    for bytes in [
        &b"\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        b"GET /%ff%00/../../etc/passwd HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        b"BREW /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-type: application/json\r\n\r\nzz\r\n",
        twice.as_bytes(),
        short.as_bytes(),
    ] {
        let open = Open::raw(server.address, bytes);
        // The other half stays open: whoever sent half a request may still read.
        open.end_request();
        if let Some(answer) = open.answer() {
            assert!((400..500).contains(&answer.status), "{answer:?}");
        }
    }
    // A whole request, and then no more from this side: it may be answered or dropped, and nothing is left of it.
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{JSON}content-length: {}\r\n\r\n{chat}",
        chat.len()
    );
    let open = Open::raw(server.address, request.as_bytes());
    open.end_request();
    if let Some(answer) = open.answer() {
        answer.ok();
    }
    is_unharmed(&server, &before);
}

#[test]
fn bodies_that_come_in_drops_or_never_end() {
    let mut setup = Setup::default();
    setup.settings.body_bytes = 20_000;
    let server = setup.start();
    let before = server.status();
    let chat = json!({"messages": user("Hi"), "max_tokens": 2}).to_string();
    let head = |length: &str| {
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{JSON}{length}\r\n\r\n"
        )
    };
    // Byte by byte, whole and in parts of one byte.
    let whole = head(&format!("content-length: {}", chat.len())) + &chat;
    let parts: String = chat.chars().map(|byte| format!("1\r\n{byte}\r\n")).collect();
    let parts = head("transfer-encoding: chunked") + &parts + "0\r\n\r\n";
    for request in [whole, parts] {
        let mut open = Open::raw(server.address, b"");
        open.stream.set_nodelay(true).unwrap();
        request.as_bytes().iter().for_each(|byte| open.stream.write_all(&[*byte]).unwrap());
        open.answer().unwrap().ok();
    }
    // Too long by what they say, of which nothing comes.
    for length in ["content-length: 20001", "content-length: 9223372036854775807"] {
        Open::raw(server.address, head(length).as_bytes()).answer().unwrap().error(413);
    }
    // By what comes: the server answers or closes as soon as it has heard enough, and the client can write no more.
    let mut endless = Open::raw(server.address, head("transfer-encoding: chunked").as_bytes());
    let part = "4000\r\n".to_owned() + &"a".repeat(0x4000) + "\r\n";
    let n_parts = (0..10_000).take_while(|_| endless.stream.write_all(part.as_bytes()).is_ok()).count();
    assert!(n_parts < 10_000, "160 MB were taken");
    // Lengths that are none.
    for length in [
        "content-length: 99999999999999999999",
        "content-length: -1",
        "content-length: 0x10",
        "transfer-encoding: chunked\r\ncontent-length: 3",
        "transfer-encoding: gzip",
    ] {
        let open = Open::raw(server.address, (head(length) + "{}").as_bytes());
        open.end_request();
        if let Some(answer) = open.answer() {
            assert!((400..500).contains(&answer.status), "{length}: {answer:?}");
        }
    }
    let huge_part = head("transfer-encoding: chunked") + "ffffffffffffffff\r\n{}";
    let open = Open::raw(server.address, huge_part.as_bytes());
    open.end_request();
    if let Some(answer) = open.answer() {
        assert!((400..500).contains(&answer.status), "{answer:?}");
    }
    is_unharmed(&server, &before);
}

#[test]
fn text_that_is_not_utf8_is_the_clients_error() {
    let server = Setup::default().start();
    let before = server.status();
    for bad in [&b"\xff"[..], b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xc0\xaf"] {
        for (path, start, end) in [
            ("/v1/chat/completions", r#"{"messages": [{"role": "user", "content": ""#, r#""}]}"#),
            (
                "/v1/chat/completions",
                r#"{"messages": [{"role": "user", "content": "Hi"}], "stop": ""#,
                r#""}"#,
            ),
            ("/v1/completions", r#"{"prompt": ""#, r#""}"#),
            ("/v1/completions", r#"{"prompt": "Hi", ""#, r#"": 1}"#),
            ("/tokenize", r#"{"prompt": ""#, r#""}"#),
        ] {
            let body = [start.as_bytes(), bad, end.as_bytes()].concat();
            post_bytes(server.address, path, &body).error(400);
        }
    }
    is_unharmed(&server, &before);
}
