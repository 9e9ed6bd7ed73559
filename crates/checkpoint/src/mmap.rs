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
use std::ops::{Deref, Range};

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

    /// Gives the memory of the pages that hold the bytes `range` back to the system. Whoever reads them again gets them from the file
    /// again. Where the system has no such call, they stay.
    ///
    /// # Panics
    /// When `range` is not inside the file.
    pub(crate) fn release(&self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.0.len());
        #[cfg(unix)]
        if !range.is_empty() {
            // SAFETY: `MADV_DONTNEED` changes what is read from private or anonymous memory and from pages that were written to.
            // This mapping is shared, of a file, and read-only: the next access finds the file's bytes again, so every slice of
            // it keeps its contents, under the same condition as in `new`. The range was checked above.
            let advised = unsafe {
                self.0.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
            };
            // Pages that stay cost memory and nothing else.
            drop(advised);
        }
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Write;

    use super::*;

    /// Bytes of the mapping around an address that are in memory for this process.
    fn resident(address: usize) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let bounds =
                range.map(|(from, to)| (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16)));
            if let Some((Ok(from), Ok(to))) = bounds {
                inside = (from..to).contains(&address);
            } else if let Some(size) = line.strip_prefix("Rss:").filter(|_| inside) {
                return size.trim().strip_suffix("kB").unwrap().trim().parse::<usize>().unwrap() * 1024;
            }
        }
        panic!("no mapping around {address:x}")
    }

    #[test]
    fn released_pages_are_gone_and_come_back() {
        let bytes: Vec<u8> = (0..1 << 20).map(|i: usize| (i / 4096) as u8 ^ i as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let mapped = MappedFile::new(&file).unwrap();
        assert!(*mapped == bytes[..]);
        let address = mapped.as_ptr() as usize;
        assert_eq!(resident(address), bytes.len());
        mapped.release(0..bytes.len());
        assert_eq!(resident(address), 0);
        assert!(*mapped == bytes[..]);
        mapped.release(100_001..900_003);
        assert!(resident(address) < bytes.len() / 2);
        assert!(*mapped == bytes[..]);
        mapped.release(5..5);
        MappedFile::new(&tempfile::tempfile().unwrap()).unwrap().release(0..0);
    }
}
