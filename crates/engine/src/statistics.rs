//! How drafting went, and where time goes. Only what was emitted counts as accepted.

use std::ops::{AddAssign, Sub};
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

impl Sub for RoundTimes {
    type Output = Self;

    /// What was added since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Self {
            prefill: self.prefill - earlier.prefill,
            draft: self.draft - earlier.draft,
            verify: self.verify - earlier.verify,
            choose: self.choose - earlier.choose,
            host: self.host - earlier.host,
        }
    }
}

/// Drafting statistics of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftStatistics {
    /// Kind of drafter: `assistant`, `dflash`, `ngram`, `model`, `prediction`; of a chain, that of its first member that needs no
    /// prediction.
    pub kind: &'static str,
    /// Verify passes with at least one draft.
    pub rounds: u64,
    /// Drafts in those passes. Drafts of which the drafter was not sure are not among them.
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
    /// Who proposed, in the order in which they are asked: the drafter itself, or the members of a chain.
    pub sources: Vec<SourceStatistics>,
    /// Whose drafts each of those passes had: an index into `sources`.
    pub source_per_round: Vec<u32>,
}

/// What one source of drafts did for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceStatistics {
    /// Kind of drafter.
    pub kind: &'static str,
    /// Verify passes with drafts of its own.
    pub rounds: u64,
    /// Drafts in those passes.
    pub drafted: u64,
    /// Drafts that were emitted.
    pub accepted: u64,
    /// Why it stopped; `None` while it may be asked.
    pub inactive_reason: Option<String>,
}

impl DraftStatistics {
    pub(crate) fn new(kind: &'static str, sources: &[&'static str]) -> Self {
        let source =
            |&kind| SourceStatistics { kind, rounds: 0, drafted: 0, accepted: 0, inactive_reason: None };
        Self {
            kind,
            rounds: 0,
            drafted: 0,
            accepted: 0,
            accepted_by_position: Vec::new(),
            accepted_per_round: Vec::new(),
            emitted: 0,
            inactive_reason: None,
            sources: sources.iter().map(source).collect(),
            source_per_round: Vec::new(),
        }
    }

    /// What the drafter of a kind did; `None` if there is none.
    pub fn of(&self, kind: &str) -> Option<&SourceStatistics> {
        self.sources.iter().find(|source| source.kind == kind)
    }

    /// Sources that stopped.
    pub(crate) fn given_up(&self) -> impl Iterator<Item = usize> + '_ {
        let sources = self.sources.iter().enumerate();
        sources.filter(|(_, source)| source.inactive_reason.is_some()).map(|(index, _)| index)
    }

    /// A source stops; with none left, so does drafting.
    pub(crate) fn give_up(&mut self, source: usize, reason: String, goes_on: bool) {
        if !goes_on {
            self.inactive_reason = Some(reason.clone());
        }
        self.sources[source].inactive_reason = Some(reason);
    }

    /// Tokens that a round with drafts emitted on average; 0 without one.
    pub fn tokens_per_round(&self) -> f64 {
        if self.rounds == 0 { 0.0 } else { self.emitted as f64 / self.rounds as f64 }
    }

    /// Counts a pass with `drafted` drafts of a source, of which the first `accepted` are among the `emitted` tokens.
    pub(crate) fn record(&mut self, source: usize, drafted: usize, accepted: usize, emitted: usize) {
        let of = &mut self.sources[source];
        of.rounds += 1;
        of.drafted += drafted as u64;
        of.accepted += accepted as u64;
        self.source_per_round.push(source as u32);
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
        let mut statistics = DraftStatistics::new("assistant", &["assistant", "ngram"]);
        assert_eq!(statistics.tokens_per_round(), 0.0);
        statistics.record(0, 3, 2, 3);
        statistics.record(1, 1, 1, 2);
        statistics.record(0, 4, 0, 1);
        assert_eq!((statistics.rounds, statistics.drafted, statistics.accepted), (3, 8, 3));
        assert_eq!(statistics.accepted_by_position, [2, 1, 0, 0]);
        assert_eq!(statistics.accepted_per_round, [2, 1, 0]);
        assert_eq!(statistics.tokens_per_round(), 2.0);
        let sources = statistics.sources.iter();
        let counts: Vec<_> =
            sources.map(|source| (source.kind, source.rounds, source.drafted, source.accepted)).collect();
        assert_eq!(counts, [("assistant", 2, 7, 2), ("ngram", 1, 1, 1)]);
        assert_eq!(statistics.source_per_round, [0, 1, 0]);
    }

    #[test]
    fn drafting_stops_with_its_last_source() {
        let mut statistics = DraftStatistics::new("assistant", &["assistant", "ngram"]);
        statistics.give_up(0, "one".into(), true);
        assert_eq!((&statistics.inactive_reason, statistics.given_up().collect()), (&None, vec![0]));
        statistics.give_up(1, "two".into(), false);
        assert_eq!(statistics.inactive_reason.as_deref(), Some("two"));
        assert_eq!(statistics.given_up().collect::<Vec<_>>(), [0, 1]);
    }
}
