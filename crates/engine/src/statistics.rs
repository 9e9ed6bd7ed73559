//! How drafting went, and where time goes. Only what was emitted counts as accepted.

use std::ops::AddAssign;
use std::time::Duration;

/// Where the time of an engine's steps went. All zero without a clock, see [`crate::Engine::set_clock`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTimes {
    /// Steps that only read prompts.
    pub prefill: Duration,
    /// In all other steps, the drafter's part: proposing, and taking in what the target's pass left for it.
    pub draft: Duration,
    /// The target's pass up to the logits.
    pub verify: Duration,
    /// Choosing tokens from the logits, and the commit.
    pub choose: Duration,
    /// Everything else: planning, K/V accounting, texts, events.
    pub host: Duration,
}

impl RoundTimes {
    /// Of the steps that were rounds.
    pub fn rounds(&self) -> Duration {
        self.draft + self.verify + self.choose + self.host
    }
}

impl AddAssign for RoundTimes {
    fn add_assign(&mut self, other: Self) {
        self.prefill += other.prefill;
        self.draft += other.draft;
        self.verify += other.verify;
        self.choose += other.choose;
        self.host += other.host;
    }
}

/// Drafting statistics of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftStatistics {
    /// Kind of drafter: `assistant`, `dflash`, `ngram`, `model`.
    pub kind: &'static str,
    /// Verify passes with at least one draft.
    pub rounds: u64,
    /// Drafts in those passes.
    pub drafted: u64,
    /// Drafts that were emitted.
    pub accepted: u64,
    /// How often the first, second, ... draft of a round was emitted.
    pub accepted_by_position: Vec<u64>,
    /// Emitted drafts of each of those passes, in order.
    pub accepted_per_round: Vec<u32>,
    /// Tokens emitted by those passes.
    pub emitted: u64,
    /// Why drafting did not happen or stopped; `None` while it is active.
    pub inactive_reason: Option<String>,
}

impl DraftStatistics {
    pub(crate) fn new(kind: &'static str) -> Self {
        Self {
            kind,
            rounds: 0,
            drafted: 0,
            accepted: 0,
            accepted_by_position: Vec::new(),
            accepted_per_round: Vec::new(),
            emitted: 0,
            inactive_reason: None,
        }
    }

    /// Tokens that a round with drafts emitted on average; 0 without one.
    pub fn tokens_per_round(&self) -> f64 {
        if self.rounds == 0 { 0.0 } else { self.emitted as f64 / self.rounds as f64 }
    }

    /// Counts a pass with `drafted` drafts of which the first `accepted` are among the `emitted` tokens.
    pub(crate) fn record(&mut self, drafted: usize, accepted: usize, emitted: usize) {
        self.rounds += 1;
        self.drafted += drafted as u64;
        self.accepted += accepted as u64;
        self.emitted += emitted as u64;
        if self.accepted_by_position.len() < drafted {
            self.accepted_by_position.resize(drafted, 0);
        }
        self.accepted_by_position[..accepted].iter_mut().for_each(|count| *count += 1);
        self.accepted_per_round.push(accepted as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_any_width_add_up() {
        let mut statistics = DraftStatistics::new("ngram");
        assert_eq!(statistics.tokens_per_round(), 0.0);
        statistics.record(3, 2, 3);
        statistics.record(1, 1, 2);
        statistics.record(4, 0, 1);
        assert_eq!((statistics.rounds, statistics.drafted, statistics.accepted), (3, 8, 3));
        assert_eq!(statistics.accepted_by_position, [2, 1, 0, 0]);
        assert_eq!(statistics.accepted_per_round, [2, 1, 0]);
        assert_eq!(statistics.tokens_per_round(), 2.0);
    }
}
