//! The contents of one file, over as many connections as it takes.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use ureq::http::header::CONTENT_RANGE;

use super::client::Answer;
use super::retries::Retries;
use super::session::{RemoteFile, Session};
use super::{HubError, HubEvent};

/// Bytes of one read.
const CHUNK_BYTES: usize = 128 << 10;
/// Further bytes that make up for earlier failures: a long download over a bad line must end, and so must one from a
/// server that only ever sends a little.
const PROGRESS_BYTES: u64 = 16 << 20;

/// The bytes of a file so far, on disk and hashed.
struct Partial {
    file: File,
    path: PathBuf,
    len: u64,
    hash: Sha256,
}

/// Completes the file at `path`, which may hold the first bytes already, and checks length and hash.
///
/// # Errors
/// Whatever [`HubError`] says about connections, statuses, lengths, hashes and disks. What was received stays at
/// `path` unless it is wrong.
pub(super) fn download(
    session: &Session<'_>,
    file: &RemoteFile,
    path: &Path,
    mut retries: Retries<'_>,
    events: &mut dyn FnMut(HubEvent<'_>),
) -> Result<(), HubError> {
    let mut partial = Partial::open(path, file.size)?;
    let mut was_resumed = partial.len > 0;
    let mut best = partial.len;
    loop {
        match receive(session, file, &mut partial, events) {
            Ok(()) => {}
            Err(error) => {
                if partial.len >= best + PROGRESS_BYTES {
                    best = partial.len;
                    retries.reset();
                }
                retries.wait(error, events)?;
                was_resumed = true;
                continue;
            }
        }
        match partial.check_hash(session, file) {
            // The pieces may come from different files: once more, in one piece.
            Err(HubError::WrongHash { .. }) if was_resumed => {
                partial.restart()?;
                was_resumed = false;
            }
            Err(error) => {
                // Only a fresh start can help.
                let _ = fs::remove_file(path);
                return Err(error);
            }
            Ok(()) => return partial.finish(),
        }
    }
}

/// Fetches what is missing over one connection.
fn receive(
    session: &Session<'_>,
    file: &RemoteFile,
    partial: &mut Partial,
    events: &mut dyn FnMut(HubEvent<'_>),
) -> Result<(), HubError> {
    let progress =
        |partial: &Partial| HubEvent::Progress { file: &file.name, done: partial.len, total: file.size };
    events(progress(partial));
    if partial.len == file.size {
        return Ok(());
    }
    let interrupted = |partial: &Partial, message: String| HubError::Interrupted {
        file: session.label(file),
        received: partial.len,
        expected: file.size,
        message,
    };
    let answer = session.contents(file, partial.len)?;
    if partial.len > 0 && !continues_at(&answer, partial.len) {
        partial.restart()?;
        if answer.status().as_u16() != 200 {
            return Err(interrupted(partial, "the server does not continue where the file ends".to_owned()));
        }
    }
    let wrong_length =
        |found| Err(HubError::WrongLength { file: session.label(file), expected: file.size, found });
    if let Some(length) = answer.body().content_length()
        && partial.len + length != file.size
    {
        return wrong_length(partial.len + length);
    }
    let mut reader = answer.into_body().into_reader();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let n = match reader.read(&mut chunk) {
            Ok(0) if partial.len == file.size => return Ok(()),
            Ok(0) => return Err(interrupted(partial, "the connection was closed".to_owned())),
            Ok(n) => n,
            Err(error) => return Err(interrupted(partial, error.to_string())),
        };
        if partial.len + n as u64 > file.size {
            return wrong_length(partial.len + n as u64);
        }
        partial.append(&chunk[..n])?;
        events(progress(partial));
    }
}

/// Whether an answer has the bytes from `start` on.
fn continues_at(answer: &Answer, start: u64) -> bool {
    let range = answer.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok());
    answer.status().as_u16() == 206
        && range.is_some_and(|range| range.starts_with(&format!("bytes {start}-")))
}

impl Partial {
    /// Opens the file at `path` and hashes what it holds; more than `size` bytes are the wrong ones.
    fn open(path: &Path, size: u64) -> Result<Partial, HubError> {
        let fail = |source| HubError::cache(path, source);
        let file = File::options().create(true).read(true).append(true).open(path).map_err(fail)?;
        let len = file.metadata().map_err(fail)?.len();
        let mut partial = Partial { file, path: path.to_path_buf(), len, hash: Sha256::new() };
        if len > size {
            partial.restart()?;
            return Ok(partial);
        }
        let mut chunk = vec![0; CHUNK_BYTES];
        partial.len = 0;
        while partial.len < len {
            let n = partial.file.read(&mut chunk).map_err(fail)?;
            if n == 0 {
                return Err(fail(std::io::Error::other("got shorter while it was read")));
            }
            partial.hash.update(&chunk[..n]);
            partial.len += n as u64;
        }
        Ok(partial)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        std::io::Write::write_all(&mut self.file, bytes)
            .map_err(|source| HubError::cache(&self.path, source))?;
        self.hash.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn restart(&mut self) -> Result<(), HubError> {
        self.file.set_len(0).map_err(|source| HubError::cache(&self.path, source))?;
        self.len = 0;
        self.hash = Sha256::new();
        Ok(())
    }

    fn check_hash(&self, session: &Session<'_>, file: &RemoteFile) -> Result<(), HubError> {
        let Some(expected) = file.sha256() else { return Ok(()) };
        let found: String = self.hash.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        if found.eq_ignore_ascii_case(expected) {
            return Ok(());
        }
        Err(HubError::WrongHash { file: session.label(file), expected: expected.to_owned(), found })
    }

    /// Makes sure that the bytes are on the disk before the file gets its name.
    fn finish(self) -> Result<(), HubError> {
        self.file.sync_all().map_err(|source| HubError::cache(&self.path, source))
    }
}
