//! What a server allows.

use std::time::Duration;

/// Limits of a server, and its key. The defaults suit one machine behind no proxy.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Clients have to name this key. `None`: everybody may ask.
    pub api_key: Option<String>,
    /// Requests that wait beside those that run; one more is told to come again (429). A request for `n` outputs counts `n` times.
    pub queue: usize,
    /// Bytes of a body at most.
    pub body_bytes: usize,
    /// Time for a request's headers, and the longest pause between two requests of a connection.
    pub header_time: Duration,
    /// Time for a request's body.
    pub body_time: Duration,
    /// Time for an answer. `None`: as long as it takes.
    pub answer_time: Option<Duration>,
    /// A client that takes nothing for so long is cut off.
    pub stall_time: Duration,
    /// Connections at one time; more wait to be accepted.
    pub connections: usize,
    /// Outputs of one request at most, all its prompts together.
    pub choices: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            api_key: None,
            queue: 64,
            body_bytes: 4 << 20,
            header_time: Duration::from_secs(60),
            body_time: Duration::from_secs(30),
            answer_time: Some(Duration::from_secs(3600)),
            stall_time: Duration::from_secs(60),
            connections: 1024,
            choices: 128,
        }
    }
}
