//! A backend that writes down, as hashes, what every op gave every committed row of every text, so that two runs of the same
//! texts can be compared bit by bit however they came about.
//!
//! ```text
//! pass          rows are written down as their ops run: [row][op] -> hash
//! Op::Commit    the rows of that pass go to their texts: [text][position][op] -> hash
//! later passes  overwrite the rows of rejected drafts, whose positions they compute anew
//! collect       what lies beyond the committed length is forgotten
//! ```
//! A pass that no commit follows (a drafter's) leaves nothing, nor does what a drafter makes of tapped rows. A row that nobody reads runs fewer ops than one that somebody does; the
//! ops that both have run are compared.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::delegate::delegate;
use crate::row_values::row_values;
use crate::{Backend, Buf, Mark, Op, OpOperands, Pass, RowSet, Rows, SlotId, SlotInit, SlotReport, TokenId};

/// What one op of a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpSite {
    /// The op.
    pub op: &'static str,
    /// The last value that the model named before it.
    pub after: Option<Mark>,
}

impl fmt::Display for OpSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.after.and_then(Mark::next_ops_layer) {
            Some(layer) => write!(f, "op `{}` of layer {layer}", self.op),
            None => write!(f, "op `{}` outside of layers", self.op),
        }
    }
}

/// What one op left at one row of one text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the text's prompt.
    pub text: usize,
    /// Position of the row.
    pub position: usize,
    /// Which of the row's ops.
    pub op: usize,
}

/// One text of a run.
#[derive(Clone, Debug, Default)]
struct Text {
    /// `[position][op]`.
    rows: Vec<Vec<u64>>,
    len: usize,
}

/// What a run left: hashes of all values of all committed rows.
#[derive(Clone, Debug, Default)]
pub struct Transcript {
    texts: Vec<Text>,
    sites: Vec<OpSite>,
}

/// How much two transcripts share, and where they part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Rows that both have.
    pub rows: u64,
    /// Rows of which both have the logits.
    pub logit_rows: u64,
    /// Op results of those rows.
    pub results: u64,
    /// The first that differs: of the first text that has one, at the lowest position.
    pub difference: Option<(Place, OpSite)>,
}

impl Transcript {
    /// Compares with another run of the same texts, as far as both go.
    pub fn compare(&self, other: &Transcript) -> Comparison {
        let mut comparison = Comparison::default();
        for (text, (a, b)) in self.texts.iter().zip(&other.texts).enumerate() {
            for (position, (a, b)) in a.rows.iter().zip(&b.rows).enumerate() {
                let n_ops = a.len().min(b.len());
                comparison.rows += u64::from(n_ops > 0);
                comparison.logit_rows += u64::from(n_ops > 0 && n_ops == self.sites.len());
                comparison.results += n_ops as u64;
                if comparison.difference.is_none() {
                    let op = a.iter().zip(b).position(|(a, b)| a != b);
                    comparison.difference = op.map(|op| (Place { text, position, op }, self.sites[op]));
                }
            }
        }
        comparison
    }

    /// Committed rows of a text.
    pub fn n_rows(&self, text: usize) -> usize {
        self.texts[text].rows.len()
    }
}

#[derive(Debug, Default)]
struct State {
    prompts: Vec<Vec<TokenId>>,
    transcript: Transcript,
    wanted: Option<Place>,
    values: Option<Vec<f32>>,
}

/// The other end of a [`Witness`], to start and to end runs with. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct WitnessStand(Arc<Mutex<State>>);

impl WitnessStand {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing between lock and unlock leaves it half written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a run of texts with these prompts, which differ. Nothing is running.
    pub fn start(&self, prompts: &[Vec<TokenId>]) {
        let texts = vec![Text::default(); prompts.len()];
        let transcript = Transcript { texts, sites: Vec::new() };
        *self.lock() = State { prompts: prompts.to_vec(), transcript, wanted: None, values: None };
    }

    /// Of the run that comes, keep the values at a place.
    pub fn want(&self, place: Place) {
        self.lock().wanted = Some(place);
    }

    /// Ends a run and gives what it left, and the values that were wanted.
    pub fn finish(&self) -> (Transcript, Option<Vec<f32>>) {
        let mut state = std::mem::take(&mut *self.lock());
        for text in &mut state.transcript.texts {
            text.rows.truncate(text.len);
        }
        (state.transcript, state.values)
    }
}

/// A row of the pass that is running.
struct PassRow {
    /// Its text, if it is one that is compared and the row is live.
    text: Option<usize>,
    position: usize,
    hashes: Vec<u64>,
}

/// Wraps a backend. See the module.
pub struct Witness<B> {
    inner: B,
    stand: WitnessStand,
    /// By slot: its text.
    slots: Vec<Option<usize>>,
    pass: Pass,
    rows: Vec<PassRow>,
    sites: Vec<OpSite>,
    columns: Columns,
    after: Option<Mark>,
    wanted: Option<Place>,
    values: Option<Vec<f32>>,
}

