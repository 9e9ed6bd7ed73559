//! The trait that every device implements.

use std::fmt;

use paceline_kernels::numerics::Activation;
use paceline_kernels::pool::SpawnError;
use thiserror::Error;

use crate::RopeSpec;
use crate::handle::{Buf, ClusterHead, Experts, KvGroup, KvLayer, Matrix, Rope, Table, Vector};
use crate::op::{Mark, Op};
use crate::pass::{Pass, Rows};
use crate::slot::{KvBlockId, SlotId, SlotInit, SlotReport, TokenId};
use crate::source::{ExpertSource, KvGroupSpec, MatrixSource, RowSource, SourceError, TableSource};

/// What can go wrong while weights are handed to a backend.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BackendError {
    /// A weight could not be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Parts of a matrix do not fit together, or bytes do not fit a shape.
    #[error("{what}: expected {expected}, found {found}")]
    Shape {
        /// What does not fit.
        what: &'static str,
        /// What would.
        expected: usize,
        /// What came.
        found: usize,
    },
    /// The operating system refused a thread.
    #[error(transparent)]
    Threads(#[from] SpawnError),
    /// Memory could not be had.
    #[error("{bytes} bytes for {what} could not be allocated")]
    OutOfMemory {
        /// What for.
        what: String,
        /// How much.
        bytes: usize,
    },
}

/// What a backend is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendInfo {
    /// Kernel level or device: `scalar`, `avx2`, `avx512`, `avx512bf16`, `amx`.
    pub level: String,
    /// Threads that take part in an op.
    pub threads: usize,
    /// Activation type.
    pub activation: Activation,
    /// Bytes of weights that live in the backend's own memory.
    pub weight_bytes: usize,
    /// Bytes of K/V.
    pub kv_bytes: usize,
}

impl fmt::Display for BackendInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let activation = match self.activation {
            Activation::Bf16 => "bf16",
            Activation::F32 => "f32",
        };
        write!(f, "{} with {} threads, {activation} activations", self.level, self.threads)
    }
}

/// A device that holds weights, K/V and per-slot state and runs ops over passes.
///
/// Handles come from this backend; one from another backend, or rows beyond a buffer, are a bug of the caller and panic.
pub trait Backend: Send {
    /// What this backend is.
    fn info(&self) -> BackendInfo;

    // ---- load

    /// Packs a weight matrix.
    ///
    /// # Errors
    /// What the source says, parts that do not fit, no memory.
    fn matrix(&mut self, source: MatrixSource<'_>) -> Result<Matrix, BackendError>;

    /// Packs the experts of a layer, of which a row uses `top_k`.
    ///
    /// # Errors
    /// As [`Backend::matrix`].
    fn experts(&mut self, experts: &[ExpertSource<'_>], top_k: usize) -> Result<Experts, BackendError>;

    /// Packs an output head by clusters: `order` lists the token ids of cluster 0, then those of cluster 1, and so on; each id once.
    ///
    /// # Errors
    /// As [`Backend::matrix`].
    fn cluster_head(
        &mut self,
        head: &dyn RowSource,
        order: &[u32],
        n_clusters: usize,
    ) -> Result<ClusterHead, BackendError>;

    /// Keeps a vector of parameters.
    fn vector(&mut self, values: &[f32]) -> Vector;

    /// Keeps a table to gather rows from. A token on the left of an alias reads the row of the token on its right.
    ///
    /// # Errors
    /// A table that cannot be gathered from (a gated matrix). Mapped rows are read, and checked, when they are gathered.
    fn table(&mut self, source: TableSource, aliases: &[(u32, u32)]) -> Result<Table, BackendError>;

    /// Keeps rotary frequencies.
    fn rope(&mut self, spec: RopeSpec) -> Rope;

    /// Makes an activation buffer of `rows` rows.
    ///
    /// # Errors
    /// No memory.
    fn buffer(&mut self, rows: usize, width: usize) -> Result<Buf, BackendError>;

    /// Makes a K/V group of `n_blocks` zeroed blocks.
    ///
    /// # Errors
    /// No memory.
    fn kv_group(&mut self, spec: KvGroupSpec, n_blocks: usize) -> Result<KvGroup, BackendError>;

    /// Makes room for `n_slots` slots of up to `capacity` tokens (drafts included) and for passes of `max_rows` rows. Called once,
    /// after everything else.
    ///
    /// # Errors
    /// No memory.
    fn reserve(&mut self, n_slots: usize, capacity: usize, max_rows: usize) -> Result<(), BackendError>;

    // ---- slots

    /// Starts a sequence.
    fn open(&mut self, slot: SlotId, init: SlotInit);

    /// Ends a sequence; its blocks are the host's again.
    fn close(&mut self, slot: SlotId);

    /// Appends or replaces entries of a slot's block table from entry `first` on.
    fn put_blocks(&mut self, slot: SlotId, group: KvGroup, first: usize, blocks: &[KvBlockId]);

    /// Door 1: drafts that the host knows. The slot's drafts of the next pass.
    fn put_drafts(&mut self, slot: SlotId, drafts: &[TokenId]);

    /// Door 2: cuts the sequence back to `len` committed tokens plus the anchor, at a round's border.
    fn truncate(&mut self, slot: SlotId, len: usize);

    /// Door 3: what happened to the slot since the last call.
    fn collect(&mut self, slot: SlotId) -> SlotReport;

    // ---- passes

    /// Starts a pass: resolves tokens and positions of its rows. Slots that have ended or are at fault keep their rows, whose
    /// results are dropped at commit.
    fn begin(&mut self, pass: &Pass);

    /// Runs one op on some rows of the pass.
    fn run(&mut self, op: &Op, rows: Rows);

    /// Names a value. Does nothing but in wrappers that compare.
    fn mark(&mut self, _mark: Mark, _buf: Buf, _rows: Rows) {}

    // ---- what tests, `check` and `prove` look at; never part of a round

    /// An op over rows of the current pass as it is really run. Where a drafter was not sure of its drafts a slot has fewer rows than the
    /// host allows for; on a backend where these are absent, the rows behind them stand further up. What follows here takes rows at
    /// the places where they stand.
    fn live(&self, op: &Op, rows: Rows) -> (Op, Rows);

    /// A buffer's row.
    fn peek(&self, buf: Buf, row: usize) -> Vec<f32>;

    /// Overwrites a buffer's row.
    fn poke(&mut self, buf: Buf, row: usize, values: &[f32]);

    /// K and V, each `[kv_heads * head_dim]`, of a slot at an absolute position.
    fn peek_kv(&self, layer: KvLayer, slot: SlotId, position: usize) -> (Vec<f32>, Vec<f32>);

    /// The absolute position at which a row of the current pass stores its K/V, with its slot.
    fn peek_row(&self, rows: Rows, index: usize) -> (SlotId, usize);

    /// The token chosen for a wanted row of the current pass; `None` where its logits were not finite.
    fn peek_chosen(&self, wanted_row: usize) -> Option<TokenId>;

    /// All tokens of a slot: committed ones, the anchor, drafts of the coming pass.
    fn peek_tokens(&self, slot: SlotId) -> Vec<TokenId>;
}
