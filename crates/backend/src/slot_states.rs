//! Per-slot state for backends whose values live in host memory, and the commit of a round (design: rounds).
//!
//! ```text
//! tokens   t[0] ........ t[len-1] | t[len]          | t[len+1] .. t[len+k]
//!          K/V committed          | anchor (newest) | drafts of the coming verify pass
//! ```
//! A pass over a slot has rows for known tokens and then for drafts. At commit, of the chosen tokens `c_0 .. c_k` (at the last
//! known row and at each draft row) the first `a + 1` are emitted, where `a` drafts in a row equal them. While the prompt is being
//! read, `t[len ..]` are prompt tokens and nothing is chosen.

mod choosing;
mod live;

use paceline_kernels::math::ln;
use paceline_kernels::select::{TokenCounts, TokenLogprobs};

use crate::op::Op;
use crate::pass::{Pass, PassSlot, RowSet, Rows};
use crate::slot::{DraftFaults, Finish, SlotId, SlotInit, SlotReport, TokenId};

pub use choosing::{Choosing, Listed};
use live::LiveRows;

/// A row of the current pass with its values resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolvedRow {
    /// The sequence.
    pub slot: SlotId,
    /// Its token.
    pub token: TokenId,
    /// Index of its token in the sequence.
    pub index: usize,
    /// Rotary position.
    pub position: usize,
    /// Index at which its K/V is stored.
    pub kv_index: usize,
    /// It sees K/V below this.
    pub visible_end: usize,
    /// Where the K/V of its block is stored.
    pub block: (usize, usize),
}

#[derive(Debug)]
struct Slot {
    init: SlotInit,
    /// `init.end_tokens`, as rules take them.
    end_ids: Vec<u32>,
    tokens: Vec<TokenId>,
    /// How many of `tokens` are the sequence's own; drafts stand behind them.
    known: usize,
    /// The drafts, as rules take them.
    drafts: Vec<u32>,
    /// Logarithm of [`SlotInit::draft_confidence`].
    least_logprob: f32,
    /// Log-probability of the drafts so far, all of them right, by their drafter.
    logprob: f32,
    /// The drafts that are left, where the drafter was not sure of those behind them. What is made of these is dead.
    cut: Option<usize>,
    /// Counts of the known tokens, where there are penalties. A draft is in them once it is accepted.
    counts: Option<TokenCounts>,
    len: usize,
    report: SlotReport,
}

/// Counts of the first `known` tokens of a sequence.
fn count(init: &SlotInit, tokens: &[TokenId]) -> Option<TokenCounts> {
    init.sampling.penalties.any().then(|| {
        let (prompt, output) = tokens.split_at(init.n_prompt.min(tokens.len()));
        let mut counts = TokenCounts::of_prompt(prompt.iter().map(|token| token.0));
        output.iter().for_each(|token| counts.add_output(token.0));
        counts
    })
}

impl Slot {
    /// Whether drafts are dropped of which their drafter is not sure.
    fn wants_confidence(&self) -> bool {
        self.init.draft_confidence > 0.0
    }

    /// The drafts of a round are gone.
    fn clear_drafts(&mut self) {
        self.tokens.truncate(self.known);
        self.drafts.clear();
        (self.logprob, self.cut) = (0.0, None);
    }

    fn alive(&self) -> bool {
        self.report.finish.is_none() && !self.report.fault
    }

    /// The chosen tokens that a round emits: up to the first that differs from its draft, that ends the text, or that reaches the
    /// limit. `None` in the result marks a row whose logits were not finite.
    fn accept(&self, base: usize, chosen: &[Option<TokenId>]) -> (Vec<Option<TokenId>>, Option<Finish>) {
        let mut emitted = Vec::with_capacity(chosen.len());
        for (i, &choice) in chosen.iter().enumerate() {
            emitted.push(choice);
            let Some(token) = choice else { return (emitted, None) };
            if self.init.end_tokens.contains(&token) {
                return (emitted, Some(Finish::Stop));
            }
            // t[base + 1 + i] is this token, so the sequence now has base + i + 2 of them.
            if base + i + 2 >= self.init.limit {
                return (emitted, Some(Finish::Length));
            }
            if self.tokens.get(base + 1 + i) != Some(&token) {
                break;
            }
        }
        (emitted, None)
    }
}

