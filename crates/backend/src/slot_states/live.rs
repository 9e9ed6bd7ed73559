//! Rows of a pass that are live. Only the backend knows them: the host allows for as many drafts as it asked for.

use crate::pass::{Pass, Row, RowSet, Rows};

/// Which rows of a pass are live. Where all are, nothing is kept and nothing moves.
#[derive(Debug, Default)]
pub(super) struct LiveRows {
    dead: Vec<bool>,
    /// By set: how many live rows stand before a row, and behind them all how many there are. Empty where all are live.
    before: [Vec<u32>; 3],
}

impl LiveRows {
    /// Looks at the rows of a pass.
    pub(super) fn find(&mut self, pass: &Pass, is_dead: impl Fn(&Row) -> bool) {
        self.dead.clear();
        self.before.iter_mut().for_each(Vec::clear);
        self.dead.extend(pass.rows().iter().map(is_dead));
        if !self.dead.contains(&true) {
            return;
        }
        let Self { dead, before: [all, wanted, tapped] } = self;
        count(all, dead.iter().copied());
        count(wanted, pass.wanted().iter().map(|&row| dead[row as usize]));
        count(tapped, pass.tapped().iter().map(|&row| dead[row as usize]));
    }

    /// Copies the pass without its dead rows.
    pub(super) fn copy(&self, pass: &Pass, to: &mut Pass) {
        match self.before[0].is_empty() {
            true => to.clone_from(pass),
            false => pass.copy_without(&self.dead, to),
        }
    }

    /// Live rows of a set before one of them.
    pub(super) fn count_before(&self, set: RowSet, row: usize) -> usize {
        let before = &self.before[set as usize];
        if before.is_empty() { row } else { before[row] as usize }
    }

    /// The live rows of a run.
    pub(super) fn of(&self, rows: Rows) -> Rows {
        let start = self.count_before(rows.set, rows.start);
        let end = self.count_before(rows.set, rows.start + rows.len);
        Rows { set: rows.set, start, len: end - start }
    }
}

fn count(before: &mut Vec<u32>, dead: impl Iterator<Item = bool>) {
    before.push(0);
    for dead in dead {
        before.push(before[before.len() - 1] + u32::from(!dead));
    }
}
