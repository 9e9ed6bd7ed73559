//! A small hub on the loopback device, with the faults of real ones.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// One request as it came.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    headers: Vec<(String, String)>,
}

impl Request {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

/// How an answer says where it ends.
#[derive(Clone, Debug)]
pub(super) enum Length {
    /// By the number of its bytes.
    True,
    /// By another number.
    Claimed(u64),
    /// In chunks.
    Chunked,
}

/// One answer.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    length: Length,
    cut_at: Option<usize>,
    silent: bool,
}

impl Reply {
    pub(super) fn new(status: u16) -> Reply {
        let (headers, body) = (Vec::new(), Vec::new());
        Reply { status, headers, body, length: Length::True, cut_at: None, silent: false }
    }

    /// Keeps the connection and never says a word.
    pub(super) fn silence() -> Reply {
        Reply { silent: true, ..Reply::new(200) }
    }

    pub(super) fn header(mut self, name: &'static str, value: impl Into<String>) -> Reply {
        self.headers.push((name, value.into()));
        self
    }

    pub(super) fn body(mut self, body: impl Into<Vec<u8>>) -> Reply {
        self.body = body.into();
        self
    }

    pub(super) fn length(mut self, length: Length) -> Reply {
        self.length = length;
        self
    }

    /// Closes the connection after so many bytes of the body.
    pub(super) fn cut_at(mut self, bytes: usize) -> Reply {
        self.cut_at = Some(bytes);
        self
    }

    fn write(&self, stream: &mut TcpStream, is_head: bool) -> std::io::Result<()> {
        let mut head = format!("HTTP/1.1 {} X\r\nconnection: close\r\n", self.status);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        match self.length {
            Length::True => head += &format!("content-length: {}\r\n", self.body.len()),
            Length::Claimed(length) => head += &format!("content-length: {length}\r\n"),
            Length::Chunked => head += "transfer-encoding: chunked\r\n",
        }
        stream.write_all(head.as_bytes())?;
        stream.write_all(b"\r\n")?;
        if is_head {
            return Ok(());
        }
        let body = &self.body[..self.cut_at.unwrap_or(self.body.len())];
        if !matches!(self.length, Length::Chunked) {
            return stream.write_all(body);
        }
        for chunk in body.chunks(1000) {
            stream.write_all(format!("{:x}\r\n", chunk.len()).as_bytes())?;
            stream.write_all(chunk)?;
            stream.write_all(b"\r\n")?;
        }
        if self.cut_at.is_none() { stream.write_all(b"0\r\n\r\n") } else { Ok(()) }
    }
}

/// Answers until it is dropped.
pub(super) struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// A server whose answers depend on the request and on how many like it there were before.
    pub(super) fn start(answer: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let thread = thread::spawn({
            let (seen, stop, answer) = (Arc::clone(&seen), Arc::clone(&stop), Arc::new(answer));
            move || {
                for stream in listener.incoming() {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                    thread::spawn(move || serve(stream.unwrap(), &seen, &*answer));
                }
            }
        });
        Server { address, seen, stop, thread: Some(thread) }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All requests so far.
    pub(super) fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // One more connection, so that the thread looks at the flag.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// One connection with one request. A client that has gone is no fault.
fn serve(mut stream: TcpStream, seen: &Mutex<Vec<Request>>, answer: &dyn Fn(&Request, usize) -> Reply) {
    let Some(request) = read_request(&stream) else { return };
    let n_before = {
        let mut seen = seen.lock().unwrap();
        let same = |r: &&Request| r.method == request.method && r.path == request.path;
        let n_before = seen.iter().filter(same).count();
        seen.push(request.clone());
        n_before
    };
    let reply = answer(&request, n_before);
    if reply.silent {
        // Until the client closes.
        let _ = read_request(&stream);
        return;
    }
    let _ = reply.write(&mut stream, request.method == "HEAD");
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = Vec::new();
    for line in lines {
        let line = line.ok()?;
        let Some((name, value)) = line.split_once(": ") else { break };
        headers.push((name.to_lowercase(), value.to_owned()));
    }
    Some(Request { method, path, headers })
}
