//! Products of activations with weights: `y = W x` for each row.
//!
//! ```text
//! rows of f32 ──round, lay out──► inputs ──┐
//! packed weights ── chunk of panels ───────┴─ kernel ─► c [panel][row][32] ──epilogue──► rows of f32
//! ```
//! A chunk is a few whole panels of outputs, and a thread does all of it: so neither threads nor chunks nor rows can
//! change the order in which an output's terms are added, which `reference` states and every kernel keeps.
#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512_bf16;
mod epilogue;
#[cfg(target_arch = "x86_64")]
mod fma;
mod groups;
pub(crate) mod inputs;
pub(crate) mod kernel;
mod packed;
pub mod reference;
mod round;
pub(crate) mod rows;
mod scalar;

use std::ops::Range;

pub use groups::{OutputGroups, linear_groups};
pub use packed::{Gated, GatedBuilder, GatedMatrix, MatrixBuilder, PackError, PackedMatrix};
pub(crate) use rows::SharedRows;
pub use rows::{RowsMut, RowsRef};

use crate::act::Gate;
use crate::experts::ExpertScratch;
use crate::isa::Isa;
use crate::memory::{Disjoint, HugeBuf, OutOfMemory};
use crate::numerics::{Activation, PANEL};
use crate::pool::Team;
use epilogue::Finished;
use inputs::{InputScratch, Inputs, Preparation};
use kernel::Kernel;

/// Rows that are multiplied in one go; more are taken block by block. 512 rows x 256 k of bf16 (256 KB) and the results of a
/// chunk (512 KB) leave room in a 2 MB L2 cache for its weights.
pub(crate) const BLOCK_ROWS: usize = 512;
/// The most panels in a chunk.
const CHUNK_PANELS: usize = 8;
/// Rows up to which a product takes as long as reading the weights, or nearly.
const MANY_ROWS: usize = 32;
/// Bytes of weights below which the taking of chunks counts.
const SMALL_MATRIX: usize = 1 << 20;
/// Bytes of weights, times how often the rows go over them, up to which a product stays with its caller: calling the others and
/// waiting for them takes longer. Measured in rounds of the tiny pair at `amx`, where two caches hold more of its weights than one.
const CALLERS_OWN: usize = 16 << 10;

/// What the products of one backend share: the level, the threads, and their scratch memory.
#[derive(Debug)]
pub struct Context {
    pub(crate) isa: Isa,
    pub(crate) team: Team,
    pub(crate) inputs: InputScratch,
    pub(crate) blocks: Blocks,
    pub(crate) experts: ExpertScratch,
}

/// Room for the results of one chunk per thread.
#[derive(Debug)]
pub(crate) struct Blocks(HugeBuf<f32>);

/// Elements of a thread's results, of its spare room, and of both.
const RESULTS: usize = BLOCK_ROWS * CHUNK_PANELS * PANEL;
const SPARE: usize = RESULTS / 2;
const BLOCK: usize = RESULTS + SPARE;

impl Context {
    /// A context without room for rows: see [`Context::reserve`].
    pub fn new(isa: Isa, team: Team) -> Result<Context, OutOfMemory> {
        let blocks = Blocks(HugeBuf::zeroed(team.threads().saturating_mul(BLOCK))?);
        let inputs = InputScratch::new(0, 0)?;
        Ok(Context { isa, team, inputs, blocks, experts: ExpertScratch::new()? })
    }

    /// Makes room for products of up to `max_rows` rows of up to `max_k` inputs. Called at load: products allocate
    /// nothing.
    pub fn reserve(&mut self, max_rows: usize, max_k: usize) -> Result<(), OutOfMemory> {
        self.reserve_inputs(max_rows.min(BLOCK_ROWS), max_k)
    }

    pub(crate) fn reserve_inputs(&mut self, rows: usize, k: usize) -> Result<(), OutOfMemory> {
        let new = InputScratch::new(rows, k)?;
        if new.len() > self.inputs.len() {
            self.inputs = new;
        }
        Ok(())
    }

    /// The level that products run at.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The threads, for ops beside products.
    pub fn team(&mut self) -> &mut Team {
        &mut self.team
    }
}

/// `out = x W^T`: each row of `x` (`w.k()` wide) is rounded to the activation type and multiplied with every row of `w`;
/// `out` gets as many rows, `w.n()` wide.
///
/// # Panics
/// If rows are shorter than that, their numbers differ, or [`Context::reserve`] was not told of them.
pub fn linear(cx: &mut Context, x: RowsRef<'_>, activation: Activation, w: &PackedMatrix, out: RowsMut<'_>) {
    check(&x, w.k(), &out, w.n());
    let out = SharedRows::new(out);
    multiply(cx, x, activation, w, 1, |first, chunk| {
        // SAFETY: a panel is in one chunk, and a block of rows is done before the next one starts.
        unsafe { chunk.store(&out, w.n(), |row| first + row) };
    });
}

/// `out = function(x G^T) * (x U^T)`, with gate and up matrix side by side: a feed-forward block up to its down projection.
/// As [`linear`]; `out` is `w.n()` wide.
///
/// # Panics
/// As [`linear`].
pub fn linear_gated(
    cx: &mut Context,
    x: RowsRef<'_>,
    activation: Activation,
    w: &GatedMatrix,
    function: Gate,
    out: RowsMut<'_>,
) {
    check(&x, w.k(), &out, w.n());
    let out = SharedRows::new(out);
    multiply(cx, x, activation, w.packed(), 2, |first, chunk| {
        // SAFETY: a pair of panels is in one chunk, and a block of rows is done before the next one starts.
        unsafe { chunk.store_gated(function, &out, w.n(), |row| first + row) };
    });
}

