//! A target with one sequence, driven pass by pass without an engine, so that all its values can be looked at.

use paceline::Isa;
use paceline_backend::{
    Activation, Backend, CpuBackend, CpuOptions, KV_BLOCK, KvBlockId, KvGroup, Observed, Op, Pass, RowSet,
    Rows, SlotId, SlotInit, SlotReport, TokenId,
};
use paceline_checkpoint::{Inexact, ModelFolder};
use paceline_models::{Limits, LoadOptions, Target};

use super::trace::Trace;
use crate::failure::Failure;

/// Rows for which logits are held at one time.
const LOGIT_ROWS: usize = 16;

/// The one sequence.
pub(crate) const SLOT: SlotId = SlotId(0);

/// See the module.
pub(crate) struct Machine {
    pub(crate) backend: Observed<CpuBackend, Trace>,
    pub(crate) target: Box<dyn Target>,
    /// K/V groups of the target, and behind them those of a drafter.
    pub(crate) groups: Vec<KvGroup>,
    /// Blocks of each group: those of the longest sequence.
    n_blocks: usize,
}

/// What a machine is made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) isa: Isa,
    pub(crate) threads: usize,
    /// Tokens of the longest prompt, which is one pass.
    pub(crate) n_prompt: usize,
    /// Tokens of the longest sequence, drafts included.
    pub(crate) n_tokens: usize,
}

/// What a drafter wants of the target and of its limits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Drafting<'a> {
    /// Layers whose output it reads.
    pub(crate) tap_layers: &'a [usize],
    /// K/V groups of its own.
    pub(crate) n_groups: usize,
}

impl Machine {
    /// Loads the target of a folder in f32, and whatever else shall live in the same backend.
    pub(crate) fn load<T>(
        folder: &ModelFolder,
        room: Room,
        drafting: Drafting<'_>,
        also: impl FnOnce(&mut dyn Backend, &dyn Target, &Limits) -> Result<T, Failure>,
    ) -> Result<(Self, T), Failure> {
        let Room { isa, threads, n_prompt, n_tokens } = room;
        let description = paceline_models::describe(folder.config())?;
        let n_blocks = n_tokens.div_ceil(KV_BLOCK);
        let limits = Limits {
            max_rows: n_prompt,
            max_wanted: n_prompt,
            logit_rows: LOGIT_ROWS,
            n_slots: 1,
            kv_blocks: vec![n_blocks; description.kv_groups.len()],
            drafter_kv_blocks: vec![n_blocks; drafting.n_groups],
        };
        let cpu = CpuBackend::new(CpuOptions { isa, threads, activation: Activation::F32 })?;
        let mut backend = Observed::new(cpu, Trace::default());
        let options = LoadOptions {
            limits: limits.clone(),
            tap_layers: drafting.tap_layers,
            vocab_size: None,
            inexact: Inexact::Refuse,
            progress: &mut |_| {},
        };
        let target = paceline_models::load(folder.config(), folder.tensors()?, &mut backend, options)?;
        let also = also(&mut backend, target.as_ref(), &limits)?;
        backend.reserve(1, n_tokens, n_prompt)?;
        let groups = target.kv_groups().to_vec();
        Ok((Self { backend, target, groups, n_blocks }, also))
    }

    /// Starts a sequence that ends with `limit` tokens and at no end token.
    pub(crate) fn open(&mut self, tokens: Vec<TokenId>, limit: usize) {
        self.backend.open(SLOT, SlotInit::greedy(tokens, limit));
        let blocks: Vec<KvBlockId> = (0..self.n_blocks as u32).map(KvBlockId).collect();
        for &group in &self.groups {
            self.backend.put_blocks(SLOT, group, 0, &blocks);
        }
    }

    /// Ends the sequence.
    pub(crate) fn close(&mut self) {
        self.backend.close(SLOT);
    }

    /// One pass over the next `n_known` tokens with the logits of each; what came of it. The trace holds its values.
    pub(crate) fn pass(&mut self, n_known: usize) -> Result<SlotReport, Failure> {
        self.backend.observer_mut().clear();
        let mut builder = Pass::builder();
        builder.scored(SLOT, n_known, true, false);
        let pass = builder.build();
        self.backend.begin(&pass);
        self.target.forward(&mut self.backend, &pass);
        self.backend.run(&Op::Commit, Rows { set: RowSet::All, start: 0, len: 0 });
        let report = self.backend.collect(SLOT);
        if report.fault {
            return Err(Failure::failed("a value that is not finite came up; are the weights damaged?"));
        }
        Ok(report)
    }
}
