//! How a server bears too much, too slow, and its own end.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{Answer, JSON, Open, get, post, post_bytes};
use crate::gate::held;
use crate::setup::{Running, Setup, user, wait_until};

const STORY: &str = "Tell me a short story about a fox.";
const CHAT: &str = "/v1/chat/completions";

fn open_chat(server: &Running, body: &Value) -> Open {
    Open::request(server.address, "POST", CHAT, JSON, body.to_string().as_bytes())
}

fn with(change: impl FnOnce(&mut Setup)) -> Setup {
    let mut setup = Setup::default();
    change(&mut setup);
    setup
}

#[test]
fn overload_is_told_and_passes() {
    let server = with(|setup| {
        (setup.slots, setup.settings.queue) = (2, 3);
        setup.held = Some(held!());
    })
    .start();
    let before = server.status();
    let long = json!({"messages": user(STORY), "max_tokens": 480, "ignore_eos": true, "stream": true});
    let mut open: Vec<_> = (0..5).map(|_| open_chat(&server, &long)).collect();
    wait_until("all places are taken", || server.taken(), |taken| *taken == 5.0);
    // Ten times what there is room for: each is told at once to come again.
    for _ in 0..50 {
        let refused = server.chat(&json!({"messages": user("Hi"), "max_tokens": 1}));
        assert_eq!(refused.error(429)["code"], "rate_limit_exceeded");
        assert!(refused.header("retry-after").unwrap().parse::<u32>().unwrap() >= 1);
    }
    assert_eq!(server.metric("paceline:rejected_requests_total"), 50.0);
    // What can never fit says so, and what was begun goes on unharmed.
    let six = json!({"messages": user("Hi"), "n": 6});
    assert_eq!(server.chat(&six).error(400)["param"], "n");
    server.gate().open();
    assert!(!open[0].read_some(300).is_empty());
    for open in open.into_iter().skip(1) {
        assert!(open.answer().unwrap().text().ends_with("data: [DONE]\n\n"));
    }
    server.settles(&before);
    server.chat(&json!({"messages": user("Hi"), "max_tokens": 1})).ok();
}

#[test]
fn bodies_have_limits() {
    let server = with(|setup| {
        setup.settings.body_bytes = 2000;
        setup.settings.body_time = Duration::from_millis(200);
    })
    .start();
    let large = json!({"messages": user(&"a".repeat(3000))});
    assert_eq!(server.chat(&large).error(413)["type"], "invalid_request_error");
    // The same without saying how long it is.
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{JSON}transfer-encoding: chunked\r\n\r\n"
    );
    let part = "bb8\r\n".to_owned() + &"a".repeat(3000) + "\r\n0\r\n\r\n";
    Open::raw(server.address, (head + &part).as_bytes()).answer().unwrap().error(413);
    // A body of which nothing comes.
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{JSON}content-length: 100\r\n\r\n{{"
    );
    Open::raw(server.address, head.as_bytes()).answer().unwrap().error(408);
    // Of another type.
    let plain = Open::request(server.address, "POST", CHAT, "content-type: text/plain\r\n", b"{}");
    plain.answer().unwrap().error(415);
    Open::request(server.address, "POST", CHAT, "", b"{}").answer().unwrap().error(415);
    let charset = "content-type: Application/JSON; charset=utf-8\r\n";
    let body = json!({"messages": user("Hi"), "max_tokens": 1}).to_string();
    Open::request(server.address, "POST", CHAT, charset, body.as_bytes()).answer().unwrap().ok();
}

#[test]
fn heads_have_limits() {
    let server = with(|setup| {
        setup.context = 2048;
        setup.settings.header_time = Duration::from_millis(200);
    })
    .start();
    let slow = Open::raw(server.address, b"GET /health HTTP/1.1\r\nhost: x\r\n");
    assert!(slow.answer().is_none_or(|answer| answer.status >= 400));
    let silent = Open::raw(server.address, b"");
    assert!(silent.answer().is_none());
    // Whoever is kept from writing for as long is cut off too, and asks again.
    let answered = |ask: &dyn Fn() -> Open| -> Answer {
        (0..100).find_map(|_| ask().answer()).expect("an answer to one of 100 requests")
    };
    let health = |headers: &str| Open::request(server.address, "GET", "/health", headers, b"");
    let many: String = (0..200).map(|i| format!("x-{i}: 1\r\n")).collect();
    assert_eq!(answered(&|| health(&many)).status, 431);
    let long = format!("x: {}\r\n", "a".repeat(200_000));
    assert!(health(&long).answer().is_none_or(|answer| answer.status == 431));
    answered(&|| health("")).ok();
    // An answer may take longer than that, as this one does.
    let long =
        json!({"messages": user(STORY), "max_tokens": 1900, "ignore_eos": true, "draft": {"enabled": false}});
    let answer = answered(&|| open_chat(&server, &long)).ok();
    assert_eq!(answer["usage"]["completion_tokens"], 1900);
}