/// Slots, the resolved rows of the current pass, and what was chosen at them.
#[derive(Debug, Default)]
pub struct SlotStates {
    slots: Vec<Option<Slot>>,
    /// The current pass, without its dead rows.
    pass: Pass,
    /// Where its rows were before.
    live: LiveRows,
    rows: Vec<ResolvedRow>,
    row_faults: Vec<bool>,
    /// The same of what a drafter made of a row.
    row_draft_faults: Vec<bool>,
    chosen: Vec<Option<TokenId>>,
    /// By wanted row, where its slot asks for them.
    logprobs: Vec<TokenLogprobs>,
    /// By pass slot: where the last commit stopped.
    kept: Vec<Option<Kept>>,
}

/// The last row of a slot that a commit kept.
#[derive(Clone, Copy, Debug)]
struct Kept {
    /// Among all rows.
    row: usize,
    /// Among the wanted rows; `None` in a chunk of a prompt that chose nothing.
    wanted_row: Option<usize>,
}

impl SlotStates {
    /// Makes room for `n_slots` slots.
    pub fn new(n_slots: usize) -> Self {
        Self { slots: (0..n_slots).map(|_| None).collect(), ..Self::default() }
    }

    /// [`crate::Backend::open`].
    ///
    /// # Panics
    /// If the slot is taken, does not exist, or has no token.
    pub fn open(&mut self, slot: SlotId, init: SlotInit, capacity: usize) {
        assert!(init.len < init.tokens.len(), "slot {} starts without a token to read", slot.0);
        let place = &mut self.slots[slot.0 as usize];
        assert!(place.is_none(), "slot {} is taken", slot.0);
        let mut tokens = Vec::with_capacity(capacity.max(init.tokens.len()));
        tokens.extend_from_slice(&init.tokens);
        let known = tokens.len();
        *place = Some(Slot {
            end_ids: init.end_tokens.iter().map(|token| token.0).collect(),
            counts: count(&init, &tokens),
            len: init.len,
            least_logprob: ln(init.draft_confidence),
            init,
            tokens,
            known,
            drafts: Vec::new(),
            logprob: 0.0,
            cut: None,
            report: SlotReport::default(),
        });
    }

    /// [`crate::Backend::close`].
    pub fn close(&mut self, slot: SlotId) {
        self.slots[slot.0 as usize] = None;
    }

    fn slot(&self, slot: SlotId) -> &Slot {
        self.slots[slot.0 as usize].as_ref().expect("the scheduler only names open slots")
    }

    fn slot_mut(&mut self, slot: SlotId) -> &mut Slot {
        self.slots[slot.0 as usize].as_mut().expect("the scheduler only names open slots")
    }

    /// [`crate::Backend::put_drafts`].
    pub fn put_drafts(&mut self, slot: SlotId, drafts: &[TokenId]) {
        let slot = self.slot_mut(slot);
        slot.clear_drafts();
        slot.tokens.extend_from_slice(drafts);
        slot.drafts.extend(drafts.iter().map(|draft| draft.0));
    }

    /// Sets draft `step` behind the known tokens, with the drafter's log-probability of it. Steps of a round come in order. `None`: the
    /// drafter's logits were not finite; some token stands there all the same, for the target to judge like any other.
    pub fn put_draft(&mut self, slot: SlotId, step: usize, token: Option<TokenId>, logprob: f32) {
        let slot = self.slot_mut(slot);
        if step == 0 {
            slot.clear_drafts();
        }
        if slot.cut.is_some() {
            return;
        }
        slot.logprob += logprob;
        if slot.wants_confidence() && slot.logprob < slot.least_logprob {
            slot.cut = Some(step);
            return;
        }
        slot.report.draft_faults.logits |= token.is_none();
        let token = token.unwrap_or_default();
        slot.tokens.truncate(slot.known + step);
        slot.tokens.push(token);
        slot.drafts.truncate(step);
        slot.drafts.push(token.0);
    }

