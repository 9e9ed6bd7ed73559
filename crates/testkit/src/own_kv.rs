//! A drafter with K/V of its own: it stores a key of every row that the target reads, and before it drafts it compares what it
//! has with what the tokens say.

use paceline::drafters::{DraftError, DraftSlot, Drafter};
use paceline_backend::{Backend, BackendError, Buf, KvLayer, Op, Pass, Rows};
use paceline_models::{Limits, OwnedGroup};

use crate::toy::{HASH_WIDTH, ToyModel, group_spec, key_row, store_op};

/// Drafts the toy's habits, one token at a time, and keeps keys as a DFlash drafter does: rows of its own beyond `len` while it
/// drafts, those of the committed tokens behind the target's pass.
pub struct ToyOwnKv {
    model: ToyModel,
    groups: Vec<OwnedGroup>,
    x: Buf,
}

impl ToyOwnKv {
    /// One group for each window.
    ///
    /// # Errors
    /// As [`Backend::buffer`] and [`Backend::kv_group`].
    pub fn new(
        model: &ToyModel,
        windows: &[Option<usize>],
        backend: &mut dyn Backend,
        limits: &Limits,
    ) -> Result<Self, BackendError> {
        let make = |(&window, &n_blocks)| {
            let spec = group_spec(window);
            Ok(OwnedGroup { group: backend.kv_group(spec, n_blocks)?, spec })
        };
        let groups =
            windows.iter().zip(&limits.drafter_kv_blocks).map(make).collect::<Result<_, BackendError>>()?;
        Ok(Self { model: model.clone(), groups, x: backend.buffer(limits.max_rows, HASH_WIDTH)? })
    }

    fn store(&self, backend: &mut dyn Backend, rows: Rows) {
        let table = paceline_backend::Table { index: 0, width: HASH_WIDTH as u32 };
        backend.run(&Op::Embed { table, scale: 1.0, out: self.x, column: 0 }, rows);
        for owned in &self.groups {
            backend.run(&store_op(self.x, KvLayer { group: owned.group, layer: 0 }), rows);
        }
    }

    /// Every key that a row behind the committed ones could see is that of its token.
    fn check(&self, backend: &dyn Backend, slot: &DraftSlot) {
        let tokens = backend.peek_tokens(slot.slot());
        let len = tokens.len() - 1;
        for (i, owned) in self.groups.iter().enumerate() {
            let layer = KvLayer { group: owned.group, layer: 0 };
            let first = ToyModel::first_visible(owned.spec.window, len);
            for (position, &token) in tokens.iter().enumerate().take(len).skip(first) {
                let hidden = self.model.embed(token, position);
                let expected = key_row(self.model.key(hidden, self.model.layers.len() + i));
                let (found, _) = backend.peek_kv(layer, slot.slot(), position);
                assert_eq!(
                    found,
                    expected,
                    "slot {:?}, group {i}, position {position} of {len}",
                    slot.slot()
                );
            }
        }
    }
}

impl Drafter for ToyOwnKv {
    fn kind(&self) -> &'static str {
        "dflash"
    }

    fn suggested_drafts(&self) -> usize {
        3
    }

    fn kv_groups(&self) -> &[OwnedGroup] {
        &self.groups
    }

    fn draft(&mut self, backend: &mut dyn Backend, slots: &mut [DraftSlot]) -> Result<(), DraftError> {
        let mut block = Pass::builder();
        for slot in slots.iter_mut() {
            self.check(backend, slot);
            let last = *backend.peek_tokens(slot.slot()).last().expect("there is an anchor");
            slot.propose(&[self.model.habit(last)]);
            block.target(slot.slot(), 1 + slot.wanted(), 0, false, false);
        }
        // What these rows leave beyond `len` must not be seen later.
        let block = block.build();
        backend.begin(&block);
        self.store(backend, block.all());
        Ok(())
    }

    fn verified(&mut self, backend: &mut dyn Backend, pass: &Pass) {
        self.store(backend, pass.all());
    }
}