#[test]
fn who_reads_nothing_is_cut_off_and_holds_nobody() {
    let server = with(|setup| {
        setup.context = 2048;
        setup.slots = 5;
        setup.settings.stall_time = Duration::from_millis(300);
        setup.held = Some(held!());
    })
    .start();
    let before = server.status();
    let flood = json!({"messages": user(STORY), "n": 4, "max_tokens": 1900, "ignore_eos": true, "temperature": 1, "seed": 1,
                       "logprobs": true, "top_logprobs": 20, "stream": true});
    let stuck = open_chat(&server, &flood);
    wait_until("all four have begun", || server.taken(), |taken| *taken == 4.0);
    let hello = json!({"messages": user("Hi"), "max_tokens": 3});
    let quick = open_chat(&server, &hello);
    wait_until("another one has begun", || server.taken(), |taken| *taken == 5.0);
    // They make more bytes than sockets hold, and do not come to their ends.
    let taken = || {
        if server.metric("vllm:generation_tokens_total") < 5000.0 {
            server.gate().set(100);
        }
        server.taken()
    };
    wait_until("the four are cut off and the other one is done", taken, |taken| *taken == 0.0);
    assert_eq!(quick.answer().unwrap().ok()["usage"]["completion_tokens"], 3);
    server.gate().open();
    server.settles(&before);
    let page = get(server.address, "/metrics");
    let aborted = "vllm:request_success_total{model_name=\"tiny-gemma4\",finished_reason=\"abort\"} 4";
    assert!(page.text().contains(aborted), "{}", page.text());
    assert_eq!(server.chat(&hello).ok()["usage"]["completion_tokens"], 3);
    drop(stuck);
}

#[test]
fn keys_are_asked_for() {
    let server = with(|setup| setup.settings.api_key = Some("secret".to_owned())).start();
    for path in ["/health", "/ready", "/metrics", "/openapi.json"] {
        assert_eq!(get(server.address, path).status, 200);
    }
    let wrong = get(server.address, "/v1/models");
    assert_eq!(wrong.error(401)["code"], "invalid_api_key");
    assert_eq!(wrong.header("www-authenticate"), Some("Bearer"));
    let body = json!({"messages": user("Hi"), "max_tokens": 1}).to_string();
    let chat = |key: &str| {
        let headers = format!("{JSON}authorization: Bearer {key}\r\n");
        Open::request(server.address, "POST", CHAT, &headers, body.as_bytes()).answer().unwrap()
    };
    chat("secret").ok();
    chat("Secret").error(401);
    get(server.address, "/nowhere").error(401);
}

#[test]
fn what_is_not_there_says_so() {
    let server = with(|_| ()).start();
    get(server.address, "/v1/nowhere").error(404);
    get(server.address, CHAT).error(405);
    post(server.address, "/health", &json!({})).error(405);
}

#[test]
fn a_server_listens_before_its_model_is_there() {
    let setup = Setup::default();
    let server = setup.listen();
    get(server.address, "/health").ok();
    let not_yet = get(server.address, "/ready");
    not_yet.error(503);
    assert!(not_yet.header("retry-after").is_some());
    get(server.address, "/v1/models").error(503);
    server.chat(&json!({"messages": user("Hi")})).error(503);
    assert!(get(server.address, "/metrics").text().contains("# TYPE"));
    server.publish(setup.model());
    get(server.address, "/ready").ok();
    server.chat(&json!({"messages": user("Hi"), "max_tokens": 1})).ok();
}

#[test]
fn the_end_waits_for_what_was_begun() {
    let server = with(|setup| setup.held = Some(held!())).start();
    let (address, gate) = (server.address, server.gate());
    let body = json!({"messages": user(STORY), "max_tokens": 400, "ignore_eos": true, "stream": true, "temperature": 0});
    let mut open = open_chat(&server, &body);
    // An idle connection that could have another request.
    let mut idle = Open::raw(address, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n");
    idle.next_answer().ok();
    let begun = open.read_some(1);
    thread::scope(|scope| {
        scope.spawn(move || server.stop(Duration::from_secs(100)));
        wait_until("nobody listens any more", || TcpStream::connect(address).is_err(), |refused| *refused);
        assert_eq!(idle.stream.read(&mut [0; 10]).unwrap(), 0, "the idle connection is closed");
        gate.open();
        let mut rest = Vec::new();
        open.stream.read_to_end(&mut rest).unwrap();
        let text = String::from_utf8([begun, rest].concat()).unwrap();
        assert!(text.contains("\"finish_reason\":\"length\"") && text.contains("data: [DONE]"));
    });
}

#[test]
fn the_end_cuts_what_takes_too_long() {
    let server = with(|setup| setup.held = Some(held!())).start();
    let gate = server.gate();
    let body =
        json!({"messages": user(STORY), "max_tokens": 480, "ignore_eos": true, "stream": true, "n": 8});
    let mut open = open_chat(&server, &body);
    open.read_some(1);
    thread::scope(|scope| {
        scope.spawn(move || server.stop(Duration::ZERO));
        let mut rest = Vec::new();
        if let Err(error) = open.stream.read_to_end(&mut rest) {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        }
        // The engine is in a round, for which the end of the server waits and the client does not.
        gate.open();
        assert!(!String::from_utf8_lossy(&rest).contains("[DONE]"));
    });
}

#[test]
fn several_requests_use_one_connection() {
    let server = Setup::default().start();
    let body = json!({"messages": user("Hi"), "max_tokens": 1}).to_string();
    let request =
        format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\n{JSON}content-length: {}\r\n\r\n{body}", body.len());
    let mut open = Open::raw(server.address, b"");
    for _ in 0..3 {
        open.stream.write_all(request.as_bytes()).unwrap();
        assert!(open.next_answer().ok()["timings"].is_object());
    }
    // After an error too.
    assert_eq!(post_bytes(server.address, CHAT, b"{").status, 400);
}