    /// [`crate::Backend::truncate`].
    pub fn truncate(&mut self, slot: SlotId, len: usize) {
        let slot = self.slot_mut(slot);
        slot.len = slot.len.min(len);
        slot.known = slot.known.min(slot.len + 1);
        slot.clear_drafts();
        slot.counts = count(&slot.init, &slot.tokens);
    }

    /// [`crate::Backend::collect`].
    pub fn collect(&mut self, slot: SlotId) -> SlotReport {
        let slot = self.slot_mut(slot);
        let report = SlotReport { len: slot.len, ..slot.report.clone() };
        slot.report.emitted.clear();
        slot.report.logprobs.clear();
        slot.report.prompt_logprobs.clear();
        (slot.report.verified, slot.report.accepted) = (0, 0);
        slot.report.draft_faults = DraftFaults::default();
        report
    }

    /// Committed tokens of a slot.
    pub fn len(&self, slot: SlotId) -> usize {
        self.slot(slot).len
    }

    /// All tokens of a slot: committed, anchor, drafts.
    pub fn tokens(&self, slot: SlotId) -> &[TokenId] {
        &self.slot(slot).tokens
    }

    /// [`crate::Backend::begin`]: resolves the rows of a pass. Rows whose token was to be a draft that was dropped are dead: they are
    /// left out, and those behind them move up, see [`SlotStates::live`].
    pub fn begin(&mut self, pass: &Pass) {
        let slots = &self.slots;
        self.live.find(pass, |row| {
            let slot = slots[row.slot.0 as usize].as_ref().expect("the scheduler only names open slots");
            let at = slot.len.saturating_add_signed(row.token_offset as isize);
            slot.cut.is_some_and(|left| row.masked_by.is_none() && at >= slot.known + left)
        });
        self.live.copy(pass, &mut self.pass);
        self.rows.clear();
        for row in self.pass.rows() {
            let slot = self.slots[row.slot.0 as usize].as_ref().expect("the scheduler only names open slots");
            let place = |offset: i32| slot.len.saturating_add_signed(offset as isize);
            let at = place(row.token_offset);
            self.rows.push(ResolvedRow {
                slot: row.slot,
                // A slot that has ended keeps its rows; whatever they compute is dropped.
                token: row.masked_by.or(slot.tokens.get(at).copied()).unwrap_or_default(),
                index: at,
                position: place(row.offset),
                kv_index: place(row.kv_offset),
                visible_end: place(row.visible_offset),
                block: (place(row.block_first), place(row.block_end)),
            });
        }
        for faults in [&mut self.row_faults, &mut self.row_draft_faults] {
            faults.clear();
            faults.resize(self.pass.rows().len(), false);
        }
        self.chosen.clear();
        self.chosen.resize(self.pass.wanted().len(), None);
        let n_wanted = self.logprobs.len().max(self.pass.wanted().len());
        self.logprobs.resize_with(n_wanted, TokenLogprobs::default);
        self.kept.clear();
        self.kept.resize(pass.slots().len(), None);
    }

    /// An op over rows of the pass that was begun, as one over those of them that are live, at the places where these stand.
    pub fn live(&self, op: &Op, rows: Rows) -> (Op, Rows) {
        (op.with_first_row(|row| self.live.count_before(rows.set, row)), self.live.of(rows))
    }

    /// The current pass, without rows that are dead.
    pub fn pass(&self) -> &Pass {
        &self.pass
    }

    /// Resolved rows of the current pass.
    pub fn rows(&self) -> &[ResolvedRow] {
        &self.rows
    }

    /// Index among all rows of a buffer row of `set`.
    pub fn row_index(&self, set: RowSet, buffer_row: usize) -> usize {
        match set {
            RowSet::All => buffer_row,
            RowSet::Wanted => self.pass.wanted()[buffer_row] as usize,
            RowSet::Tapped => self.pass.tapped()[buffer_row] as usize,
        }
    }

