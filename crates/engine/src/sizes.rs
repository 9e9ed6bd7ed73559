//! How large an engine is, and the limits that follow for its model.

use paceline_backend::{Activation, KV_BLOCK, KvGroupSpec};
use paceline_models::{Description, Limits};

use crate::error::BuildError;
use crate::kv::most_held;

/// Largest accepted value of any size: keeps products of sizes far from overflow.
const MAX_SIZE: usize = 1 << 24;
/// Rows for which logits are held at one time: one tile of rows.
const LOGIT_ROWS: usize = 16;

/// Sizes of an engine. They bound memory and never change a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Tokens of one sequence, prompt and output, at most.
    pub context: usize,
    /// Sequences that run at one time; more wait.
    pub n_slots: usize,
    /// Rows of prompts that one pass reads at most, all sequences together.
    pub prefill_rows: usize,
    /// Drafts of one sequence in a round at most; 0 for an engine without a drafter.
    pub max_drafts: usize,
    /// Requests may ask for log-probabilities of their prompts: hidden states of all rows of a pass are kept for that.
    pub score_prompts: bool,
    /// Requests may leave their K/V to the next one ([`crate::Request::keep_kv`]): room for what a window sees at the end of a prompt is
    /// made beside that of its output.
    pub keep_prompts: bool,
    /// Bytes of K/V at most, enough for one sequence at full context. `None`: what all slots need.
    pub kv_memory: Option<u64>,
}

impl Sizes {
    /// Sizes for one sequence at a time without drafts.
    pub fn single(context: usize) -> Self {
        Self {
            context,
            n_slots: 1,
            prefill_rows: 512,
            max_drafts: 0,
            score_prompts: false,
            keep_prompts: false,
            kv_memory: None,
        }
    }

    /// The limits to load the described model with, and with it a drafter that owns K/V in the groups `drafter_kv`.
    ///
    /// # Errors
    /// A size of 0, one that is absurd or beyond the model's positions, too little K/V memory for one sequence at full context.
    pub fn limits(
        &self,
        description: &Description,
        drafter_kv: &[KvGroupSpec],
        activation: Activation,
    ) -> Result<Limits, BuildError> {
        within("context", self.context, 1, description.max_positions.min(MAX_SIZE))?;
        within("n_slots", self.n_slots, 1, MAX_SIZE)?;
        within("prefill_rows", self.prefill_rows, 1, MAX_SIZE)?;
        within("max_drafts", self.max_drafts, 0, MAX_SIZE)?;
        let verify_rows = self.n_slots * (1 + self.max_drafts);
        let max_rows = self.prefill_rows + verify_rows;
        let max_wanted = if self.score_prompts { max_rows } else { verify_rows };
        let groups = [&description.kv_groups, drafter_kv].concat();
        let mut kv_blocks = self.kv_blocks(&groups, activation)?;
        let drafter_kv_blocks = kv_blocks.split_off(description.kv_groups.len());
        Ok(Limits {
            max_rows,
            max_wanted,
            logit_rows: max_wanted.min(LOGIT_ROWS),
            n_slots: self.n_slots,
            kv_blocks,
            drafter_kv_blocks,
        })
    }

    /// Blocks of each group: what all slots need at full context or, where memory is short, what one sequence needs and as much
    /// more as fits. So whatever the context admits always fits alone.
    fn kv_blocks(&self, groups: &[KvGroupSpec], activation: Activation) -> Result<Vec<usize>, BuildError> {
        let most = |spec: &KvGroupSpec| {
            let own = most_held(spec.window, self.context, self.prefill_rows);
            let prompt = if self.keep_prompts { most_held(spec.window, self.context, 1) } else { 0 };
            // Both are blocks of the same sequence.
            self.n_slots * (own + prompt).min(self.context.div_ceil(KV_BLOCK))
        };
        let least = |spec: &KvGroupSpec| most_held(spec.window, self.context, 1);
        let bytes = |blocks: &dyn Fn(&KvGroupSpec) -> usize| -> u64 {
            groups.iter().map(|spec| blocks(spec) as u64 * spec.bytes(activation, KV_BLOCK)).sum()
        };
        let (most_bytes, least_bytes) = (bytes(&most), bytes(&least));
        let allowed = self.kv_memory.unwrap_or(most_bytes).min(most_bytes);
        if allowed < least_bytes {
            return Err(BuildError::KvMemory { bytes: allowed, needed: least_bytes });
        }
        let (part, whole) = (allowed - least_bytes, (most_bytes - least_bytes).max(1));
        let share = |blocks: usize| (blocks as u128 * u128::from(part) / u128::from(whole)) as usize;
        Ok(groups.iter().map(|spec| least(spec) + share(most(spec) - least(spec))).collect())
    }
}

