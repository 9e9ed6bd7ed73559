//! One request on its way: its tokens, its blocks, its text.

use std::ops::Range;
use std::sync::Arc;

use paceline_backend::{Finish, LogprobsWanted, Sampling, SlotId, SlotInit, SlotReport, TokenId};

use crate::drafters::Drafter;
use crate::error::{Broken, Failed};
use crate::events::{Event, FinishReason, Finished, Usage};
use crate::kept::PromptKv;
use crate::kv::SequenceKv;
use crate::request::RequestId;
use crate::round::RoundSlot;
use crate::sampling::{LogprobOptions, Logprobs};
use crate::scheduler::{PlannedRows, Running};
use crate::statistics::DraftStatistics;
use crate::stop::StopFilter;
use crate::text::Detokenizer;

/// A request that was taken and is not finished.
pub(crate) struct Sequence {
    pub(crate) id: RequestId,
    /// Prompt, then what was emitted.
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) n_prompt: usize,
    /// What the client expects the output to be; empty where it says nothing.
    pub(crate) prediction: Vec<TokenId>,
    /// Committed tokens; the K/V of `tokens[..len]` is valid while the sequence has a slot.
    pub(crate) len: usize,
    /// Tokens at which it ends.
    pub(crate) limit: usize,
    pub(crate) end_tokens: Arc<[TokenId]>,
    pub(crate) sampling: Arc<Sampling>,
    pub(crate) logprobs: Option<LogprobOptions>,
    /// Prompt tokens whose log-probabilities were told.
    pub(crate) n_scored: usize,
    pub(crate) kv: SequenceKv,
    /// A request that reads the same prompt now, whose K/V it waits for.
    pub(crate) heir_of: Option<RequestId>,
    /// What it computed is left to the next request.
    pub(crate) keep: bool,
    /// Blocks of its prompt that it may have given back itself.
    pub(crate) prompt_kv: Option<PromptKv>,
    pub(crate) slot: Option<SlotId>,
    /// Its rows in the coming round.
    pub(crate) planned: PlannedRows,
    pub(crate) output: Output,
    pub(crate) drafting: Option<Drafting>,
}

/// Drafting of one request.
pub(crate) struct Drafting {
    /// Drafts a round at most.
    pub(crate) per_round: usize,
    /// See [`Drafter::block_drafts`].
    block_drafts: usize,
    /// The request leaves their number to the drafter.
    pub(crate) open_ended: bool,
    /// See [`crate::DraftSettings::confidence`].
    confidence: f32,
    /// The target has chosen a token since the sequence got its slot, so the drafter knows where it stands.
    pub(crate) ready: bool,
    pub(crate) statistics: DraftStatistics,
}

impl Drafting {
    /// Drafting of a request that has not begun.
    pub(crate) fn new(drafter: &dyn Drafter, asked: Option<usize>, most: usize, confidence: f32) -> Self {
        let mut statistics = DraftStatistics::new(drafter.kind(), &drafter.sources());
        let per_round = asked.unwrap_or(drafter.suggested_drafts()).min(most);
        if per_round == 0 {
            statistics.inactive_reason = Some("0 drafts a round were asked for".into());
        }
        let (open_ended, block_drafts) = (asked.is_none(), drafter.block_drafts());
        Self { per_round, block_drafts, open_ended, confidence, ready: false, statistics }
    }

    pub(crate) fn active(&self) -> bool {
        self.statistics.inactive_reason.is_none()
    }
}

impl Sequence {
    /// Known tokens to read that are not committed. Where nothing is chosen the last token need not be read: nobody asks what
    /// would follow it.
    pub(crate) fn pending(&self) -> usize {
        self.tokens.len() - usize::from(self.only_scores()) - self.len
    }

    /// Whether it has room for no token, so that it can do nothing but score its prompt.
    pub(crate) fn only_scores(&self) -> bool {
        self.limit <= self.n_prompt
    }

