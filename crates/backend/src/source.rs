//! Where weights come from: borrowed bytes in a stored type, and the shapes of what a backend makes of them.

use std::sync::Arc;

/// Stored element types that a backend reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
    /// float32.
    F32,
}

impl ElementType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            ElementType::Bf16 | ElementType::F16 => 2,
            ElementType::F32 => 4,
        }
    }
}

/// A row-major matrix `[rows, columns]` in little-endian bytes.
#[derive(Clone, Copy, Debug)]
pub struct Elements<'a> {
    /// Tensor name, for messages.
    pub name: &'a str,
    /// Element type.
    pub element: ElementType,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// `rows * columns * element.size()` bytes.
    pub bytes: &'a [u8],
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
#[derive(Clone, Copy, Debug)]
pub struct MatrixSource<'a> {
    /// The parts; all have the same number of columns.
    pub parts: &'a [Elements<'a>],
    /// How they are laid out.
    pub layout: MatrixLayout,
}

/// The experts of a layer: for each a gate, an up and a down part.
#[derive(Clone, Copy, Debug)]
pub struct ExpertsSource<'a> {
    /// `(gate [M, H], up [M, H], down [H, M])` of each expert.
    pub experts: &'a [(Elements<'a>, Elements<'a>, Elements<'a>)],
}

/// A table that is gathered by token id.
#[derive(Clone)]
pub enum TableSource {
    /// Rows of an already packed matrix (a tied head).
    Packed(crate::Matrix),
    /// Bytes that stay where they are (a mapped file): `[rows, columns]` little endian.
    Mapped {
        /// Tensor name, for messages.
        name: String,
        /// Element type.
        element: ElementType,
        /// Rows.
        rows: usize,
        /// Columns.
        columns: usize,
        /// The bytes.
        bytes: Arc<dyn AsRef<[u8]> + Send + Sync>,
    },
}

/// Rotary embedding of one kind of layer (gemma4 spec 3.5).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeSpec {
    /// Values of a head.
    pub head_dim: usize,
    /// Base of the frequencies.
    pub theta: f64,
    /// Pairs that rotate; the others pass through.
    pub rotated_pairs: usize,
    /// Frequencies are divided by this.
    pub factor: f64,
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
