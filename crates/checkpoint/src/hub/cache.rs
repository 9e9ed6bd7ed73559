//! The cache of downloaded models, in the layout of the hub's own tools, so that both use one copy of a model.
//!
//! ```text
//! models--owner--name/
//!   blobs/<etag>                    contents; <etag>.incomplete while they come
//!   refs/<revision>                 the commit that a branch or tag stood for
//!   snapshots/<commit>/<file>       link to a blob
//! .locks/models--owner--name/<etag>.lock    held by whoever downloads that blob
//! ```
//!
//! A blob appears under its name only when it is complete, by renaming. Whatever goes wrong before leaves a file that
//! the next download goes on with.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::needed::{CONFIG, shards_of};
use super::{HubError, HubId};
use crate::shards::{INDEX, SINGLE};

/// One model's part of the cache.
#[derive(Debug)]
pub(super) struct CachedModel {
    folder: PathBuf,
    locks: PathBuf,
}

/// Held while a blob is written. Dropping it lets the next one in.
#[derive(Debug)]
pub(super) struct BlobLock {
    _file: File,
}

impl CachedModel {
    pub(super) fn new(cache: &Path, id: &HubId) -> CachedModel {
        let folder = id.folder();
        CachedModel { folder: cache.join(&folder), locks: cache.join(".locks").join(folder) }
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    pub(super) fn incomplete(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(format!("{etag}.incomplete"))
    }

    /// The snapshot that the cache has of a revision, if it is a whole model.
    ///
    /// # Errors
    /// [`HubError::Offline`] with what is missing.
    pub(super) fn complete_snapshot(&self, id: &HubId) -> Result<PathBuf, HubError> {
        let missing = |missing: PathBuf| HubError::Offline { name: id.to_string(), missing };
        let commit = match id.commit() {
            Some(commit) => commit.to_owned(),
            None => self.commit(id.revision()).ok_or_else(|| missing(self.reference(id.revision())))?,
        };
        let snapshot = self.snapshot(&commit);
        let need = |name: &str| {
            let file = snapshot.join(name);
            if file.is_file() { Ok(()) } else { Err(missing(file)) }
        };
        need(CONFIG)?;
        if need(SINGLE).is_err() && need(INDEX).is_ok() {
            for shard in shards_of(&snapshot.join(INDEX))? {
                need(&shard)?;
            }
        } else {
            need(SINGLE)?;
        }
        Ok(snapshot)
    }

    /// Whether a snapshot has a file, of this size where it is known.
    pub(super) fn has(&self, commit: &str, name: &str, size: Option<u64>) -> bool {
        let found = length(&self.snapshot(commit).join(name));
        found.is_some() && (size.is_none() || found == size)
    }

    /// Waits until nobody else writes a blob. Calls `waiting` with the path of the lock if that takes time.
    pub(super) fn lock(&self, etag: &str, waiting: impl FnOnce(&Path)) -> Result<BlobLock, HubError> {
        let path = self.locks.join(format!("{etag}.lock"));
        let fail = |source| HubError::cache(&path, source);
        fs::create_dir_all(&self.locks).map_err(|source| HubError::cache(&self.locks, source))?;
        let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(fail)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                waiting(&path);
                file.lock().map_err(fail)?;
            }
            Err(TryLockError::Error(source)) => return Err(fail(source)),
        }
        Ok(BlobLock { _file: file })
    }

    /// Makes a blob a file of a snapshot.
    pub(super) fn link(&self, commit: &str, name: &str, etag: &str) -> Result<(), HubError> {
        let folder = self.snapshot(commit);
        fs::create_dir_all(&folder).map_err(|source| HubError::cache(&folder, source))?;
        let pointer = folder.join(name);
        let fail = |source| HubError::cache(&pointer, source);
        match link_blob(&self.blob(etag), &Path::new("../../blobs").join(etag), &pointer) {
            // Another process was here, now or long ago: if it meant another blob, it is outdated.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                if !same_file(&pointer, &self.blob(etag)) {
                    fs::remove_file(&pointer).map_err(fail)?;
                    link_blob(&self.blob(etag), &Path::new("../../blobs").join(etag), &pointer)
                        .map_err(fail)?;
                }
                Ok(())
            }
            linked => linked.map_err(fail),
        }
    }

    /// Notes which commit a branch or tag stands for.
    pub(super) fn set_commit(&self, id: &HubId, commit: &str) -> Result<(), HubError> {
        if id.commit().is_some() || self.commit(id.revision()).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.reference(id.revision());
        let folder = path.parent().unwrap_or(&self.folder);
        fs::create_dir_all(folder).map_err(|source| HubError::cache(folder, source))?;
        fs::write(&path, commit).map_err(|source| HubError::cache(&path, source))
    }

    fn reference(&self, revision: &str) -> PathBuf {
        self.folder.join("refs").join(revision)
    }

    /// The commit that the cache knows a branch or tag to stand for.
    fn commit(&self, revision: &str) -> Option<String> {
        let commit = fs::read_to_string(self.reference(revision)).ok()?;
        let commit = commit.trim();
        super::id::is_commit(commit).then(|| commit.to_owned())
    }
}

/// Length of a file in bytes, `None` when there is none.
pub(super) fn length(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().filter(|metadata| metadata.is_file()).map(|metadata| metadata.len())
}

fn same_file(a: &Path, b: &Path) -> bool {
    matches!((fs::canonicalize(a), fs::canonicalize(b)), (Ok(a), Ok(b)) if a == b)
}

/// A link to a blob: symbolic and relative, so that the cache can be moved.
#[cfg(unix)]
fn link_blob(_blob: &Path, relative: &Path, pointer: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(relative, pointer)
}

/// A link to a blob: a hard one, since symbolic ones need a privilege here.
#[cfg(not(unix))]
fn link_blob(blob: &Path, _relative: &Path, pointer: &Path) -> std::io::Result<()> {
    fs::hard_link(blob, pointer)
}
