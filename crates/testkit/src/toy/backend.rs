//! A backend that runs the toy's ops over paged K/V, with the slot states of a host backend.

use paceline_backend::slot_states::{Choosing, ResolvedRow, SlotStates};
use paceline_backend::{
    Activation, Backend, BackendError, BackendInfo, Buf, ClusterHead, ExpertSource, Experts, Isa, KV_BLOCK,
    KvBlockId, KvGroup, KvGroupSpec, KvLayer, Matrix, MatrixSource, Op, Pass, Rope, RopeSpec, RowSet,
    RowSource, Rows, SlotId, SlotInit, SlotReport, Table, TableSource, TokenId, Vector,
};
use paceline_kernels::pool::Team;

use super::model::ToyModel;
use super::target::{HASH_WIDTH, TARGET_HEAD};

struct Buffer {
    width: usize,
    values: Vec<f32>,
}

impl Buffer {
    fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.width..][..self.width]
    }

    fn row_mut(&mut self, row: usize) -> &mut [f32] {
        self.rows_mut(row, 1)
    }

    fn rows_mut(&mut self, first: usize, n_rows: usize) -> &mut [f32] {
        &mut self.values[first * self.width..][..n_rows * self.width]
    }
}

struct Group {
    window: Option<usize>,
    /// `[block][index in block]`; the toy has one layer a group.
    keys: Vec<[u64; KV_BLOCK]>,
}

/// Backend of the toy. It checks what it is asked: rows, tokens and blocks within what was reserved.
pub struct ToyBackend {
    model: ToyModel,
    states: SlotStates,
    buffers: Vec<Buffer>,
    groups: Vec<Group>,
    /// `[slot][group][block index]`.
    tables: Vec<Vec<Vec<KvBlockId>>>,
    capacity: usize,
    max_rows: usize,
    isa: Isa,
    team: Team,
    choosing: Choosing,
}

impl ToyBackend {
    /// A backend without buffers.
    pub fn new(model: &ToyModel) -> Self {
        Self {
            model: model.clone(),
            states: SlotStates::default(),
            buffers: Vec::new(),
            groups: Vec::new(),
            tables: Vec::new(),
            capacity: 0,
            max_rows: 0,
            isa: Isa::best().0,
            team: Team::new(1).expect("a team of the caller alone needs no thread"),
            choosing: Choosing::default(),
        }
    }

    fn place(&self, layer: KvLayer, slot: SlotId, index: usize) -> (usize, usize) {
        let table = &self.tables[slot.0 as usize][layer.group.index as usize];
        let Some(block) = table.get(index / KV_BLOCK) else {
            panic!("slot {}: no K/V block for position {index} in group {}", slot.0, layer.group.index)
        };
        (block.0 as usize, index % KV_BLOCK)
    }

    fn key(&self, layer: KvLayer, slot: SlotId, index: usize) -> u64 {
        let (block, at) = self.place(layer, slot, index);
        self.groups[layer.group.index as usize].keys[block][at]
    }

    fn hash(&self, buf: Buf, row: usize) -> u64 {
        from_row(self.buffers[buf.index as usize].row(row))
    }

    fn set_hash(&mut self, buf: Buf, row: usize, hash: u64) {
        self.buffers[buf.index as usize].row_mut(row).copy_from_slice(&to_row(hash));
    }

    fn store(&mut self, qkv: Buf, layer: KvLayer, buffer_row: usize, row: ResolvedRow) {
        // The layer index of a key is its group: each layer that owns K/V has one of its own.
        let key = self.model.key(self.hash(qkv, buffer_row), self.layer_of_group(layer.group));
        let (block, at) = self.place(layer, row.slot, row.kv_index);
        self.groups[layer.group.index as usize].keys[block][at] = key;
        if self.model.overflows == Some(row.token) {
            self.states.fault_row(buffer_row);
        }
    }

    fn layer_of_group(&self, group: KvGroup) -> usize {
        let owners = self.model.layers.iter().enumerate();
        let mut owners = owners.filter(|(_, layer)| matches!(layer, super::ToyLayer::Owns { .. }));
        let n_owners = owners.clone().count();
        // A group behind the target's is a drafter's, whose layers count on from the target's.
        let group = group.index as usize;
        owners.nth(group).map_or(self.model.layers.len() + group.saturating_sub(n_owners), |(layer, _)| layer)
    }

    fn attend(&mut self, q: Buf, layer: KvLayer, out: Buf, buffer_row: usize, row: ResolvedRow) {
        let window = self.groups[layer.group.index as usize].window;
        let end = row.visible_end;
        let first = ToyModel::first_visible(window, row.position).min(end);
        let keys = (first..end).map(|index| self.key(layer, row.slot, index));
        let hidden = self.model.attend(self.hash(q, buffer_row), keys);
        self.set_hash(out, buffer_row, hidden);
    }