    /// Whether there is nothing to do at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.only_scores() && self.to_score().is_empty()
    }

    /// Drafts that the next round may verify: the budget leaves room for the chosen token behind them.
    pub(crate) fn wanted_drafts(&self) -> usize {
        let Some(drafting) = &self.drafting else { return 0 };
        if !drafting.active() || !drafting.ready || self.pending() != 1 {
            return 0;
        }
        drafting.per_round.min(self.limit - self.tokens.len() - 1)
    }

    /// Rows behind the anchor for which the next round would take K/V blocks: those drafts, or the drafter's whole block.
    fn wanted_room(&self) -> usize {
        match (self.wanted_drafts(), &self.drafting) {
            (drafts @ 1.., Some(drafting)) => drafts.max(drafting.block_drafts),
            _ => 0,
        }
    }

    /// What the scheduler sees of it.
    pub(crate) fn view(&self) -> Running<'_> {
        Running { len: self.len, pending: self.pending(), drafts: self.wanted_room(), kv: &self.kv }
    }

    /// What the backend starts with.
    pub(crate) fn init(&self) -> SlotInit {
        SlotInit {
            tokens: self.tokens.clone(),
            n_prompt: self.n_prompt,
            len: self.len,
            limit: self.limit,
            end_tokens: self.end_tokens.clone(),
            sampling: self.sampling.clone(),
            logprobs: self.logprobs.map(|wanted| LogprobsWanted { top: wanted.top, of: wanted.of }),
            draft_confidence: self.drafting.as_ref().map_or(0.0, |drafting| drafting.confidence),
            scored: self.to_score(),
        }
    }

    /// Places of the prompt tokens whose log-probabilities are asked for and not told yet: all but the first.
    fn to_score(&self) -> Range<usize> {
        let wanted = self.logprobs.is_some_and(|wanted| wanted.prompt);
        if wanted { self.n_scored + 1..self.n_prompt } else { 0..0 }
    }

    /// Whether its next `n_known` rows stand before tokens to score.
    pub(crate) fn scores(&self, n_known: usize) -> bool {
        let rows = self.len + 1..self.len + n_known + 1;
        let to_score = self.to_score();
        rows.start.max(to_score.start) < rows.end.min(to_score.end)
    }

    /// Whether a drafter keeps state for it.
    pub(crate) fn drafted(&self) -> bool {
        self.drafting.as_ref().is_some_and(Drafting::active)
    }

    /// Forgets everything but the tokens: the sequence has lost its slot.
    pub(crate) fn rewind(&mut self) {
        self.len = 0;
        if let Some(drafting) = &mut self.drafting {
            drafting.ready = false;
        }
    }

    /// Takes in what a round did, emits events for it, and returns the last event if the sequence has ended.
    ///
    /// # Errors
    /// The report does not add up.
    pub(crate) fn take(
        &mut self,
        report: &SlotReport,
        part: &RoundSlot,
        mut emit: impl FnMut(Event),
    ) -> Result<Option<Event>, Broken> {
        if report.fault {
            return Ok(Some(Event::Failed(Failed::NotFinite { tokens: self.tokens.len() })));
        }
        let expected = self.len + part.n_known + report.emitted.len() - usize::from(part.chooses);
        if report.len != expected || report.emitted.is_empty() == part.chooses {
            return Err(Broken::Commit { slot: part.slot.0, expected, found: report.len });
        }
        self.len = report.len;
        if !report.prompt_logprobs.is_empty() {
            self.n_scored += report.prompt_logprobs.len();
            emit(Event::Prompt(report.prompt_logprobs.iter().map(Logprobs::from).collect()));
        }
        if !part.chooses {
            if self.is_empty() {
                return Ok(Some(Event::Finished(self.finished(FinishReason::Length))));
            }
            emit(Event::Prefill { done: self.len, of: self.len + self.pending() });
            return Ok(None);
        }
        Ok(self.take_emitted(report, part, emit).map(|reason| Event::Finished(self.finished(reason))))
    }

    fn take_emitted(
        &mut self,
        report: &SlotReport,
        part: &RoundSlot,
        mut emit: impl FnMut(Event),
    ) -> Option<FinishReason> {
        let mut n_kept = 0;
        let mut reason = None;
        while reason.is_none() && n_kept < report.emitted.len() {
            let id = report.emitted[n_kept];
            n_kept += 1;
            self.tokens.push(id);
            let ends = report.finish.filter(|_| n_kept == report.emitted.len());
            let (text, stopped_by) = self.output.push(id, ends.is_some());
            emit(Event::Token { id, text, logprobs: report.logprobs.get(n_kept - 1).map(Logprobs::from) });
            reason = stopped_by.map(FinishReason::StopString).or(ends.map(|finish| match finish {
                Finish::Stop => FinishReason::EndToken,
                Finish::Length => FinishReason::Length,
            }));
        }
        if let Some(drafting) = &mut self.drafting {
            drafting.ready = true;
            if report.verified > 0 {
                let accepted = report.accepted.min(n_kept);
                drafting.statistics.record(part.source, report.verified, accepted, n_kept);
            }
        }
        reason
    }

    /// How the sequence ends now.
    pub(crate) fn finished(&self, reason: FinishReason) -> Finished {
        let completion_tokens = self.tokens.len() - self.n_prompt;
        Finished {
            reason,
            usage: Usage { prompt_tokens: self.n_prompt, completion_tokens },
            seed: self.sampling.seed,
            draft: self.drafting.as_ref().map(|drafting| drafting.statistics.clone()),
        }
    }
}

/// Turns emitted tokens into text up to a stop string.
pub(crate) struct Output {
    detokenizer: Option<Box<dyn Detokenizer>>,
    filter: StopFilter,
}

impl Output {
    pub(crate) fn new(detokenizer: Option<Box<dyn Detokenizer>>, stops: Vec<String>) -> Self {
        Self { detokenizer, filter: StopFilter::new(stops) }
    }

    /// The text that is certain with one more token, and which stop string it completed. With `last`, all that was held back.
    fn push(&mut self, token: TokenId, last: bool) -> (Option<String>, Option<usize>) {
        let Some(detokenizer) = &mut self.detokenizer else { return (None, None) };
        let mut piece = detokenizer.push(token);
        if last {
            piece.push_str(&detokenizer.finish());
        }
        let mut passed = self.filter.push(&piece);
        if last && passed.stopped_by.is_none() {
            passed.text.push_str(&self.filter.finish());
        }
        (Some(passed.text), passed.stopped_by)
    }
}
