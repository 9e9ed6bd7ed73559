//! What went wrong in servers of this kind, each as a test.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{JSON, Open, post};
use crate::gate::held;
use crate::setup::{Running, Setup, shared, user, wait_until};

const STORY: &str = "Tell me a short story about a fox.";

fn stream(server: &Running, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    server.chat(&body).chunks()
}

fn content(chunks: &[Value]) -> String {
    let part =
        |chunk: &Value| chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned();
    chunks.iter().map(part).collect()
}

#[test]
fn a_disconnect_gives_slot_and_blocks_back() {
    let server = Setup { slots: 2, held: Some(held!()), ..Setup::default() }.start();
    let before = server.status();
    let ask = |i| {
        let body =
            json!({"messages": user(STORY), "max_tokens": 400, "stream": i % 2 == 0, "ignore_eos": true});
        Open::request(server.address, "POST", "/v1/chat/completions", JSON, body.to_string().as_bytes())
    };
    let open: Vec<_> = (0..12).map(ask).collect();
    wait_until("all have begun", || server.taken(), |taken| *taken == 12.0);
    drop(open);
    wait_until("all are given up", || server.taken(), |taken| *taken == 0.0);
    server.gate().open();
    server.chat(&json!({"messages": user("Hi"), "max_tokens": 2})).ok();
    server.settles(&before);
    assert!(server.metric("vllm:generation_tokens_total") < 12.0 * 400.0, "they ran to their ends");
}

#[test]
fn the_usage_chunk_comes_once_and_after_the_last_text() {
    let body = json!({"messages": user(STORY), "temperature": 0, "max_tokens": 30, "stream_options": {"include_usage": true}});
    let chunks = stream(shared(), &body);
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 30);
    for chunk in others {
        assert_eq!(chunk["choices"].as_array().unwrap().len(), 1);
        assert!(chunk["usage"].is_null() && chunk.as_object().unwrap().contains_key("usage"));
    }
    // Not asked for, it is not there.
    let body = json!({"messages": user(STORY), "temperature": 0, "max_tokens": 30});
    let without = stream(shared(), &body);
    assert!(without.iter().all(|chunk| chunk.get("usage").is_none()));
    assert_eq!(content(&without), content(&chunks));
}

#[test]
fn done_follows_an_error() {
    let mut setup = Setup { held: Some(held!()), ..Setup::default() };
    setup.settings.answer_time = Some(Duration::from_millis(30));
    let server = setup.start();
    let before = server.status();
    let body = json!({"messages": user(STORY), "max_tokens": 480, "ignore_eos": true, "n": 4});
    let chunks = stream(&server, &body);
    assert_eq!(chunks.last().unwrap()["error"]["code"], "timeout");
    server.chat(&body).error(504);
    server.gate().open();
    server.settles(&before);
}

#[test]
fn finish_reason_is_null_or_a_word() {
    for max_tokens in [5, 200] {
        let body = json!({"messages": user("What is the capital of France?"), "temperature": 0, "max_tokens": max_tokens});
        let chunks = stream(shared(), &body);
        let reasons: Vec<_> = chunks.iter().map(|chunk| &chunk["choices"][0]["finish_reason"]).collect();
        let (last, others) = reasons.split_last().unwrap();
        assert_eq!(**last, json!(if max_tokens == 5 { "length" } else { "stop" }));
        assert!(others.iter().all(|reason| reason.is_null()));
    }
}

