//! A backend that repeats each op row by row and compares bits: the promise, checked on the machine, the weights and the
//! rows at hand.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::delegate::delegate;
use crate::row_values::{place, row_values, written};
use crate::{Backend, Buf, Mark, Op, OpOperands, Pass, Rows};

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
        write!(f, "op `{}` ({} of the pass", self.op, self.op_index)?;
        match self.after.and_then(Mark::next_ops_layer) {
            Some(layer) => write!(f, ", layer {layer})")?,
            None => write!(f, ", outside of layers)")?,
        }
        write!(
            f,
            ", row {} of {}, column {}: {:e} ({:#010x}) among the others, {:e} ({:#010x}) alone",
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

/// What a [`Checked`] backend has found so far. Clones look at the same.
#[derive(Clone, Debug, Default)]
pub struct Findings(Arc<Mutex<Found>>);

#[derive(Debug, Default)]
struct Found {
    mismatch: Option<Mismatch>,
    compared: u64,
}

impl Findings {
    fn lock(&self) -> MutexGuard<'_, Found> {
        // Nothing between lock and unlock leaves it half written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first difference.
    pub fn mismatch(&self) -> Option<Mismatch> {
        self.lock().mismatch.clone()
    }

    /// Values compared.
    pub fn compared(&self) -> u64 {
        self.lock().compared
    }
}

/// Wraps a backend; every op over several rows is run once for all and once for each row alone.
pub struct Checked<B> {
    inner: B,
    findings: Findings,
    op_index: usize,
    after: Option<Mark>,
}

/// A row of a buffer, to be put back.
type SavedRow = (Buf, usize, Vec<f32>);

impl<B: Backend> Checked<B> {
    /// Wraps a backend; what is found goes to `findings`.
    pub fn new(inner: B, findings: Findings) -> Self {
        Self { inner, findings, op_index: 0, after: None }
    }

    fn save(&self, op: &Op, rows: Rows, index: usize) -> Vec<SavedRow> {
        let at = place(op, rows, index);
        written(op).map(|buf| (buf, at, self.inner.peek(buf, at))).collect()
    }

    fn restore(&mut self, saved: &[SavedRow]) {
        for (buf, row, values) in saved {
            self.inner.poke(*buf, *row, values);
        }
    }

    fn values(&self, op: &Op, rows: Rows, index: usize) -> Vec<f32> {
        row_values(&self.inner, op, rows, index, |buf| buf.width as usize)
    }

    fn compare(&mut self, op: &Op, rows: Rows, index: usize, together: &[f32], alone: &[f32]) {
        let mut found = self.findings.lock();
        found.compared += together.len() as u64;
        let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
        let Some(column) = together.iter().zip(alone).position(differs) else { return };
        found.mismatch.get_or_insert(Mismatch {
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
        let each = (0..rows.len).map(|index| (index, self.inner.live(op, rows.one(index))));
        let each: Vec<_> = each.filter(|(_, (_, live))| live.len > 0).collect();
        let before: Vec<_> = each.iter().map(|(_, (op, live))| self.save(op, *live, 0)).collect();
        self.inner.run(op, rows);
        let together: Vec<_> = each.iter().map(|(_, (op, live))| self.values(op, *live, 0)).collect();
        let after: Vec<_> = each.iter().map(|(_, (op, live))| self.save(op, *live, 0)).collect();
        for (i, &(index, (live_op, live))) in each.iter().enumerate() {
            self.restore(&before[i]);
            self.inner.run(op, rows.one(index));
            let alone = self.values(&live_op, live, 0);
            self.compare(op, rows, index, &together[i], &alone);
            self.restore(&after[i]);
        }
    }
}

impl<B: Backend> Backend for Checked<B> {
    delegate!(load_and_peek, open, close, put_blocks, put_drafts, truncate, collect);

    fn begin(&mut self, pass: &Pass) {
        self.op_index = 0;
        self.after = None;
        self.inner.begin(pass);
    }

    fn run(&mut self, op: &Op, rows: Rows) {
        if rows.len > 1 && op.operands() != OpOperands::default() {
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
