//! The bytes of a file, wherever they live, and shared slices of them.

use std::borrow::Cow;
use std::fs::File;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use crate::Error;
use crate::mmap::MappedFile;

/// All bytes of one file: mapped, embedded in the program, or in memory.
#[derive(Debug)]
pub struct FileBytes(Source);

#[derive(Debug)]
enum Source {
    Mapped(MappedFile),
    Memory(Cow<'static, [u8]>),
}

impl FileBytes {
    /// Maps the file at `path` for reading. The file must not be changed in place while the bytes are in use;
    /// replacing it by a rename is harmless.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be opened or mapped, a folder included.
    pub fn map(path: &Path) -> Result<FileBytes, Error> {
        let io = |source| Error::Io { path: path.to_path_buf(), source };
        let file = File::open(path).map_err(io)?;
        if file.metadata().map_err(io)?.is_dir() {
            return Err(io(std::io::ErrorKind::IsADirectory.into()));
        }
        MappedFile::new(&file).map(|mapped| FileBytes(Source::Mapped(mapped))).map_err(io)
    }
}

impl FileBytes {
    /// Gives the memory behind mapped bytes back, see [`MappedFile::release`].
    fn release(&self, range: Range<usize>) {
        match &self.0 {
            Source::Mapped(mapped) => mapped.release(range),
            Source::Memory(_) => {}
        }
    }
}

impl From<Cow<'static, [u8]>> for FileBytes {
    fn from(bytes: Cow<'static, [u8]>) -> FileBytes {
        FileBytes(Source::Memory(bytes))
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Source::Mapped(mapped) => mapped,
            Source::Memory(bytes) => bytes,
        }
    }
}

/// A range of a file that keeps the file's bytes alive; clones share them.
#[derive(Clone, Debug)]
pub struct FileSlice {
    file: Arc<FileBytes>,
    range: Range<usize>,
}

impl FileSlice {
    /// The bytes `range` of `file`.
    ///
    /// # Panics
    /// When `range` is not inside the file.
    pub fn new(file: Arc<FileBytes>, range: Range<usize>) -> FileSlice {
        assert!(range.start <= range.end && range.end <= file.len());
        FileSlice { file, range }
    }

    /// Gives the memory behind mapped bytes back.
    pub(crate) fn release(&self) {
        self.file.release(self.range.clone());
    }
}

impl Deref for FileSlice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.file[self.range.clone()]
    }
}

impl AsRef<[u8]> for FileSlice {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