    fn logits(&mut self, x: Buf, w: Matrix, out: Buf, out_row: usize, buffer_row: usize, row: ResolvedRow) {
        let hidden = self.hash(x, buffer_row);
        let logits = self.buffers[out.index as usize].row_mut(out_row);
        if w.index == TARGET_HEAD {
            self.model.logits(hidden, row.token, row.position, logits);
        } else {
            self.model.guess(hidden, row.token, logits);
        }
    }

    fn run_row(&mut self, op: &Op, rows: Rows, index: usize) {
        let at = rows.start + index;
        let row = self.states.resolved(rows, index);
        match *op {
            Op::Embed { out, .. } => self.set_hash(out, at, self.model.embed(row.token, row.position)),
            Op::QkNormRopeStore { qkv, kv, .. } => {
                if let Some(kv) = kv {
                    self.store(qkv, kv.layer, at, row);
                }
            }
            Op::Attend { q, layer, out, .. } => self.attend(q, layer, out, at, row),
            Op::GatherRows { src, out } => {
                let hash = self.hash(src, self.states.row_index(RowSet::Wanted, at));
                self.set_hash(out, at, hash);
            }
            Op::Logits { x, w, first_row, out } => self.logits(x, w, out, at - first_row, at, row),
            // The states of a recurrent layer are stepped like this, and so are hidden states by what they recall.
            Op::AddNorm { x, h, .. } => {
                let mixed = self.model.step(self.hash(x, at), self.hash(h, at));
                self.set_hash(x, at, mixed);
            }
            Op::ReadSlots { src, out, .. } => {
                let first = row.kv_index == 0;
                let hash = if first { 0 } else { self.hash(src, row.slot.0 as usize) };
                self.set_hash(out, at, hash);
            }
            Op::WriteSlots { src, out } => self.set_hash(out, row.slot.0 as usize, self.hash(src, at)),
            _ => panic!("the toy does not know op `{}`", op.name()),
        }
    }

    fn state_commit(&mut self, src: Buf, out: Buf) {
        let kept: Vec<_> = self.states.kept_rows().collect();
        for (slot, row) in kept {
            self.set_hash(out, slot.0 as usize, self.hash(src, row));
        }
    }

    fn keep_committed(&mut self, src: Buf, out: Buf) {
        let kept: Vec<_> = self.states.kept().collect();
        for (slot, wanted_row) in kept {
            self.set_hash(out, slot.0 as usize, self.hash(src, wanted_row));
        }
    }
}

/// A hash as a row.
pub(crate) fn to_row(hash: u64) -> [f32; HASH_WIDTH] {
    [0, 16, 32, 48].map(|shift| f32::from((hash >> shift) as u16))
}

fn from_row(row: &[f32]) -> u64 {
    row.iter().rev().fold(0, |hash, &piece| (hash << 16) | u64::from(piece as u16))
}

impl Backend for ToyBackend {
    fn info(&self) -> BackendInfo {
        BackendInfo {
            level: "toy".into(),
            threads: 1,
            activation: Activation::F32,
            weight_bytes: 0,
            kv_bytes: self.groups.iter().map(|group| size_of_val(group.keys.as_slice())).sum(),
        }
    }

    fn matrix(&mut self, _source: MatrixSource<'_>) -> Result<Matrix, BackendError> {
        panic!("the toy has no weights")
    }

