//! Statuses, redirects and answers that are no hub's.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use super::*;

/// The same answer to every request for the list of files.
macro_rules! lists {
    ($reply:expr) => {
        (|request, _| (request.path == LISTING).then(|| $reply)) as Fault
    };
}

/// The same answer to every request for the config.
macro_rules! config {
    ($reply:expr) => {
        (|request, _| request.path.ends_with("/config.json").then(|| $reply)) as Fault
    };
}

#[test]
fn refusals_say_what_to_do() {
    let cases: [(Fault, bool, &[u64], &str); 12] = [
        (
            lists!(Reply::new(401)),
            false,
            &[],
            "org/tiny: the hub wants a token (401): the model is gated or private",
        ),
        (lists!(Reply::new(401)), true, &[], "the hub refuses the token (401); is it mistyped or revoked?"),
        (lists!(Reply::new(403)), false, &[], "/org/tiny and set HF_TOKEN"),
        (lists!(Reply::new(403)), true, &[], "needs a token of somebody who was granted access"),
        (config!(Reply::new(403)), true, &[], "org/tiny: the hub refuses access (403)"),
        (
            lists!(Reply::new(404).header("x-error-code", "RepoNotFound")),
            true,
            &[],
            "org/tiny: the hub has no model of this name (404)",
        ),
        (lists!(Reply::new(404)), true, &[], "org/tiny: the hub has no revision `main` (404)"),
        (config!(Reply::new(404)), true, &[], "org/tiny: the hub has no file `config.json` (404)"),
        (lists!(Reply::new(500)), false, &[1, 2, 4, 8], "the hub fails with status 500; try again later"),
        (config!(Reply::new(503)), false, &[1, 2, 4, 8], "the hub fails with status 503; try again later"),
        (
            lists!(Reply::new(429)),
            false,
            &[1, 2, 4, 8],
            "the hub asks to slow down (429); a token raises the limit",
        ),
        (
            lists!(Reply::new(418).header("x-error-message", "short and stout")),
            false,
            &[],
            "unexpected status 418: short and stout",
        ),
    ];
    for (fault, with_token, waits, message) in cases {
        let mut setup = Setup::new(single(), fault);
        if with_token {
            setup.settings.token = token(&setup);
        }
        let error = setup.fetch().unwrap_err();
        assert!(error.to_string().contains(message), "{message}: {error}");
        assert!(!error.to_string().contains("hf_secret"), "{error}");
        assert_eq!(setup.waits(), waits, "{error}");
    }
}

#[test]
fn the_hub_may_say_how_long_to_wait() {
    let setup = Setup::new(single(), |request, n| {
        (request.path == LISTING && n == 0).then(|| Reply::new(429).header("retry-after", "17"))
    });
    setup.fetch().unwrap();
    assert_eq!(setup.waits(), [17]);

    let setup = Setup::new(single(), lists!(Reply::new(429).header("retry-after", "3600")));
    let error = setup.fetch().unwrap_err();
    let hour = Some(Duration::from_secs(3600));
    assert!(matches!(error, HubError::RateLimited { retry_after, .. } if retry_after == hour), "{error}");
    assert_eq!(setup.waits(), [0u64; 0], "an hour is for the user to wait");
}

#[test]
fn a_failure_that_passes_is_forgotten() {
    let setup = Setup::new(single(), |request, n| {
        (!request.path.starts_with("/model") && n < 2).then(|| Reply::new(502))
    });
    setup.fetch().unwrap();
    assert_eq!(setup.waits().len() % 2, 0);
    assert!(setup.waits().chunks(2).all(|waits| waits == [1, 2]));
}

/// A store's refusal says nothing about the model.
#[test]
fn a_refusal_of_the_store_is_not_the_hubs() {
    let setup = Setup::new(single(), |request, _| {
        request.path.starts_with("/model.safetensors").then(|| Reply::new(403))
    });
    let error = setup.fetch().unwrap_err();
    assert!(
        matches!(&error, HubError::Status { status: 403, url, .. } if url.starts_with(&setup.store.url())),
        "{error}"
    );
}

