//! Rows made ready for a kernel: rounded, filled up, in tiles.
//!
//! ```text
//! [group of 16 rows][k tile][row][32 k]
//! ```
//! The last group is dense with the rows that it has. In bf16 this is a sequence of AMX tiles of 64 bytes a row; in f32 the
//! rows that a vector kernel takes together stand side by side. (Rows at the stride of a matrix, often a multiple of 4 KB,
//! would fall into a few sets of the cache.)
use super::round::{copy_row, round_row, round_row_wide};
use super::rows::RowsRef;
use crate::isa::Isa;
use crate::memory::{HugeBuf, OutOfMemory};
use crate::numerics::{Activation, K_TILE};
use crate::pool::Team;

/// Rows of a group, and of one AMX tile.
pub(super) const GROUP: usize = 16;
/// Elements from which on several threads prepare the rows.
const WORTH_SHARING: usize = 64 << 10;

/// Rows in the layout of this module, `k_tiles` tiles of [`K_TILE`] each, the last one filled up with +0.
#[derive(Clone, Copy)]
pub(super) struct Tiled<'a, T> {
    pub(super) rows: usize,
    pub(super) k_tiles: usize,
    data: &'a [T],
}

impl<'a, T> Tiled<'a, T> {
    /// The groups in order, each `[k tile][row][32]`. Of no use where there are no k.
    pub(super) fn groups(&self) -> impl Iterator<Item = &'a [T]> {
        assert!(self.k_tiles > 0);
        self.data.chunks(GROUP * self.k_tiles * K_TILE)
    }

    /// All groups, one behind the other.
    pub(super) fn data(&self) -> &'a [T] {
        self.data
    }
}

/// Rows as a kernel reads them.
#[derive(Clone, Copy)]
pub(super) enum Inputs<'a> {
    /// In f32, rounded to the activation type: for FMA.
    Wide(Tiled<'a, f32>),
    /// In bf16: for AMX.
    Narrow(Tiled<'a, u16>),
}

impl Inputs<'_> {
    pub(super) fn rows(&self) -> usize {
        match self {
            Inputs::Wide(x) => x.rows,
            Inputs::Narrow(x) => x.rows,
        }
    }

    pub(super) fn k_tiles(&self) -> usize {
        match self {
            Inputs::Wide(x) => x.k_tiles,
            Inputs::Narrow(x) => x.k_tiles,
        }
    }
}

/// Which of the [`Inputs`] a kernel wants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Wide,
    Narrow,
}

/// Memory for prepared rows.
#[derive(Debug)]
pub(super) struct InputScratch {
    /// One f32 per element; in bf16 half of it is used.
    elements: HugeBuf<f32>,
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

    /// Rounds the first `k` elements of each row to the activation type and lays them out.
    pub(super) fn prepare(
        &mut self,
        isa: Isa,
        team: &mut Team,
        x: RowsRef<'_>,
        k: usize,
        activation: Activation,
        form: Form,
    ) -> Inputs<'_> {
        let (rows, k_tiles) = (x.n_rows, k.div_ceil(K_TILE));
        let len = rows * k_tiles * K_TILE;
        assert!(len <= self.len(), "no room for {rows} rows of {k}: reserve it first");
        let elements = &mut self.elements[..len];
        match (form, activation) {
            (Form::Narrow, Activation::F32) => unreachable!("f32 activations have no narrow form"),
            (Form::Narrow, Activation::Bf16) => {
                // SAFETY: the memory of `len` f32 holds `len` u16, which ask for less alignment and for which any bits are
                // a value; it is borrowed as the f32 were. As f32 any bits are a value again.
                let data =
                    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast::<u16>(), len) };
                lay_out(team, x, k, data, |from, to, row, rows| round_row(isa, from, to, row, rows));
                Inputs::Narrow(Tiled { rows, k_tiles, data })
            }
            (Form::Wide, Activation::Bf16) => {
                lay_out(team, x, k, elements, |from, to, row, rows| round_row_wide(isa, from, to, row, rows));
                Inputs::Wide(Tiled { rows, k_tiles, data: elements })
            }
            (Form::Wide, Activation::F32) => {
                lay_out(team, x, k, elements, copy_row);
                Inputs::Wide(Tiled { rows, k_tiles, data: elements })
            }
        }
    }
}

/// Puts every row in its place: `put(row of x, group, number of the row there, rows there)`.
fn lay_out<T: Send>(
    team: &mut Team,
    x: RowsRef<'_>,
    k: usize,
    data: &mut [T],
    put: impl Fn(&[f32], &mut [T], usize, usize) + Sync,
) {
    let width = k.next_multiple_of(K_TILE);
    let fill = |group: usize, to: &mut [T]| {
        let rows = to.len() / width;
        for row in 0..rows {
            put(x.row(group * GROUP + row, k), to, row, rows);
        }
    };
    let piece = (GROUP * width).max(1);
    if data.len() >= WORTH_SHARING {
        team.run_pieces(data, piece, |_, group, to| fill(group, to));
    } else {
        data.chunks_mut(piece).enumerate().for_each(|(group, to)| fill(group, to));
    }
}