    /// Row `index` of `rows`, resolved.
    pub fn resolved(&self, rows: Rows, index: usize) -> ResolvedRow {
        self.rows[self.row_index(rows.set, rows.start + index)]
    }

    /// The K/V of a row (index among all rows) was not finite. The slot is at fault if that row is committed: a rejected draft
    /// may overflow as it likes.
    pub fn fault_row(&mut self, row: usize) {
        self.row_faults[row] = true;
    }

    /// What a drafter stores for a row (index among all rows) was not finite. If that row is committed, the drafter cannot go on.
    pub fn draft_fault_row(&mut self, row: usize) {
        self.row_draft_faults[row] = true;
    }

    /// The token chosen at a wanted row; `None` if its logits were not finite.
    pub fn set_chosen(&mut self, wanted_row: usize, token: Option<TokenId>) {
        self.chosen[wanted_row] = token;
    }

    /// [`crate::Backend::peek_chosen`].
    pub fn chosen(&self, wanted_row: usize) -> Option<TokenId> {
        self.chosen[wanted_row]
    }

    /// [`crate::Op::Commit`].
    pub fn commit(&mut self) {
        for index in 0..self.pass.slots().len() {
            let part = self.pass.slots()[index];
            if self.slot(part.slot).alive() {
                self.kept[index] = self.commit_slot(part);
            }
        }
    }

    /// Commits one slot and says where it stopped; `None` if the slot is at fault.
    fn commit_slot(&mut self, part: PassSlot) -> Option<Kept> {
        let chosen = &self.chosen[part.first_chosen()..part.first_chosen() + part.n_chosen()];
        let of_slot = part.first_row..part.first_row + part.n_rows;
        let (faults, draft_faults) = (&self.row_faults[of_slot.clone()], &self.row_draft_faults[of_slot]);
        let slot = self.slots[part.slot.0 as usize].as_mut().expect("checked by the caller");
        let scored = part.first_wanted..part.first_chosen();
        for wanted_row in scored.filter(|_| !slot.init.scored.is_empty()) {
            let next = self.rows[self.pass.wanted()[wanted_row] as usize].index + 1;
            if slot.init.scored.contains(&next) {
                slot.report.fault |= self.chosen[wanted_row].is_none();
                slot.report.prompt_logprobs.push(self.logprobs[wanted_row].clone());
            }
        }
        if !part.chooses {
            slot.report.fault |= faults.contains(&true);
            slot.report.draft_faults.context |= draft_faults.contains(&true);
            slot.len += part.n_rows;
            return Some(Kept { row: part.first_row + part.n_rows - 1, wanted_row: None });
        }
        let n_known = part.n_rows - part.n_drafts;
        let base = slot.len + n_known - 1;
        let (emitted, finish) = slot.accept(base, chosen);
        let n_emitted = emitted.len();
        let finite = emitted.iter().all(Option::is_some);
        if !finite || faults[..n_known + n_emitted - 1].contains(&true) {
            slot.report.fault = true;
            return None;
        }
        slot.report.draft_faults.context |= draft_faults[..n_known + n_emitted - 1].contains(&true);
        let drafts_kept = emitted
            .iter()
            .enumerate()
            .filter(|&(i, token)| i < part.n_drafts && slot.tokens.get(base + 1 + i).copied() == *token);
        slot.report.accepted += drafts_kept.count();
        slot.report.verified += part.n_drafts;
        slot.clear_drafts();
        slot.tokens.truncate(base + 1);
        slot.tokens.extend(emitted.iter().flatten());
        slot.known = slot.tokens.len();
        if let Some(counts) = &mut slot.counts {
            emitted.iter().flatten().for_each(|token| counts.add_output(token.0));
        }
        if slot.init.logprobs.is_some() {
            let rows = part.first_chosen()..part.first_chosen() + n_emitted;
            slot.report.logprobs.extend_from_slice(&self.logprobs[rows]);
        }
        slot.report.emitted.extend(emitted.iter().flatten());
        slot.report.finish = finish;
        slot.len = base + n_emitted;
        Some(Kept {
            row: part.first_row + n_known + n_emitted - 2,
            wanted_row: Some(part.first_chosen() + n_emitted - 1),
        })
    }

