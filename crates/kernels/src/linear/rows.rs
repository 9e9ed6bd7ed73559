//! Rows of activations as the products take them and leave them.
use std::ops::Range;

use crate::memory::Disjoint;

/// Rows to read: row `r` starts at `data[r * stride]`. How wide a row is, the op knows.
#[derive(Clone, Copy, Debug)]
pub struct RowsRef<'a> {
    /// The rows, and whatever stands between them.
    pub data: &'a [f32],
    /// Elements from the start of a row to the start of the next.
    pub stride: usize,
    /// Number of rows.
    pub n_rows: usize,
}

/// Rows to write: row `r` starts at `data[r * stride]`. What stands between the rows is left alone.
#[derive(Debug)]
pub struct RowsMut<'a> {
    /// The rows, and whatever stands between them.
    pub data: &'a mut [f32],
    /// Elements from the start of a row to the start of the next.
    pub stride: usize,
    /// Number of rows.
    pub n_rows: usize,
}

impl<'a> RowsRef<'a> {
    /// Rows of `width` elements without gaps; as many as `data` holds.
    pub fn dense(data: &'a [f32], width: usize) -> RowsRef<'a> {
        RowsRef { data, stride: width, n_rows: data.len().checked_div(width).unwrap_or(0) }
    }

    /// The first `width` elements of a row.
    #[inline]
    pub fn row(&self, row: usize, width: usize) -> &'a [f32] {
        &self.data[row * self.stride..][..width]
    }

    pub(crate) fn block(&self, rows: Range<usize>) -> RowsRef<'a> {
        let data = &self.data[(rows.start * self.stride).min(self.data.len())..];
        RowsRef { data, stride: self.stride, n_rows: rows.len() }
    }

    /// Panics unless every row has `width` elements.
    pub(crate) fn check(&self, what: &str, width: usize) {
        check(what, self.data.len(), self.stride, self.n_rows, width);
    }
}

impl<'a> RowsMut<'a> {
    /// Rows of `width` elements without gaps; as many as `data` holds.
    pub fn dense(data: &'a mut [f32], width: usize) -> RowsMut<'a> {
        let n_rows = data.len().checked_div(width).unwrap_or(0);
        RowsMut { data, stride: width, n_rows }
    }

    /// The first `width` elements of a row.
    #[inline]
    pub fn row(&mut self, row: usize, width: usize) -> &mut [f32] {
        &mut self.data[row * self.stride..][..width]
    }

    pub(crate) fn block(&mut self, rows: Range<usize>) -> RowsMut<'_> {
        let start = (rows.start * self.stride).min(self.data.len());
        RowsMut { data: &mut self.data[start..], stride: self.stride, n_rows: rows.len() }
    }

    /// Panics unless every row has `width` elements.
    pub(crate) fn check(&self, what: &str, width: usize) {
        check(what, self.data.len(), self.stride, self.n_rows, width);
    }
}

fn check(what: &str, len: usize, stride: usize, n_rows: usize, width: usize) {
    assert!(stride >= width, "{what}: rows of {width} at a stride of {stride} overlap");
    let Some(before_last) = n_rows.checked_sub(1) else { return };
    let needed = before_last.checked_mul(stride).and_then(|start| start.checked_add(width));
    assert!(
        needed.is_some_and(|needed| needed <= len),
        "{what}: {n_rows} rows of {width} at a stride of {stride} in {len} elements"
    );
}

/// Rows that several threads write, each in its own columns.
pub(crate) struct SharedRows<'a> {
    data: Disjoint<'a, f32>,
    stride: usize,
}

impl<'a> SharedRows<'a> {
    pub(crate) fn new(rows: RowsMut<'a>) -> SharedRows<'a> {
        SharedRows { stride: rows.stride, data: Disjoint::new(rows.data) }
    }

    /// Part of a row. Panics where it is outside the data.
    ///
    /// # Safety
    /// While the result lives, no other part given out may overlap it: columns must lie within the stride and belong
    /// to the calling thread.
    #[allow(clippy::mut_from_ref)]
    #[inline]
    pub(crate) unsafe fn part(&self, row: usize, columns: Range<usize>) -> &mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.data.slice_mut(row * self.stride + columns.start, columns.len()) }
    }
}
