//! The values that a model names during a pass.

use std::collections::HashMap;

use paceline_backend::{Backend, Buf, KvLayer, Mark, Observer, Op, Rows};

/// Collects named values, and which K/V each layer reads.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    /// Rows of each named value, in order.
    rows: HashMap<Mark, Vec<Vec<f32>>>,
    /// By layer.
    attended: HashMap<usize, KvLayer>,
    last_attended: Option<KvLayer>,
}

impl Trace {
    /// Forgets the values of the last pass.
    pub(crate) fn clear(&mut self) {
        self.rows.clear();
    }

    /// The rows of a value, cut to `width`; `None` if the model did not name it or its rows are narrower.
    pub(crate) fn rows(&self, mark: Mark, width: usize) -> Option<Vec<&[f32]>> {
        self.rows.get(&mark)?.iter().map(|row| row.get(..width)).collect()
    }

    /// The rows of a value, in their own width.
    pub(crate) fn all_rows(&self, mark: Mark) -> Option<&[Vec<f32>]> {
        self.rows.get(&mark).map(Vec::as_slice)
    }

    /// The first row of a value, in its own width.
    pub(crate) fn whole_row(&self, mark: Mark) -> Option<&[f32]> {
        self.rows.get(&mark)?.first().map(Vec::as_slice)
    }

    /// The K/V that a layer reads.
    pub(crate) fn attended(&self, layer: usize) -> Option<KvLayer> {
        self.attended.get(&layer).copied()
    }
}

impl Observer for Trace {
    fn ran(&mut self, _backend: &mut dyn Backend, op: &Op, _rows: Rows) {
        if let Op::Attend { layer, .. } = op {
            self.last_attended = Some(*layer);
        }
    }

    fn marked(&mut self, backend: &dyn Backend, mark: Mark, buf: Buf, rows: Rows) {
        if let (Mark::HeadsOut(layer), Some(attended)) = (mark, self.last_attended) {
            self.attended.insert(layer, attended);
        }
        let first = if mark == Mark::Logits { 0 } else { rows.start };
        let found = (first..first + rows.len).map(|row| backend.peek(buf, row));
        self.rows.entry(mark).or_default().extend(found);
    }
}
