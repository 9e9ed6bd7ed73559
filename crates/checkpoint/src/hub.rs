//! Models from the hub: which files a model needs, fetched once and kept where the hub's own tools keep them.
//!
//! A revision is resolved to a commit, its files are listed, and what the cache lacks is downloaded: configs,
//! tokenizer, templates and the weights in safetensors form, nothing else. A download that is cut off goes on where it
//! ended; lengths and hashes are checked; two processes never write one file at once. Without a network, a complete
//! model of the cache is used as it is.
//!
//! *Invariant:* waiting is done by the caller's function only, so that no test sleeps.

mod cache;
mod client;
mod download;
mod error;
mod id;
mod needed;
mod retries;
mod session;
mod settings;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cache::{CachedModel, length};
use download::download;
use needed::{Weights, shards_of, small_files, weights};
use retries::Retries;
use session::{Listing, RemoteFile, Session};

use crate::shards::{INDEX, SINGLE};

pub use error::HubError;
pub use id::HubId;
pub use settings::{HubSettings, Token};

/// The way to the models of a hub.
pub struct Hub {
    settings: HubSettings,
    sleep: Box<dyn Fn(Duration) + Send + Sync>,
}

/// What happens while a model is fetched.
#[derive(Debug)]
#[non_exhaustive]
pub enum HubEvent<'a> {
    /// So many files more are going to be fetched.
    Plan {
        /// Number of files.
        n_files: usize,
        /// Their bytes.
        bytes: u64,
    },
    /// Bytes of a file are there.
    Progress {
        /// Name of the file.
        file: &'a str,
        /// Bytes that are there.
        done: u64,
        /// Bytes of the whole file.
        total: u64,
    },
    /// Another process downloads a file; this one waits for it.
    Waiting {
        /// Name of the file.
        file: &'a str,
        /// The lock that the other process holds.
        lock: &'a Path,
    },
    /// Something failed that may go well a little later.
    Retry {
        /// What failed.
        error: &'a HubError,
        /// How long from now it is tried again.
        wait: Duration,
    },
    /// The hub gave no answer, and the model is used as the cache has it.
    FromCache {
        /// Why there was no answer.
        error: &'a HubError,
        /// What is used.
        snapshot: &'a Path,
    },
}

impl Hub {
    /// A hub with given settings; `sleep` waits before a request is repeated.
    pub fn new(settings: HubSettings, sleep: impl Fn(Duration) + Send + Sync + 'static) -> Hub {
        Hub { settings, sleep: Box::new(sleep) }
    }

    /// Fetches what is missing of a model and returns its folder in the cache.
    ///
    /// # Errors
    /// [`HubError`]; what was downloaded until then is kept.
    pub fn fetch(&self, id: &HubId, events: &mut dyn FnMut(HubEvent<'_>)) -> Result<PathBuf, HubError> {
        let cached = CachedModel::new(&self.settings.cache, id);
        let complete = cached.complete_snapshot(id);
        if self.settings.offline {
            return complete;
        }
        let session = Session::new(&self.settings, id)?;
        // Who has the model already does not wait for a hub that is not there.
        let retries = if complete.is_ok() { Retries::none(&self.sleep) } else { Retries::new(&self.sleep) };
        let listing = match (retries.repeat(events, || session.listing()), complete) {
            (Ok(listing), _) => listing,
            (Err(error), Ok(snapshot)) if error.is_temporary() => {
                events(HubEvent::FromCache { error: &error, snapshot: &snapshot });
                return Ok(snapshot);
            }
            (Err(error), _) => return Err(error),
        };
        let weights = weights(id, &listing)?;
        let mut fetch = Fetch { hub: self, session, cached, listing, events };
        fetch.model(id, weights)?;
        // Last, so that a branch never stands for half a model.
        fetch.cached.set_commit(id, &fetch.listing.commit)?;
        Ok(fetch.cached.snapshot(&fetch.listing.commit))
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// One model on its way into the cache.
struct Fetch<'a> {
    hub: &'a Hub,
    session: Session<'a>,
    cached: CachedModel,
    listing: Listing,
    events: &'a mut dyn FnMut(HubEvent<'_>),
}

impl Fetch<'_> {
    fn model(&mut self, id: &HubId, weights: Weights) -> Result<(), HubError> {
        let mut names: Vec<String> = small_files(&self.listing).map(str::to_owned).collect();
        match weights {
            Weights::Single => names.push(SINGLE.to_owned()),
            Weights::Sharded => {
                self.files(&[INDEX.to_owned()])?;
                let shards = shards_of(&self.cached.snapshot(&self.listing.commit).join(INDEX))?;
                if let Some(missing) = shards.iter().find(|shard| !self.listing.has(shard)) {
                    return Err(HubError::NotAModel { name: id.to_string(), missing: missing.clone() });
                }
                names.extend(shards);
            }
        }
        self.files(&names)
    }

    /// Fetches those of the files that the cache lacks.
    fn files(&mut self, names: &[String]) -> Result<(), HubError> {
        let commit = self.listing.commit.clone();
        let mut missing = Vec::new();
        for name in names {
            if !self.cached.has(&commit, name, self.listing.size(name)) {
                let retries = Retries::new(&self.hub.sleep);
                missing.push(retries.repeat(self.events, || self.session.file(&commit, name))?);
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let bytes = missing.iter().map(|file| file.size).sum();
        (self.events)(HubEvent::Plan { n_files: missing.len(), bytes });
        missing.iter().try_for_each(|file| self.file(&commit, file))
    }

    fn file(&mut self, commit: &str, file: &RemoteFile) -> Result<(), HubError> {
        let blob = self.cached.blob(&file.etag);
        let waiting = |lock: &Path| (self.events)(HubEvent::Waiting { file: &file.name, lock });
        let _lock = self.cached.lock(&file.etag, waiting)?;
        // Whoever had the lock before may have brought it; a blob of another length is damaged.
        if length(&blob) == Some(file.size) {
            (self.events)(HubEvent::Progress { file: &file.name, done: file.size, total: file.size });
        } else {
            let folder = blob.parent().unwrap_or(&blob);
            fs::create_dir_all(folder).map_err(|source| HubError::cache(folder, source))?;
            let incomplete = self.cached.incomplete(&file.etag);
            download(&self.session, file, &incomplete, Retries::new(&self.hub.sleep), self.events)?;
            fs::rename(&incomplete, &blob).map_err(|source| HubError::cache(&blob, source))?;
        }
        self.cached.link(commit, &file.name, &file.etag)
    }
}
