//! The tile registers, instruction by instruction.
use std::arch::asm;

use super::GROUP;
use crate::isa::Amx;

/// Bytes of a row of a tile.
pub(crate) const ROW_BYTES: usize = 64;

/// The tile registers of this thread, in use until this is dropped: what stays configured makes every switch of threads
/// save 8 KB.
///
/// The compiler knows nothing of tile registers and so never touches them: what one `asm!` leaves there is there for the
/// next. (Their register class cannot be named as clobbered without the unstable target feature.)
pub(crate) struct Tiles(());

/// Numbers of rows of the eight tiles; all rows are 64 bytes.
pub(crate) type Rows = [usize; 8];

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_per_row: [u16; 16],
    rows: [u8; 16],
}

impl Tiles {
    pub(crate) fn new(_: Amx) -> Tiles {
        Tiles(())
    }

    /// Sets the numbers of rows and zeroes all tiles. Panics unless each is 1 to 16.
    pub(crate) fn configure(&self, rows: Rows) {
        let mut configuration = Configuration {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            bytes_per_row: [0; 16],
            rows: [0; 16],
        };
        for (tile, rows) in rows.into_iter().enumerate() {
            assert!((1..=GROUP).contains(&rows));
            configuration.bytes_per_row[tile] = ROW_BYTES as u16;
            configuration.rows[tile] = rows as u8;
        }
        // SAFETY: `Tiles` is made from the proof that AMX may be used. The 64 bytes read are a valid configuration of
        // palette 1: at most 16 rows of 64 bytes in each of eight tiles, zero elsewhere.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(nostack, preserves_flags))
        };
    }

    /// Sets tile `T` to zero.
    ///
    /// # Safety
    /// The tiles are configured.
    #[inline(always)]
    pub(crate) unsafe fn zero<const T: u8>(&self) {
        // SAFETY: AMX may be used (`Tiles`); the tile is configured (the caller's promise).
        unsafe { asm!("tilezero tmm{t}", t = const T, options(nostack, preserves_flags)) };
    }

    /// Loads tile `T` from rows that stand `stride` bytes apart.
    ///
    /// # Safety
    /// The tiles are configured, and that many rows of 64 bytes can be read.
    #[inline(always)]
    pub(crate) unsafe fn load<const T: u8, E>(&self, from: *const E, stride: usize) {
        // SAFETY: AMX may be used (`Tiles`); the rest is the caller's promise.
        unsafe {
            asm!("tileloadd tmm{t}, [{from} + {stride}*1]", t = const T, from = in(reg) from, stride = in(reg) stride,
                options(nostack, preserves_flags, readonly));
        }
    }

    /// Stores tile `T` to rows that stand `stride` bytes apart.
    ///
    /// # Safety
    /// The tiles are configured, and that many rows of 64 bytes can be written.
    #[inline(always)]
    pub(crate) unsafe fn store<const T: u8>(&self, to: *mut f32, stride: usize) {
        // SAFETY: AMX may be used (`Tiles`); the rest is the caller's promise.
        unsafe {
            asm!("tilestored [{to} + {stride}*1], tmm{t}", t = const T, to = in(reg) to, stride = in(reg) stride,
                options(nostack, preserves_flags));
        }
    }

    /// Adds to tile `C` the product of the bf16 tiles `A` (rows) and `B` (weights).
    ///
    /// # Safety
    /// The tiles are configured: `C` and `A` with one number of rows, `B` with 16.
    #[inline(always)]
    pub(crate) unsafe fn multiply<const C: u8, const A: u8, const B: u8>(&self) {
        // SAFETY: AMX may be used (`Tiles`); the shapes fit together (the caller's promise).
        unsafe {
            asm!("tdpbf16ps tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,
                options(nostack, preserves_flags, nomem));
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: AMX may be used (`Tiles`); the instruction gives the tiles back, and nothing uses them any more.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags)) };
    }
}
