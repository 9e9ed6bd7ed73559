//! An HTTP client that does what a test says, also what no decent client would.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Longer than anything here takes on the slowest machine: a test fails instead of hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// What a server answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| &value[..])
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("bodies are text")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The body of an answer that is fine.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// The error of an answer that is one, which always has the shape that clients read.
    pub(crate) fn error(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        let error = self.json()["error"].clone();
        assert!(error["message"].is_string() && error["type"].is_string(), "{error}");
        error
    }

    /// The chunks of a stream, which must end as streams do.
    pub(crate) fn chunks(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.text());
        let events: Vec<_> = self.text().split_terminator("\n\n").collect();
        let (last, chunks) = events.split_last().expect("at least one event");
        assert_eq!(*last, "data: [DONE]");
        let chunk = |event: &&str| {
            let data = event.strip_prefix("data: ").unwrap_or_else(|| panic!("no data: {event}"));
            serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"))
        };
        // After a silence a comment says that the stream is still there.
        chunks.iter().filter(|event| !event.starts_with(':')).map(chunk).collect()
    }
}

/// An open connection with a request on it.
pub(crate) struct Open {
    pub(crate) stream: TcpStream,
}

impl Open {
    /// Connects and writes these bytes.
    pub(crate) fn raw(address: SocketAddr, bytes: &[u8]) -> Self {
        let mut stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        // A server that has heard enough may close before all is written.
        let _ = stream.write_all(bytes);
        Self { stream }
    }

    /// Sends a request.
    pub(crate) fn request(address: SocketAddr, method: &str, path: &str, headers: &str, body: &[u8]) -> Self {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
            body.len()
        );
        Self::raw(address, &[head.as_bytes(), body].concat())
    }

    /// Reads until at least so many bytes are there, or the end.
    pub(crate) fn read_some(&mut self, at_least: usize) -> Vec<u8> {
        let mut got = Vec::new();
        let mut part = [0; 4096];
        while got.len() < at_least {
            match self.stream.read(&mut part) {
                Ok(0) => break,
                Ok(n) => got.extend_from_slice(&part[..n]),
                Err(error) => panic!("after {} bytes: {error}", got.len()),
            }
        }
        got
    }

    /// Reads one answer that says how long it is, and keeps the connection.
    pub(crate) fn next_answer(&mut self) -> Answer {
        let mut bytes = Vec::new();
        loop {
            let more = self.read_some(1);
            assert!(!more.is_empty(), "the end, after {}", String::from_utf8_lossy(&bytes));
            bytes.extend(more);
            let Some(answer) = parse(&bytes) else { continue };
            let length: usize = answer.header("content-length").expect("a length").parse().expect("a number");
            if answer.body.len() >= length {
                assert_eq!(answer.body.len(), length, "nothing else was asked for");
                return answer;
            }
        }
    }

    /// Says that nothing more comes from here. The server may have closed the connection before.
    pub(crate) fn end_request(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Reads the whole answer; `None` if the connection ends without one.
    pub(crate) fn answer(mut self) -> Option<Answer> {
        let mut bytes = Vec::new();
        let mut part = [0; 1 << 16];
        loop {
            match self.stream.read(&mut part) {
                Ok(0) => break,
                Ok(n) => bytes.extend_from_slice(&part[..n]),
                // Closed with something unread: what came before still counts.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
                Err(error) => panic!("after {} bytes: {error}", bytes.len()),
            }
        }
        parse(&bytes)
    }
}

fn parse(bytes: &[u8]) -> Option<Answer> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).expect("heads are text");
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().expect("a status");
    let header = |line: &str| {
        let (name, value) = line.split_once(": ").expect("a header");
        (name.to_owned(), value.to_owned())
    };
    let headers: Vec<_> = lines.map(header).collect();
    let mut answer = Answer { status, headers, body: bytes[end + 4..].to_vec() };
    if answer.header("transfer-encoding") == Some("chunked") {
        answer.body = dechunk(&answer.body);
    }
    Some(answer)
}

/// Joins the parts of a chunked body. One that is cut off ends where it does.
fn dechunk(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|window| window == b"\r\n") {
        let size =
            std::str::from_utf8(&rest[..end]).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
        let size = size.expect("the size of a part");
        let part = &rest[end + 2..];
        body.extend_from_slice(&part[..size.min(part.len())]);
        if size == 0 || part.len() < size + 2 {
            break;
        }
        rest = &part[size + 2..];
    }
    body
}

pub(crate) const JSON: &str = "content-type: application/json\r\n";

pub(crate) fn get(address: SocketAddr, path: &str) -> Answer {
    Open::request(address, "GET", path, "", b"").answer().expect("an answer")
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Answer {
    post_bytes(address, path, body.to_string().as_bytes())
}

pub(crate) fn post_bytes(address: SocketAddr, path: &str, body: &[u8]) -> Answer {
    Open::request(address, "POST", path, JSON, body).answer().expect("an answer")
}
