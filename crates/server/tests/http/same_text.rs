//! The promise: an answer depends on its request alone.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};

use crate::client::{JSON, Open};
use crate::gate::held;
use crate::setup::{Dice, Running, Setup, user, wait_until};

const ASKS: [&str; 8] = [
    "Tell me a short story about a fox.",
    "What is the capital of France?",
    "Count to ten.",
    "Name a fruit.",
    "What is 17 plus 25?",
    "Who are you?",
    "Tell me a long story about a dog, a cat and a bird who live in a house by the river.",
    "Hi",
];

/// A request, and whether it goes to the chat.
#[derive(Clone, Debug)]
struct Ask {
    chat: bool,
    body: Value,
}

impl Ask {
    fn random(dice: &mut Dice, seed: u64) -> Self {
        let chat = dice.below(3) > 0;
        // Some prompts take several passes to read.
        let text = dice.one_of(&ASKS).repeat(if dice.below(6) == 0 { 12 } else { 1 });
        let mut body = json!({
            "max_tokens": 1 + dice.below(50),
            "temperature": dice.one_of(&[0.0, 0.0, 0.3, 0.8, 1.2]),
            "seed": seed,
            "draft": {"enabled": dice.below(4) > 0, "max_tokens": dice.one_of(&[Some(0), Some(1), Some(4), None])},
            "return_token_ids": true,
        });
        let fields = body.as_object_mut().unwrap();
        let mut maybe = |dice: &mut Dice, name: &str, value: Value| {
            if dice.below(5) == 0 {
                fields.insert(name.to_owned(), value);
            }
        };
        maybe(dice, "n", json!(2));
        maybe(dice, "top_k", json!(5));
        maybe(dice, "top_p", json!(0.9));
        maybe(dice, "min_p", json!(0.05));
        maybe(dice, "typical_p", json!(0.8));
        maybe(dice, "repetition_penalty", json!(1.2));
        maybe(dice, "presence_penalty", json!(0.5));
        maybe(dice, "frequency_penalty", json!(0.5));
        maybe(dice, "stop", json!(["the", "."]));
        maybe(dice, "stop", json!(" a "));
        maybe(dice, "logit_bias", json!({"300": 5, "301": -100}));
        if dice.below(3) == 0 {
            fields.insert("logprobs".to_owned(), if chat { json!(true) } else { json!(2) });
        }
        if chat {
            fields.insert("messages".to_owned(), user(&text));
            if dice.below(4) == 0 {
                let expected = "Once upon a time, there was a little fox. The answer is 42.";
                fields.insert("prediction".to_owned(), json!({"type": "content", "content": expected}));
            }
        } else {
            fields.insert("prompt".to_owned(), json!(text));
            if dice.below(3) == 0 {
                fields.insert("echo".to_owned(), json!(true));
            }
        }
        Self { chat, body }
    }

    fn path(&self) -> &'static str {
        if self.chat { "/v1/chat/completions" } else { "/v1/completions" }
    }

    /// What the answer says, without what is different each time.
    fn whole(&self, server: &Running) -> Value {
        let answer = crate::client::post(server.address, self.path(), &self.body).ok();
        let mut choices = answer["choices"].clone();
        for choice in choices.as_array_mut().unwrap() {
            // A stream does not tell the prompt's ids.
            choice.as_object_mut().unwrap().remove("prompt_token_ids");
        }
        json!({"choices": choices, "usage": totals(&answer["usage"]), "seed": answer["seed"]})
    }

    /// The same from a stream.
    fn streamed(&self, server: &Running) -> Value {
        let mut body = self.body.clone();
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let chunks = crate::client::post(server.address, self.path(), &body).chunks();
        let n = self.body["n"].as_u64().unwrap_or(1) as usize;
        let mut choices: Vec<Value> = (0..n).map(|index| self.empty(index)).collect();
        let mut seed = Value::Null;
        for chunk in &chunks[..chunks.len() - 1] {
            let part = &chunk["choices"][0];
            self.add(&mut choices[part["index"].as_u64().unwrap() as usize], part);
            if !chunk["seed"].is_null() {
                seed = chunk["seed"].clone();
            }
        }
        let last = chunks.last().unwrap();
        assert_eq!(last["choices"], json!([]));
        json!({"choices": choices, "usage": totals(&last["usage"]), "seed": seed})
    }

    fn empty(&self, index: usize) -> Value {
        let wants = !self.body["logprobs"].is_null();
        if self.chat {
            let logprobs = if wants { json!({"content": []}) } else { Value::Null };
            json!({"index": index, "message": {"role": null, "content": "", "refusal": null}, "logprobs": logprobs,
                   "finish_reason": null, "stop_reason": null, "token_ids": []})
        } else {
            let lists = json!({"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []});
            let logprobs = if wants { lists } else { Value::Null };
            json!({"index": index, "text": "", "logprobs": logprobs, "finish_reason": null, "stop_reason": null,
                   "token_ids": []})
        }
    }

    /// Adds a chunk's choice.
    fn add(&self, choice: &mut Value, part: &Value) {
        assert!(choice["finish_reason"].is_null(), "more after the end: {part}");
        let extend = |list: &mut Value, more: &Value| {
            list.as_array_mut().unwrap().extend(more.as_array().into_iter().flatten().cloned());
        };
        if self.chat {
            let delta = &part["delta"];
            if !delta["role"].is_null() {
                choice["message"]["role"] = delta["role"].clone();
            }
            let content = delta["content"].as_str().unwrap_or_default();
            let joined = choice["message"]["content"].as_str().unwrap().to_owned() + content;
            choice["message"]["content"] = json!(joined);
            if !part["logprobs"].is_null() {
                extend(&mut choice["logprobs"]["content"], &part["logprobs"]["content"]);
            }
        } else {
            let joined = choice["text"].as_str().unwrap().to_owned() + part["text"].as_str().unwrap();
            choice["text"] = json!(joined);
            if !part["logprobs"].is_null() {
                for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                    extend(&mut choice["logprobs"][name], &part["logprobs"][name]);
                }
            }
        }
        extend(&mut choice["token_ids"], &part["token_ids"]);
        choice["finish_reason"] = part["finish_reason"].clone();
        if !part["stop_reason"].is_null() {
            choice["stop_reason"] = part["stop_reason"].clone();
        }
    }

    /// Asks for a stream and goes away.
    fn disconnect(&self, server: &Running, after: usize) {
        let mut body = self.body.clone();
        body["stream"] = json!(true);
        body["max_tokens"] = json!(400);
        let bytes = body.to_string();
        Open::request(server.address, "POST", self.path(), JSON, bytes.as_bytes()).read_some(after);
    }
}