    fn kept_places(&self) -> impl Iterator<Item = (SlotId, Kept)> + '_ {
        let slots = self.pass.slots().iter();
        slots.zip(&self.kept).filter_map(|(part, kept)| kept.map(|kept| (part.slot, kept)))
    }

    /// After a commit: `(slot, wanted row)` of every slot that chose, for [`crate::Op::KeepCommitted`].
    pub fn kept(&self) -> impl Iterator<Item = (SlotId, usize)> + '_ {
        self.kept_places().filter_map(|(slot, kept)| kept.wanted_row.map(|row| (slot, row)))
    }

    /// After a commit: `(slot, row)` of every slot, for [`crate::Op::StateCommit`].
    pub fn kept_rows(&self) -> impl Iterator<Item = (SlotId, usize)> + '_ {
        self.kept_places().map(|(slot, kept)| (slot, kept.row))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const SLOT: SlotId = SlotId(0);

    fn ids(tokens: &[u32]) -> Vec<TokenId> {
        tokens.iter().map(|&t| TokenId(t)).collect()
    }

    fn states(prompt: &[u32], limit: usize) -> SlotStates {
        let mut states = SlotStates::new(1);
        let end_tokens: Arc<[TokenId]> = [TokenId(1)].into();
        states.open(SLOT, SlotInit { end_tokens, ..SlotInit::greedy(ids(prompt), limit) }, 0);
        states
    }

    /// One pass of `n_known` known rows and the given drafts; the target chooses `chosen`.
    fn round(states: &mut SlotStates, n_known: usize, drafts: &[u32], chosen: &[Option<u32>]) -> SlotReport {
        if !drafts.is_empty() {
            states.put_drafts(SLOT, &ids(drafts));
        }
        let mut pass = Pass::builder();
        pass.target(SLOT, n_known, drafts.len(), !chosen.is_empty(), false);
        states.begin(&pass.build());
        for (row, token) in chosen.iter().enumerate() {
            states.set_chosen(row, token.map(TokenId));
        }
        states.commit();
        states.collect(SLOT)
    }

    #[test]
    fn a_prompt_in_chunks_then_rounds_of_any_width() {
        let mut s = states(&[2, 10, 11, 12], 100);
        assert_eq!(round(&mut s, 2, &[], &[]).len, 2);
        assert_eq!((s.kept().count(), s.kept_rows().collect::<Vec<_>>()), (0, vec![(SLOT, 1)]));
        let report = round(&mut s, 2, &[], &[Some(20)]);
        assert_eq!((report.len, report.emitted), (4, ids(&[20])));
        let report = round(&mut s, 1, &[21, 22, 9], &[Some(21), Some(22), Some(23), Some(99)]);
        assert_eq!((report.len, report.accepted, report.emitted), (7, 2, ids(&[21, 22, 23])));
        assert_eq!(s.kept().collect::<Vec<_>>(), [(SLOT, 2)]);
        assert_eq!(s.kept_rows().collect::<Vec<_>>(), [(SLOT, 2)]);
        let report = round(&mut s, 1, &[24], &[Some(24), Some(25)]);
        assert_eq!((report.len, report.accepted, report.emitted), (9, 1, ids(&[24, 25])));
        assert_eq!(s.tokens(SLOT), ids(&[2, 10, 11, 12, 20, 21, 22, 23, 24, 25]));
    }

    #[test]
    fn an_end_token_inside_accepted_drafts_cuts_there() {
        let mut s = states(&[2], 100);
        round(&mut s, 1, &[], &[Some(20)]);
        let report = round(&mut s, 1, &[21, 1, 22], &[Some(21), Some(1), Some(22), Some(23)]);
        assert_eq!((report.accepted, report.emitted), (2, ids(&[21, 1])));
        assert_eq!(report.finish, Some(Finish::Stop));
        assert_eq!(report.len, 3);
    }

    #[test]
    fn a_rejected_end_token_does_not_end() {
        let mut s = states(&[2], 100);
        round(&mut s, 1, &[], &[Some(20)]);
        let report = round(&mut s, 1, &[1, 1], &[Some(21), Some(1), Some(1)]);
        assert_eq!((report.accepted, report.emitted, report.finish), (0, ids(&[21]), None));
    }

    #[test]
    fn the_limit_cuts_exactly() {
        let mut s = states(&[2, 3], 5);
        let report = round(&mut s, 2, &[7, 8, 9], &[Some(7), Some(8), Some(9), Some(10)]);
        assert_eq!((report.emitted, report.finish), (ids(&[7, 8, 9]), Some(Finish::Length)));
        assert_eq!(report.accepted, 3);
    }

    #[test]
    fn faults_count_only_where_they_are_committed() {
        let mut s = states(&[2], 100);
        round(&mut s, 1, &[], &[Some(20)]);
        // Draft row 2 overflowed, but its draft was rejected.
        let report = round(&mut s, 1, &[21, 30], &[Some(21), Some(22), None]);
        assert_eq!((report.fault, report.emitted), (false, ids(&[21, 22])));
        let report = round(&mut s, 1, &[23], &[None, Some(24)]);
        assert!(report.fault && report.emitted.is_empty());
    }

    #[test]
    fn drafts_of_which_the_drafter_is_not_sure_are_dead() {
        let mut s = SlotStates::new(2);
        let [unsure, other] = [SlotId(0), SlotId(1)];
        s.open(unsure, SlotInit { draft_confidence: 0.5, ..SlotInit::greedy(ids(&[2]), 99) }, 0);
        s.open(other, SlotInit::greedy(ids(&[3]), 99), 0);
        for _ in 0..2 {
            let mut drafting = Vec::new();
            // Together 0.9, 0.63, 0.44: from there on its rows are gone, whatever is put later.
            for (step, sure) in [0.9_f32, 0.7, 0.7, 1.0].into_iter().enumerate() {
                let mut pass = Pass::builder();
                [unsure, other].iter().for_each(|&slot| pass.borrowed(slot, step, 0));
                s.begin(&pass.build());
                drafting.push(s.rows().iter().map(|row| row.slot).collect::<Vec<_>>());
                for slot in [unsure, other] {
                    s.put_draft(slot, step, Some(TokenId(10 + step as u32)), sure.ln());
                }
            }
            assert_eq!(
                drafting,
                [vec![unsure, other], vec![unsure, other], vec![unsure, other], vec![other]]
            );
            let mut pass = Pass::builder();
            [unsure, other].iter().for_each(|&slot| pass.target(slot, 1, 4, true, true));
            let pass = pass.build();
            s.begin(&pass);
            assert_eq!((s.rows().len(), s.pass().wanted().len(), s.pass().tapped().len()), (8, 8, 8));
            for rows in [pass.all(), pass.wanted_rows(), pass.tapped_rows()] {
                let live = |start, len| {
                    let (op, live) = s.live(&Op::Commit, Rows { start, len, ..rows });
                    assert_eq!((op, live.set), (Op::Commit, rows.set));
                    (live.start, live.len)
                };
                assert_eq!(
                    [live(0, 10), live(2, 3), live(3, 2), live(5, 5)],
                    [(0, 8), (2, 1), (3, 0), (3, 5)]
                );
            }
            let logits = crate::Buf { index: 0, width: 1 };
            let choose = |first_row| Op::Choose { logits, softcap: None, first_row };
            let (op, rows) = s.live(&choose(5), Rows { start: 7, len: 2, ..pass.wanted_rows() });
            assert_eq!((op, rows.start, rows.len), (choose(3), 5, 2));
            for row in 0..8 {
                s.set_chosen(row, Some(TokenId([10, 11, 30, 10, 11, 12, 13, 31][row])));
            }
            s.commit();
            let reports = [unsure, other].map(|slot| s.collect(slot));
            assert_eq!(reports.clone().map(|report| (report.verified, report.accepted)), [(2, 2), (4, 4)]);
            assert_eq!(reports.map(|report| report.emitted.len()), [3, 5]);
        }
    }
}
