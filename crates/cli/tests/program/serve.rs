//! `paceline serve` as a program: its first line, its signals, and what it refuses. What it answers is tested in `crates/server`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use crate::process::{paceline, refuses, root};

/// Longer than an answer or the end of a server takes on the slowest machine: a test fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(300);

/// A server, which does not outlive its test.
struct Running {
    child: Child,
    address: String,
}

impl Running {
    /// Starts a server at a free port, and waits for its line.
    fn start(arguments: &[&str]) -> Self {
        Self::start_as(paceline(), arguments)
    }

    fn start_as(mut command: Command, arguments: &[&str]) -> Self {
        command.args(["serve", "--port", "0", "--threads", "1", "--context", "256"]).args(arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let Some(address) = line.trim().strip_prefix("listening on http://").map(str::to_owned) else {
            let output = child.wait_with_output().unwrap();
            panic!("{line:?} and {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        };
        Self { address, child }
    }

    fn get(&self, path: &str) -> String {
        self.ask(&format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"))
    }

    /// Sends a request that closes its connection, and gives the answer.
    fn ask(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Sends a signal and gives the exit code and the log.
    fn end(self, signal: &str) -> (Option<i32>, String) {
        self.signal(signal);
        self.wait()
    }

    /// Waits for the end, and gives the exit code and the log.
    fn wait(mut self) -> (Option<i32>, String) {
        let status = self.ended();
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (status.code(), log)
    }

    fn ended(&mut self) -> ExitStatus {
        for _ in 0..PATIENCE.as_millis() / 5 {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("the server does not end");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended, unless the test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[cfg(all(unix, feature = "tiny"))]
fn it_serves_the_built_in_model_until_a_signal() {
    for signal in ["-TERM", "-INT"] {
        let server = Running::start(&["--draft", "tiny,ngram", "--draft-tokens", "3"]);
        assert!(server.get("/ready").starts_with("HTTP/1.1 200"));
        let models = server.get("/v1/models");
        assert!(
            models.contains("\"id\":\"tiny-gemma4\"")
                && models.contains("\"most_tokens\":3")
                && models.contains("{\"kind\":\"ngram\",\"max_tokens\":3}"),
            "{models}"
        );
        let (code, log) = server.end(signal);
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains("answered") && log.contains("/v1/models"), "{log}");
        let ready = log.lines().find(|line| line.contains("ready")).unwrap_or_else(|| panic!("{log}"));
        for word in [
            "model=\"tiny-gemma4\"",
            "level=",
            "threads=1",
            "context=256",
            "running=8",
            "queue=64",
            "drafts=\"assistant 3, ngram 3\"",
        ] {
            assert!(ready.contains(word), "no {word} in: {ready}");
        }
    }
}

#[test]
#[cfg(all(unix, feature = "tiny"))]
fn a_second_signal_does_not_wait() {
    for (first, second) in [("-TERM", "-TERM"), ("-INT", "-TERM")] {
        let server = Running::start(&["--drain-time", "100000", "--body-time", "100000"]);
        // Of a request that was begun, and whose body does not come.
        let mut begun = TcpStream::connect(&server.address).unwrap();
        let head =
            "POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n";
        write!(begun, "{head}expect: 100-continue\r\n\r\n").unwrap();
        let mut go_on = [0; 12];
        begun.read_exact(&mut go_on).unwrap();
        assert_eq!(&go_on, b"HTTP/1.1 100");
        server.signal(first);
        while TcpStream::connect(&server.address).is_ok() {
            thread::sleep(Duration::from_millis(10));
        }
        let (code, log) = server.end(second);
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains("cutting off"), "{log}");
    }
}

#[test]
#[cfg(all(unix, feature = "tiny"))]
fn the_log_tells_of_each_request_under_its_id() {
    let server = Running::start(&["--log-format", "json"]);
    let body =
        r#"{"prompt": "Once", "max_tokens": 5, "n": 2, "ignore_eos": true, "stream": true, "frobnicate": 1}"#;
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-request-id: mine-1\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = server.ask(&request);
    server.ask(&request.replace("mine-1", "mine-2"));
    server.ask(&request.replace("/v1/completions", "/completions"));
    server.ask(&request.replace("\"n\": 2", "\"n\": 0"));
    assert!(answer.contains("x-request-id: mine-1\r\n") && answer.contains("data: [DONE]"), "{answer}");
    let (_, log) = server.end("-TERM");
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told = |message: &str| {
        let line = lines.iter().find(|line| line["fields"]["message"] == message);
        let line = line.unwrap_or_else(|| panic!("no {message}: {log}"));
        assert_eq!(line["span"]["id"], "mine-1", "{line}");
        line["fields"].clone()
    };
    assert_eq!(told("answered")["status"], 200);
    let generated = told("generated");
    assert_eq!(
        (&generated["outputs"], &generated["unfinished"], &generated["tokens"]),
        (&2.into(), &0.into(), &10.into())
    );
    let refused = |status: u16| {
        let line = lines.iter().find(|line| line["fields"]["status"] == status);
        line.unwrap_or_else(|| panic!("no {status}: {log}"))["fields"].clone()
    };
    assert_eq!(refused(404)["path"], "/completions");
    let reason = "there is nothing at /completions; did you mean /v1/completions?";
    assert_eq!(refused(404)["reason"], reason);
    assert_eq!(refused(400)["reason"], "n: is 0; expected a whole number from 1 to 128");
    // Times are numbers that people can read.
    for line in lines.iter().filter(|line| line["fields"]["ms"].is_number()) {
        let ms = line["fields"]["ms"].to_string();
        assert!(ms.split('.').nth(1).is_none_or(|digits| digits.len() <= 3), "{line}");
    }
    // What is unknown is said once.
    let unknown = lines.iter().filter(|line| line["fields"]["field"] == "frobnicate").count();
    assert_eq!(unknown, 1, "{log}");
}

#[test]
#[cfg(feature = "tiny")]
fn a_key_may_come_from_the_environment() {
    let mut command = paceline();
    command.env("PACELINE_API_KEY", "from-outside");
    let server = Running::start_as(command, &[]);
    assert!(server.get("/v1/models").starts_with("HTTP/1.1 401"));
    let request = "GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer from-outside\r\n\r\n";
    assert!(server.ask(request).starts_with("HTTP/1.1 200"));
    server.end("-TERM");
}

#[test]
fn options_come_from_a_file_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("serve.toml");
    let model = root().join("assets/tiny-gemma4").display().to_string();
    std::fs::write(
        &file,
        format!("model = {model:?}\nmodel-name = \"mine\"\nport = 1\nlog-format = \"json\"\n"),
    )
    .unwrap();
    let server = Running::start(&["--config", file.to_str().unwrap()]);
    let models = server.get("/v1/models");
    assert!(models.contains("\"id\":\"mine\""), "{models}");
    let (code, log) = server.end("-TERM");
    assert_eq!(code, Some(0), "{log}");
    assert!(log.lines().all(|line| line.starts_with('{')), "{log}");
}

#[test]
fn what_can_not_be_served_is_refused() {
    let model = root().join("assets/tiny-gemma4").display().to_string();
    let serve = |arguments: &[&str]| {
        let mut command = paceline();
        command.arg("serve").args(arguments);
        command
    };
    refuses(&mut serve(&["/nonexistent"]), 2, &["/nonexistent"]);
    refuses(&mut serve(&["--port", "70000"]), 2, &["--port", "expected a whole number from 0 to 65535"]);
    refuses(
        &mut serve(&["--max-running", "0"]),
        2,
        &["--max-running", "expected a whole number from 1 to 1024"],
    );
    refuses(&mut serve(&["--api-key", "a b"]), 2, &["--api-key", "visible"]);
    for name in ["", " "] {
        refuses(&mut serve(&["--model-name", name]), 2, &["--model-name", "at least one visible character"]);
    }
    refuses(
        &mut serve(&["--port", "0", "--kv-memory", "0", &model, "--log", "off"]),
        2,
        &["0 MiB (0 bytes) of K/V memory", "at full context needs"],
    );
    refuses(&mut serve(&["--draft-tokens", "3"]), 2, &["--draft"]);
    refuses(&mut serve(&["--config", "/nonexistent.toml"]), 2, &["/nonexistent.toml"]);
    refuses(
        &mut serve(&["--port", "0", "--context", "100000", &model, "--log", "off"]),
        2,
        &["context", "2048"],
    );
    refuses(serve(&[&model]).env("PACELINE_API_KEY", ""), 2, &["PACELINE_API_KEY"]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    refuses(
        &mut serve(&[&model, "--port", &port]),
        1,
        &["127.0.0.1", &port, "cannot listen", "take another port, or 0"],
    );
    // A name that no resolver is asked for: it has an empty part.
    refuses(&mut serve(&[&model, "--host", "no..host"]), 1, &["no..host"]);
}
