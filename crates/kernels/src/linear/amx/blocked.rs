//! Many rows: cut so that what the multiplier reads comes from the L1 and L2 caches.
//!
//! ```text
//! for each slice of 8 k tiles            inputs of the slice: 512 rows x 512 bytes = 256 KB, L2
//!   for each panel                       weights of the slice: 16 KB, L1
//!     for each 32 rows                   inputs of the step: 16 KB, L1; results in c, 512 KB for 8 panels, L2
//!       2 x 2 tiles over the slice, while the next panel's weights and the next slice's inputs are fetched into L2
//! ```
//! Beyond L2 one core gets no more than 30 GB/s, a fifth of what the multiplier takes. Slices of 16 k tiles (weights and
//! inputs no longer in L1 together) are 15 % slower, unsliced products half as fast.
use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};

use super::tiles::{ROW_BYTES, Tiles};
use super::{C_STRIDE, FULL, GROUP, Job, PAIR};
use crate::linear::packed::TILE;
use crate::numerics::PANEL;

/// k tiles of a slice.
const SLICE: usize = 8;

/// # Safety
/// The job's pointers have the lengths that [`Job`] says; its rows are a multiple of [`PAIR`].
pub(super) unsafe fn multiply(tiles: &Tiles, job: Job) {
    tiles.configure([16; 8]);
    let steps = job.rows / PAIR;
    for first in (0..job.k_tiles).step_by(SLICE) {
        let slice = Slice { first, len: SLICE.min(job.k_tiles - first) };
        let mut next_inputs = Fetch::next_inputs(job, slice, job.panels * steps);
        for panel in 0..job.panels {
            let mut next_weights = Fetch::next_weights(job, slice, panel, steps);
            for step in 0..steps {
                // SAFETY: this panel and these rows are there, and the slice lies within the k tiles.
                unsafe { two_by_two(tiles, job, slice, panel, step, &mut next_weights, &mut next_inputs) };
            }
        }
    }
}

/// Some k tiles.
#[derive(Clone, Copy)]
struct Slice {
    first: usize,
    len: usize,
}

/// Cache lines to fetch into L2, a few per k tile of work.
struct Fetch {
    /// Runs of lines: start of the first run, bytes from a run to the next, lines of a run.
    run: *const u16,
    stride: usize,
    run_lines: usize,
    /// Lines of this run already asked for.
    at: usize,
    runs: usize,
    per_tile: usize,
}

impl Fetch {
    /// The weights that the next panel's pass over this slice will read, spread over `steps` steps. After the last
    /// panel that is the first one's next slice, and in the end what stands behind the weights: the next chunk.
    fn next_weights(job: Job, slice: Slice, panel: usize, steps: usize) -> Fetch {
        let end = slice.first + slice.len;
        let (panel, first) = if panel + 1 < job.panels {
            (panel + 1, slice.first)
        } else if end < job.k_tiles {
            (0, end)
        } else {
            (job.panels, 0)
        };
        let run = job.w.wrapping_add((panel * job.k_tiles + first) * TILE);
        let run_lines = SLICE.min(job.k_tiles - first) * TILE * 2 / ROW_BYTES;
        Fetch { run, stride: 0, run_lines, at: 0, runs: 1, per_tile: run_lines.div_ceil(steps * slice.len) }
    }

    /// The inputs of the next slice, group by group, spread over `steps` steps.
    fn next_inputs(job: Job, slice: Slice, steps: usize) -> Fetch {
        let first = slice.first + slice.len;
        let run_lines = SLICE.min(job.k_tiles - first) * GROUP;
        let runs = if run_lines == 0 { 0 } else { job.rows / GROUP };
        let stride = job.k_tiles * FULL;
        let per_tile = (runs * run_lines).div_ceil(steps * slice.len);
        Fetch { run: job.x.wrapping_add(first * FULL), stride, run_lines, at: 0, runs, per_tile }
    }

    /// Asks for the lines that are due in one k tile of work.
    #[inline(always)]
    fn go_on(&mut self) {
        for _ in 0..self.per_tile {
            if self.runs == 0 {
                return;
            }
            let line = self.run.wrapping_byte_add(self.at * ROW_BYTES);
            // SAFETY: a prefetch is a hint that never faults; SSE is part of x86-64.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) };
            self.at += 1;
            if self.at == self.run_lines {
                (self.at, self.runs) = (0, self.runs - 1);
                self.run = self.run.wrapping_add(self.stride);
            }
        }
    }
}

/// 32 rows x one panel over a slice, from results in `c` (zero before the first slice) to results in `c`.
///
/// # Safety
/// As [`multiply`]; the panel and rows `32 step ..` are there, the slice lies within the k tiles, all tiles have 16 rows.
#[inline(always)]
unsafe fn two_by_two(
    tiles: &Tiles,
    job: Job,
    slice: Slice,
    panel: usize,
    step: usize,
    next_weights: &mut Fetch,
    next_inputs: &mut Fetch,
) {
    // SAFETY: the panel's k tiles from the slice's first on; two full groups of rows, each `k_tiles` tiles long, from
    // the same one on; results of 32 rows of that panel.
    unsafe {
        let w = job.w.add((panel * job.k_tiles + slice.first) * TILE);
        let x0 = job.x.add((step * 2 * job.k_tiles + slice.first) * FULL);
        let x1 = x0.add(job.k_tiles * FULL);
        let c0 = job.c.add(panel * job.c_panel + step * PAIR * PANEL);
        let c1 = c0.add(GROUP * PANEL);
        if slice.first == 0 {
            tiles.zero::<0>();
            tiles.zero::<1>();
            tiles.zero::<2>();
            tiles.zero::<3>();
        } else {
            tiles.load::<0, _>(c0, C_STRIDE);
            tiles.load::<1, _>(c0.add(GROUP), C_STRIDE);
            tiles.load::<2, _>(c1, C_STRIDE);
            tiles.load::<3, _>(c1.add(GROUP), C_STRIDE);
        }
        for t in 0..slice.len {
            let w = w.add(t * TILE);
            tiles.load::<6, _>(w, ROW_BYTES);
            tiles.load::<4, _>(x0.add(t * FULL), ROW_BYTES);
            tiles.multiply::<0, 4, 6>();
            next_weights.go_on();
            tiles.load::<7, _>(w.add(FULL), ROW_BYTES);
            tiles.multiply::<1, 4, 7>();
            tiles.load::<5, _>(x1.add(t * FULL), ROW_BYTES);
            next_inputs.go_on();
            tiles.multiply::<2, 5, 6>();
            tiles.multiply::<3, 5, 7>();
        }
        tiles.store::<0>(c0, C_STRIDE);
        tiles.store::<1>(c0.add(GROUP), C_STRIDE);
        tiles.store::<2>(c1, C_STRIDE);
        tiles.store::<3>(c1.add(GROUP), C_STRIDE);
    }
}