#[test]
fn redirects_come_to_an_end() {
    let setup = Setup::new(single(), lists!(Reply::new(302).header("location", LISTING)));
    let error = setup.fetch().unwrap_err();
    assert!(matches!(error, HubError::TooManyRedirects { limit: 10, .. }), "{error}");
    assert_eq!(setup.hub.seen().len(), 11);

    let setup = Setup::new(single(), lists!(Reply::new(302)));
    let error = setup.fetch().unwrap_err();
    assert!(error.to_string().contains("it has status 302 and no Location"), "{error}");

    for location in ["ftp://host/x", "x y", "http://", "///x"] {
        static LOCATION: Mutex<String> = Mutex::new(String::new());
        *LOCATION.lock().unwrap() = location.to_owned();
        let setup = Setup::new(
            single(),
            lists!(Reply::new(302).header("location", LOCATION.lock().unwrap().clone())),
        );
        let error = setup.fetch().unwrap_err();
        assert!(matches!(error, HubError::BadRedirect { .. }), "{location}: {error}");
    }
}

#[test]
fn answers_of_something_else_are_told_apart() {
    let cases: [(Fault, &str); 6] = [
        (lists!(Reply::new(200).body("<html>")), "not an answer of a model hub: expected value"),
        (lists!(Reply::new(200).body(r#"{"sha": "../../x", "siblings": []}"#)), "`../../x` is no commit"),
        (lists!(Reply::new(200).header("content-length", "x")), "not an answer of a model hub"),
        (config!(Reply::new(200).body("{}")), "it has no etag that could name the file's contents"),
        (config!(Reply::new(200).header("etag", "\"../x\"").body("{}")), "it has no etag that could name"),
        (config!(Reply::new(302).header("x-linked-etag", "\"x\"")), "it does not say how long the file is"),
    ];
    for (fault, message) in cases {
        let setup = Setup::new(single(), fault);
        let error = setup.fetch().unwrap_err();
        assert!(matches!(error, HubError::BadAnswer { .. }), "{error}");
        assert!(error.to_string().contains(message), "{message}: {error}");
        assert_eq!(setup.waits(), [0u64; 0]);
    }
}

#[test]
fn what_is_no_model_is_said_to_be_none() {
    let index = |shard: &str| serde_json::json!({"weight_map": {"a": shard}}).to_string().into_bytes();
    let with_index =
        |index: Vec<u8>| files([("config.json", b"{}".to_vec()), ("model.safetensors.index.json", index)]);
    let cases = [
        (files([("model.safetensors", weights())]), "org/tiny: has no config.json"),
        (
            files([("config.json", b"{}".to_vec())]),
            "org/tiny: has no model.safetensors or model.safetensors.index.json",
        ),
        (with_index(index("m-1.safetensors")), "org/tiny: has no m-1.safetensors"),
        (with_index(index("../x.safetensors")), "shard name `../x.safetensors` is not a plain file name"),
        (with_index(b"{}".to_vec()), "model.safetensors.index.json: not an index of shards: missing field"),
    ];
    for (files, message) in cases {
        let error = Setup::new(files, NO_FAULT).fetch().unwrap_err();
        assert!(error.to_string().contains(message), "{message}: {error}");
    }
}

#[test]
fn silence_ends_a_connection() {
    let mut setup = Setup::new(single(), lists!(Reply::silence()));
    setup.settings.silence = Duration::from_millis(50);
    let error = setup.fetch().unwrap_err();
    assert!(
        matches!(&error, HubError::Unreachable { message, .. } if message.contains("timeout")),
        "{error}"
    );
    assert_eq!(setup.waits(), [1, 2, 4, 8]);
}

#[test]
fn a_name_without_an_address_is_looked_up_once_more_and_no_longer() {
    let mut setup = Setup::new(single(), NO_FAULT);
    // A name that no resolver is asked for: it has an empty part.
    setup.settings.endpoint = "http://no..hub".to_owned();
    let error = setup.fetch().unwrap_err();
    assert!(matches!(error, HubError::NoAddress { .. }), "{error}");
    assert!(
        error.to_string().contains("no..hub") && error.to_string().contains("is there a network"),
        "{error}"
    );
    assert_eq!(setup.waits(), [1]);
}

#[test]
fn a_plain_server_is_not_taken_for_a_secure_one() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut setup = Setup::new(single(), NO_FAULT);
    setup.settings.endpoint = format!("https://{}", listener.local_addr().unwrap());
    let plain = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // All of the greeting, so that closing does not take the answer away.
        let _ = stream.read(&mut [0; 16_384]);
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let error = setup.fetch().unwrap_err();
    assert!(matches!(error, HubError::Tls { .. }), "{error}");
    assert_eq!(setup.waits(), [0u64; 0]);
    plain.join().unwrap();
}