/// `out = gelu(x W^T) * by`, element by element: the gate of per-layer inputs. As [`linear`]; the rows of `by` are
/// `w.n()` wide.
///
/// # Panics
/// As [`linear`], also for `by`.
pub fn linear_gated_by(
    cx: &mut Context,
    x: RowsRef<'_>,
    activation: Activation,
    w: &PackedMatrix,
    by: RowsRef<'_>,
    out: RowsMut<'_>,
) {
    check(&x, w.k(), &out, w.n());
    by.check("factors of a product", w.n());
    assert_eq!(by.n_rows, out.n_rows, "rows of a product's factors and output");
    let out = SharedRows::new(out);
    multiply(cx, x, activation, w, 1, |first, chunk| {
        // SAFETY: a panel is in one chunk, and a block of rows is done before the next one starts.
        unsafe { chunk.store_gated_by(by, &out, w.n(), |row| first + row) };
    });
}

fn check(x: &RowsRef<'_>, k: usize, out: &RowsMut<'_>, n: usize) {
    x.check("input of a product", k);
    out.check("output of a product", n);
    assert_eq!(x.n_rows, out.n_rows, "rows of a product's input and output");
}

/// Multiplies block by block of rows and hands each finished chunk to `epilogue`, with the block's first row, on the
/// thread that computed it. Chunks are whole groups of `group` panels.
fn multiply(
    cx: &mut Context,
    x: RowsRef<'_>,
    activation: Activation,
    w: &PackedMatrix,
    group: usize,
    epilogue: impl Fn(usize, Finished<'_>) + Sync,
) {
    let Context { isa, team, inputs, blocks, .. } = cx;
    let kernel = Kernel::pick(*isa, activation);
    let how = Preparation { isa: *isa, form: kernel.form(activation), k: w.k() };
    let chunks = Chunks::new(w, x.n_rows, team.threads(), group);
    for first in (0..x.n_rows).step_by(BLOCK_ROWS) {
        let rows = first..(first + BLOCK_ROWS).min(x.n_rows);
        let times = kernel.times_over(rows.len());
        let x = inputs.prepare_rows(team, how, x.block(rows));
        let blocks = blocks.share();
        let run = |thread, chunk| {
            // SAFETY: this thread's own block; a thread runs one chunk at a time.
            let finished = unsafe { blocks.multiply(thread, kernel, *isa, x, w, chunks.panels(chunk)) };
            epilogue(first, finished);
        };
        if w.bytes() * times <= CALLERS_OWN {
            (0..chunks.count()).for_each(|chunk| run(0, chunk));
        } else {
            team.run(chunks.count(), run);
        }
    }
}

impl Blocks {
    pub(crate) fn share(&mut self) -> SharedBlocks<'_> {
        SharedBlocks(Disjoint::new(&mut self.0))
    }
}

/// [`Blocks`] in the hands of several threads.
pub(crate) struct SharedBlocks<'a>(Disjoint<'a, f32>);

impl SharedBlocks<'_> {
    /// Multiplies one chunk into the block of a thread.
    ///
    /// # Safety
    /// No other result for this thread is alive.
    pub(crate) unsafe fn multiply(
        &self,
        thread: usize,
        kernel: Kernel,
        isa: Isa,
        x: Inputs<'_>,
        w: &PackedMatrix,
        panels: Range<usize>,
    ) -> Finished<'_> {
        // SAFETY: blocks of different threads do not overlap; this thread's one is free (the caller's promise).
        let block = unsafe { self.0.slice_mut(thread * BLOCK, BLOCK) };
        let (c, spare) = block.split_at_mut(RESULTS);
        let c = &mut c[..panels.len() * x.rows() * PANEL];
        kernel.multiply(x, w, panels.clone(), c);
        Finished { isa, rows: x.rows(), panels, c, spare }
    }
}

/// How the panels of a matrix are cut into chunks. An output lies in one panel, so the cut shows in no result.
#[derive(Clone, Copy)]
pub(crate) struct Chunks {
    panels: usize,
    per_chunk: usize,
}

impl Chunks {
    /// Chunks of whole groups of `group` panels, for products of about `rows` rows.
    pub(crate) fn new(w: &PackedMatrix, rows: usize, threads: usize, group: usize) -> Chunks {
        let panels = w.panels();
        let (per_thread, most) = if rows > MANY_ROWS {
            // As large as they may be, for what a chunk reads is used for all its panels; and as many for each thread.
            (panels.div_ceil(threads * CHUNK_PANELS), CHUNK_PANELS)
        } else if w.bytes() < SMALL_MATRIX {
            // Each further chunk costs some 0.3 us of taking it: one row of 256 x 256 takes 3.0 us with one chunk a thread and
            // 3.6 us with two at `amx`.
            (1, CHUNK_PANELS)
        } else {
            // Threads wait for the last chunk: it should be a small part of the whole.
            (16, CHUNK_PANELS / 2)
        };
        let fair = panels.div_ceil(threads * per_thread.max(1)).next_multiple_of(group);
        Chunks { panels, per_chunk: fair.clamp(group, most) }
    }

    pub(crate) fn count(self) -> usize {
        self.panels.div_ceil(self.per_chunk)
    }

    pub(crate) fn panels(self, chunk: usize) -> Range<usize> {
        chunk * self.per_chunk..((chunk + 1) * self.per_chunk).min(self.panels)
    }
}
