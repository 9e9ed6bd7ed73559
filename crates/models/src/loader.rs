//! Tensors by name and shape, as rows that a backend reads.

use half::bf16;
use paceline_backend::{Backend, Matrix, MatrixLayout, MatrixSource, RowSource, SourceError, Vector};
use paceline_checkpoint::{Inexact, Tensor, Tensors};

use crate::error::ModelError;

/// Takes tensors from a checkpoint and gives the handles of what a backend made of them.
pub(crate) struct WeightLoader<'a> {
    pub(crate) tensors: Tensors,
    pub(crate) backend: &'a mut dyn Backend,
    pub(crate) inexact: Inexact,
}

impl WeightLoader<'_> {
    /// A tensor as rows of its last dimension.
    pub(crate) fn rows(&mut self, name: &str, shape: &[usize]) -> Result<TensorRows, ModelError> {
        Ok(TensorRows::new(self.tensors.take(name, shape)?, self.inexact))
    }

    /// One matrix of the parts, stacked along the outputs.
    pub(crate) fn matrix(
        &mut self,
        parts: &[&TensorRows],
        layout: MatrixLayout,
    ) -> Result<Matrix, ModelError> {
        let sources: Vec<&dyn RowSource> = parts.iter().map(|&part| part as &dyn RowSource).collect();
        let matrix = self.backend.matrix(MatrixSource { parts: &sources, layout })?;
        parts.iter().for_each(|part| part.release());
        Ok(matrix)
    }

    /// A tensor as a matrix.
    pub(crate) fn linear(&mut self, name: &str, outputs: usize, inputs: usize) -> Result<Matrix, ModelError> {
        let rows = self.rows(name, &[outputs, inputs])?;
        self.matrix(&[&rows], MatrixLayout::Plain)
    }

    /// The values of a short tensor.
    pub(crate) fn values(&mut self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        Ok(self.tensors.take(name, &[len])?.to_f32()?)
    }

    /// A short tensor as a vector of parameters.
    pub(crate) fn vector(&mut self, name: &str, len: usize) -> Result<Vector, ModelError> {
        let values = self.values(name, len)?;
        Ok(self.backend.vector(&values))
    }
}

/// A run of rows of a tensor, seen as a matrix of `columns` values a row.
#[derive(Clone, Debug)]
pub(crate) struct TensorRows {
    tensor: Tensor,
    first_element: usize,
    rows: usize,
    /// Rows that there are in the tensor; those behind them are zeros.
    stored: usize,
    columns: usize,
    inexact: Inexact,
}

impl TensorRows {
    /// The whole tensor, whose last dimension is a row.
    pub(crate) fn new(tensor: Tensor, inexact: Inexact) -> Self {
        let columns = tensor.shape().last().copied().unwrap_or(1);
        let rows = tensor.n_elements() / columns.max(1);
        Self { tensor, first_element: 0, rows, stored: rows, columns, inexact }
    }

    /// As many rows as asked for: the first ones, or all of these and zeros.
    pub(crate) fn resized(self, rows: usize) -> Self {
        Self { rows, ..self }
    }

    /// Rows `first .. first + rows` of these.
    pub(crate) fn part(&self, first: usize, rows: usize) -> Self {
        assert!(first + rows <= self.stored, "rows {first}..{} of {}", first + rows, self.stored);
        let first_element = self.first_element + first * self.columns;
        Self { first_element, rows, stored: rows, ..self.clone() }
    }

    /// Says that the backend has made of the tensor what it needs, so that loading does not hold a file's pages beside what they became.
    pub(crate) fn release(&self) {
        self.tensor.release();
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
        if row >= self.stored {
            out.fill(bf16::ZERO);
            return Ok(());
        }
        self.tensor.copy_bf16(self.first_element + row * self.columns, out, self.inexact)?;
        Ok(())
    }
}
