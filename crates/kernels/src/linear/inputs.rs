//! Rows made ready for a kernel: rounded, filled up, in tiles.
//!
//! ```text
//! [group of 16 rows][k tile][row][32 k]
//! ```
//! The last group is dense with the rows that it has. In bf16 this is a sequence of AMX tiles of 64 bytes a row; in f32 the
//! rows that a vector kernel takes together stand side by side. (Rows at the stride of a matrix, often a multiple of 4 KB,
//! would fall into a few sets of the cache.)
use std::ops::Range;

use super::round::{copy_row, round_row};
#[cfg(target_arch = "x86_64")]
use super::round::{narrow_row, paired_row};
use super::rows::RowsRef;
#[cfg(target_arch = "x86_64")]
use crate::isa::Avx512;
use crate::isa::Isa;
use crate::memory::{Disjoint, HugeBuf, OutOfMemory};
use crate::numerics::{Activation, K_TILE};
use crate::pool::Team;

/// Rows of a group, and of one AMX tile.
pub(crate) const GROUP: usize = 16;
/// Elements from which on several threads prepare the rows.
const WORTH_SHARING: usize = 64 << 10;

/// Rows in the layout of this module, `k_tiles` tiles of [`K_TILE`] each, the last one filled up with +0.
#[derive(Clone, Copy)]
pub(crate) struct Tiled<'a, T> {
    pub(crate) rows: usize,
    pub(crate) k_tiles: usize,
    data: &'a [T],
}

impl<'a, T> Tiled<'a, T> {
    /// The groups in order, each `[k tile][row][32]`. Of no use where there are no k.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &'a [T]> {
        assert!(self.k_tiles > 0);
        self.data.chunks(GROUP * self.k_tiles * K_TILE)
    }

    /// All groups, one behind the other.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn data(&self) -> &'a [T] {
        self.data
    }
}

/// Rows as a kernel reads them.
#[derive(Clone, Copy)]
pub(crate) enum Inputs<'a> {
    /// In f32, rounded to the activation type: for FMA.
    Wide(Tiled<'a, f32>),
    /// In bf16: for AMX.
    #[cfg(target_arch = "x86_64")]
    Narrow(Tiled<'a, u16>),
    /// In bf16, of each four k (2, 0, 3, 1): for dot products.
    #[cfg(target_arch = "x86_64")]
    Paired(Tiled<'a, u16>),
}

impl Inputs<'_> {
    pub(crate) fn rows(&self) -> usize {
        match self {
            Inputs::Wide(x) => x.rows,
            #[cfg(target_arch = "x86_64")]
            Inputs::Narrow(x) | Inputs::Paired(x) => x.rows,
        }
    }

    pub(crate) fn k_tiles(&self) -> usize {
        match self {
            Inputs::Wide(x) => x.k_tiles,
            #[cfg(target_arch = "x86_64")]
            Inputs::Narrow(x) | Inputs::Paired(x) => x.k_tiles,
        }
    }
}

/// Which of the [`Inputs`] a kernel wants.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// [`Inputs::Wide`].
    Wide(Activation),
    /// [`Inputs::Narrow`].
    #[cfg(target_arch = "x86_64")]
    Narrow(Avx512),
    /// [`Inputs::Paired`].
    #[cfg(target_arch = "x86_64")]
    Paired(Avx512),
}

/// How rows are made ready.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Preparation {
    pub(crate) isa: Isa,
    pub(crate) form: Form,
    /// Elements of a row that count.
    pub(crate) k: usize,
}

/// Memory for prepared rows.
#[derive(Debug)]
pub(crate) struct InputScratch {
    /// One f32 per element; in bf16 half of it is used.
    elements: HugeBuf<f32>,
}

impl InputScratch {
    pub(crate) fn new(rows: usize, k: usize) -> Result<InputScratch, OutOfMemory> {
        let elements = k.checked_next_multiple_of(K_TILE).and_then(|k| k.checked_mul(rows));
        let elements = elements.ok_or(OutOfMemory { bytes: usize::MAX })?;
        Ok(InputScratch { elements: HugeBuf::zeroed(elements)? })
    }

    pub(crate) fn len(&self) -> usize {
        self.elements.len()
    }

