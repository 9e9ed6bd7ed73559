//! Echoed prompts and their log-probabilities, as evaluation harnesses ask for them.

use serde_json::{Value, json};

use crate::setup::{shared, user};

fn numbers(list: &Value) -> Vec<Option<f64>> {
    list.as_array().unwrap().iter().map(Value::as_f64).collect()
}

#[test]
fn a_prompt_is_scored_with_and_without_an_output() {
    let text = "The capital of France is Paris. Once upon a time there was a fox.";
    let of = |max_tokens: usize, draft: bool| {
        let body = json!({"prompt": text, "echo": true, "max_tokens": max_tokens, "logprobs": 2, "temperature": 0,
                          "draft": {"enabled": draft}});
        shared().complete(&body).ok()
    };
    let alone = of(0, true);
    let choice = &alone["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(text), &json!("length")));
    assert_eq!(alone["usage"]["completion_tokens"], 0);
    let table = &choice["logprobs"];
    let scores = numbers(&table["token_logprobs"]);
    assert_eq!(scores.len() as u64, alone["usage"]["prompt_tokens"].as_u64().unwrap());
    assert!(scores[0].is_none() && scores[1..].iter().all(|score| score.unwrap() <= 0.0));
    assert_eq!((&table["tokens"][0], &table["top_logprobs"][0]), (&json!("<bos>"), &Value::Null));
    for (place, top) in table["top_logprobs"].as_array().unwrap().iter().enumerate().skip(1) {
        let top = top.as_object().unwrap();
        assert!((2..=3).contains(&top.len()));
        assert_eq!(top[table["tokens"][place].as_str().unwrap()].as_f64(), scores[place]);
    }
    // Offsets count the characters of the text, which the first token is not in.
    let offsets = table["text_offset"].as_array().unwrap();
    for (place, token) in table["tokens"].as_array().unwrap().iter().enumerate().skip(1) {
        let offset = offsets[place].as_u64().unwrap() as usize;
        assert!(text[offset..].starts_with(token.as_str().unwrap()), "token {place}");
    }
    // With an output the prompt's part is the same, and the output's is that of an output without echo.
    let longer = of(5, true);
    assert_eq!(longer["choices"], of(5, false)["choices"]);
    let more = &longer["choices"][0]["logprobs"];
    assert_eq!(numbers(&more["token_logprobs"])[..scores.len()], scores);
    let plain = json!({"prompt": text, "max_tokens": 5, "logprobs": 2, "temperature": 0});
    let plain = &shared().complete(&plain).ok()["choices"][0];
    assert_eq!(
        numbers(&more["token_logprobs"])[scores.len()..],
        numbers(&plain["logprobs"]["token_logprobs"])
    );
    assert_eq!(longer["choices"][0]["text"], json!(text.to_owned() + plain["text"].as_str().unwrap()));
}

#[test]
fn a_greedy_output_is_scored_as_it_was_chosen() {
    let first = json!({"prompt": "Once upon a time", "max_tokens": 12, "logprobs": 0, "temperature": 0, "return_token_ids": true});
    let first = shared().complete(&first).ok()["choices"][0].clone();
    let mut ids = first["prompt_token_ids"].as_array().unwrap().clone();
    ids.extend(first["token_ids"].as_array().unwrap().clone());
    let again = json!({"prompt": ids, "max_tokens": 0, "echo": true, "logprobs": 0});
    let again = shared().complete(&again).ok()["choices"][0]["logprobs"].clone();
    let scores = numbers(&again["token_logprobs"]);
    assert_eq!(scores[scores.len() - 12..], numbers(&first["logprobs"]["token_logprobs"]));
}

#[test]
fn an_echo_without_logprobs_is_text_alone() {
    let body = json!({"prompt": ["a b", "c"], "echo": true, "max_tokens": 0});
    let answer = shared().complete(&body).ok();
    let texts: Vec<_> = answer["choices"].as_array().unwrap().iter().map(|choice| &choice["text"]).collect();
    assert_eq!(texts, ["a b", "c"]);
    assert!(answer["choices"][0]["logprobs"].is_null());
    let nothing = json!({"messages": user("Hi"), "max_tokens": 0});
    let answer = shared().chat(&nothing).ok();
    assert_eq!(
        (&answer["choices"][0]["message"]["content"], &answer["choices"][0]["finish_reason"]),
        (&json!(""), &json!("length"))
    );
}
