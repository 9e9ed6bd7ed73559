//! K/V of one group: the blocks, and each slot's table of them.

use std::ops::Range;

use paceline_kernels::attend::{KvLayout, KvPlace, KvStore};
use paceline_kernels::isa::Isa;
use paceline_kernels::numerics::{Activation, KV_BLOCK};

use super::out_of_memory;
use crate::slot::{KvBlockId, SlotId};
use crate::slot_states::ResolvedRow;
use crate::{BackendError, KvGroupSpec, Sees};

/// A group's blocks and block tables.
pub(super) struct PagedGroup {
    spec: KvGroupSpec,
    store: KvStore,
    /// By slot: the block of each run of [`KV_BLOCK`] positions, from position 0.
    tables: Vec<Vec<u32>>,
}

impl PagedGroup {
    pub(super) fn new(
        spec: KvGroupSpec,
        activation: Activation,
        n_blocks: usize,
    ) -> Result<Self, BackendError> {
        let layout = KvLayout { head_dim: spec.head_dim, kv_heads: spec.kv_heads, activation };
        let store = KvStore::new(layout, spec.layers, n_blocks).map_err(out_of_memory("K/V"))?;
        Ok(Self { spec, store, tables: Vec::new() })
    }

    pub(super) fn spec(&self) -> &KvGroupSpec {
        &self.spec
    }

    pub(super) fn store(&self) -> &KvStore {
        &self.store
    }

    pub(super) fn bytes(&self) -> usize {
        self.store.layout().layer_block_bytes() * self.store.layers() * self.store.n_blocks()
    }

    /// Makes room for `n_slots` tables of `capacity` positions.
    pub(super) fn reserve(&mut self, n_slots: usize, capacity: usize) {
        self.tables = (0..n_slots).map(|_| Vec::with_capacity(capacity.div_ceil(KV_BLOCK) + 1)).collect();
    }

    pub(super) fn clear(&mut self, slot: SlotId) {
        self.tables[slot.0 as usize].clear();
    }

    pub(super) fn put_blocks(&mut self, slot: SlotId, first: usize, blocks: &[KvBlockId]) {
        let table = &mut self.tables[slot.0 as usize];
        assert!(first <= table.len(), "blocks {first}.. behind a table of {}", table.len());
        table.truncate(first);
        table.extend(blocks.iter().map(|block| block.0));
    }

    pub(super) fn table(&self, slot: SlotId) -> &[u32] {
        &self.tables[slot.0 as usize]
    }

    /// Keys that a row sees.
    pub(super) fn visible(&self, row: ResolvedRow, sees: Sees) -> Range<u32> {
        let (newest, end) = match sees {
            Sees::Past => (row.position, row.visible_end),
            Sees::Block => row.block,
        };
        let start = self.spec.window.map_or(0, |window| (newest + 1).saturating_sub(window));
        start.min(end) as u32..end as u32
    }

    fn place(&self, layer: usize, slot: SlotId, position: usize, kv_head: usize) -> KvPlace {
        let block = self.tables[slot.0 as usize][position / KV_BLOCK];
        KvPlace { layer, block, kv_head, slot: position % KV_BLOCK }
    }

    /// Stores K and V of all heads; false if a value was not finite.
    pub(super) fn put(
        &mut self,
        isa: Isa,
        layer: usize,
        (slot, position): (SlotId, usize),
        k: &[f32],
        v: &[f32],
    ) -> bool {
        let d = self.spec.head_dim;
        let mut finite = true;
        for (head, (k, v)) in k.chunks_exact(d).zip(v.chunks_exact(d)).enumerate() {
            finite &= self.store.store(isa, self.place(layer, slot, position, head), k, v);
        }
        finite
    }

    /// K and V of all heads.
    pub(super) fn load(&self, layer: usize, slot: SlotId, position: usize) -> (Vec<f32>, Vec<f32>) {
        let (d, n) = (self.spec.head_dim, self.spec.kv_heads);
        let (mut k, mut v) = (vec![0.0; n * d], vec![0.0; n * d]);
        for (head, (k, v)) in k.chunks_exact_mut(d).zip(v.chunks_exact_mut(d)).enumerate() {
            self.store.load(self.place(layer, slot, position, head), k, v);
        }
        (k, v)
    }
}