/// The ids of the four bytes of an emoji.
fn emoji(server: &Running) -> Vec<u64> {
    let tokens =
        post(server.address, "/tokenize", &json!({"prompt": "😀", "add_special_tokens": false})).ok();
    let ids: Vec<_> = tokens["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    assert_eq!(ids.len(), 4, "the tiny tokenizer has no token for it");
    ids
}

/// A request whose tokens are these, in this order: each is more wanted than the next, until it was there once.
fn forced(server: &Running, ids: &[u64]) -> Value {
    let bias = ids.iter().enumerate().map(|(place, id)| (id.to_string(), json!(-1000.0 * place as f64)));
    let bias: serde_json::Map<_, _> = bias.collect();
    let prompt = post(server.address, "/tokenize", &json!({"prompt": "Hi"})).ok()["tokens"].clone();
    json!({"prompt": prompt, "temperature": 0, "max_tokens": ids.len(), "logit_bias": bias, "allowed_token_ids": ids,
           "presence_penalty": 1e6, "return_token_ids": true})
}

#[test]
fn characters_of_several_tokens_are_never_cut() {
    let server = shared();
    let bytes = emoji(server);
    let letters =
        post(server.address, "/tokenize", &json!({"prompt": "ok", "add_special_tokens": false})).ok();
    let letter = letters["tokens"][0].as_u64().unwrap();
    let mut ids = vec![letter];
    ids.extend(&bytes);
    for (ids, text) in [(ids.clone(), "😀"), (ids[..4].to_vec(), "\u{fffd}\u{fffd}\u{fffd}")] {
        // With no, one and four drafts a round the bytes come one by one, in pairs, and at once.
        for drafts in [0, 1, 4] {
            let mut body = forced(server, &ids);
            body["draft"] = json!({"max_tokens": drafts});
            let whole = server.complete(&body).ok();
            assert_eq!(whole["choices"][0]["token_ids"], json!(ids));
            let expected = whole["choices"][0]["text"].as_str().unwrap().to_owned();
            assert!(expected.ends_with(text), "{expected}");
            body["stream"] = json!(true);
            let chunks = server.complete(&body).chunks();
            let parts: Vec<_> =
                chunks.iter().map(|chunk| chunk["choices"][0]["text"].as_str().unwrap()).collect();
            assert_eq!(parts.concat(), expected);
            assert_eq!(parts.iter().filter(|part| part.contains(text)).count(), 1, "{parts:?}");
        }
    }
}

#[test]
fn a_stop_string_leaks_no_beginning() {
    let whole = json!({"messages": user(STORY), "temperature": 0, "max_tokens": 60});
    let text = shared().chat(&whole).ok()["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    // A stop in the middle of words, across tokens; and one that only begins to come up.
    let words: Vec<_> = text.split(' ').collect();
    let stop = format!("{} {}", &words[3][1..], &words[4][..1]);
    let end = text.find(&stop).unwrap();
    let never = format!("{} {}~", words[1], words[2]);
    let body = json!({"messages": user(STORY), "temperature": 0, "max_tokens": 60, "stop": [never, stop]});
    let mut told = String::new();
    for chunk in stream(shared(), &body) {
        told.push_str(chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
        assert!(text[..end].starts_with(&told), "{told:?}");
    }
    assert_eq!(told, text[..end]);
    let choice = &shared().chat(&body).ok()["choices"][0];
    assert_eq!(
        (&choice["message"]["content"], &choice["finish_reason"], &choice["stop_reason"]),
        (&json!(told), &json!("stop"), &json!(stop))
    );
}

#[test]
fn a_stop_among_accepted_drafts_ends_text_ids_and_logprobs_together() {
    let server = Setup { drafts: Some(Some(16)), ..Setup::default() }.start();
    let body = |more: Value| {
        let mut body = json!({"messages": user("Count to ten."), "temperature": 0, "max_tokens": 60, "logprobs": true,
                              "return_token_ids": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let whole = server.chat(&body(json!({}))).ok();
    let ids = whole["choices"][0]["token_ids"].as_array().unwrap().clone();
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    // Each word in turn is a stop: some stand first, some in the middle of what a round accepts.
    let mut in_a_round = 0;
    for word in text.split_whitespace() {
        let stop = json!({"stop": word});
        let drafted = server.chat(&body(stop.clone())).ok();
        let choice = &drafted["choices"][0];
        let n = drafted["usage"]["completion_tokens"].as_u64().unwrap() as usize;
        assert_eq!(choice["message"]["content"], text[..text.find(word).unwrap()]);
        assert_eq!(choice["token_ids"].as_array().unwrap()[..], ids[..n]);
        assert_eq!(choice["logprobs"]["content"].as_array().unwrap().len(), n);
        let draft = &drafted["timings"]["draft"];
        assert!(draft["accepted"].as_u64().unwrap() < n as u64 + 1);
        in_a_round += usize::from(draft["accepted"].as_u64() > Some(0));
        let mut plain = body(stop);
        plain["draft"] = json!({"enabled": false});
        assert_eq!(server.chat(&plain).ok()["choices"][0], *choice);
    }
    assert!(in_a_round > 0, "no stop came up in a round with accepted drafts");
}

#[test]
fn counters_count_tokens_and_not_rounds() {
    let server = Setup::default().start();
    let body = json!({"messages": user(STORY), "temperature": 0, "max_tokens": 40});
    let answer = server.chat(&body).ok();
    stream(&server, &body);
    let usage = |name: &str| 2.0 * answer["usage"][name].as_f64().unwrap();
    assert_eq!(server.metric("vllm:generation_tokens_total"), usage("completion_tokens"));
    assert_eq!(server.metric("vllm:prompt_tokens_total"), usage("prompt_tokens"));
    let draft = |name: &str| 2.0 * answer["timings"]["draft"][name].as_f64().unwrap();
    assert_eq!(server.metric("vllm:spec_decode_num_drafts_total"), draft("rounds"));
    assert_eq!(server.metric("vllm:spec_decode_num_draft_tokens_total"), draft("drafted"));
    assert_eq!(server.metric("vllm:spec_decode_num_accepted_tokens_total"), draft("accepted"));
    assert_eq!(server.metric("vllm:inter_token_latency_seconds_count"), usage("completion_tokens") - 2.0);
    assert_eq!(server.metric("vllm:time_to_first_token_seconds_count"), 2.0);
    assert_eq!(server.metric("vllm:e2e_request_latency_seconds_count"), 2.0);
}

#[test]
fn the_first_request_of_a_server_is_like_any_other() {
    let body =
        json!({"messages": user(STORY), "temperature": 0.8, "seed": 3, "max_tokens": 40, "logprobs": true});
    let fresh = Setup::default().start();
    let first = fresh.chat(&body).ok();
    for _ in 0..2 {
        assert_eq!(fresh.chat(&body).ok()["choices"], first["choices"]);
    }
    assert_eq!(shared().chat(&body).ok()["choices"], first["choices"]);
}

#[test]
fn two_identical_requests_at_once_get_the_same() {
    let body = json!({"messages": user(STORY), "temperature": 1.0, "seed": 11, "max_tokens": 40});
    let alone = shared().chat(&body).ok()["choices"].clone();
    let together = Barrier::new(4);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                together.wait();
                assert_eq!(shared().chat(&body).ok()["choices"], alone);
            });
        }
    });
}

#[test]
fn odd_conversations_are_answered_or_refused_by_the_template() {
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    for messages in [
        json!([message("system", "Be brief."), message("system", "Be kind."), message("user", "Hi")]),
        json!([message("user", "Hi"), message("assistant", "Hello, I am")]),
        json!([message("assistant", "Hello")]),
        json!([message("user", "")]),
        json!([message("developer", "Be brief."), message("user", "Hi"), message("user", "Hi again")]),
    ] {
        let answer = shared().chat(&json!({"messages": messages, "max_tokens": 4, "temperature": 0}));
        match answer.status {
            200 => assert!(answer.json()["usage"]["completion_tokens"].as_u64().unwrap() > 0),
            _ => assert_eq!(answer.error(400)["param"], "messages"),
        }
    }
}

#[test]
fn prompts_around_the_context_end_where_they_must() {
    // The shared server holds 512 tokens.
    let of = |n: usize, max_tokens: usize| {
        let prompt: Vec<_> = (0..n).map(|i| if i == 0 { 2 } else { 300 + i % 7 }).collect();
        shared().complete(
            &json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true}),
        )
    };
    for (n, max_tokens, expected) in [(510, 10, 2), (511, 10, 1), (511, 1, 1), (510, 1, 1), (512, 0, 0)] {
        let answer = of(n, max_tokens).ok();
        assert_eq!(answer["usage"]["completion_tokens"], expected, "{n} + {max_tokens}");
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
    }
    for (n, max_tokens) in [(512, 1), (513, 0), (513, 1), (600, 1), (2048, 0)] {
        let error = of(n, max_tokens).error(400);
        assert_eq!((&error["param"], &error["code"]), (&json!("prompt"), &json!("context_length_exceeded")));
        let message = error["message"].as_str().unwrap();
        assert!(message.ends_with("with a larger --context, up to the model's 2048"), "{message}");
    }
    // Beyond what the model has, no option helps.
    for (n, max_tokens) in [(2048, 1), (2049, 0)] {
        let error = of(n, max_tokens).error(400);
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains("holds 512") && message.ends_with("longer context than this one"),
            "{message}"
        );
    }
    let long = json!({"messages": user(&"word ".repeat(600))});
    assert_eq!(shared().chat(&long).error(400)["param"], "messages");
    // Left out, max_tokens is what the context has room for.
    let chat = json!({"messages": user("Hi"), "ignore_eos": true, "temperature": 0});
    let usage = shared().chat(&chat).ok()["usage"].clone();
    assert_eq!(usage["total_tokens"], 512);
}