    /// Lays out rows `0..rows` of `row`, group by group: `group(i)` is the range of rows of group `i` of `groups`, at most
    /// [`GROUP`], and together they are `0..rows` in order.
    pub(crate) fn prepare<'x>(
        &mut self,
        team: &mut Team,
        how: Preparation,
        groups: usize,
        group: impl Fn(usize) -> Range<usize> + Sync,
        row: impl Fn(usize) -> &'x [f32] + Sync,
    ) -> Prepared<'_> {
        let rows = groups.checked_sub(1).map_or(0, |last| group(last).end);
        let Preparation { isa, form, k } = how;
        let k_tiles = k.div_ceil(K_TILE);
        let len = rows * k_tiles * K_TILE;
        assert!(len <= self.len(), "no room for {rows} rows of {k}: reserve it first");
        let elements = &mut self.elements[..len];
        let data = match form {
            #[cfg(target_arch = "x86_64")]
            Form::Narrow(v) => {
                let data = halves(elements);
                lay_out(team, k, data, groups, group, |at, to, r, n| narrow_row(v, &row(at)[..k], to, r, n));
                Data::Narrow(data)
            }
            #[cfg(target_arch = "x86_64")]
            Form::Paired(v) => {
                let data = halves(elements);
                lay_out(team, k, data, groups, group, |at, to, r, n| paired_row(v, &row(at)[..k], to, r, n));
                Data::Paired(data)
            }
            Form::Wide(Activation::Bf16) => {
                lay_out(team, k, elements, groups, group, |at, to, r, n| {
                    round_row(isa, &row(at)[..k], to, r, n)
                });
                Data::Wide(elements)
            }
            Form::Wide(Activation::F32) => {
                lay_out(team, k, elements, groups, group, |at, to, r, n| copy_row(&row(at)[..k], to, r, n));
                Data::Wide(elements)
            }
        };
        Prepared { k_tiles, data }
    }

    /// As [`InputScratch::prepare`], for rows that all belong together.
    pub(crate) fn prepare_rows(&mut self, team: &mut Team, how: Preparation, x: RowsRef<'_>) -> Inputs<'_> {
        let group = |i: usize| i * GROUP..((i + 1) * GROUP).min(x.n_rows);
        let prepared = self.prepare(team, how, x.n_rows.div_ceil(GROUP), group, |row| x.row(row, how.k));
        prepared.inputs(0..x.n_rows)
    }
}

/// The first half of the memory of some elements, for as many of half the size.
#[cfg(target_arch = "x86_64")]
fn halves(elements: &mut [f32]) -> &mut [u16] {
    // SAFETY: the memory of `len` f32 holds `len` u16, which ask for less alignment and for which any bits are a value; it is
    // borrowed as the f32 were. As f32 any bits are a value again.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast::<u16>(), elements.len()) }
}

/// Rows laid out by [`InputScratch::prepare`].
#[derive(Clone, Copy)]
pub(crate) struct Prepared<'a> {
    k_tiles: usize,
    data: Data<'a>,
}

#[derive(Clone, Copy)]
enum Data<'a> {
    Wide(&'a [f32]),
    #[cfg(target_arch = "x86_64")]
    Narrow(&'a [u16]),
    #[cfg(target_arch = "x86_64")]
    Paired(&'a [u16]),
}

impl<'a> Prepared<'a> {
    /// Some of the rows, from the start of a group on; all groups among them but the last one must be full.
    pub(crate) fn inputs(self, rows: Range<usize>) -> Inputs<'a> {
        let k_tiles = self.k_tiles;
        let width = k_tiles * K_TILE;
        let at = rows.start * width..rows.end * width;
        match self.data {
            Data::Wide(data) => Inputs::Wide(Tiled { rows: rows.len(), k_tiles, data: &data[at] }),
            #[cfg(target_arch = "x86_64")]
            Data::Narrow(data) => Inputs::Narrow(Tiled { rows: rows.len(), k_tiles, data: &data[at] }),
            #[cfg(target_arch = "x86_64")]
            Data::Paired(data) => Inputs::Paired(Tiled { rows: rows.len(), k_tiles, data: &data[at] }),
        }
    }
}

/// Puts every row in its place: `put(row, its group's elements, its number there, rows there)`.
fn lay_out<T: Send>(
    team: &mut Team,
    k: usize,
    data: &mut [T],
    groups: usize,
    group: impl Fn(usize) -> Range<usize> + Sync,
    put: impl Fn(usize, &mut [T], usize, usize) + Sync,
) {
    let width = k.next_multiple_of(K_TILE);
    for i in 1..groups {
        assert_eq!(group(i - 1).end, group(i).start, "groups of rows stand one behind the other");
    }
    let worth_sharing = data.len() >= WORTH_SHARING;
    let data = Disjoint::new(data);
    let fill = |i: usize| {
        let rows = group(i);
        // SAFETY: the groups are ranges of rows one behind the other, as asserted (`group` is a pure function), so none
        // overlaps another; each is filled once.
        let to = unsafe { data.slice_mut(rows.start * width, rows.len() * width) };
        for row in rows.clone() {
            put(row, to, row - rows.start, rows.len());
        }
    };
    if worth_sharing {
        team.run(groups, |_, i| fill(i));
    } else {
        (0..groups).for_each(fill);
    }
}