impl<B: Backend> Witness<B> {
    /// Wraps a backend that tells `stand` what it sees.
    pub fn new(inner: B, stand: WitnessStand) -> Self {
        Self {
            inner,
            stand,
            slots: Vec::new(),
            pass: Pass::default(),
            rows: Vec::new(),
            sites: Vec::new(),
            columns: Columns::default(),
            after: None,
            wanted: None,
            values: None,
        }
    }

    fn text_of(&self, slot: SlotId) -> Option<usize> {
        self.slots.get(slot.0 as usize).copied().flatten()
    }

    /// Writes down what an op left at its rows.
    fn write_down(&mut self, op: &Op, rows: Rows) {
        self.columns.note(op);
        // Where a pass narrows to the wanted rows depends on whether there are taps; a copy says nothing new.
        if matches!(op, Op::GatherRows { .. }) {
            return;
        }
        let site = OpSite { op: op.name(), after: self.after };
        for index in 0..rows.len {
            let at = rows.start + index;
            let at = if rows.set == RowSet::Wanted { self.pass.wanted()[at] as usize } else { at };
            let Some(text) = self.rows[at].text else { continue };
            let (live_op, live) = self.inner.live(op, rows.one(index));
            let values = row_values(&self.inner, &live_op, live, 0, |buf| self.columns.of(buf));
            let row = &mut self.rows[at];
            let place = Place { text, position: row.position, op: row.hashes.len() };
            row.hashes.push(hash(&values));
            if place.op == self.sites.len() {
                self.sites.push(site);
            }
            if self.wanted == Some(place) {
                self.values = Some(values);
            }
        }
    }

    /// Gives the rows of the pass to their texts.
    fn commit(&mut self) {
        let mut state = self.stand.lock();
        let transcript = &mut state.transcript;
        if transcript.sites.len() < self.sites.len() {
            transcript.sites.clone_from(&self.sites);
        }
        for row in self.rows.drain(..) {
            let Some(text) = row.text.and_then(|text| transcript.texts.get_mut(text)) else { continue };
            if text.rows.len() <= row.position {
                text.rows.resize(row.position + 1, Vec::new());
            }
            text.rows[row.position] = row.hashes;
        }
        if let Some(values) = self.values.take() {
            state.values = Some(values);
        }
    }
}

impl<B: Backend> Backend for Witness<B> {
    delegate!(load_and_peek, close, put_blocks, put_drafts, truncate);

    fn open(&mut self, slot: SlotId, init: SlotInit) {
        let text = text_of(&self.stand.lock().prompts, &init.tokens);
        let at = slot.0 as usize;
        if self.slots.len() <= at {
            self.slots.resize(at + 1, None);
        }
        self.slots[at] = text;
        self.inner.open(slot, init);
    }

    fn collect(&mut self, slot: SlotId) -> SlotReport {
        let report = self.inner.collect(slot);
        if let Some(text) = self.text_of(slot) {
            self.stand.lock().transcript.texts[text].len = report.len;
        }
        report
    }

    fn begin(&mut self, pass: &Pass) {
        self.inner.begin(pass);
        self.pass.clone_from(pass);
        (self.after, self.values, self.wanted) = (None, None, self.stand.lock().wanted);
        self.sites.clear();
        self.rows.clear();
        for index in 0..pass.rows().len() {
            let (_, live) = self.inner.live(&Op::Commit, pass.all().one(index));
            let place = (live.len > 0).then(|| self.inner.peek_row(live, 0));
            let text = place.and_then(|(slot, _)| self.text_of(slot));
            let position = place.map_or(0, |(_, position)| position);
            self.rows.push(PassRow { text, position, hashes: Vec::new() });
        }
    }

    fn run(&mut self, op: &Op, rows: Rows) {
        self.inner.run(op, rows);
        if *op == Op::Commit {
            self.commit();
        } else if op.operands() != OpOperands::default() && rows.set != RowSet::Tapped {
            self.write_down(op, rows);
        }
    }

    fn mark(&mut self, mark: Mark, buf: Buf, rows: Rows) {
        self.after = Some(mark);
        self.inner.mark(mark, buf, rows);
    }
}

/// The prompt that a slot starts with: these tokens or, where a sequence starts anew after it was preempted, the longest
/// beginning of them.
fn text_of(prompts: &[Vec<TokenId>], tokens: &[TokenId]) -> Option<usize> {
    let begins = prompts.iter().enumerate().filter(|(_, prompt)| tokens.starts_with(prompt));
    begins.max_by_key(|(_, prompt)| prompt.len()).map(|(text, _)| text)
}

