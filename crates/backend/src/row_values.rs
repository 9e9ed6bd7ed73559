//! What an op leaves at one row: the values that wrappers compare.

use crate::{Backend, Buf, Op, Rows};

/// Buffer row that row `index` of `rows` has in the buffers that `op` writes.
pub(crate) fn place(op: &Op, rows: Rows, index: usize) -> usize {
    match *op {
        Op::Logits { first_row, .. } | Op::Choose { first_row, .. } | Op::ChooseBlock { first_row, .. } => {
            rows.start + index - first_row
        }
        _ => rows.start + index,
    }
}

/// Buffers that `op` writes.
pub(crate) fn written(op: &Op) -> impl Iterator<Item = Buf> {
    op.operands().written.into_iter().flatten()
}

/// Values of row `index` after `op`: the leading `columns` of its buffers, its K and V, its chosen token.
pub(crate) fn row_values(
    backend: &dyn Backend,
    op: &Op,
    rows: Rows,
    index: usize,
    columns: impl Fn(Buf) -> usize,
) -> Vec<f32> {
    let at = place(op, rows, index);
    let mut values = Vec::new();
    for buf in written(op) {
        values.extend_from_slice(&backend.peek(buf, at)[..columns(buf)]);
    }
    if let Some(layer) = op.operands().stored {
        let (slot, position) = backend.peek_row(rows, index);
        let (k, v) = backend.peek_kv(layer, slot, position);
        values.extend(k);
        values.extend(v);
    }
    if let Op::Choose { .. } = op {
        let chosen = backend.peek_chosen(rows.start + index);
        values.push(chosen.map_or(f32::NAN, |token| f32::from_bits(token.0)));
    }
    values
}
