//! The table of a proof, written as the runs come.

use std::io::Write;

use paceline_backend::Comparison;

use super::cells::{Bench, Cell};
use super::lab::Outcome;
use crate::failure::Failure;
use crate::numbers;

/// Sums over all runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    pub(super) runs: usize,
    pub(super) skipped: usize,
    pub(super) rows: u64,
    pub(super) logit_rows: u64,
    pub(super) results: u64,
    /// Of the script, and of the drafter that was given.
    pub(super) script: Drafted,
    pub(super) given: Drafted,
    /// Of each member of the drafter that was given.
    pub(super) members: Vec<Drafted>,
    /// Tokens of the texts of all runs, had there been time for them.
    pub(super) tokens_planned: u64,
    /// Those of them that were run.
    pub(super) tokens_run: u64,
    /// Committed rows that lie beyond the first window.
    pub(super) rows_beyond_window: u64,
}

/// Counts of drafts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Drafted {
    pub(super) accepted: u64,
    pub(super) rejected: u64,
}

impl Drafted {
    pub(super) fn new(drafted: u64, accepted: u64) -> Self {
        Self { accepted, rejected: drafted - accepted }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.accepted += other.accepted;
        self.rejected += other.rejected;
    }

    pub(super) fn is_nothing(self) -> bool {
        self.accepted + self.rejected == 0
    }
}

/// Adds counts one by one; those that are missing are nothing.
pub(super) fn add_each(sums: &mut Vec<Drafted>, counts: impl IntoIterator<Item = Drafted>) {
    for (at, count) in counts.into_iter().enumerate() {
        if sums.len() == at {
            sums.push(Drafted::default());
        }
        sums[at].add(count);
    }
}

/// Writes lines as they come.
pub(super) struct Table<'a> {
    out: &'a mut dyn Write,
}

impl<'a> Table<'a> {
    /// Says what is proved, and begins the table.
    pub(super) fn new(out: &'a mut dyn Write, title: &str) -> Result<Self, Failure> {
        let mut table = Self { out };
        table.line(title)?;
        table.line(
            "level   threads  drafter  drafts  batch  chunk  texts  tokens    rows  logits  accepted  rejected  result",
        )?;
        Ok(table)
    }

    /// A line of its own.
    pub(super) fn line(&mut self, line: &str) -> Result<(), Failure> {
        writeln!(self.out, "{line}").and_then(|()| self.out.flush()).map_err(Failure::output)
    }

    /// One run with `n` tokens of each text.
    pub(super) fn run(
        &mut self,
        bench: &Bench,
        cell: Cell,
        n: usize,
        outcome: &Outcome,
        compared: &Comparison,
    ) -> Result<(), Failure> {
        let Cell { who, drafts, batch, chunk } = cell;
        let (level, threads, texts) = (bench.isa.level(), bench.threads, outcome.outputs.len());
        let (accepted, rejected) = (outcome.accepted, outcome.drafted - outcome.accepted);
        let (rows, logits) = (compared.rows, compared.logit_rows);
        let result = if compared.difference.is_none() { "same" } else { "DIFFERS" };
        self.line(&format!(
            "{level:<8}{threads:>7}  {who:<7}  {drafts:>6}  {batch:>5}  {chunk:>5}  {texts:>5}  {n:>6}  {rows:>6}  {logits:>6}  \
             {accepted:>8}  {rejected:>8}  {result}"
        ))
    }

    /// The check of ops at one level.
    pub(super) fn ops(&mut self, bench: &Bench, compared: u64) -> Result<(), Failure> {
        let (level, threads, compared) = (bench.isa.level(), bench.threads, numbers::grouped(compared));
        self.line(&format!(
            "{level:<8}{threads:>7}  ops: {compared} values of rows in company equal those of the row alone"
        ))
    }

    /// What was shown; `members` are the names of those that draft together.
    pub(super) fn totals(
        &mut self,
        totals: &Totals,
        members: &[String],
        seconds: u64,
    ) -> Result<(), Failure> {
        let g = |n: u64| numbers::grouped(n);
        self.line(&format!(
            "{} gave the text of plain decoding and the same bits: {} op results of {} rows, {} of them with logits; {seconds} s",
            numbers::counted(totals.runs as u64, "run"),
            g(totals.results),
            g(totals.rows),
            g(totals.logit_rows)
        ))?;
        let drafted = |who: &str, drafted: Drafted| {
            format!("{who}: {} drafts accepted, {} rejected", g(drafted.accepted), g(drafted.rejected))
        };
        self.line(&drafted("script", totals.script))?;
        if !totals.given.is_nothing() {
            self.line(&drafted("given drafter", totals.given))?;
            for (name, &count) in members.iter().zip(&totals.members).filter(|_| members.len() > 1) {
                self.line(&match count.is_nothing() {
                    true => format!("given drafter, {name}: not tried, as none of its drafts was verified"),
                    false => drafted(&format!("given drafter, {name}"), count),
                })?;
            }
        }
        self.line(&format!("rows beyond the first window: {}", g(totals.rows_beyond_window)))
    }
}
