//! A pass: one forward over a set of rows.

use std::ops::Range;

use crate::slot::{SlotId, TokenId};

/// What somebody wants from a row, besides its K/V.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Wants {
    /// Its final hidden state (for logits or for a drafter).
    pub hidden: bool,
    /// The hidden states after the target's tapped layers (for a drafter that reads them).
    pub taps: bool,
}

/// One row. All places are relative to the slot's committed length `len`, which the backend adds: the host knows it only as
/// an upper bound. A drafter's rows may lie below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The sequence.
    pub slot: SlotId,
    /// The row's token is the slot's token at `len + token_offset`.
    pub token_offset: i32,
    /// A token in its place: a mask, where the slot has no token yet.
    pub masked_by: Option<TokenId>,
    /// Its rotary position is `len + offset`.
    pub offset: i32,
    /// Its K/V, where it has any, goes to index `len + kv_offset`.
    pub kv_offset: i32,
    /// It sees K/V below `len + visible_offset`.
    pub visible_offset: i32,
    /// The rows whose K/V goes to `len + block_first .. len + block_end` are a block with it, and may all see one another: see
    /// [`crate::Sees::Block`]. A row that is in no block is one by itself.
    pub block_first: i32,
    /// See `block_first`.
    pub block_end: i32,
    /// What is read from it.
    pub wants: Wants,
}

/// One slot's part of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassSlot {
    /// The sequence.
    pub slot: SlotId,
    /// Index of its first row among all rows.
    pub first_row: usize,
    /// Number of its rows: known tokens, then drafts.
    pub n_rows: usize,
    /// How many of the last rows are drafts.
    pub n_drafts: usize,
    /// Index of its first wanted row among the wanted rows.
    pub first_wanted: usize,
    /// Number of its wanted rows.
    pub n_wanted: usize,
    /// The target chooses tokens at the last `n_drafts + 1` rows. A prefill chunk that is not the last chooses none.
    pub chooses: bool,
}

impl PassSlot {
    /// Rows at which the target chooses a token.
    pub fn n_chosen(&self) -> usize {
        if self.chooses { self.n_drafts + 1 } else { 0 }
    }

    /// Index among the wanted rows of the first row at which the target chooses.
    pub fn first_chosen(&self) -> usize {
        self.first_wanted + self.n_wanted - self.n_chosen()
    }
}

/// A forward over rows. Rows of one slot are contiguous and ascending.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Pass {
    rows: Vec<Row>,
    slots: Vec<PassSlot>,
    wanted: Vec<u32>,
    tapped: Vec<u32>,
}

impl Pass {
    /// Starts an empty pass.
    pub fn builder() -> PassBuilder {
        PassBuilder { pass: Pass::default() }
    }

    /// Every row, in order.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Every slot, in order.
    pub fn slots(&self) -> &[PassSlot] {
        &self.slots
    }

    /// Indices of the rows whose hidden state is wanted, ascending.
    pub fn wanted(&self) -> &[u32] {
        &self.wanted
    }

    /// Indices of the rows whose taps are wanted, ascending.
    pub fn tapped(&self) -> &[u32] {
        &self.tapped
    }

    /// All rows.
    pub fn all(&self) -> Rows {
        Rows { set: RowSet::All, start: 0, len: self.rows.len() }
    }

    /// The rows whose hidden state is wanted, as they stand in a buffer after [`crate::Op::GatherRows`].
    pub fn wanted_rows(&self) -> Rows {
        Rows { set: RowSet::Wanted, start: 0, len: self.wanted.len() }
    }

    /// The rows whose taps are wanted, as they stand in a buffer after [`crate::Op::Tap`].
    pub fn tapped_rows(&self) -> Rows {
        Rows { set: RowSet::Tapped, start: 0, len: self.tapped.len() }
    }

