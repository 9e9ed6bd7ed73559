//! What a model and its drafters take, before anything is loaded.

use paceline_backend::{Activation, KV_BLOCK};
use paceline_checkpoint::ModelFolder;

use super::LoadError;
use super::bind::{DraftOptions, DraftersToBind, Fitting};
use crate::sizes::Sizes;

/// Bytes of a value of a buffer.
const BUFFER_BYTES: u64 = 4;

/// Bytes that a model takes with its drafters, at least: buffers of models, the target's and a draft model's, come on top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryNeeded {
    /// Packed weights of all of them; what stays in a mapped file is not among them.
    pub weights: u64,
    /// K/V of all sequences at full context.
    pub kv: u64,
    /// Buffers of assistants and DFlash drafters, what the target keeps for these, and the most that n-grams remember.
    pub drafter_buffers: u64,
}

impl MemoryNeeded {
    /// Bytes of a packed weight.
    pub const WEIGHT_BYTES: u64 = 2;

    /// What [`super::load`] would take, from the configs alone.
    ///
    /// # Errors
    /// As loading, as far as a config tells.
    pub fn of(
        folder: &ModelFolder,
        draft: Option<&DraftOptions<'_>>,
        mut sizes: Sizes,
        activation: Activation,
    ) -> Result<Self, LoadError> {
        let description = paceline_models::describe(folder.config())?;
        let fitting = Fitting { folder, description: &description, context: sizes.context };
        let drafters = draft.map(|draft| DraftersToBind::read(draft, fitting)).transpose()?;
        if let Some(drafters) = &drafters {
            sizes.max_drafts = sizes.max_drafts.max(drafters.most_drafts()?);
        }
        let drafter_kv = drafters.as_ref().map(DraftersToBind::kv_groups).unwrap_or_default();
        let limits = sizes.limits(&description, &drafter_kv, activation)?;
        let groups = description.kv_groups.iter().zip(&limits.kv_blocks);
        let groups = groups.chain(drafter_kv.iter().zip(&limits.drafter_kv_blocks));
        let kv = groups.map(|(spec, &blocks)| blocks as u64 * spec.bytes(activation, KV_BLOCK)).sum();
        let (mut weights, mut values) = (description.packed_parameters(), 0u64);
        for size in drafters.iter().flat_map(|drafters| drafters.sizes(&limits, sizes.max_drafts)) {
            weights = weights.saturating_add(size.parameters);
            values = values.saturating_add(size.buffer_values);
        }
        Ok(MemoryNeeded {
            weights: weights.saturating_mul(Self::WEIGHT_BYTES),
            kv,
            drafter_buffers: values.saturating_mul(BUFFER_BYTES),
        })
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.kv).saturating_add(self.drafter_buffers)
    }
}
