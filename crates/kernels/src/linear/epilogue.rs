//! What becomes of a finished chunk while it is hot.
use std::ops::Range;

use super::rows::{RowsRef, SharedRows};
use crate::act::{Gate, gelu_mul};
use crate::isa::Isa;
use crate::numerics::PANEL;

/// Results of some rows and panels.
pub(crate) struct Finished<'a> {
    pub(crate) isa: Isa,
    pub(crate) rows: usize,
    pub(crate) panels: Range<usize>,
    /// `[panel][row][32 outputs]`.
    pub(crate) c: &'a [f32],
    /// Room for half as much.
    pub(crate) spare: &'a mut [f32],
}

/// The columns of some panels of `n` outputs.
fn columns(panels: Range<usize>, n: usize) -> Range<usize> {
    panels.start * PANEL..(panels.end * PANEL).min(n)
}

/// Parts of a row of results, panel by panel.
fn row_parts(c: &[f32], rows: usize, row: usize) -> impl Iterator<Item = &[f32]> {
    c.chunks_exact(rows * PANEL).map(move |panel| &panel[row * PANEL..][..PANEL])
}

impl Finished<'_> {
    /// Copies the `n` outputs of row `r` to row `place(r)`.
    ///
    /// # Safety
    /// These rows and columns of `out` belong to this chunk alone.
    pub(crate) unsafe fn store(self, out: &SharedRows<'_>, n: usize, place: impl Fn(usize) -> usize) {
        // SAFETY: the caller's promise.
        unsafe { store_rows(self.c, self.rows, &columns(self.panels, n), out, place) };
    }

    /// Writes `function(gate) * up` of row `r` to row `place(r)`: even panels are gates, odd ones their ups, `n` of each.
    ///
    /// # Safety
    /// These rows of `out`, and the columns of the panels' pairs, belong to this chunk alone.
    pub(crate) unsafe fn store_gated(
        self,
        function: Gate,
        out: &SharedRows<'_>,
        n: usize,
        place: impl Fn(usize) -> usize,
    ) {
        let size = self.rows * PANEL;
        let spare = &mut self.spare[..self.c.len() / 2];
        for (pair, out) in self.c.chunks_exact(2 * size).zip(spare.chunks_exact_mut(size)) {
            let (gate, up) = pair.split_at(size);
            function.mul(self.isa, gate, up, out);
        }
        let pairs = self.panels.start / 2..self.panels.end / 2;
        // SAFETY: the caller's promise.
        unsafe { store_rows(spare, self.rows, &columns(pairs, n), out, place) };
    }

    /// Writes `gelu(y) * by` of row `r` to row `place(r)`, with row `place(r)` of `by`.
    ///
    /// # Safety
    /// These rows and columns of `out` belong to this chunk alone.
    pub(crate) unsafe fn store_gated_by(
        self,
        by: RowsRef<'_>,
        out: &SharedRows<'_>,
        n: usize,
        place: impl Fn(usize) -> usize,
    ) {
        let columns = columns(self.panels, n);
        for row in 0..self.rows {
            // SAFETY: a part of this chunk's rows and columns.
            let y = unsafe { out.part(place(row), columns.clone()) };
            let by = &by.row(place(row), n)[columns.clone()];
            let parts = row_parts(self.c, self.rows, row);
            for ((c, by), y) in parts.zip(by.chunks(PANEL)).zip(y.chunks_mut(PANEL)) {
                gelu_mul(self.isa, &c[..y.len()], by, y);
            }
        }
    }
}

/// Copies row by row, so that a row's part is written in one stretch.
///
/// # Safety
/// The columns of the rows `place(r)` of `out` belong to the caller alone.
unsafe fn store_rows(
    c: &[f32],
    rows: usize,
    columns: &Range<usize>,
    out: &SharedRows<'_>,
    place: impl Fn(usize) -> usize,
) {
    for row in 0..rows {
        // SAFETY: the caller's promise.
        let y = unsafe { out.part(place(row), columns.clone()) };
        for (c, y) in row_parts(c, rows, row).zip(y.chunks_mut(PANEL)) {
            y.copy_from_slice(&c[..y.len()]);
        }
    }
}
