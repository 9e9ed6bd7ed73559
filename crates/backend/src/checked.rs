//! A backend that repeats each op row by row and compares bits: the promise, checked on the machine, the weights and the
//! rows at hand.

use std::fmt;

use crate::delegate::delegate_load_and_peek;
use crate::{
    Backend, Buf, KvBlockId, KvGroup, KvLayer, Mark, Op, Pass, Rows, SlotId, SlotInit, SlotReport, TokenId,
};

/// The first value that depended on its company.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// The op.
    pub op: &'static str,
    /// How many ops of the pass ran before it.
    pub op_index: usize,
    /// The last value that the model named before, as a place to look.
    pub after: Option<Mark>,
    /// Row within the op.
    pub row: usize,
    /// Rows of the op.
    pub n_rows: usize,
    /// Column of the value.
    pub column: usize,
    /// The value among all rows.
    pub together: f32,
    /// The value of the row alone.
    pub alone: f32,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "op {} `{}` (after {:?}): row {} of {}, column {}: {:e} ({:#010x}) among the others, {:e} ({:#010x}) alone",
            self.op_index,
            self.op,
            self.after,
            self.row,
            self.n_rows,
            self.column,
            self.together,
            self.together.to_bits(),
            self.alone,
            self.alone.to_bits()
        )
    }
}

/// Wraps a backend; every op over several rows is run once for all and once for each row alone.
pub struct Checked<B> {
    inner: B,
    mismatch: Option<Mismatch>,
    op_index: usize,
    after: Option<Mark>,
    compared: u64,
}

/// Values of one row after an op: its buffers, its K and V, its chosen token.
type RowValues = Vec<f32>;

impl<B: Backend> Checked<B> {
    /// Starts without a mismatch.
    pub fn new(inner: B) -> Self {
        Self { inner, mismatch: None, op_index: 0, after: None, compared: 0 }
    }

    /// The first difference seen so far.
    pub fn mismatch(&self) -> Option<&Mismatch> {
        self.mismatch.as_ref()
    }

    /// Values compared so far.
    pub fn compared(&self) -> u64 {
        self.compared
    }

    /// Where row `index` of `rows` stands in the buffers that `op` writes.
    fn place(op: &Op, rows: Rows, index: usize) -> usize {
        match *op {
            Op::Logits { first_row, .. } | Op::Choose { first_row, .. } => rows.start + index - first_row,
            _ => rows.start + index,
        }
    }

    fn written(op: &Op) -> impl Iterator<Item = Buf> {
        op.operands().written.into_iter().flatten()
    }

    fn save(&self, op: &Op, rows: Rows, index: usize) -> Vec<(Buf, usize, Vec<f32>)> {
        let at = Self::place(op, rows, index);
        Self::written(op).map(|buf| (buf, at, self.inner.peek(buf, at))).collect()
    }

    fn restore(&mut self, saved: &[(Buf, usize, Vec<f32>)]) {
        for (buf, row, values) in saved {
            self.inner.poke(*buf, *row, values);
        }
    }

    fn values(&self, op: &Op, rows: Rows, index: usize) -> RowValues {
        let at = Self::place(op, rows, index);
        let mut values: RowValues = Self::written(op).flat_map(|buf| self.inner.peek(buf, at)).collect();
        if let Some(layer) = op.operands().stored {
            values.extend(self.stored(layer, rows, index));
        }
        if let Op::Choose { .. } = op {
            let chosen = self.inner.peek_chosen(rows.start + index);
            values.push(chosen.map_or(f32::NAN, |token| f32::from_bits(token.0)));
        }
        values
    }

    fn stored(&self, layer: KvLayer, rows: Rows, index: usize) -> Vec<f32> {
        let (slot, position) = self.inner.peek_row(rows, index);
        let (mut k, v) = self.inner.peek_kv(layer, slot, position);
        k.extend(v);
        k
    }

    fn compare(&mut self, op: &Op, rows: Rows, index: usize, together: &[f32], alone: &[f32]) {
        self.compared += together.len() as u64;
        let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
        let Some(column) = together.iter().zip(alone).position(differs) else { return };
        self.mismatch.get_or_insert(Mismatch {
            op: op.name(),
            op_index: self.op_index,
            after: self.after,
            row: index,
            n_rows: rows.len,
            column,
            together: together[column],
            alone: alone[column],
        });
    }

    fn run_checked(&mut self, op: &Op, rows: Rows) {
        let before: Vec<_> = (0..rows.len).map(|index| self.save(op, rows, index)).collect();
        self.inner.run(op, rows);
        let together: Vec<_> = (0..rows.len).map(|index| self.values(op, rows, index)).collect();
        let after: Vec<_> = (0..rows.len).map(|index| self.save(op, rows, index)).collect();
        for index in 0..rows.len {
            self.restore(&before[index]);
            self.inner.run(op, rows.one(index));
            let alone = self.values(op, rows, index);
            self.compare(op, rows, index, &together[index], &alone);
            self.restore(&after[index]);
        }
    }
}

impl<B: Backend> Backend for Checked<B> {
    delegate_load_and_peek!();

    fn open(&mut self, slot: SlotId, init: SlotInit) {
        self.inner.open(slot, init);
    }

    fn close(&mut self, slot: SlotId) {
        self.inner.close(slot);
    }

    fn put_blocks(&mut self, slot: SlotId, group: KvGroup, first: usize, blocks: &[KvBlockId]) {
        self.inner.put_blocks(slot, group, first, blocks);
    }

    fn put_drafts(&mut self, slot: SlotId, drafts: &[TokenId]) {
        self.inner.put_drafts(slot, drafts);
    }

    fn truncate(&mut self, slot: SlotId, len: usize) {
        self.inner.truncate(slot, len);
    }

    fn collect(&mut self, slot: SlotId) -> SlotReport {
        self.inner.collect(slot)
    }

    fn begin(&mut self, pass: &Pass) {
        self.op_index = 0;
        self.after = None;
        self.inner.begin(pass);
    }

    fn run(&mut self, op: &Op, rows: Rows) {
        if rows.len > 1 && op.operands() != crate::OpOperands::default() {
            self.run_checked(op, rows);
        } else {
            self.inner.run(op, rows);
        }
        self.op_index += 1;
    }

    fn mark(&mut self, mark: Mark, buf: Buf, rows: Rows) {
        self.after = Some(mark);
        self.inner.mark(mark, buf, rows);
    }
}
