use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::*;
use crate::ModelFolder;
use crate::test_files::file_of;

mod cache;
mod contents;
mod refusals;
mod server;

use server::{Reply, Request, Server};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const LISTING: &str = "/api/models/org/tiny/revision/main?blobs=true";

/// Files of the model `org/tiny`. What ends in `.safetensors` lies in a store of its own, as large files do.
type Files = BTreeMap<String, Vec<u8>>;

/// Instead of the right answer: looks at a request and at how many like it there were before.
type Fault = fn(&Request, usize) -> Option<Reply>;

/// A hub, its store of large files, and a cache.
struct Setup {
    hub: Server,
    store: Server,
    dir: TempDir,
    settings: HubSettings,
    waits: Arc<Mutex<Vec<Duration>>>,
    events: RefCell<Vec<String>>,
}

impl Setup {
    fn new(files: Files, fault: Fault) -> Setup {
        let store = Server::start({
            let files = files.clone();
            move |request, n| fault(request, n).unwrap_or_else(|| stored(&files, request))
        });
        let url = store.url();
        let hub = Server::start(move |request, n| {
            fault(request, n).unwrap_or_else(|| answer(&files, &url, request))
        });
        let dir = tempfile::tempdir().unwrap();
        let settings = HubSettings {
            endpoint: hub.url(),
            cache: dir.path().join("hub"),
            token: None,
            offline: false,
            use_proxy: false,
            // Longer than anything here is kept waiting: who is cut off too early asks again, and requests are counted.
            silence: Duration::from_secs(300),
        };
        Setup { hub, store, dir, settings, waits: Arc::default(), events: RefCell::default() }
    }

    fn hub(&self) -> Hub {
        let waits = Arc::clone(&self.waits);
        Hub::new(self.settings.clone(), move |wait| waits.lock().unwrap().push(wait))
    }

    fn fetch(&self) -> Result<PathBuf, HubError> {
        self.fetch_id("org/tiny")
    }

    fn fetch_id(&self, id: &str) -> Result<PathBuf, HubError> {
        self.hub().fetch(&id.parse().unwrap(), &mut |event| {
            let text = match event {
                HubEvent::Plan { n_files, bytes } => format!("plan {n_files} {bytes}"),
                HubEvent::Progress { file, done, total } => format!("{file} {done}/{total}"),
                HubEvent::Waiting { file, .. } => format!("waiting {file}"),
                HubEvent::Retry { wait, .. } => format!("retry {}", wait.as_secs()),
                HubEvent::FromCache { .. } => "from cache".to_owned(),
            };
            self.events.borrow_mut().push(text);
        })
    }

    /// Seconds of all waits.
    fn waits(&self) -> Vec<u64> {
        self.waits.lock().unwrap().iter().map(Duration::as_secs).collect()
    }

    /// A path in the model's part of the cache.
    fn cached(&self, path: &str) -> PathBuf {
        self.settings.cache.join("models--org--tiny").join(path)
    }

    /// Where the weights are while they come.
    fn incomplete(&self) -> PathBuf {
        self.cached(&format!("blobs/{}.incomplete", sha256(&weights())))
    }

    /// The ranges that were asked for of the contents of large files.
    fn ranges(&self) -> Vec<Option<String>> {
        self.store.seen().iter().map(|request| request.header("range").map(str::to_owned)).collect()
    }
}

/// What a right hub says.
fn answer(files: &Files, store: &str, request: &Request) -> Reply {
    if request.path == LISTING || request.path == LISTING.replace("main", COMMIT) {
        return Reply::new(200).body(listing(files));
    }
    let prefix = format!("/org/tiny/resolve/{COMMIT}/");
    let name = request.path.strip_prefix(&prefix).unwrap_or_default();
    let Some(bytes) = files.get(name) else {
        return Reply::new(404).header("x-error-code", "EntryNotFound");
    };
    if !name.ends_with(".safetensors") {
        return Reply::new(200).header("etag", format!("\"{}\"", small_etag(bytes))).body(bytes.clone());
    }
    Reply::new(302)
        .header("location", format!("{store}/{name}?signature=1"))
        .header("etag", "\"of-the-redirect\"")
        .header("x-linked-etag", format!("\"{}\"", sha256(bytes)))
        .header("x-linked-size", bytes.len().to_string())
        .body("a note about the redirect")
}

/// What a right store sends.
fn stored(files: &Files, request: &Request) -> Reply {
    let name = request.path.trim_start_matches('/').trim_end_matches("?signature=1");
    let bytes = &files[name];
    let start = request
        .header("range")
        .map(|range| range.trim_start_matches("bytes=").trim_end_matches('-').parse::<usize>().unwrap());
    match start {
        None => Reply::new(200).body(bytes.clone()),
        Some(start) => Reply::new(206)
            .header("content-range", format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len()))
            .body(&bytes[start..]),
    }
}

