//! Weights and buffers as the CPU kernels want them.

use std::sync::Arc;

use half::bf16;
use half::slice::HalfBitsSliceExt;
use paceline_kernels::experts::ExpertWeights;
use paceline_kernels::linear::{Gated, GatedMatrix, OutputGroups, PackedMatrix, RowsMut, RowsRef};
use paceline_kernels::memory::HugeBuf;
use paceline_kernels::pool::Team;

use super::out_of_memory;
use crate::{
    BackendError, ExpertSource, Matrix, MatrixLayout, MatrixSource, RowSource, SourceError, TableSource,
};

/// A packed matrix.
pub(super) enum StoredMatrix {
    Plain(PackedMatrix),
    Gated(GatedMatrix),
}

impl StoredMatrix {
    pub(super) fn pack(team: &mut Team, source: MatrixSource<'_>) -> Result<Self, BackendError> {
        match source.layout {
            MatrixLayout::Plain => pack_plain(team, source.parts).map(Self::Plain),
            MatrixLayout::Gated => {
                let &[gate, up] = source.parts else {
                    let (what, found) = ("parts of a gated matrix", source.parts.len());
                    return Err(BackendError::Shape { what, expected: 2, found });
                };
                pack_gated(team, gate, up).map(Self::Gated)
            }
        }
    }

    pub(super) fn outputs(&self) -> usize {
        match self {
            Self::Plain(matrix) => matrix.n(),
            Self::Gated(matrix) => matrix.n(),
        }
    }

    pub(super) fn inputs(&self) -> usize {
        match self {
            Self::Plain(matrix) => matrix.k(),
            Self::Gated(matrix) => matrix.k(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Plain(matrix) => matrix.bytes(),
            Self::Gated(matrix) => matrix.bytes(),
        }
    }

    /// The matrix of a plain product.
    pub(super) fn plain(&self) -> &PackedMatrix {
        match self {
            Self::Plain(matrix) => matrix,
            Self::Gated(_) => panic!("a gated matrix where the op takes a plain one"),
        }
    }

    /// The matrix of a gated product.
    pub(super) fn gated(&self) -> &GatedMatrix {
        match self {
            Self::Gated(matrix) => matrix,
            Self::Plain(_) => panic!("a plain matrix where the op takes a gated one"),
        }
    }
}

fn pack_plain(team: &mut Team, parts: &[&dyn RowSource]) -> Result<PackedMatrix, BackendError> {
    let inputs = parts.first().map_or(0, |part| part.columns());
    if let Some(part) = parts.iter().find(|part| part.columns() != inputs) {
        let what = "columns of the parts of a matrix";
        return Err(BackendError::Shape { what, expected: inputs, found: part.columns() });
    }
    let outputs = parts.iter().map(|part| part.rows()).sum();
    let mut builder = PackedMatrix::builder(outputs, inputs).map_err(out_of_memory("weights"))?;
    let read = |output: usize, row: &mut [u16]| -> Result<(), SourceError> {
        let mut first = 0;
        for part in parts {
            if output < first + part.rows() {
                return part.read(output - first, row.reinterpret_cast_mut());
            }
            first += part.rows();
        }
        unreachable!("output {output} of {outputs}")
    };
    builder.fill(team, read).map_err(BackendError::Source)?;
    Ok(builder.finish())
}

fn pack_gated(
    team: &mut Team,
    gate: &dyn RowSource,
    up: &dyn RowSource,
) -> Result<GatedMatrix, BackendError> {
    let (shape, other) = ((gate.rows(), gate.columns()), (up.rows(), up.columns()));
    if shape != other {
        let what = "values of gate and up";
        return Err(BackendError::Shape { what, expected: shape.0 * shape.1, found: other.0 * other.1 });
    }
    let mut builder = GatedMatrix::builder(shape.0, shape.1).map_err(out_of_memory("weights"))?;
    let read = |which: Gated, output: usize, row: &mut [u16]| -> Result<(), SourceError> {
        let part = match which {
            Gated::Gate => gate,
            Gated::Up => up,
        };
        part.read(output, row.reinterpret_cast_mut())
    };
    builder.fill(team, read).map_err(BackendError::Source)?;
    Ok(builder.finish())
}

/// The experts of one layer.
pub(super) struct ExpertSet {
    gate_up: Vec<GatedMatrix>,
    down: Vec<PackedMatrix>,
    /// Experts that a row uses.
    pub(super) top_k: usize,
}

impl ExpertSet {
    pub(super) fn pack(
        team: &mut Team,
        experts: &[ExpertSource<'_>],
        top_k: usize,
    ) -> Result<Self, BackendError> {
        let mut set = Self { gate_up: Vec::new(), down: Vec::new(), top_k };
        for expert in experts {
            set.gate_up.push(pack_gated(team, expert.gate, expert.up)?);
            set.down.push(pack_plain(team, &[expert.down])?);
        }
        Ok(set)
    }

    pub(super) fn bytes(&self) -> usize {
        let gate_up: usize = self.gate_up.iter().map(GatedMatrix::bytes).sum();
        gate_up + self.down.iter().map(PackedMatrix::bytes).sum::<usize>()
    }

    pub(super) fn weights(&self) -> ExpertWeights<'_> {
        ExpertWeights::new(&self.gate_up, &self.down)
    }
}

/// A head in clusters.
pub(super) struct StoredClusterHead {
    /// Clusters one after the other, each at the start of a panel.
    pub(super) matrix: PackedMatrix,
    pub(super) groups: OutputGroups,
    /// Token ids in the order of the clusters.
    pub(super) order: Vec<u32>,
}

impl StoredClusterHead {
    pub(super) fn pack(
        team: &mut Team,
        head: &dyn RowSource,
        order: &[u32],
        n_clusters: usize,
    ) -> Result<Self, BackendError> {
        if order.len() != head.rows() || !order.len().is_multiple_of(n_clusters) {
            let what = "tokens in the clusters of a head";
            return Err(BackendError::Shape { what, expected: head.rows(), found: order.len() });
        }
        let groups = OutputGroups { size: order.len() / n_clusters };
        let stride = groups.first_output(1);
        let mut builder =
            PackedMatrix::builder(n_clusters * stride, head.columns()).map_err(out_of_memory("weights"))?;
        let read = |output: usize, row: &mut [u16]| -> Result<(), SourceError> {
            let (cluster, place) = (output / stride, output % stride);
            if place >= groups.size {
                row.fill(0);
                return Ok(());
            }
            head.read(order[cluster * groups.size + place] as usize, row.reinterpret_cast_mut())
        };
        builder.fill(team, read).map_err(BackendError::Source)?;
        Ok(Self { matrix: builder.finish(), groups, order: order.to_vec() })
    }
}

/// A table and the tokens that read another token's row.
pub(super) struct StoredTable {
    source: TableSource,
    aliases: Vec<(u32, u32)>,
}

impl StoredTable {
    pub(super) fn new(source: TableSource, aliases: Vec<(u32, u32)>) -> Self {
        Self { source, aliases }
    }

