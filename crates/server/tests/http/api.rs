//! What answers have in them.

use serde_json::{Value, json};

use crate::client::{get, post};
use crate::setup::{Setup, shared, user};

#[test]
fn a_chat_answers_with_text_usage_and_timings() {
    let body =
        json!({"messages": user("What is the capital of France?"), "temperature": 0, "max_tokens": 20});
    let answer = shared().chat(&body).ok();
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "tiny-gemma4");
    let choice = &answer["choices"][0];
    assert!(choice["message"]["content"].as_str().unwrap().contains("Paris"), "{choice}");
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &Value::Null));
    let usage = &answer["usage"];
    assert_eq!(
        usage["total_tokens"].as_u64().unwrap(),
        usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap()
    );
    let draft = &answer["timings"]["draft"];
    assert_eq!((&draft["kind"], &draft["inactive_reason"]), (&json!("assistant"), &Value::Null));
    assert!(draft["accepted"].as_u64().unwrap() > 0, "{draft}");
    let by_position: u64 =
        draft["accepted_by_position"].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
    assert_eq!(by_position, draft["accepted"].as_u64().unwrap());
    assert!(answer["timings"]["first_token_ms"].as_f64().unwrap() > 0.0);
}

#[test]
fn timings_say_why_nothing_was_drafted() {
    let body =
        |draft: Value| json!({"messages": user("Hi"), "temperature": 0, "max_tokens": 8, "draft": draft});
    let of = |draft: Value| shared().chat(&body(draft)).ok()["timings"]["draft"].clone();
    let off = of(json!({"enabled": false}));
    assert_eq!(
        (&off["inactive_reason"], &off["rounds"]),
        (&json!("the request turned drafting off"), &json!(0))
    );
    let none = of(json!({"max_tokens": 0}));
    assert_eq!(
        (&none["inactive_reason"], &none["drafted"]),
        (&json!("0 drafts a round were asked for"), &json!(0))
    );
    let one = of(json!({"max_tokens": 1}));
    assert_eq!(one["drafted"], one["rounds"]);
    assert!(of(json!({"max_tokens": 1000}))["accepted_by_position"].as_array().unwrap().len() <= 4);
    let plain = Setup { drafts: None, ..Setup::default() }.start();
    let answer = plain.chat(&body(json!({"enabled": true, "max_tokens": 5}))).ok();
    assert_eq!(answer["timings"]["draft"], Value::Null);
}

