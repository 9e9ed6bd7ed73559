//! The CPU backend: weights packed for the kernels, activations as f32 rows, per-slot state in host memory.
//!
//! Ops run at once, one after the other; inside an op the team's threads share the work. Everything here keeps the
//! rule of the numeric contract: what a row computes never depends on its company.

mod ops;
mod paged;
mod storage;

use paceline_kernels::attend::{AttendRow, AttendScratch};
use paceline_kernels::isa::{Isa, Level};
use paceline_kernels::linear::Context;
use paceline_kernels::memory::OutOfMemory;
use paceline_kernels::numerics::Activation;
use paceline_kernels::pool::Team;
use paceline_kernels::rope::Rope as RopeTable;
use paceline_kernels::router::Routed;
use paceline_kernels::select::Top;

use crate::handle::{Buf, ClusterHead, Experts, KvGroup, KvLayer, Matrix, Rope, Table, Vector};
use crate::slot_states::{Choosing, SlotStates};
use crate::{
    Backend, BackendError, BackendInfo, ExpertSource, KvBlockId, KvGroupSpec, MatrixSource, Op, Pass,
    RopeSpec, RowSource, Rows, SlotId, SlotInit, SlotReport, TableSource, TokenId,
};
use paged::PagedGroup;
use storage::{Buffer, ExpertSet, StoredClusterHead, StoredMatrix, StoredTable};

/// Query heads that share a K/V head, for the sizes of scratch memory; more would cost an allocation.
const QUERIES_PER_KV_HEAD: usize = 16;

/// How a CPU backend runs.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// Instructions to use.
    pub isa: Isa,
    /// Threads of an op, the caller's included; at least 1.
    pub threads: usize,
    /// Activation type.
    pub activation: Activation,
}

/// See the module documentation.
pub struct CpuBackend {
    isa: Isa,
    activation: Activation,
    threads: usize,
    context: Context,
    matrices: Vec<StoredMatrix>,
    experts: Vec<ExpertSet>,
    cluster_heads: Vec<StoredClusterHead>,
    vectors: Vec<Vec<f32>>,
    tables: Vec<StoredTable>,
    ropes: Vec<RopeTables>,
    buffers: Vec<Buffer>,
    groups: Vec<PagedGroup>,
    slots: SlotStates,
    capacity: usize,
    /// Inputs of the widest product so far, for the context's scratch.
    widest_input: usize,
    /// Columns of the widest table, for a row being gathered.
    gathered: Vec<half::bf16>,
    /// As wide, in f32.
    piece: Vec<f32>,
    /// Experts of the rows of an op.
    routed: Vec<Routed>,
    choosing: Choosing,
    top: Top,
    attend: AttendScratch,
    /// Rows of an attention op; empty between ops.
    attend_rows: Vec<AttendRow<'static>>,
    /// Clusters of a row.
    clusters: Vec<u32>,
}

/// Rotary frequencies, and the tables of the rows of the current pass.
struct RopeTables {
    spec: RopeSpec,
    rope: RopeTable,
    /// `[rows, rotated_pairs]`.
    cos: Vec<f32>,
    /// As `cos`.
    sin: Vec<f32>,
    /// The position of each row's tables: the passes of a round mostly begin at the one that the last pass began at.
    positions: Vec<Option<u32>>,
}

impl RopeTables {
    /// Makes room for `max_rows` rows.
    fn reserve(&mut self, max_rows: usize) {
        let len = max_rows * self.rope.rotated_pairs();
        self.cos.resize(len, 0.0);
        self.sin.resize(len, 0.0);
        self.positions.resize(max_rows, None);
    }

    /// Makes the tables of a row, unless they are those of its position already.
    fn set(&mut self, isa: Isa, row: usize, position: u32) {
        if self.positions[row].replace(position) != Some(position) {
            let n = self.rope.rotated_pairs();
            let at = row * n..(row + 1) * n;
            self.rope.tables(isa, position, &mut self.cos[at.clone()], &mut self.sin[at]);
        }
    }

    /// Cosines and sines of a row, by its index among all rows.
    fn row(&self, row: usize) -> (&[f32], &[f32]) {
        let n = self.rope.rotated_pairs();
        (&self.cos[row * n..(row + 1) * n], &self.sin[row * n..(row + 1) * n])
    }
}

fn out_of_memory(what: &str) -> impl FnOnce(OutOfMemory) -> BackendError {
    let what = what.to_owned();
    move |error| BackendError::OutOfMemory { what, bytes: error.bytes }
}