    /// Copies the pass without some of its rows, which are known tokens of no slot. Every slot keeps its part.
    pub(crate) fn copy_without(&self, dead: &[bool], to: &mut Pass) {
        let mut builder = std::mem::take(to).rebuild();
        for part in &self.slots {
            let rows = part.first_row..part.first_row + part.n_rows;
            let n_dead = dead[rows.clone()].iter().filter(|dead| **dead).count();
            let wanted = self.rows[rows.clone()].iter().zip(&dead[rows.clone()]);
            let n_wanted = wanted.filter(|(row, dead)| row.wants.hidden && !**dead).count();
            let n_drafts = part.n_drafts.saturating_sub(n_dead);
            builder.slot(PassSlot { n_rows: part.n_rows - n_dead, n_drafts, n_wanted, ..*part });
            rows.filter(|&row| !dead[row]).for_each(|row| builder.row(self.rows[row]));
        }
        *to = builder.build();
    }

    /// Clears the pass and keeps its memory.
    pub fn rebuild(mut self) -> PassBuilder {
        self.rows.clear();
        self.slots.clear();
        self.wanted.clear();
        self.tapped.clear();
        PassBuilder { pass: self }
    }
}

/// Builds a [`Pass`].
#[derive(Debug)]
pub struct PassBuilder {
    pass: Pass,
}

impl PassBuilder {
    /// Rows of the target: `n_known` known tokens from the slot's anchor (or from its prompt), then `n_drafts` drafts. With
    /// `chooses` the last `n_drafts + 1` rows get a chosen token. `taps`: every row's taps are wanted too.
    ///
    /// # Panics
    /// If there is no known token, or drafts without choosing.
    pub fn target(&mut self, slot: SlotId, n_known: usize, n_drafts: usize, chooses: bool, taps: bool) {
        assert!(chooses || n_drafts == 0, "drafts of slot {} would not be verified", slot.0);
        let n_wanted = if chooses { n_drafts + 1 } else { 0 };
        self.target_rows(slot, n_known, n_drafts, n_wanted, chooses, taps);
    }

    /// As [`PassBuilder::target`] without drafts, with the hidden state (so the logits) of every row wanted.
    ///
    /// # Panics
    /// If there is no known token.
    pub fn scored(&mut self, slot: SlotId, n_known: usize, chooses: bool, taps: bool) {
        self.target_rows(slot, n_known, 0, n_known, chooses, taps);
    }

    fn target_rows(
        &mut self,
        slot: SlotId,
        n_known: usize,
        n_drafts: usize,
        n_wanted: usize,
        chooses: bool,
        taps: bool,
    ) {
        assert!(n_known > 0, "a pass over slot {} needs at least one known token", slot.0);
        let n_rows = n_known + n_drafts;
        self.slot(PassSlot { slot, first_row: 0, n_rows, n_drafts, first_wanted: 0, n_wanted, chooses });
        for offset in 0..n_rows {
            let hidden = offset >= n_rows - n_wanted;
            self.own_row(slot, offset as i32, Wants { hidden, taps });
        }
    }

    /// A row at `len + offset` that stores its own K/V and sees it and all before.
    fn own_row(&mut self, slot: SlotId, offset: i32, wants: Wants) {
        self.row(Row {
            slot,
            token_offset: offset,
            offset,
            kv_offset: offset,
            visible_offset: offset + 1,
            block_first: offset,
            block_end: offset + 1,
            masked_by: None,
            wants,
        });
    }

    /// Rows of a drafter with K/V of its own, over the slot's tokens at `len + first .. len + first + n_rows`. With `drafts` the hidden
    /// state of the last one is wanted.
    ///
    /// # Panics
    /// If there is no row.
    pub fn drafter(&mut self, slot: SlotId, first: i32, n_rows: usize, drafts: bool) {
        assert!(n_rows > 0, "a pass over slot {} needs at least one row", slot.0);
        let n_wanted = usize::from(drafts);
        let part =
            PassSlot { slot, first_row: 0, n_rows, n_drafts: 0, first_wanted: 0, n_wanted, chooses: false };
        self.slot(part);
        for row in 0..n_rows {
            let wants = Wants { hidden: drafts && row + 1 == n_rows, taps: false };
            self.own_row(slot, first + row as i32, wants);
        }
    }