fn within(field: &'static str, found: usize, least: usize, most: usize) -> Result<(), BuildError> {
    if (least..=most).contains(&found) {
        return Ok(());
    }
    Err(BuildError::Size { field, found, expected: format!("{least} to {most}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description(windows: &[Option<usize>]) -> Description {
        let spec = |&window| KvGroupSpec { layers: 2, kv_heads: 1, head_dim: 8, window };
        Description {
            architecture: "test".into(),
            n_layers: 2,
            layer_lines: vec![],
            vocab_size: 10,
            hidden_size: 8,
            max_positions: 1000,
            mask_token: None,
            parameters: vec![],
            kv_groups: windows.iter().map(spec).collect(),
            sliding: None,
            full: None,
        }
    }

    #[test]
    fn every_slot_has_room_for_its_context() {
        let sizes = Sizes { n_slots: 3, prefill_rows: 100, max_drafts: 4, ..Sizes::single(1000) };
        let limits = sizes.limits(&description(&[None, Some(128)]), &[], Activation::Bf16).unwrap();
        assert_eq!((limits.max_rows, limits.max_wanted, limits.logit_rows), (115, 15, 15));
        assert_eq!(limits.kv_blocks, [3 * 16, 3 * 5]);
        let scoring = Sizes { score_prompts: true, ..sizes };
        let limits = scoring.limits(&description(&[None]), &[], Activation::Bf16).unwrap();
        assert_eq!((limits.max_wanted, limits.logit_rows), (115, 16));
    }

    #[test]
    fn prompts_that_are_kept_have_room_beside_what_follows() {
        let sizes = Sizes { prefill_rows: 100, keep_prompts: true, ..Sizes::single(1000) };
        let blocks = |window| {
            sizes.limits(&description(&[None, Some(window)]), &[], Activation::Bf16).unwrap().kv_blocks
        };
        assert_eq!(blocks(128), [16, 5 + 3]);
        assert_eq!(blocks(700), [16, 16]);
    }

    #[test]
    fn short_memory_is_shared_and_too_little_is_refused() {
        let described = description(&[None, Some(128)]);
        let block = described.kv_groups[0].bytes(Activation::F32, KV_BLOCK);
        assert_eq!(block, 2 * 2 * 8 * 64 * 4);
        let with = |blocks: u64| {
            let kv_memory = Some(blocks * block);
            let sizes = Sizes { n_slots: 3, prefill_rows: 100, kv_memory, ..Sizes::single(1000) };
            sizes.limits(&described, &[], Activation::F32).map(|limits| limits.kv_blocks)
        };
        assert_eq!(with(1000).unwrap(), [48, 15]);
        assert_eq!(with(19).unwrap(), [16, 3]);
        assert_eq!(with(30).unwrap(), [24, 6]);
        let needed = 19 * block;
        assert!(matches!(with(18), Err(BuildError::KvMemory { needed: found, .. }) if found == needed));
    }

    #[test]
    fn a_drafter_shares_the_memory() {
        let described = description(&[None, Some(128)]);
        let drafter = [KvGroupSpec { layers: 1, ..described.kv_groups[1] }];
        let block = drafter[0].bytes(Activation::F32, KV_BLOCK);
        let with = |kv_memory| {
            let sizes = Sizes { n_slots: 3, prefill_rows: 100, kv_memory, ..Sizes::single(1000) };
            sizes.limits(&described, &drafter, Activation::F32)
        };
        let limits = with(None).unwrap();
        assert_eq!((limits.kv_blocks, limits.drafter_kv_blocks), (vec![48, 15], vec![15]));
        let least = 2 * (16 + 3) + 3;
        let limits = with(Some(least * block)).unwrap();
        assert_eq!((limits.kv_blocks, limits.drafter_kv_blocks), (vec![16, 3], vec![3]));
        assert!(matches!(with(Some(least * block - 1)), Err(BuildError::KvMemory { .. })));
    }

    #[test]
    fn absurd_sizes_are_refused_by_name() {
        for (sizes, field) in [
            (Sizes::single(0), "context"),
            (Sizes::single(1001), "context"),
            (Sizes { n_slots: 0, ..Sizes::single(10) }, "n_slots"),
            (Sizes { n_slots: usize::MAX, ..Sizes::single(10) }, "n_slots"),
            (Sizes { prefill_rows: 0, ..Sizes::single(10) }, "prefill_rows"),
            (Sizes { max_drafts: usize::MAX, ..Sizes::single(10) }, "max_drafts"),
        ] {
            let error = sizes.limits(&description(&[None]), &[], Activation::Bf16).unwrap_err();
            assert!(matches!(error, BuildError::Size { field: found, .. } if found == field), "{error}");
        }
    }
}
