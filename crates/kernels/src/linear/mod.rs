//! Products of activations with weights: `y = W x` for each row.
//!
//! ```text
//! rows of f32 ──round, lay out──► inputs ──┐
//! packed weights ── chunk of panels ───────┴─ kernel ─► c [panel][row][32] ──epilogue──► rows of f32
//! ```
//! A chunk is a few whole panels of outputs, and a thread does all of it: so neither threads nor chunks nor rows can
//! change the order in which an output's terms are added, which `reference` states and every kernel keeps.
#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod inputs;
mod kernel;
mod packed;
pub mod reference;
mod round;
mod rows;
mod scalar;

use std::ops::Range;

pub use packed::{Gated, GatedBuilder, GatedMatrix, MatrixBuilder, PackError, PackedMatrix};
pub use rows::{RowsMut, RowsRef};

use crate::isa::Isa;
use crate::memory::{Disjoint, HugeBuf, OutOfMemory};
use crate::numerics::{Activation, PANEL};
use crate::pool::Team;
use inputs::InputScratch;
use kernel::Kernel;
pub(crate) use rows::SharedRows;

/// Rows that are multiplied in one go; more are taken block by block. 256 rows x 256 k of bf16 leave room in a 2 MB L2
/// cache for the weights of a chunk and its results.
const BLOCK_ROWS: usize = 256;
/// The most panels in a chunk.
const CHUNK_PANELS: usize = 8;

/// What the products of one backend share: the level, the threads, and their scratch memory.
#[derive(Debug)]
pub struct Context {
    isa: Isa,
    team: Team,
    inputs: InputScratch,
    /// Results of a chunk, one block per thread.
    blocks: HugeBuf<f32>,
}

/// f32 elements of a thread's block.
const BLOCK: usize = BLOCK_ROWS * CHUNK_PANELS * PANEL;

impl Context {
    /// A context without room for rows: see [`Context::reserve`].
    pub fn new(isa: Isa, team: Team) -> Result<Context, OutOfMemory> {
        let blocks = HugeBuf::zeroed(team.threads() * BLOCK)?;
        Ok(Context { isa, team, inputs: InputScratch::new(0, 0)?, blocks })
    }

    /// Makes room for products of up to `max_rows` rows of up to `max_k` inputs. Called at load: products allocate nothing.
    pub fn reserve(&mut self, max_rows: usize, max_k: usize) -> Result<(), OutOfMemory> {
        let new = InputScratch::new(max_rows.min(BLOCK_ROWS), max_k)?;
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
/// If the rows are shorter than that, their numbers differ, or [`Context::reserve`] was not told of them.
pub fn linear(cx: &mut Context, x: RowsRef<'_>, activation: Activation, w: &PackedMatrix, out: RowsMut<'_>) {
    x.check("input of a product", w.k());
    out.check("output of a product", w.n());
    assert_eq!(x.n_rows, out.n_rows, "rows of a product's input and output");
    let out = SharedRows::new(out);
    multiply(cx, x, activation, w, 1, |block| {
        for (panel, c) in block.panels.clone().zip(block.c.chunks_exact(block.rows.len() * PANEL)) {
            let columns = panel * PANEL..((panel + 1) * PANEL).min(w.n());
            for (row, c) in block.rows.clone().zip(c.chunks_exact(PANEL)) {
                // SAFETY: these columns of the output belong to this panel, which is in one chunk only.
                let y = unsafe { out.part(row, columns.clone()) };
                y.copy_from_slice(&c[..columns.len()]);
            }
        }
    });
}

/// Results of one chunk for one block of rows, still hot.
struct Finished<'a> {
    rows: Range<usize>,
    panels: Range<usize>,
    /// `[panel][row][32 outputs]`.
    c: &'a [f32],
}

/// Multiplies and hands each finished chunk to `epilogue`, on the thread that computed it. Chunks are whole groups of
/// `group` panels.
fn multiply(
    cx: &mut Context,
    x: RowsRef<'_>,
    activation: Activation,
    w: &PackedMatrix,
    group: usize,
    epilogue: impl Fn(Finished<'_>) + Sync,
) {
    let Context { isa, team, inputs, blocks } = cx;
    let kernel = Kernel::pick(*isa, activation);
    let blocks = Disjoint::new(blocks);
    for first in (0..x.n_rows).step_by(BLOCK_ROWS) {
        let rows = first..(first + BLOCK_ROWS).min(x.n_rows);
        let x = inputs.prepare(*isa, team, x.block(rows.clone()), w.k(), activation, kernel.form());
        let per_chunk = panels_per_chunk(w, team.threads(), group);
        team.run(w.panels().div_ceil(per_chunk), |thread, chunk| {
            let panels = chunk * per_chunk..((chunk + 1) * per_chunk).min(w.panels());
            // SAFETY: this thread's own block; a thread runs one chunk at a time.
            let c = unsafe { blocks.slice_mut(thread * BLOCK, panels.len() * rows.len() * PANEL) };
            kernel.multiply(x, w, panels.clone(), c);
            epilogue(Finished { rows: rows.clone(), panels, c });
        });
    }
}

/// Four chunks a thread, where there are enough panels.
fn panels_per_chunk(w: &PackedMatrix, threads: usize, group: usize) -> usize {
    let fair = w.panels().div_ceil(4 * threads).next_multiple_of(group);
    fair.clamp(group, CHUNK_PANELS)
}
