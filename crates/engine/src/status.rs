//! What an engine is doing, in figures: for whoever watches it.

use crate::error::Broken;

/// State and totals of an engine between two rounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineStatus {
    /// Requests with a slot.
    pub running: usize,
    /// Requests without.
    pub waiting: usize,
    /// Slots without a request.
    pub free_slots: usize,
    /// Free and all K/V blocks of each group.
    pub kv_blocks: Vec<KvBlocks>,
    /// Rounds so far.
    pub rounds: u64,
    /// Requests that were taken off their slot, each time.
    pub preemptions: u64,
    /// Rows of prompts that were not computed, because another request with the same prompt had them, or one before that kept them
    /// ([`crate::Request::keep_kv`]).
    pub shared_rows: u64,
    /// Drafting of all requests so far, cancelled ones included.
    pub drafts: DraftTotals,
    /// Why it stopped; `None` while it works.
    pub broken: Option<Broken>,
}

/// K/V blocks of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvBlocks {
    /// Blocks that nobody holds.
    pub free: usize,
    /// All blocks.
    pub all: usize,
}

/// Drafting, added up. Counted as in [`crate::DraftStatistics`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DraftTotals {
    /// Verify passes of one request with at least one draft.
    pub rounds: u64,
    /// Drafts in those passes.
    pub drafted: u64,
    /// Drafts that were emitted.
    pub accepted: u64,
    /// How often the first, second, ... draft of a round was emitted.
    pub accepted_by_position: Vec<u64>,
}

impl DraftTotals {
    /// Counts a pass of one request.
    pub(crate) fn record(&mut self, drafted: usize, accepted: usize) {
        self.rounds += 1;
        self.drafted += drafted as u64;
        self.accepted += accepted as u64;
        if self.accepted_by_position.len() < drafted {
            self.accepted_by_position.resize(drafted, 0);
        }
        self.accepted_by_position[..accepted].iter_mut().for_each(|count| *count += 1);
    }
}

impl EngineStatus {
    /// Share of the K/V blocks that are held, of the group that is fullest: 0 to 1.
    pub fn kv_use(&self) -> f64 {
        let used = |blocks: &KvBlocks| 1.0 - blocks.free as f64 / blocks.all.max(1) as f64;
        self.kv_blocks.iter().map(used).fold(0.0, f64::max)
    }
}
