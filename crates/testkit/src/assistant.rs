//! A drafter that works on the backend alone, step by step, as the Gemma 4 assistant does: it borrows the target's K/V and
//! starts from the hidden state of the last committed row.

use paceline::drafters::{DraftError, DraftSlot, Drafter};
use paceline_backend::{Backend, BackendError, Buf, KvLayer, Matrix, Op, Pass, Sees};
use paceline_models::{Exports, Limits};

use crate::toy::{HASH_WIDTH, TARGET_HEAD};

/// Drafts the toy's habits.
pub struct ToyAssistant {
    head: Matrix,
    layers: Vec<KvLayer>,
    /// The target's hidden states of the wanted rows.
    target_hidden: Buf,
    /// `[slots]`: hidden state that the next step of a slot starts from.
    state: Buf,
    x: Buf,
    logits: Buf,
}

impl ToyAssistant {
    /// Binds it to a target.
    ///
    /// # Errors
    /// As [`Backend::buffer`].
    pub fn new(exports: &Exports, backend: &mut dyn Backend, limits: &Limits) -> Result<Self, BackendError> {
        let layers = [exports.sliding, exports.full].into_iter().flatten().map(|layer| layer.kv).collect();
        Ok(Self {
            head: Matrix { index: TARGET_HEAD + 1, ..exports.head },
            layers,
            target_hidden: exports.hidden_post_norm,
            state: backend.buffer(limits.n_slots, HASH_WIDTH)?,
            x: backend.buffer(limits.n_slots, HASH_WIDTH)?,
            logits: backend.buffer(limits.n_slots, exports.vocab_size)?,
        })
    }

    /// One draft step of all slots that want so many drafts.
    fn step(&self, backend: &mut dyn Backend, slots: &[DraftSlot], step: usize) {
        let (x, logits) = (self.x, self.logits);
        let mut pass = Pass::builder();
        for slot in slots.iter().filter(|slot| slot.wanted() > step) {
            pass.borrowed(slot.slot(), step, 0);
        }
        let pass = pass.build();
        backend.begin(&pass);
        backend.run(&Op::ReadSlots { src: self.state, out: x, column: 0 }, pass.all());
        for &layer in &self.layers {
            backend.run(
                &Op::Attend { q: x, layer, n_heads: 1, scale: 1.0, sees: Sees::Past, out: x },
                pass.all(),
            );
        }
        let head = Op::Logits { x, w: self.head, first_row: 0, out: logits };
        backend.run(&head, pass.wanted_rows());
        backend.run(
            &Op::ChooseDraft { logits, softcap: None, first_row: 0, step: step as u32 },
            pass.wanted_rows(),
        );
        backend.run(&Op::WriteSlots { src: x, out: self.state }, pass.all());
    }
}

impl Drafter for ToyAssistant {
    fn kind(&self) -> &'static str {
        "assistant"
    }

    fn suggested_drafts(&self) -> usize {
        3
    }

    fn draft(&mut self, backend: &mut dyn Backend, slots: &mut [DraftSlot]) -> Result<(), DraftError> {
        let steps = slots.iter().map(DraftSlot::wanted).max().unwrap_or(0);
        (0..steps).for_each(|step| self.step(backend, slots, step));
        for slot in slots {
            slot.proposed_on_backend(slot.wanted());
        }
        Ok(())
    }

    fn committed(&mut self, backend: &mut dyn Backend, pass: &Pass) {
        let keep = Op::KeepCommitted { src: self.target_hidden, out: self.state };
        backend.run(&keep, pass.wanted_rows());
    }
}
