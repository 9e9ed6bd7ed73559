//! Rows made ready for a kernel: rounded, padded, in its layout.
use super::kernel::Kernel;
use super::round::{round_tiles, round_wide};
use super::rows::RowsRef;
use crate::isa::Isa;
use crate::memory::{HugeBuf, OutOfMemory};
use crate::numerics::{Activation, K_TILE};
use crate::pool::Team;

/// Rows of one AMX tile.
pub(super) const TILE_ROWS: usize = 16;
/// Elements from which on several threads prepare the rows.
const WORTH_SHARING: usize = 64 << 10;

/// Rows as a kernel reads them, `k_tiles` tiles of [`K_TILE`] each, the last one filled up with +0.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'a> {
    pub(super) rows: usize,
    pub(super) k_tiles: usize,
    pub(super) data: Data<'a>,
}

#[derive(Clone, Copy)]
pub(super) enum Data<'a> {
    /// `[row][k]`, rounded or not, in f32.
    Wide(&'a [f32]),
    /// `[tile of 16 rows][k tile][row][32 k]` in bf16: ready AMX tiles, 64 bytes a row (the rows of one tile at the row
    /// stride of a matrix would fall into a few sets of the cache). The last tile is dense with the rows that it has.
    Tiles(&'a [u16]),
}

/// Memory for prepared rows.
#[derive(Debug)]
pub(super) struct InputScratch {
    /// f32 elements; as bf16 tiles the same memory holds twice as many.
    elements: HugeBuf<u32>,
}

impl InputScratch {
    pub(super) fn new(rows: usize, k: usize) -> Result<InputScratch, OutOfMemory> {
        let elements = k.checked_next_multiple_of(K_TILE).and_then(|k| k.checked_mul(rows));
        let elements = elements.ok_or(OutOfMemory { bytes: usize::MAX })?;
        Ok(InputScratch { elements: HugeBuf::zeroed(elements)? })
    }

    pub(super) fn len(&self) -> usize {
        self.elements.len()
    }

    /// Rounds `x` to the activation type and lays it out for `kernel`.
    pub(super) fn prepare(
        &mut self,
        isa: Isa,
        kernel: Kernel,
        team: &mut Team,
        x: RowsRef<'_>,
        k: usize,
        activation: Activation,
    ) -> Inputs<'_> {
        let k_tiles = k.div_ceil(K_TILE);
        let len = x.n_rows * k_tiles * K_TILE;
        assert!(len <= self.len(), "{} rows of {k}: reserve them first", x.n_rows);
        let data = match kernel {
            Kernel::Scalar => Data::Wide(self.wide(isa, team, x, k, activation)),
        };
        Inputs { rows: x.n_rows, k_tiles, data }
    }

    fn wide(
        &mut self,
        isa: Isa,
        team: &mut Team,
        x: RowsRef<'_>,
        k: usize,
        activation: Activation,
    ) -> &[f32] {
        let width = k.next_multiple_of(K_TILE);
        let used = &mut self.elements[..x.n_rows * width];
        // SAFETY: f32 and u32 have one size and alignment, and any bits are a valid f32; the borrow is passed on.
        let wide = unsafe { std::slice::from_raw_parts_mut(used.as_mut_ptr().cast::<f32>(), used.len()) };
        let fill = |row: usize, to: &mut [f32]| {
            let (values, padding) = to.split_at_mut(k);
            match activation {
                Activation::Bf16 => round_wide(isa, x.row(row, k), values),
                Activation::F32 => values.copy_from_slice(x.row(row, k)),
            }
            padding.fill(0.0);
        };
        if wide.len() >= WORTH_SHARING {
            team.run_pieces(wide, width, |_, row, to| fill(row, to));
        } else {
            wide.chunks_exact_mut(width.max(1)).enumerate().for_each(|(row, to)| fill(row, to));
        }
        wide
    }

    fn tiles(&mut self, isa: Isa, team: &mut Team, x: RowsRef<'_>, k: usize) -> &[u16] {
        let width = k.next_multiple_of(K_TILE);
        let len = x.n_rows * width;
        let used = &mut self.elements[..len.div_ceil(2)];
        // SAFETY: the elements are at least `len` u16 long, u16 asks for less alignment than u32, and any bits are a
        // valid u16; the borrow is passed on.
        let tiles = unsafe { std::slice::from_raw_parts_mut(used.as_mut_ptr().cast::<u16>(), len) };
        let piece = TILE_ROWS * width;
        let fill = |tile: usize, to: &mut [u16]| {
            let rows = to.len() / width;
            for row in 0..rows {
                round_tiles(isa, x.row(tile * TILE_ROWS + row, k), to, row, rows);
            }
        };
        if len >= WORTH_SHARING {
            team.run_pieces(tiles, piece, |_, tile, to| fill(tile, to));
        } else {
            tiles.chunks_mut(piece.max(1)).enumerate().for_each(|(tile, to)| fill(tile, to));
        }
        tiles
    }
}