#[test]
fn predictions_are_drafted_from_and_counted() {
    let body = |prediction: Value| {
        json!({"messages": user("Tell me a short story about a fox."), "temperature": 0, "max_tokens": 60,
               "prediction": prediction})
    };
    let plain = shared().chat(&body(Value::Null)).ok();
    assert!(plain["usage"].get("completion_tokens_details").is_none(), "{plain}");
    let kinds = |answer: &Value| {
        let sources = answer["timings"]["draft"]["sources"].as_array().unwrap();
        sources.iter().map(|source| source["kind"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&plain), ["assistant"], "nothing was predicted");
    let text = plain["choices"][0]["message"]["content"].as_str().unwrap();
    let middle = text.len() / 2;
    let (first, second) = text.split_at((middle..).find(|&at| text.is_char_boundary(at)).unwrap());
    let part = |text: &str| json!({"type": "text", "text": text});
    let without_drafter = Setup { drafts: None, ..Setup::default() }.start();
    for server in [shared(), &without_drafter] {
        for (content, least, most) in [
            (json!(text), 30, 60),
            (json!([part(first), part(second)]), 30, 60),
            (json!(format!("{first} and so on")), 8, 50),
            (json!("Nothing of the kind."), 0, 5),
            (json!(""), 0, 0),
        ] {
            let predicted = body(json!({"type": "content", "content": content}));
            let answer = server.chat(&predicted).ok();
            assert_eq!(answer["choices"], plain["choices"], "{content}");
            if content != json!("") {
                assert_eq!(kinds(&answer)[0], "prediction", "{content}");
            }
            let details = answer["usage"]["completion_tokens_details"].clone();
            let accepted = details["accepted_prediction_tokens"].as_u64().unwrap();
            assert!((least..=most).contains(&accepted), "{content}: {details}");
            assert!(details["rejected_prediction_tokens"].is_u64(), "{details}");
            let mut streamed = predicted;
            streamed["stream"] = true.into();
            streamed["stream_options"] = json!({"include_usage": true});
            let chunks = server.chat(&streamed).chunks();
            assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens_details"], details);
        }
    }
    for (server, most) in [(shared(), 4), (&without_drafter, 8)] {
        for (asked, expected) in [(0, 0), (1, 1), (3, 3), (1000, most)] {
            let mut limited = body(json!({"type": "content", "content": text}));
            limited["draft"] = json!({"max_tokens": asked});
            let answer = server.chat(&limited).ok();
            assert_eq!(answer["choices"], plain["choices"], "{asked} drafts");
            let longest = answer["timings"]["draft"]["accepted_by_position"].as_array().unwrap().len();
            assert_eq!(longest, expected, "{asked} drafts: {}", answer["timings"]);
        }
    }
    for (prediction, field) in [
        (json!("text"), "prediction"),
        (json!({"content": "a"}), "prediction.type"),
        (json!({"type": "image", "content": "a"}), "prediction.type"),
        (json!({"type": "content"}), "prediction.content"),
        (json!({"type": "content", "content": [part("a"), 5]}), "prediction.content"),
    ] {
        let error = shared().chat(&body(prediction)).error(400);
        assert_eq!(error["param"], field, "{error}");
    }
}

/// Room for predictions is no number of drafts that the drafter makes by itself.
#[test]
fn drafts_are_as_many_as_the_model_says() {
    let server = Setup { drafts: Some(None), ..Setup::default() }.start();
    let draft = get(server.address, "/v1/models").ok()["data"][0]["draft"].clone();
    let number = |field: &str| usize::try_from(draft[field].as_u64().unwrap()).unwrap();
    let (usual, most) = (number("max_tokens"), number("most_tokens"));
    assert!(usual < most, "{draft}");
    let body = json!({"messages": user("Tell me a short story about a fox."), "temperature": 0, "max_tokens": 200, "ignore_eos": true});
    for (asked, expected) in [(None, usual), (Some(2), 2), (Some(most), most), (Some(1000), most)] {
        let mut body = body.clone();
        body["draft"] = json!({"max_tokens": asked});
        let draft = server.chat(&body).ok()["timings"]["draft"].clone();
        let longest = draft["accepted_by_position"].as_array().unwrap().len();
        assert_eq!(longest, expected, "{asked:?}: {draft}");
    }
}

#[test]
fn what_is_loaded_can_be_asked_for() {
    let models = get(shared().address, "/v1/models").ok();
    let model = &models["data"][0];
    assert_eq!(
        (&model["id"], &model["max_model_len"], &model["slots"]),
        (&json!("tiny-gemma4"), &json!(512), &json!(8))
    );
    let sources = json!([{"kind": "assistant", "max_tokens": 4}]);
    let expected = json!({"kind": "assistant", "max_tokens": 4, "most_tokens": 4, "sources": sources});
    assert_eq!(model["draft"], expected);
    assert_eq!(get(shared().address, "/v1/models/tiny-gemma4").ok(), *model);
    let error = get(shared().address, "/v1/models/other/model").error(404);
    assert_eq!(error["code"], "model_not_found");
    let wrong = json!({"model": "gpt-4", "messages": user("Hi")});
    assert_eq!(shared().chat(&wrong).error(404)["param"], "model");
    let unnamed = json!({"model": "", "messages": user("Hi"), "max_tokens": 1});
    shared().chat(&unnamed).ok();
}

#[test]
fn several_outputs_differ_and_come_in_order() {
    let body = json!({"messages": user("Tell me a short story about a fox."), "n": 3, "temperature": 1.2, "seed": 5, "max_tokens": 20});
    let answer = shared().chat(&body).ok();
    let texts: Vec<_> =
        answer["choices"].as_array().unwrap().iter().map(|choice| &choice["message"]["content"]).collect();
    assert_eq!(texts.len(), 3);
    assert!(texts[0] != texts[1] && texts[1] != texts[2]);
    // The first of several is what one alone is.
    let mut one = body.clone();
    one["n"] = json!(1);
    assert_eq!(shared().chat(&one).ok()["choices"][0]["message"]["content"], *texts[0]);
    // A drawn seed is told and gives the same again.
    one.as_object_mut().unwrap().remove("seed");
    let drawn = shared().chat(&one).ok();
    one["seed"] = drawn["seed"].clone();
    assert_eq!(shared().chat(&one).ok()["choices"], drawn["choices"]);
    let other = shared().chat(&json!({"messages": user("Tell me a short story about a fox."), "temperature": 1.2, "seed": -6, "max_tokens": 20})).ok();
    assert_ne!(other["choices"], drawn["choices"]);
}

#[test]
fn a_seed_is_told_as_it_was_sent() {
    for seed in [json!(-1), json!(-6), json!(0), json!(7), json!(u64::MAX)] {
        let mut body = json!({"prompt": "Once", "temperature": 1, "max_tokens": 2, "seed": seed});
        assert_eq!(shared().complete(&body).ok()["seed"], seed);
        body["stream"] = json!(true);
        let chunks = shared().complete(&body).chunks();
        assert!(chunks.iter().any(|chunk| chunk["seed"] == seed), "{seed}: {chunks:?}");
        let body = json!({"messages": user("Hi"), "temperature": 1, "max_tokens": 2, "seed": seed});
        assert_eq!(shared().chat(&body).ok()["seed"], seed);
    }
}

#[test]
fn a_path_without_its_version_is_recognised() {
    let error = post(shared().address, "/chat/completions", &json!({})).error(404);
    assert_eq!(error["message"], "there is nothing at /chat/completions; did you mean /v1/chat/completions?");
    let error = get(shared().address, "/v1/embeddings").error(404);
    assert_eq!(error["message"], "there is nothing at /v1/embeddings");
}

#[test]
fn prompts_of_all_forms_give_the_same() {
    let text = "Once upon a time";
    let ids = post(shared().address, "/tokenize", &json!({"prompt": text})).ok()["tokens"].clone();
    let of = |prompt: Value| {
        let body = json!({"prompt": prompt, "max_tokens": 12, "temperature": 0, "return_token_ids": true});
        shared().complete(&body).ok()["choices"].clone()
    };
    let one = of(json!(text));
    assert_eq!(one[0]["prompt_token_ids"], ids);
    assert_eq!(of(ids.clone()), one);
    let several = of(json!([text, ids, "The end"]));
    let choices = several.as_array().unwrap();
    assert_eq!(choices.len(), 3);
    for (index, choice) in choices[..2].iter().enumerate() {
        assert_eq!((&choice["index"], &choice["text"]), (&json!(index), &one[0]["text"]));
    }
    assert_ne!(choices[2]["text"], one[0]["text"]);
    // Without the first token, which begins a text, it is another prompt.
    let body =
        json!({"prompt": text, "add_special_tokens": false, "max_tokens": 1, "return_token_ids": true});
    let bare = shared().complete(&body).ok()["choices"][0]["prompt_token_ids"].clone();
    assert_eq!(bare.as_array().unwrap()[..], ids.as_array().unwrap()[1..]);
}

#[test]
fn content_may_come_in_parts() {
    let of = |content: Value| {
        let body =
            json!({"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 10});
        let answer = shared().chat(&body).ok();
        (answer["choices"].clone(), answer["usage"].clone())
    };
    let text = |text: &str| json!({"type": "text", "text": text});
    assert_eq!(of(json!("What is 2 plus 3?")), of(json!([text("What is 2 "), text("plus 3?")])));
}

#[test]
fn tokens_and_texts_turn_into_one_another() {
    let address = shared().address;
    let tokenized = post(address, "/tokenize", &json!({"prompt": "Hi 😀", "return_token_strs": true})).ok();
    assert_eq!(tokenized["count"].as_u64().unwrap() as usize, tokenized["tokens"].as_array().unwrap().len());
    assert_eq!(tokenized["token_strs"][0], "<bos>");
    assert_eq!(tokenized["token_strs"].as_array().unwrap().last().unwrap(), "bytes:\\x80");
    let back = post(address, "/detokenize", &json!({"tokens": tokenized["tokens"]})).ok();
    assert_eq!(back["prompt"], "<bos>Hi 😀");
    let chat = post(address, "/tokenize", &json!({"messages": user("Hi")})).ok();
    let body = json!({"messages": user("Hi"), "max_tokens": 1, "return_token_ids": true});
    assert_eq!(shared().chat(&body).ok()["prompt_token_ids"], chat["tokens"]);
    let bare =
        post(address, "/tokenize", &json!({"messages": user("Hi"), "add_generation_prompt": false})).ok();
    assert!(bare["count"].as_u64() < chat["count"].as_u64());
    for (path, body, name) in [
        ("/tokenize", json!({}), "messages"),
        ("/tokenize", json!({"prompt": 5}), "prompt"),
        ("/tokenize", json!({"prompt": "a", "messages": user("a")}), "messages"),
        ("/tokenize", json!({"prompt": "a", "chat_template_kwargs": []}), "chat_template_kwargs"),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({"tokens": [2, "a"]}), "tokens"),
        ("/detokenize", json!({"tokens": [1_000_000]}), "tokens"),
    ] {
        assert_eq!(post(address, path, &body).error(400)["param"], name);
    }
}

#[test]
fn logprobs_of_a_chat_are_those_of_its_tokens() {
    let mut body = json!({"messages": user("What is the capital of France?"), "temperature": 0, "max_tokens": 20,
                          "logprobs": true, "top_logprobs": 3, "return_token_ids": true});
    let answer = shared().chat(&body).ok();
    let choice = &answer["choices"][0];
    let content = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), choice["token_ids"].as_array().unwrap().len());
    assert_eq!(content.len() as u64, answer["usage"]["completion_tokens"].as_u64().unwrap());
    let mut text = Vec::new();
    for entry in content {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        // Greedy: the token is the likeliest one.
        assert_eq!((&top[0]["token"], &top[0]["logprob"]), (&entry["token"], &entry["logprob"]));
        assert!(entry["logprob"].as_f64().unwrap() <= 0.0);
        text.extend(entry["bytes"].as_array().unwrap().iter().map(|byte| byte.as_u64().unwrap() as u8));
    }
    // The last token ends the turn and is no part of the text.
    let text = String::from_utf8(text).unwrap();
    assert_eq!(text.strip_suffix("<turn|>"), choice["message"]["content"].as_str());
    body["logprobs"] = json!(false);
    assert_eq!(shared().chat(&body).error(400)["param"], "top_logprobs");
    body.as_object_mut().unwrap().remove("top_logprobs");
    assert_eq!(shared().chat(&body).ok()["choices"][0]["logprobs"], Value::Null);
}

#[test]
fn unknown_fields_are_accepted() {
    let body = json!({"messages": user("Hi"), "max_tokens": 1, "user": "me", "metadata": {"a": 1}, "store": true,
                      "frobnicate": [1, 2], "service_tier": "auto", "parallel_tool_calls": true});
    shared().chat(&body).ok();
}

#[test]
fn every_answer_has_a_request_id() {
    let made = get(shared().address, "/health");
    assert_eq!(made.header("x-request-id").unwrap().len(), 24);
    let own =
        crate::client::Open::request(shared().address, "GET", "/nowhere", "x-request-id: my-id\r\n", b"");
    let own = own.answer().unwrap();
    assert_eq!((own.header("x-request-id"), own.status), (Some("my-id"), 404));
}
