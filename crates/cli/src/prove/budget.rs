//! The time of a proof: how much of each run fits.

use std::time::{Duration, Instant};

use super::lab::Job;
use crate::failure::Failure;

/// How much of the time the reference may take, which every other run is compared with.
const REFERENCE_SHARE: f64 = 0.15;
/// Ops that are repeated row by row take about so many times as long.
const CHECKED_FACTOR: f64 = 4.0;
/// A pass reads all weights once: with fewer rows than this it takes about as long.
const PASS_ROWS: usize = 8;
/// Shorter texts than this show nothing.
const LEAST_TOKENS: usize = 4;

/// See the module. Work is counted in rows, and a pass counts as [`PASS_ROWS`] at least.
#[derive(Debug)]
pub(super) struct Budget {
    start: Instant,
    limit: Duration,
    /// Runs that are still to come.
    left: usize,
    /// Seconds of a row on the present bench, by its slowest run.
    pub(super) per_row: f64,
}

impl Budget {
    pub(super) fn new(limit: Duration) -> Self {
        Self { start: Instant::now(), limit, left: 0, per_row: 0.0 }
    }

    /// So many runs are to be done.
    pub(super) fn plan(&mut self, n_runs: usize) {
        self.left = n_runs;
    }

    /// So many more.
    pub(super) fn extend(&mut self, n_runs: usize) {
        self.left += n_runs;
    }

    /// So many runs were done or left out.
    pub(super) fn ran(&mut self, n_runs: usize) {
        self.left = self.left.saturating_sub(n_runs);
    }

    pub(super) fn begin_bench(&mut self) {
        self.per_row = 0.0;
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    pub(super) fn is_spent(&self) -> bool {
        self.elapsed() >= self.limit
    }

    /// Does a job and learns from the time that it takes.
    pub(super) fn measure<T>(
        &mut self,
        job: Job<'_>,
        run: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let start = Instant::now();
        let done = run()?;
        self.per_row = self.per_row.max(start.elapsed().as_secs_f64() / rows(job, job.n_texts, job.n) as f64);
        Ok(done)
    }

    /// As much of the reference as may be had.
    pub(super) fn fit_reference<'a>(&self, job: Job<'a>) -> Job<'a> {
        let seconds = self.limit.as_secs_f64() * REFERENCE_SHARE;
        self.cut(job, seconds).unwrap_or(Job { n_texts: 1, n: job.n.min(LEAST_TOKENS), ..job })
    }

    /// As much of a job as fits into its share of the time that is left.
    pub(super) fn fit<'a>(&self, job: Job<'a>) -> Option<Job<'a>> {
        self.cut(job, self.share())
    }

    /// As [`Budget::fit`], for ops that are repeated.
    pub(super) fn fit_slow<'a>(&self, job: Job<'a>) -> Option<Job<'a>> {
        self.cut(job, self.share() / CHECKED_FACTOR)
    }

    fn share(&self) -> f64 {
        self.limit.saturating_sub(self.elapsed()).as_secs_f64() / self.left.max(1) as f64
    }

    /// Fewer texts first, then shorter ones.
    fn cut<'a>(&self, job: Job<'a>, seconds: f64) -> Option<Job<'a>> {
        let fits = |n_texts: usize, n: usize| rows(job, n_texts, n) as f64 * self.per_row <= seconds;
        let least = job.n.min(LEAST_TOKENS);
        let n_texts = (1..=job.n_texts).rev().find(|&n_texts| fits(n_texts, least))?;
        let n_texts = (1..=n_texts).rev().find(|&n_texts| fits(n_texts, job.n)).unwrap_or(n_texts.min(2));
        let n = (least..=job.n).rev().find(|&n| fits(n_texts, n))?;
        Some(Job { n_texts, n, ..job })
    }
}

fn rows(job: Job<'_>, n_texts: usize, n: usize) -> usize {
    let prompt_rows = |len: usize| len.max(PASS_ROWS * len.div_ceil(job.cell.chunk));
    job.prompts[..n_texts].iter().map(|prompt| prompt_rows(prompt.len()) + PASS_ROWS * n).sum()
}

#[cfg(test)]
mod tests {
    use paceline::TokenId;

    use super::super::PLAIN;
    use super::super::cells::Cell;
    use super::*;

    #[test]
    fn what_is_slow_is_cut_to_its_share() {
        let prompts = [1, 3, 17, 50, 500].map(|len| vec![TokenId(0); len]);
        let job = Job { cell: PLAIN, prompts: &prompts, n_texts: 5, n: 20 };
        assert_eq!(rows(job, 4, 20), 8 + 8 + 17 + 50 + 4 * 8 * 20);
        assert_eq!(rows(Job { cell: Cell { chunk: 1, ..PLAIN }, ..job }, 4, 20), 8 * 71 + 4 * 8 * 20);
        let mut budget = Budget::new(Duration::from_secs(1000));
        budget.plan(10);
        let fit = |per_row: f64| {
            let budget = Budget { per_row, ..Budget::new(Duration::from_secs(1000)) };
            budget.cut(job, 100.0).map(|job| (job.n_texts, job.n))
        };
        assert_eq!(fit(0.0), Some((5, 20)));
        assert_eq!(fit(0.1), Some((4, 20)));
        assert_eq!(fit(0.2), Some((2, 20)));
        assert_eq!(fit(0.5), Some((1, 20)));
        assert_eq!(fit(2.0), Some((1, 5)));
        assert_eq!(fit(3.0), None);
        assert!((90.0..=100.0).contains(&budget.share()));
    }
}