impl CpuBackend {
    /// A backend without weights.
    ///
    /// # Errors
    /// No memory for the threads' scratch.
    pub fn new(options: CpuOptions) -> Result<Self, BackendError> {
        let CpuOptions { isa, threads, activation } = options;
        let context = Context::new(isa, Team::new(threads)?).map_err(out_of_memory("scratch of products"))?;
        Ok(Self {
            isa,
            activation,
            threads,
            context,
            matrices: Vec::new(),
            experts: Vec::new(),
            cluster_heads: Vec::new(),
            vectors: Vec::new(),
            tables: Vec::new(),
            ropes: Vec::new(),
            buffers: Vec::new(),
            groups: Vec::new(),
            slots: SlotStates::default(),
            capacity: 0,
            widest_input: 0,
            gathered: Vec::new(),
            piece: Vec::new(),
            routed: Vec::new(),
            choosing: Choosing::default(),
            top: Top::default(),
            attend: AttendScratch::new(threads).map_err(out_of_memory("scratch of attention"))?,
            attend_rows: Vec::new(),
            clusters: Vec::new(),
        })
    }

    /// The level that runs.
    pub fn level(&self) -> Level {
        self.isa.level()
    }

    fn weight_bytes(&self) -> usize {
        let matrices: usize = self.matrices.iter().map(StoredMatrix::bytes).sum();
        let heads: usize = self.cluster_heads.iter().map(|head| head.matrix.bytes()).sum();
        let experts: usize = self.experts.iter().map(ExpertSet::bytes).sum();
        let vectors: usize = self.vectors.iter().map(|vector| size_of_val(&vector[..])).sum();
        matrices + heads + experts + vectors
    }
}

impl Backend for CpuBackend {
    fn info(&self) -> BackendInfo {
        BackendInfo {
            level: self.level().to_string(),
            threads: self.threads,
            activation: self.activation,
            weight_bytes: self.weight_bytes(),
            kv_bytes: self.groups.iter().map(PagedGroup::bytes).sum(),
        }
    }

    fn matrix(&mut self, source: MatrixSource<'_>) -> Result<Matrix, BackendError> {
        let stored = StoredMatrix::pack(self.context.team(), source)?;
        let (outputs, inputs) = (stored.outputs() as u32, stored.inputs() as u32);
        self.widest_input = self.widest_input.max(stored.inputs());
        self.matrices.push(stored);
        Ok(Matrix { index: (self.matrices.len() - 1) as u32, outputs, inputs })
    }