#[test]
fn each_sampling_field_gives_the_same_with_and_without_drafts() {
    let plain =
        json!({"messages": user(STORY), "max_tokens": 30, "temperature": 1.4, "seed": 4, "logprobs": true});
    let base = shared().chat(&plain).ok()["choices"].clone();
    for (name, value) in [
        ("temperature", json!(0.2)),
        ("temperature", json!(0)),
        ("top_p", json!(0.3)),
        ("top_k", json!(2)),
        ("min_p", json!(0.5)),
        ("typical_p", json!(0.3)),
        ("repetition_penalty", json!(1.8)),
        ("presence_penalty", json!(8.0)),
        ("frequency_penalty", json!(8.0)),
        ("logit_bias", json!({"300": 50})),
        ("allowed_token_ids", json!([300, 301, 302, 303])),
        ("seed", json!(5)),
        ("min_tokens", json!(29)),
        ("stop", json!([" a", "e"])),
    ] {
        let mut body = plain.clone();
        body[name] = value.clone();
        let drafted = shared().chat(&body).ok();
        body["draft"] = json!({"enabled": false});
        assert_eq!(shared().chat(&body).ok()["choices"], drafted["choices"], "{name}: {value}");
        if name != "min_tokens" {
            assert_ne!(drafted["choices"], base, "{name}: {value} does nothing");
        }
    }
}