/// How many leading columns of each buffer the last op wrote: a buffer is as wide as its widest user, and what lies behind is
/// left over from other rows.
#[derive(Debug, Default)]
struct Columns {
    /// By buffer.
    written: Vec<usize>,
    /// Head size of the queries that were made last.
    head_dim: usize,
}

impl Columns {
    fn of(&self, buf: Buf) -> usize {
        self.written.get(buf.index as usize).copied().unwrap_or(0).min(buf.width as usize)
    }

    fn set(&mut self, buf: Buf, columns: u32) {
        let at = buf.index as usize;
        if self.written.len() <= at {
            self.written.resize(at + 1, 0);
        }
        self.written[at] = columns as usize;
    }

    fn note(&mut self, op: &Op) {
        match *op {
            Op::Embed { table, out, column, .. } => self.set(out, column + table.width),
            Op::Linear { w, out, .. }
            | Op::LinearGated { w, out, .. }
            | Op::LinearGatedBy { w, out, .. }
            | Op::Logits { w, out, .. } => self.set(out, w.outputs),
            Op::Norm { x, w, out, .. } => self.set(out, w.map_or(x.width, |w| w.len)),
            Op::AddNorm { x, w, next, .. } => {
                self.set(x, w.len);
                if let Some((norm, out)) = next {
                    self.set(out, norm.len);
                }
            }
            Op::Add { x, next, out, .. } => {
                self.set(x, next.len);
                self.set(out, next.len);
            }
            Op::NormSum { a, wa, .. } => self.set(a, wa.len),
            Op::QkNormRopeStore { q_norm, .. } => self.head_dim = q_norm.len as usize,
            Op::Attend { n_heads, out, .. } => self.set(out, n_heads * self.head_dim as u32),
            Op::Route { proj, top_k, prob, routes, .. } => {
                self.set(prob, proj.outputs);
                self.set(routes, 2 * top_k);
            }
            Op::GatherRows { src, out } => self.set(out, self.of(src) as u32),
            Op::ReadSlots { src, out, column } => self.set(out, column + src.width),
            Op::KvNormRopeStore { kv, .. } => self.set(kv, kv.width),
            Op::Tap { x, out, column } => self.set(out, column + x.width),
            Op::PerLayerInputs { out, .. } | Op::Experts { out, .. } => self.set(out, out.width),
            Op::ClusterLogits { clusters, out, .. } => {
                self.set(clusters, clusters.width);
                self.set(out, out.width);
            }
            // These change columns in place that an op before them wrote, or none.
            Op::Choose { .. }
            | Op::ChooseDraft { .. }
            | Op::ChooseBlock { .. }
            | Op::ChooseClustered { .. }
            | Op::Commit
            | Op::KeepCommitted { .. }
            | Op::StateCommit { .. }
            | Op::WriteSlots { .. } => {}
        }
    }
}

/// Any change of a bit gives another hash but for one in 2^64: each step is a bijection of the state so far.
fn hash(values: &[f32]) -> u64 {
    values.iter().fold(0x9E37_79B9_7F4A_7C15, |hash: u64, value| {
        let mixed = (hash ^ u64::from(value.to_bits())).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^ (mixed >> 29)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(op: &'static str, after: Option<Mark>) -> OpSite {
        OpSite { op, after }
    }

    #[test]
    fn transcripts_part_at_the_first_op_of_the_lowest_position() {
        let sites = vec![site("embed", None), site("linear", Some(Mark::Layer(1))), site("choose", None)];
        let text = |rows: &[&[u64]]| Text { rows: rows.iter().map(|row| row.to_vec()).collect(), len: 0 };
        let plain = Transcript {
            texts: vec![text(&[&[1, 2]]), text(&[&[1, 2], &[3, 4, 5], &[6, 7, 8]])],
            sites: sites.clone(),
        };
        let mut other = plain.clone();
        let compared = plain.compare(&other);
        assert_eq!((compared.rows, compared.logit_rows, compared.results), (4, 2, 10));
        assert_eq!(compared.difference, None);
        other.texts[1].rows[2][0] = 9;
        other.texts[1].rows[1] = vec![3, 9];
        let (place, site) = plain.compare(&other).difference.unwrap();
        assert_eq!(place, Place { text: 1, position: 1, op: 1 });
        assert_eq!(site.to_string(), "op `linear` of layer 2");
    }

    #[test]
    fn a_changed_bit_changes_the_hash() {
        let values = [1.0_f32, -0.0, 3.5];
        for index in 0..3 {
            for bit in 0..32 {
                let mut other = values;
                other[index] = f32::from_bits(other[index].to_bits() ^ (1 << bit));
                assert_ne!(hash(&other), hash(&values));
            }
        }
        assert_ne!(hash(&[0.0]), hash(&[0.0, 0.0]));
    }
}
