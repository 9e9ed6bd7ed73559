//! What the next pass does, as a pure function of the state: [`plan`].
//!
//! Every pass carries one row and the drafts of each sequence that is decoding, and up to a budget of prompt rows. Rules, in
//! this order:
//! 1. The oldest first. Every running sequence gets the blocks for one row; where they are short, the youngest is
//!    preempted. The oldest alone always fits, so it always goes on, and so everything ends.
//! 2. Drafts take what blocks are left, oldest first. They never cost anyone its place.
//! 3. Prompt rows, oldest first, within the budget and the blocks left.
//! 4. Waiting sequences are admitted strictly in order, when a slot is free, budget is left, and their whole prompt
//!    finds blocks beside the prompts still being read and one block more for each running sequence.
//!
//! A preempted sequence waits again, in order of its arrival, and reads its prompt and what it has emitted anew: the same
//! rows give the same bits, so its text does not change.

use paceline_backend::KV_BLOCK;

use crate::kv::{KvGroupSize, SequenceKv, most_held};

/// A sequence with a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running<'a> {
    /// Committed tokens.
    pub(crate) len: usize,
    /// Known tokens that are not committed: 1 while decoding, more while the prompt is read.
    pub(crate) pending: usize,
    /// Drafts that it would take; 0 unless one token is pending.
    pub(crate) drafts: usize,
    /// Its blocks.
    pub(crate) kv: &'a SequenceKv,
}

/// All that a plan depends on.
#[derive(Debug)]
pub(crate) struct State<'a> {
    /// Sequences with a slot, oldest first.
    pub(crate) running: &'a [Running<'a>],
    /// Tokens that the waiting sequences have to read, in order of arrival.
    pub(crate) waiting: &'a [usize],
    /// Slots without a sequence.
    pub(crate) free_slots: usize,
    /// The groups.
    pub(crate) groups: &'a [KvGroupSize],
    /// Free blocks of each group.
    pub(crate) free_blocks: &'a [usize],
    /// Prompt rows of a pass.
    pub(crate) prefill_rows: usize,
}

/// Rows of one sequence in the pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PlannedRows {
    /// Known tokens; 0 leaves the sequence out of this pass.
    pub(crate) n_known: usize,
    /// Drafts at most.
    pub(crate) n_drafts: usize,
}

/// The next pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Only the first so many of the running sequences go on; the others are preempted.
    pub(crate) keep: usize,
    /// The first so many of the waiting sequences get a slot.
    pub(crate) admit: usize,
    /// Rows of the kept and then of the admitted sequences.
    pub(crate) rows: Vec<PlannedRows>,
}

impl Plan {
    /// Whether the pass has no row.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.iter().all(|rows| rows.n_known == 0)
    }
}

/// Plans the next pass.
pub(crate) fn plan(state: &State<'_>) -> Plan {
    let mut free = state.free_blocks.to_vec();
    let keep = keep_oldest(state, &mut free);
    let kept = &state.running[..keep];
    let mut rows = vec![PlannedRows::default(); keep];
    for (sequence, rows) in kept.iter().zip(&mut rows).filter(|(sequence, _)| sequence.pending == 1) {
        rows.n_known = 1;
        rows.n_drafts = extend(sequence, 1, sequence.drafts, &mut free);
    }
    let mut budget = state.prefill_rows;
    for (sequence, rows) in kept.iter().zip(&mut rows).filter(|(sequence, _)| sequence.pending > 1) {
        if budget > 0 {
            rows.n_known = 1 + extend(sequence, 1, sequence.pending.min(budget) - 1, &mut free);
            budget -= rows.n_known;
        }
    }
    let admit = admit(state, keep, &mut free, budget, &mut rows);
    Plan { keep, admit, rows }
}

/// How many of the oldest running sequences find blocks for one row each when the younger ones give theirs back; takes those
/// blocks from `free`.
fn keep_oldest(state: &State<'_>, free: &mut [usize]) -> usize {
    let mut keep = state.running.len();
    let mut at = 0;
    while at < keep {
        let sequence = &state.running[at];
        let end = sequence.len + 1;
        if (0..free.len()).all(|group| sequence.kv.blocks_needed(group, end) <= free[group]) {
            take(sequence.kv, 0, end, free);
            at += 1;
        } else {
            keep -= 1;
            for (group, free) in free.iter_mut().enumerate() {
                *free += state.running[keep].kv.held(group);
            }
        }
    }
    keep
}

/// Up to `wanted` rows after the `had` rows that a sequence has blocks for; takes their blocks.
fn extend(sequence: &Running<'_>, had: usize, wanted: usize, free: &mut [usize]) -> usize {
    let end = sequence.len + had;
    let reach = |(group, &free): (usize, &usize)| {
        let taken = sequence.kv.blocks_needed(group, end);
        sequence.kv.reach(group, taken + free)
    };
    let room = free.iter().enumerate().map(reach).min().unwrap_or(usize::MAX);
    let n_rows = wanted.min(room - end);
    take(sequence.kv, end, end + n_rows, free);
    n_rows
}

/// Takes the blocks of positions `from .. end`.
fn take(kv: &SequenceKv, from: usize, end: usize, free: &mut [usize]) {
    for (group, free) in free.iter_mut().enumerate() {
        *free -= kv.blocks_needed(group, end) - kv.blocks_needed(group, from);
    }
}

/// Admits waiting sequences and adds their rows.
fn admit(
    state: &State<'_>,
    keep: usize,
    free: &mut [usize],
    mut budget: usize,
    rows: &mut Vec<PlannedRows>,
) -> usize {
    if keep < state.running.len() {
        return 0;
    }
    promise(state, rows, free);
    let mut admitted = 0;
    for &tokens in state.waiting.iter().take(state.free_slots) {
        let needs = |window| most_held(window, tokens, state.prefill_rows);
        let fits = state.groups.iter().zip(free.iter()).all(|(group, &free)| needs(group.window) <= free);
        // Alone it may always begin: it was not refused, so with short chunks it gets to its end.
        let alone = rows.is_empty();
        if budget == 0 || !(fits || alone) {
            break;
        }
        let room = free.iter().map(|free| free * KV_BLOCK).min().unwrap_or(usize::MAX);
        let n_known = tokens.min(budget).min(room);
        for (group, free) in state.groups.iter().zip(free.iter_mut()) {
            *free = free.saturating_sub(needs(group.window) + 1);
        }
        budget -= n_known;
        rows.push(PlannedRows { n_known, n_drafts: 0 });
        admitted += 1;
    }
    admitted
}

/// Takes from `free` what the running sequences will want: the rest of the prompts that are being read, and a block for
/// each sequence to grow.
fn promise(state: &State<'_>, rows: &[PlannedRows], free: &mut [usize]) {
    for (group, free) in free.iter_mut().enumerate() {
        let window = state.groups[group].window;
        for (sequence, rows) in state.running.iter().zip(rows) {
            let whole = most_held(window, sequence.len + sequence.pending, state.prefill_rows);
            let held =
                sequence.kv.held(group) + sequence.kv.blocks_needed(group, sequence.len + rows.n_known);
            *free = free.saturating_sub(whole.saturating_sub(held) + 1);
        }
    }
}

#[cfg(test)]
mod tests;
