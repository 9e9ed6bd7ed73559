//! A read-only memory mapping of a whole file. The only unsafe code of this crate.
//!
//! # What can go wrong
//! The operating system does not stop others from changing a mapped file. If a weights file is overwritten in place
//! while the program runs, the numbers of the model change under it; if it is cut short, reading beyond its new end
//! ends the process with SIGBUS. Replacing a file by renaming another over it, as package managers and the hub cache
//! do, is harmless: the mapping keeps the old file. Reading everything into memory instead would cost the size of
//! the checkpoint, so this is documented, not prevented.

use std::fs::File;
use std::io;
use std::ops::Deref;

use memmap2::Mmap;

/// A whole file, mapped read-only. An empty file is an empty slice.
#[derive(Debug)]
pub(crate) struct MappedFile(Mmap);

impl MappedFile {
    /// Maps `file` at its present length.
    pub(crate) fn new(file: &File) -> io::Result<MappedFile> {
        // SAFETY: `Mmap::map` asks that the file is not changed while the mapping lives. This process never writes
        // to files that it maps (the crate opens them read-only and has no writing code for them); that no other
        // process changes them in place is asked of the user in the module documentation, as every program that
        // maps model weights must. Values read from the bytes are checked wherever they decide about memory, and
        // such decisions (offsets, shapes) are made once from owned copies of the header.
        unsafe { Mmap::map(file) }.map(MappedFile)
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