    fn experts(&mut self, experts: &[ExpertSource<'_>], top_k: usize) -> Result<Experts, BackendError> {
        let set = ExpertSet::pack(self.context.team(), experts, top_k)?;
        self.experts.push(set);
        Ok(Experts { index: (self.experts.len() - 1) as u32, count: experts.len() as u32 })
    }

    fn cluster_head(
        &mut self,
        head: &dyn RowSource,
        order: &[u32],
        n_clusters: usize,
    ) -> Result<ClusterHead, BackendError> {
        let stored = StoredClusterHead::pack(self.context.team(), head, order, n_clusters)?;
        self.widest_input = self.widest_input.max(head.columns());
        let cluster_size = stored.groups.size as u32;
        self.cluster_heads.push(stored);
        Ok(ClusterHead { index: (self.cluster_heads.len() - 1) as u32, cluster_size })
    }

    fn vector(&mut self, values: &[f32]) -> Vector {
        self.vectors.push(values.to_vec());
        Vector { index: (self.vectors.len() - 1) as u32, len: values.len() as u32 }
    }

    fn table(&mut self, source: TableSource, aliases: &[(u32, u32)]) -> Result<Table, BackendError> {
        let table = StoredTable::new(source, aliases.to_vec());
        let width = table.width();
        if self.gathered.len() < width {
            self.gathered.resize(width, half::bf16::ZERO);
            self.piece.resize(width, 0.0);
        }
        self.tables.push(table);
        Ok(Table { index: (self.tables.len() - 1) as u32, width: width as u32 })
    }

    fn rope(&mut self, spec: RopeSpec) -> Rope {
        // A drafter mostly turns as its target does.
        let known = self.ropes.iter().position(|tables| tables.spec == spec);
        let index = known.unwrap_or_else(|| {
            let (cos, sin, positions) = (Vec::new(), Vec::new(), Vec::new());
            self.ropes.push(RopeTables { spec, rope: RopeTable::new(spec), cos, sin, positions });
            self.ropes.len() - 1
        });
        Rope { index: index as u32 }
    }

    fn buffer(&mut self, rows: usize, width: usize) -> Result<Buf, BackendError> {
        self.buffers.push(Buffer::new(rows, width)?);
        Ok(Buf { index: (self.buffers.len() - 1) as u32, width: width as u32 })
    }

    fn kv_group(&mut self, spec: KvGroupSpec, n_blocks: usize) -> Result<KvGroup, BackendError> {
        self.groups.push(PagedGroup::new(spec, self.activation, n_blocks)?);
        Ok(KvGroup { index: (self.groups.len() - 1) as u32 })
    }

    fn reserve(&mut self, n_slots: usize, capacity: usize, max_rows: usize) -> Result<(), BackendError> {
        self.capacity = capacity;
        self.slots = SlotStates::new(n_slots);
        self.ropes.iter_mut().for_each(|tables| tables.reserve(max_rows));
        for group in &mut self.groups {
            group.reserve(n_slots, capacity);
            let layout = group.store().layout();
            let n_heads = layout.kv_heads * QUERIES_PER_KV_HEAD;
            let reserved = self.attend.reserve(layout, n_heads, max_rows, capacity);
            reserved.map_err(out_of_memory("scratch of attention"))?;
        }
        self.attend_rows.reserve(max_rows);
        for buffer in &self.buffers {
            // Any buffer may hold logits; the widest decides.
            self.choosing.reserve(buffer.n_rows(), buffer.width());
        }
        for set in &self.experts {
            let reserved = self.context.reserve_experts(max_rows, set.top_k, set.weights());
            reserved.map_err(out_of_memory("scratch of experts"))?;
            self.routed.reserve(max_rows * set.top_k);
        }
        let reserved = self.context.reserve(max_rows, self.widest_input);
        reserved.map_err(out_of_memory("scratch of products"))
    }

    fn open(&mut self, slot: SlotId, init: SlotInit) {
        self.slots.open(slot, init, self.capacity);
        for group in &mut self.groups {
            group.clear(slot);
        }
    }

    fn close(&mut self, slot: SlotId) {
        self.slots.close(slot);
    }

    fn put_blocks(&mut self, slot: SlotId, group: KvGroup, first: usize, blocks: &[KvBlockId]) {
        self.groups[group.index as usize].put_blocks(slot, first, blocks);
    }

    fn put_drafts(&mut self, slot: SlotId, drafts: &[TokenId]) {
        self.slots.put_drafts(slot, drafts);
    }

    fn truncate(&mut self, slot: SlotId, len: usize) {
        self.slots.truncate(slot, len);
    }

    fn collect(&mut self, slot: SlotId) -> SlotReport {
        self.slots.collect(slot)
    }

    fn begin(&mut self, pass: &Pass) {
        self.slots.begin(pass);
        for tables in &mut self.ropes {
            for (r, row) in self.slots.rows().iter().enumerate() {
                tables.set(self.isa, r, row.position as u32);
            }
        }
    }

    fn run(&mut self, op: &Op, rows: Rows) {
        let (op, live) = self.slots.live(op, rows);
        if live.len > 0 || rows.len == 0 {
            self.dispatch(&op, live);
        }
    }

    fn live(&self, op: &Op, rows: Rows) -> (Op, Rows) {
        self.slots.live(op, rows)
    }

    fn peek(&self, buf: Buf, row: usize) -> Vec<f32> {
        self.buffers[buf.index as usize].row(row).to_vec()
    }

    fn poke(&mut self, buf: Buf, row: usize, values: &[f32]) {
        self.buffers[buf.index as usize].row_mut(row).copy_from_slice(values);
    }

    fn peek_kv(&self, layer: KvLayer, slot: SlotId, position: usize) -> (Vec<f32>, Vec<f32>) {
        self.groups[layer.group.index as usize].load(layer.layer as usize, slot, position)
    }

    fn peek_row(&self, rows: Rows, index: usize) -> (SlotId, usize) {
        let row = self.slots.resolved(rows, index);
        (row.slot, row.kv_index)
    }

    fn peek_chosen(&self, wanted_row: usize) -> Option<TokenId> {
        self.slots.chosen(wanted_row)
    }

    fn peek_tokens(&self, slot: SlotId) -> Vec<TokenId> {
        self.slots.tokens(slot).to_vec()
    }
}
