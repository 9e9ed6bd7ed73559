//! Much traffic in little time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use serde_json::json;

use crate::client::{JSON, Open, post};
use crate::gate::held;
use crate::setup::{Dice, Running, Setup, user, wait_until};

/// Some hundred requests from several threads: answered, cut off by their clients at any moment, or refused for lack of room. There
/// are more clients than places, and the engine goes on when some were refused.
fn storm(server: &Running, seed: u64) -> [u64; 3] {
    let counts = [const { AtomicU64::new(0) }; 3];
    server.gate().close();
    thread::scope(|scope| {
        for client in 0..12 {
            let counts = &counts;
            scope.spawn(move || {
                let mut dice = Dice::new(seed * 100 + client);
                for _ in 0..30 {
                    let body = json!({
                        "messages": user(&"Tell me a story. ".repeat(1 + dice.below(20) as usize)),
                        "max_tokens": 1 + dice.below(40),
                        "n": 1 + dice.below(2),
                        "stream": dice.below(2) == 0,
                        "ignore_eos": true,
                        "logprobs": dice.below(3) == 0,
                        "draft": {"enabled": dice.below(3) > 0},
                    });
                    let path = "/v1/chat/completions";
                    if dice.below(3) == 0 {
                        let bytes = body.to_string();
                        let mut open = Open::request(server.address, "POST", path, JSON, bytes.as_bytes());
                        open.read_some(dice.below(2000) as usize);
                        counts[1].fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    let answer = post(server.address, path, &body);
                    match answer.status {
                        200 => counts[0].fetch_add(1, Ordering::Relaxed),
                        429 => counts[2].fetch_add(1, Ordering::Relaxed),
                        other => panic!("{other}: {}", answer.text()),
                    };
                }
            });
        }
        let refused = || counts[2].load(Ordering::Relaxed);
        wait_until("some are refused", refused, |refused| *refused > 5);
        server.gate().open();
    });
    counts.map(AtomicU64::into_inner)
}

#[test]
fn a_storm_leaves_nothing_behind() {
    let mut setup = Setup { slots: 4, held: Some(held!()), ..Setup::default() };
    setup.settings.queue = 6;
    let server = Setup { kv_memory: Some(setup.least_memory() * 3 / 2), ..setup }.start();
    let before = server.status();
    for seed in 1..3 {
        let counts = storm(&server, seed);
        assert!(counts.iter().all(|&count| count > 5), "answered, cut off, refused: {counts:?}");
        server.settles(&before);
    }
}
