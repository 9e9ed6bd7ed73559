//! Where weights come from: rows on demand, and the shapes of what a backend makes of them.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use half::bf16;
use paceline_kernels::numerics::Activation;

/// Why a row could not be read.
pub type SourceError = Box<dyn Error + Send + Sync>;

/// A row-major matrix whose rows are read on demand, by any thread, so that a backend can pack a mapped file without a
/// second copy of it.
pub trait RowSource: Send + Sync {
    /// Rows.
    fn rows(&self) -> usize;

    /// Values of a row.
    fn columns(&self) -> usize;

    /// Writes row `row` to `out`, which has [`RowSource::columns`] values, all finite.
    ///
    /// # Errors
    /// Values that are not finite or not exact in bf16, with the tensor's name.
    fn read(&self, row: usize, out: &mut [bf16]) -> Result<(), SourceError>;
}

/// How the outputs of a matrix are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixLayout {
    /// The parts one after the other.
    Plain,
    /// Two parts of equal height, gate and up, interleaved so that one chunk of work owns both.
    Gated,
}

/// A weight matrix made of parts stacked along the outputs.
#[derive(Clone, Copy)]
pub struct MatrixSource<'a> {
    /// The parts; all have the same number of columns.
    pub parts: &'a [&'a dyn RowSource],
    /// How they are laid out.
    pub layout: MatrixLayout,
}

/// One expert: gate `[M, H]`, up `[M, H]`, down `[H, M]`.
#[derive(Clone, Copy)]
pub struct ExpertSource<'a> {
    /// Gate.
    pub gate: &'a dyn RowSource,
    /// Up.
    pub up: &'a dyn RowSource,
    /// Down.
    pub down: &'a dyn RowSource,
}

/// A table that is gathered by token id.
#[derive(Clone)]
pub enum TableSource {
    /// Rows of an already packed plain matrix (a tied head).
    Packed(crate::Matrix),
    /// Rows that stay where they are (a mapped file).
    Mapped(Arc<dyn RowSource>),
}

impl fmt::Debug for TableSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableSource::Packed(matrix) => f.debug_tuple("Packed").field(matrix).finish(),
            TableSource::Mapped(rows) => write!(f, "Mapped([{}, {}])", rows.rows(), rows.columns()),
        }
    }
}

/// Shape of a K/V group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvGroupSpec {
    /// Layers that own K/V here.
    pub layers: usize,
    /// K/V heads.
    pub kv_heads: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// Keys that a query sees, its own included; `None` sees all.
    pub window: Option<usize>,
}

impl KvGroupSpec {
    /// Bytes of K and V of so many tokens.
    pub fn bytes(&self, activation: Activation, tokens: usize) -> u64 {
        let value_bytes = match activation {
            Activation::Bf16 => 2,
            Activation::F32 => 4,
        };
        (2 * self.layers * self.kv_heads * self.head_dim) as u64 * value_bytes * tokens as u64
    }
}
