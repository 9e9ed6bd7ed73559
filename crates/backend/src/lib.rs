//! What a model is made of: a closed list of coarse ops ([`Op`]), passes over rows ([`Pass`]) and per-slot state.
//!
//! A model is written once as a straight line of ops on handles ([`Buf`], [`Matrix`], ...). A [`Backend`] owns what
//! the handles stand for and all values: lengths, last tokens, drafts, chosen tokens, accepted counts. **No op returns
//! a value to the host.** The host knows counts and upper bounds, and learns values at [`Backend::collect`] only, so a
//! whole round can be one graph on a device and the CPU keeps the same discipline.
//!
//! Ops are data, not methods: [`Checked`] repeats any op row by row and compares bits, [`Witness`] keeps what every op gave every
//! row so that two runs can be compared, [`Recorder`] lists what a pass did, and none of them needs to know a model.
#![forbid(unsafe_code)]

mod backend;
mod checked;
pub mod cpu;

mod delegate;
mod draft_choice;

mod handle;
mod observed;
mod op;
mod pass;
mod recorder;
mod row_values;
mod slot;
pub mod slot_states;
mod source;
mod timed;
mod witness;

pub use backend::{Backend, BackendError, BackendInfo};

pub use checked::{Checked, Findings, Mismatch};
pub use cpu::{CpuBackend, CpuOptions};
pub use draft_choice::DraftChoice;
pub use handle::{Buf, ClusterHead, Experts, KvGroup, KvLayer, Matrix, Rope, Table, Vector};
pub use observed::{Observed, Observer};
pub use op::{KvWrite, Mark, Op, OpOperands, Sees, ValueSource};
pub use paceline_kernels::act::Gate;
pub use paceline_kernels::isa::{Isa, IsaError, IsaNote, Level};
pub use paceline_kernels::numerics::{Activation, CONTRACT_VERSION, KV_BLOCK};
pub use paceline_kernels::rope::RopeSpec;
pub use paceline_kernels::select::{
    Distribution, Filters, LogprobsWanted, Penalties, Sampling, TokenLogprobs,
};
pub use pass::{Pass, PassBuilder, PassSlot, Row, RowSet, Rows, Wants};
pub use recorder::{Door, Record, Recorder};
pub use slot::{DraftFaults, Finish, KvBlockId, SlotId, SlotInit, SlotReport, TokenId};
pub use source::{
    ExpertSource, KvGroupSpec, MatrixLayout, MatrixSource, RowSource, SourceError, TableSource,
};
pub use timed::Timed;
pub use witness::{Comparison, OpSite, Place, Transcript, Witness, WitnessStand};