    fn experts(&mut self, _experts: &[ExpertSource<'_>], _top_k: usize) -> Result<Experts, BackendError> {
        panic!("the toy has no weights")
    }

    fn cluster_head(
        &mut self,
        _head: &dyn RowSource,
        _order: &[u32],
        _n_clusters: usize,
    ) -> Result<ClusterHead, BackendError> {
        panic!("the toy has no weights")
    }

    fn vector(&mut self, _values: &[f32]) -> Vector {
        panic!("the toy has no weights")
    }

    fn table(&mut self, _source: TableSource, _aliases: &[(u32, u32)]) -> Result<Table, BackendError> {
        panic!("the toy has no weights")
    }

    fn rope(&mut self, _spec: RopeSpec) -> Rope {
        panic!("the toy does not rotate")
    }

    fn buffer(&mut self, rows: usize, width: usize) -> Result<Buf, BackendError> {
        self.buffers.push(Buffer { width, values: vec![0.0; rows * width] });
        Ok(Buf { index: self.buffers.len() as u32 - 1, width: width as u32 })
    }

    fn kv_group(&mut self, spec: KvGroupSpec, n_blocks: usize) -> Result<KvGroup, BackendError> {
        assert_eq!(spec.layers, 1, "the toy has one layer a group");
        self.groups.push(Group { window: spec.window, keys: vec![[0; KV_BLOCK]; n_blocks] });
        Ok(KvGroup { index: self.groups.len() as u32 - 1 })
    }

    fn reserve(&mut self, n_slots: usize, capacity: usize, max_rows: usize) -> Result<(), BackendError> {
        self.states = SlotStates::new(n_slots);
        self.tables = vec![vec![Vec::new(); self.groups.len()]; n_slots];
        (self.capacity, self.max_rows) = (capacity, max_rows);
        self.choosing.reserve(max_rows, self.model.vocab_size as usize);
        Ok(())
    }

    fn open(&mut self, slot: SlotId, init: SlotInit) {
        assert!(
            init.tokens.len() <= self.capacity,
            "{} tokens, reserved {}",
            init.tokens.len(),
            self.capacity
        );
        self.tables[slot.0 as usize].iter_mut().for_each(Vec::clear);
        self.states.open(slot, init, self.capacity);
    }

    fn close(&mut self, slot: SlotId) {
        self.states.close(slot);
    }

    fn put_blocks(&mut self, slot: SlotId, group: KvGroup, first: usize, blocks: &[KvBlockId]) {
        let n_blocks = self.groups[group.index as usize].keys.len();
        assert!(
            blocks.iter().all(|block| (block.0 as usize) < n_blocks),
            "a block beyond the group's {n_blocks}"
        );
        let table = &mut self.tables[slot.0 as usize][group.index as usize];
        assert!(
            first <= table.len(),
            "slot {}: block table has {} entries, next is {first}",
            slot.0,
            table.len()
        );
        table.truncate(first);
        table.extend_from_slice(blocks);
    }

    fn put_drafts(&mut self, slot: SlotId, drafts: &[TokenId]) {
        self.states.put_drafts(slot, drafts);
        assert!(
            self.states.tokens(slot).len() <= self.capacity,
            "drafts beyond the reserved {}",
            self.capacity
        );
    }

    fn truncate(&mut self, slot: SlotId, len: usize) {
        self.states.truncate(slot, len);
    }

    fn collect(&mut self, slot: SlotId) -> SlotReport {
        self.states.collect(slot)
    }

    fn begin(&mut self, pass: &Pass) {
        assert!(pass.rows().len() <= self.max_rows, "{} rows, reserved {}", pass.rows().len(), self.max_rows);
        self.states.begin(pass);
        for row in self.states.rows() {
            assert!(row.token.0 < self.model.vocab_size, "token {} is not in the vocabulary", row.token.0);
        }
    }

    fn run(&mut self, op: &Op, rows: Rows) {
        let (op, rows) = self.states.live(op, rows);
        match op {
            Op::Commit => self.states.commit(),
            Op::Choose { logits, softcap, first_row } => {
                let Self { states, choosing, buffers, isa, team, .. } = self;
                let logits = buffers[logits.index as usize].rows_mut(rows.start - first_row, rows.len);
                states.choose(choosing, *isa, team, logits, rows, softcap);
            }
            Op::ChooseDraft { logits, softcap, first_row, step } => {
                let Self { states, choosing, buffers, isa, team, .. } = self;
                let logits = buffers[logits.index as usize].rows_mut(rows.start - first_row, rows.len);
                states.choose_drafts(choosing, (*isa, team), logits, rows, softcap, step as usize);
            }
            Op::KeepCommitted { src, out } => self.keep_committed(src, out),
            Op::StateCommit { src, out } => self.state_commit(src, out),
            _ => (0..rows.len).for_each(|index| self.run_row(&op, rows, index)),
        }
    }

    fn live(&self, op: &Op, rows: Rows) -> (Op, Rows) {
        self.states.live(op, rows)
    }

    fn peek(&self, buf: Buf, row: usize) -> Vec<f32> {
        self.buffers[buf.index as usize].row(row).to_vec()
    }

    fn poke(&mut self, buf: Buf, row: usize, values: &[f32]) {
        self.buffers[buf.index as usize].row_mut(row).copy_from_slice(values);
    }

    fn peek_kv(&self, layer: KvLayer, slot: SlotId, position: usize) -> (Vec<f32>, Vec<f32>) {
        let key = to_row(self.key(layer, slot, position)).to_vec();
        (key.clone(), key)
    }

    fn peek_row(&self, rows: Rows, index: usize) -> (SlotId, usize) {
        let row = self.states.resolved(rows, index);
        (row.slot, row.kv_index)
    }

    fn peek_chosen(&self, wanted_row: usize) -> Option<TokenId> {
        self.states.chosen(wanted_row)
    }

    fn peek_tokens(&self, slot: SlotId) -> Vec<TokenId> {
        self.states.tokens(slot).to_vec()
    }
}