/// Usage without what was tried of a prediction, which says how drafting went.
fn totals(usage: &Value) -> Value {
    let mut usage = usage.clone();
    usage.as_object_mut().unwrap().remove("completion_tokens_details");
    usage
}

fn asks(n: u64, seed: u64) -> Vec<Ask> {
    let mut dice = Dice::new(seed);
    (0..n).map(|i| Ask::random(&mut dice, i)).collect()
}

/// Asks everything at once from several threads, whole and streamed and with clients that go away between, and compares. `all_ask`
/// is called while they do.
fn compare(server: &Running, asks: &[Ask], alone: &[Value], threads: usize, all_ask: impl FnOnce()) {
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(ask) = asks.get(i) else { return };
                    if i.is_multiple_of(5) {
                        ask.disconnect(server, 100 * (i % 7));
                    }
                    let got = if i.is_multiple_of(2) { ask.streamed(server) } else { ask.whole(server) };
                    if got != alone[i] {
                        wrong
                            .lock()
                            .unwrap()
                            .push(format!("request {i}: {ask:?}\n{got}\nalone {}", alone[i]));
                    }
                }
            });
        }
        all_ask();
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong[0]);
}

#[test]
fn sixty_four_random_requests_at_once_are_as_each_alone() {
    let asks = asks(64, 1);
    let server = Setup::default().start();
    let before = server.status();
    let alone: Vec<_> = asks.iter().map(|ask| ask.whole(&server)).collect();
    let drafted = server.status().drafts;
    assert!(drafted.accepted > 100 && drafted.accepted < drafted.drafted, "{drafted:?}");
    compare(&server, &asks, &alone, 24, || ());
    server.settles(&before);
}

#[test]
fn preemption_changes_no_answer() {
    let mut asks = asks(32, 2);
    for (i, ask) in asks.iter_mut().enumerate() {
        ask.body["max_tokens"] = json!(60 + 4 * i);
        ask.body["ignore_eos"] = json!(true);
    }
    let roomy = Setup::default().start();
    let alone: Vec<_> = asks.iter().map(|ask| ask.whole(&roomy)).collect();
    assert_eq!(roomy.status().preemptions, 0);
    // Little more than one sequence needs: sequences that grow take each other's blocks.
    let tight = Setup::default();
    let tight = Setup { kv_memory: Some(tight.least_memory() * 5 / 4), held: Some(held!()), ..tight }.start();
    let before = tight.status();
    compare(&tight, &asks, &alone, 16, || {
        wait_until("there is a crowd", || tight.taken(), |taken| *taken >= 16.0);
        tight.gate().open();
    });
    let after = tight.status();
    assert!(after.preemptions > 10, "only {} preemptions: the memory is not tight", after.preemptions);
    tight.settles(&before);
}

#[test]
fn drafting_changes_no_answer() {
    let server = Setup::default().start();
    let plain = Setup { drafts: None, ..Setup::default() }.start();
    for ask in asks(24, 3) {
        let mut off = ask.clone();
        off.body["draft"] = json!({"enabled": false});
        let expected = off.whole(&server);
        assert_eq!(ask.whole(&server), expected, "{ask:?}");
        assert_eq!(ask.streamed(&plain), expected, "{ask:?}");
    }
}