    /// One row of a drafter that reads the target's K/V below `len`: draft step `step`, whose token is the slot's at
    /// `len + step`, at rotary position `len + position_offset`.
    pub fn borrowed(&mut self, slot: SlotId, step: usize, position_offset: i32) {
        self.slot(PassSlot {
            slot,
            first_row: 0,
            n_rows: 1,
            n_drafts: 0,
            first_wanted: 0,
            n_wanted: 1,
            chooses: false,
        });
        self.row(Row {
            slot,
            token_offset: step as i32,
            masked_by: None,
            offset: position_offset,
            kv_offset: 0,
            visible_offset: 0,
            block_first: 0,
            block_end: 0,
            wants: Wants { hidden: true, taps: false },
        });
    }

    /// The block of a drafter that fills in masks: the slot's anchor at `len`, and `n_masks` rows of the token `mask` behind it, whose
    /// hidden states are wanted.
    ///
    /// # Panics
    /// If there is no mask.
    pub fn draft_block(&mut self, slot: SlotId, n_masks: usize, mask: TokenId) {
        assert!(n_masks > 0, "a block over slot {} without a mask drafts nothing", slot.0);
        let n_rows = 1 + n_masks;
        self.slot(PassSlot {
            slot,
            first_row: 0,
            n_rows,
            n_drafts: 0,
            first_wanted: 0,
            n_wanted: n_masks,
            chooses: false,
        });
        for offset in 0..n_rows as i32 {
            self.row(Row {
                slot,
                token_offset: offset,
                masked_by: (offset > 0).then_some(mask),
                offset,
                kv_offset: offset,
                visible_offset: offset + 1,
                block_first: 0,
                block_end: n_rows as i32,
                wants: Wants { hidden: offset > 0, taps: false },
            });
        }
    }

    fn slot(&mut self, part: PassSlot) {
        let (first_row, first_wanted) = (self.pass.rows.len(), self.pass.wanted.len());
        self.pass.slots.push(PassSlot { first_row, first_wanted, ..part });
    }

    fn row(&mut self, row: Row) {
        if row.wants.hidden {
            self.pass.wanted.push(self.pass.rows.len() as u32);
        }
        if row.wants.taps {
            self.pass.tapped.push(self.pass.rows.len() as u32);
        }
        self.pass.rows.push(row);
    }

    /// Rows so far.
    pub fn n_rows(&self) -> usize {
        self.pass.rows.len()
    }

    /// The finished pass.
    pub fn build(self) -> Pass {
        self.pass
    }
}

/// Which rows of the pass stand in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowSet {
    /// All rows of the pass.
    All,
    /// Those of [`Pass::wanted`].
    Wanted,
    /// Those of [`Pass::tapped`].
    Tapped,
}

/// A run of rows of one set: buffer rows `start .. start + len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// The set that the buffers hold.
    pub set: RowSet,
    /// First row of the run.
    pub start: usize,
    /// Rows of the run.
    pub len: usize,
}

impl Rows {
    /// The run as a range.
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }

    /// Row `index` of the run alone.
    pub fn one(&self, index: usize) -> Rows {
        assert!(index < self.len, "row {index} of a run of {}", self.len);
        Rows { start: self.start + index, len: 1, ..*self }
    }

    /// The run in pieces of at most `len` rows.
    pub fn pieces(self, len: usize) -> impl Iterator<Item = Rows> {
        let end = self.start + self.len;
        (self.start..end).step_by(len.max(1)).map(move |start| Rows {
            start,
            len: len.min(end - start),
            ..self
        })
    }
}
