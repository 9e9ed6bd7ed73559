//! Tensors as rows that a backend reads.

use half::bf16;
use paceline_backend::{RowSource, SourceError};
use paceline_checkpoint::{Inexact, Tensor};

/// A run of rows of a tensor, seen as a matrix of `columns` values a row.
#[derive(Clone, Debug)]
pub(crate) struct TensorRows {
    tensor: Tensor,
    first_element: usize,
    rows: usize,
    columns: usize,
    inexact: Inexact,
}

impl TensorRows {
    /// The whole tensor, whose last dimension is a row.
    pub(crate) fn new(tensor: Tensor, inexact: Inexact) -> Self {
        let columns = tensor.shape().last().copied().unwrap_or(1);
        let rows = tensor.n_elements() / columns.max(1);
        Self { tensor, first_element: 0, rows, columns, inexact }
    }

    /// Rows `first .. first + rows` of these.
    pub(crate) fn part(&self, first: usize, rows: usize) -> Self {
        assert!(first + rows <= self.rows, "rows {first}..{} of {}", first + rows, self.rows);
        Self { first_element: self.first_element + first * self.columns, rows, ..self.clone() }
    }
}

impl RowSource for TensorRows {
    fn rows(&self) -> usize {
        self.rows
    }

    fn columns(&self) -> usize {
        self.columns
    }

    fn read(&self, row: usize, out: &mut [bf16]) -> Result<(), SourceError> {
        self.tensor.copy_bf16(self.first_element + row * self.columns, out, self.inexact)?;
        Ok(())
    }
}