fn listing(files: &Files) -> Vec<u8> {
    let siblings: Vec<_> = files
        .iter()
        .map(|(name, bytes)| serde_json::json!({"rfilename": name, "size": bytes.len(), "blobId": "x"}))
        .collect();
    serde_json::json!({"id": "org/tiny", "sha": COMMIT, "siblings": siblings}).to_string().into_bytes()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A name for contents that is no SHA-256, as the hub has it for small files.
fn small_etag(bytes: &[u8]) -> String {
    sha256(bytes)[..40].to_owned()
}

fn weights() -> Vec<u8> {
    let data: Vec<u8> = (0..600_000u32).map(|i| (i % 251) as u8).collect();
    file_of(&[("w", "U8", &[600_000], &data)])
}

fn files<const N: usize>(files: [(&str, Vec<u8>); N]) -> Files {
    files.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect()
}

/// A model with one file of weights, and what else a repository has.
fn single() -> Files {
    files([
        ("config.json", b"{}".to_vec()),
        ("chat_template.jinja", b"{{ messages }}".to_vec()),
        ("model.safetensors", weights()),
        ("README.md", b"# Tiny".to_vec()),
        ("model.gguf", vec![0; 1000]),
        ("onnx/config.json", b"{}".to_vec()),
        (".hidden.json", b"{}".to_vec()),
    ])
}

fn shard(name: &str) -> Vec<u8> {
    file_of(&[(name, "U8", &[1], &[7])])
}

fn sharded() -> Files {
    let index = serde_json::json!({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}});
    files([
        ("config.json", b"{}".to_vec()),
        ("model.safetensors.index.json", index.to_string().into_bytes()),
        ("model-1.safetensors", shard("a")),
        ("model-2.safetensors", shard("b")),
        ("consolidated.safetensors", shard("c")),
    ])
}

const NO_FAULT: Fault = |_, _| None;

#[test]
fn a_model_lies_in_the_cache_as_the_hubs_own_tools_put_it() {
    let setup = Setup::new(single(), NO_FAULT);
    let snapshot = setup.fetch().unwrap();
    assert_eq!(snapshot, setup.cached(&format!("snapshots/{COMMIT}")));
    assert_eq!(fs::read_to_string(setup.cached("refs/main")).unwrap(), COMMIT);
    let mut names: Vec<_> = fs::read_dir(&snapshot)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["chat_template.jinja", "config.json", "model.safetensors"]);
    let blob = format!("../../blobs/{}", sha256(&weights()));
    assert_eq!(fs::read_link(snapshot.join("model.safetensors")).unwrap(), Path::new(&blob));
    let blob = format!("../../blobs/{}", small_etag(b"{}"));
    assert_eq!(fs::read_link(snapshot.join("config.json")).unwrap(), Path::new(&blob));
    assert_eq!(fs::read_dir(setup.cached("blobs")).unwrap().count(), 3);

    let folder = ModelFolder::open(&snapshot).unwrap();
    assert_eq!(folder.tensors().unwrap().names().collect::<Vec<_>>(), ["w"]);
    let events = setup.events.borrow();
    assert_eq!(events[0], format!("plan 3 {}", weights().len() + 16));
    assert_eq!(*events.last().unwrap(), format!("model.safetensors {0}/{0}", weights().len()));
}

#[test]
fn what_is_there_is_not_fetched_again() {
    let setup = Setup::new(single(), NO_FAULT);
    let first = setup.fetch().unwrap();
    let n_requests = setup.hub.seen().len();
    setup.events.borrow_mut().clear();
    assert_eq!(setup.fetch().unwrap(), first);
    assert_eq!(setup.hub.seen().len(), n_requests + 1, "only the list of files");
    assert_eq!(*setup.events.borrow(), Vec::<String>::new());
    // By its commit too, which needs no ref.
    assert_eq!(setup.fetch_id(&format!("org/tiny@{COMMIT}")).unwrap(), first);
    assert_eq!(fs::read_dir(setup.cached("refs")).unwrap().count(), 1);
}

#[test]
fn only_the_shards_of_the_index_are_fetched() {
    let setup = Setup::new(sharded(), NO_FAULT);
    let snapshot = setup.fetch().unwrap();
    assert!(!snapshot.join("consolidated.safetensors").exists());
    let tensors = ModelFolder::open(&snapshot).unwrap().tensors().unwrap();
    assert_eq!(tensors.names().collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn the_token_goes_to_the_hub_and_nowhere_else() {
    let mut setup = Setup::new(single(), NO_FAULT);
    setup.settings.token = token(&setup);
    setup.fetch().unwrap();
    assert!(setup.hub.seen().iter().all(|r| r.header("authorization") == Some("Bearer hf_secret")));
    assert!(!setup.store.seen().is_empty());
    assert!(setup.store.seen().iter().all(|r| r.header("authorization").is_none()));
}

#[test]
fn a_renamed_model_is_followed() {
    let renamed: Fault = |request, _| {
        let new = request.path.replace("org/old", "org/tiny");
        (new != request.path).then(|| Reply::new(307).header("location", new))
    };
    let mut setup = Setup::new(single(), renamed);
    setup.settings.token = token(&setup);
    let snapshot = setup.fetch_id("org/old").unwrap();
    assert!(snapshot.join("model.safetensors").is_file());
    assert!(setup.hub.seen().iter().all(|r| r.header("authorization").is_some()));
}

/// A token, as it comes from a file.
fn token(setup: &Setup) -> Option<Token> {
    fs::write(setup.dir.path().join("token"), "hf_secret\n").unwrap();
    Token::read(&setup.dir.path().join("token")).unwrap()
}