    pub(super) fn width(&self) -> usize {
        match &self.source {
            TableSource::Packed(Matrix { inputs, .. }) => *inputs as usize,
            TableSource::Mapped(rows) => rows.columns(),
        }
    }

    /// Writes the row of a token. A mapped row that cannot be read (not finite) becomes NaN, so that the request that met it fails.
    pub(super) fn gather(
        &self,
        matrices: &[StoredMatrix],
        token: u32,
        scratch: &mut [bf16],
        out: &mut [f32],
    ) {
        let token = self.aliases.iter().find(|(from, _)| *from == token).map_or(token, |&(_, to)| to);
        match &self.source {
            TableSource::Packed(matrix) => matrices[matrix.index as usize].plain().row(token as usize, out),
            TableSource::Mapped(rows) => {
                let scratch = &mut scratch[..rows.columns()];
                match read_mapped(rows, token as usize, scratch) {
                    Ok(()) => out.iter_mut().zip(&*scratch).for_each(|(out, value)| *out = value.to_f32()),
                    Err(_) => out.fill(f32::NAN),
                }
            }
        }
    }
}

fn read_mapped(rows: &Arc<dyn RowSource>, token: usize, out: &mut [bf16]) -> Result<(), SourceError> {
    // The host refuses ids beyond the vocabulary; a table with fewer rows than that has no row for the rest.
    if token >= rows.rows() {
        return Err(format!("token {token} of {}", rows.rows()).into());
    }
    rows.read(token, out)
}

/// Activations `[rows, width]`.
pub(super) struct Buffer {
    data: HugeBuf<f32>,
    width: usize,
}

impl Buffer {
    pub(super) fn new(rows: usize, width: usize) -> Result<Self, BackendError> {
        let data = HugeBuf::zeroed(rows * width).map_err(out_of_memory("activations"))?;
        Ok(Self { data, width })
    }

    pub(super) fn n_rows(&self) -> usize {
        self.data.len().checked_div(self.width).unwrap_or(0)
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.width..(row + 1) * self.width]
    }

    pub(super) fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.data[row * self.width..(row + 1) * self.width]
    }

    /// Rows `first .. first + n_rows` to read.
    pub(super) fn rows(&self, first: usize, n_rows: usize) -> RowsRef<'_> {
        let data = &self.data[first * self.width..(first + n_rows) * self.width];
        RowsRef { data, stride: self.width, n_rows }
    }

    /// The same rows from `column` on.
    pub(super) fn columns(&self, first: usize, n_rows: usize, column: usize) -> RowsRef<'_> {
        RowsRef { data: &self.rows(first, n_rows).data[column..], stride: self.width, n_rows }
    }

    /// Rows `first .. first + n_rows` to write.
    pub(super) fn rows_mut(&mut self, first: usize, n_rows: usize) -> RowsMut<'_> {
        let data = &mut self.data[first * self.width..(first + n_rows) * self.width];
        RowsMut { data, stride: self.width, n_rows }
    }
}
