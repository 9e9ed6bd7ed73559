//! What becomes of a finished chunk while it is hot.
use std::ops::Range;

use super::rows::{RowsRef, SharedRows};
use crate::act::gelu_mul;
use crate::isa::Isa;
use crate::numerics::PANEL;

/// Results of some rows and panels.
pub(crate) struct Finished<'a> {
    pub(crate) isa: Isa,
    pub(crate) rows: usize,
    pub(crate) panels: Range<usize>,
    /// `[panel][row][32 outputs]`.
    pub(crate) c: &'a [f32],
    /// Room for one panel more.
    pub(crate) spare: &'a mut [f32],
}

/// Columns of one of `n` outputs' panels.
fn columns(panel: usize, n: usize) -> Range<usize> {
    panel * PANEL..((panel + 1) * PANEL).min(n)
}

impl Finished<'_> {
    /// Copies the `n` outputs of row `r` to row `place(r)`.
    ///
    /// # Safety
    /// These rows and columns of `out` belong to this chunk alone.
    pub(crate) unsafe fn store(self, out: &SharedRows<'_>, n: usize, place: impl Fn(usize) -> usize) {
        for (panel, c) in self.panels.zip(self.c.chunks_exact(self.rows * PANEL)) {
            // SAFETY: a part of this chunk's rows and columns.
            unsafe { store_panel(c, columns(panel, n), out, &place) };
        }
    }

    /// Writes `gelu(gate) * up` of row `r` to row `place(r)`: even panels are gates, odd ones their ups, `n` of each.
    ///
    /// # Safety
    /// These rows of `out`, and the columns of the panels' pairs, belong to this chunk alone.
    pub(crate) unsafe fn store_gated(self, out: &SharedRows<'_>, n: usize, place: impl Fn(usize) -> usize) {
        let size = self.rows * PANEL;
        let first = self.panels.start / 2;
        for (i, pair) in self.c.chunks_exact(2 * size).enumerate() {
            let columns = columns(first + i, n);
            let (gate, up) = pair.split_at(size);
            if self.rows == 1 {
                let used = columns.len();
                // SAFETY: a part of this chunk's rows and columns.
                let y = unsafe { out.part(place(0), columns) };
                gelu_mul(self.isa, &gate[..used], &up[..used], y);
            } else {
                let spare = &mut self.spare[..size];
                gelu_mul(self.isa, gate, up, spare);
                // SAFETY: a part of this chunk's rows and columns.
                unsafe { store_panel(spare, columns, out, &place) };
            }
        }
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
        for (panel, c) in self.panels.zip(self.c.chunks_exact(self.rows * PANEL)) {
            let columns = columns(panel, n);
            for (row, c) in c.chunks_exact(PANEL).enumerate() {
                // SAFETY: a part of this chunk's rows and columns.
                let y = unsafe { out.part(place(row), columns.clone()) };
                gelu_mul(self.isa, &c[..columns.len()], &by.row(place(row), n)[columns.clone()], y);
            }
        }
    }
}

/// # Safety
/// The columns of the rows `place(r)` of `out` belong to the caller alone.
unsafe fn store_panel(
    c: &[f32],
    columns: Range<usize>,
    out: &SharedRows<'_>,
    place: impl Fn(usize) -> usize,
) {
    for (row, c) in c.chunks_exact(PANEL).enumerate() {
        // SAFETY: the caller's promise.
        let y = unsafe { out.part(place(row), columns.clone()) };
        y.copy_from_slice(&c[..columns.len()]);
    }
}
