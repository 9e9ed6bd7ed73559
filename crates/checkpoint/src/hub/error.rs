//! Everything that can go wrong between here and a model on the hub.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a model could not be fetched. Every message says what to do where something can be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// A text that is not the name of a model on the hub.
    #[error("`{text}` is not a hub id: {problem}; expected owner/name or owner/name@revision")]
    BadId {
        /// The text.
        text: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// An environment variable has a value that cannot be used.
    #[error("environment variable {variable}: {problem}")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// The processor lacks instructions that the TLS implementation is made of.
    #[error(
        "{url}: https needs a processor with {needed}, and this one lacks some; \
         download the model elsewhere and give its folder, or set HF_ENDPOINT to a mirror without https"
    )]
    NoTls {
        /// What was to be fetched.
        url: String,
        /// The instructions.
        needed: &'static str,
    },
    /// The name of the host cannot be looked up: most often there is no network.
    #[error(
        "{url}: the name of the host cannot be looked up: {message}; is there a network, and are HF_ENDPOINT and the proxy right?"
    )]
    NoAddress {
        /// What was to be fetched.
        url: String,
        /// What the operating system said.
        message: String,
    },
    /// No connection, or one that broke before the answer.
    #[error(
        "{url}: cannot be reached: {message}; is there a network, and are HF_ENDPOINT and the proxy right?"
    )]
    Unreachable {
        /// What was to be fetched.
        url: String,
        /// What the operating system said.
        message: String,
    },
    /// The other side could not prove who it is.
    #[error("{url}: no secure connection: {message}")]
    Tls {
        /// What was to be fetched.
        url: String,
        /// What is wrong.
        message: String,
    },
    /// An answer that no hub gives.
    #[error("{url}: not an answer of a model hub: {problem}")]
    BadAnswer {
        /// What was to be fetched.
        url: String,
        /// What is wrong.
        problem: String,
    },
    /// A redirect that cannot be followed.
    #[error("{url}: redirects to `{location}`, which {problem}")]
    BadRedirect {
        /// What was to be fetched.
        url: String,
        /// Where it was said to be.
        location: String,
        /// What is wrong with that.
        problem: &'static str,
    },
    /// Redirects without an end.
    #[error("{url}: redirects more than {limit} times")]
    TooManyRedirects {
        /// What was to be fetched.
        url: String,
        /// Redirects that are followed.
        limit: usize,
    },
    /// The hub wants to know who asks (status 401), and no token was given.
    #[error(
        "{name}: the hub wants a token (401): the model is gated or private, or does not exist; \
         accept its terms at {page} and set HF_TOKEN, or save a token with `hf auth login`"
    )]
    TokenNeeded {
        /// `owner/name`.
        name: String,
        /// Where terms are accepted.
        page: String,
    },
    /// The hub does not know the token (status 401).
    #[error(
        "{name}: the hub refuses the token (401); is it mistyped or revoked? it comes from {source_of_token}"
    )]
    TokenRefused {
        /// `owner/name`.
        name: String,
        /// Variable or file that holds it.
        source_of_token: String,
    },
    /// The token's owner may not have the model (status 403).
    #[error(
        "{name}: the hub refuses access (403): the model is gated and needs a token of somebody who was granted \
         access; ask for it at {page}{}", if *with_token { "" } else { " and set HF_TOKEN" }
    )]
    NoAccess {
        /// `owner/name`.
        name: String,
        /// Where access is asked for.
        page: String,
        /// Whether a token was sent.
        with_token: bool,
    },
    /// There is no such model, revision or file (status 404).
    #[error("{name}: the hub has no {what} (404)")]
    NotFound {
        /// `owner/name`.
        name: String,
        /// What is not there.
        what: String,
    },
    /// Too many requests (status 429).
    #[error("{url}: the hub asks to slow down (429){}; a token raises the limit", wait(*retry_after))]
    RateLimited {
        /// What was to be fetched.
        url: String,
        /// How long to wait, where the hub says so.
        retry_after: Option<Duration>,
    },
    /// A failure on the hub's side (status 5xx).
    #[error("{url}: the hub fails with status {status}; try again later")]
    Server {
        /// What was to be fetched.
        url: String,
        /// The status.
        status: u16,
    },
    /// Any other refusal.
    #[error("{url}: unexpected status {status}{}", said(message))]
    Status {
        /// What was to be fetched.
        url: String,
        /// The status.
        status: u16,
        /// What the hub said, if anything.
        message: Option<String>,
    },
    /// The repository holds no model in a form that can be read.
    #[error("{name}: has no {missing}; is it a model in safetensors form?")]
    NotAModel {
        /// `owner/name@revision`.
        name: String,
        /// The missing file.
        missing: String,
    },
    /// An index that cannot be read, so that nobody knows which shards to fetch.
    #[error("{file}: not an index of shards: {problem}")]
    BadIndex {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The connection ended before the file did.
    #[error(
        "{file}: the download ended at {received} of {expected} bytes: {message}; run again to resume it"
    )]
    Interrupted {
        /// `owner/name: file`.
        file: String,
        /// Bytes that are there.
        received: u64,
        /// Bytes of the whole file.
        expected: u64,
        /// What happened.
        message: String,
    },
    /// The body has another length than the file.
    #[error("{file}: the hub sends {found} bytes, but says that the file has {expected}")]
    WrongLength {
        /// `owner/name: file`.
        file: String,
        /// Bytes as announced.
        expected: u64,
        /// Bytes as sent, or at least as many.
        found: u64,
    },
    /// The bytes are not those of the file.
    #[error("{file}: has the sha256 {found}, expected {expected}; what was downloaded is deleted, run again")]
    WrongHash {
        /// `owner/name: file`.
        file: String,
        /// Hash as announced.
        expected: String,
        /// Hash of the bytes received.
        found: String,
    },
    /// Downloads are switched off and the cache lacks a file.
    #[error("{name}: not complete in the cache, and HF_HUB_OFFLINE forbids downloads: {missing} is missing")]
    Offline {
        /// `owner/name@revision`.
        name: String,
        /// The missing file or folder of the cache.
        missing: PathBuf,
    },
    /// The cache cannot be read or written.
    #[error("{path}: {source}; HF_HOME or HF_HUB_CACHE may name another folder for the cache")]
    Cache {
        /// File or folder of the cache.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// No room is left.
    #[error(
        "{path}: no space left on the disk; free some and run again to resume, \
         or let HF_HOME or HF_HUB_CACHE name a folder on another disk"
    )]
    DiskFull {
        /// The file that was written.
        path: PathBuf,
    },
}

impl HubError {
    /// An error of the file system below the cache.
    pub(super) fn cache(path: &Path, source: io::Error) -> HubError {
        let path = path.to_path_buf();
        match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => HubError::DiskFull { path },
            _ => HubError::Cache { path, source },
        }
    }

    /// Whether no address was found for a name. Waiting seldom helps.
    pub(super) fn is_lookup(&self) -> bool {
        matches!(self, HubError::NoAddress { .. })
    }

    /// Whether the same request may well succeed a little later.
    pub(super) fn is_temporary(&self) -> bool {
        matches!(
            self,
            HubError::NoAddress { .. }
                | HubError::Unreachable { .. }
                | HubError::RateLimited { .. }
                | HubError::Server { .. }
                | HubError::Interrupted { .. }
        )
    }
}

fn wait(retry_after: Option<Duration>) -> String {
    retry_after.map(|wait| format!(", for {} seconds", wait.as_secs())).unwrap_or_default()
}

fn said(message: &Option<String>) -> String {
    message.as_ref().map(|message| format!(": {message}")).unwrap_or_default()
}
