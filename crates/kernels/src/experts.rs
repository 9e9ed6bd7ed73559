//! The feed-forward experts of a mixture-of-experts layer.
//!
//! ```text
//! for each row:  acc = +0;  for its experts in the order of its own ranking:  acc = fma(weight, down(act), acc)
//! with           act = gelu(gate(x)) * up(x), rounded where it enters the down projection; the last line is plain IEEE f32
//! ```
//! For speed the (row, rank) pairs are sorted by expert, so that each expert's weights are read once for all its rows. A
//! product's bits do not depend on the rows beside it, and the sum above is per row, so the sorting cannot show.
use std::ops::Range;

use crate::act::Gate;
use crate::each_row::each_row;
use crate::isa::Isa;
use crate::linear::inputs::{GROUP, Preparation};
use crate::linear::kernel::Kernel;
use crate::linear::{BLOCK_ROWS, Chunks, Context, GatedMatrix, PackedMatrix, RowsMut, RowsRef, SharedRows};
use crate::memory::{HugeBuf, OutOfMemory};
use crate::numerics::{Activation, LANES};
use crate::pool::Team;
use crate::router::Routed;
use crate::vector::{Vector, per_level};

/// Rows that are sorted together: the more, the fewer times the weights are read.
const SORTED_ROWS: usize = 512;

/// Weights of a layer's experts, all of one shape.
#[derive(Clone, Copy, Debug)]
pub struct ExpertWeights<'a> {
    gate_up: &'a [GatedMatrix],
    down: &'a [PackedMatrix],
}

impl<'a> ExpertWeights<'a> {
    /// Gate, up and down projection of expert `i` at index `i`.
    ///
    /// # Panics
    /// If there is none, their numbers differ, or their shapes do.
    pub fn new(gate_up: &'a [GatedMatrix], down: &'a [PackedMatrix]) -> ExpertWeights<'a> {
        assert_eq!(gate_up.len(), down.len(), "experts with gate and up, and with down projections");
        let shape = (gate_up[0].n(), gate_up[0].k());
        for (gate_up, down) in gate_up.iter().zip(down) {
            assert_eq!((gate_up.n(), gate_up.k()), shape, "shapes of the experts' gates");
            assert_eq!((down.n(), down.k()), (shape.1, shape.0), "shapes of the experts' down projections");
        }
        ExpertWeights { gate_up, down }
    }

    /// Width of a row that goes in and out.
    fn width(&self) -> usize {
        self.gate_up[0].k()
    }

    /// Width of the activations between.
    fn intermediate(&self) -> usize {
        self.gate_up[0].n()
    }
}

/// Which experts each row goes to, best first.
#[derive(Clone, Copy, Debug)]
pub struct Routes<'a> {
    /// The rows' rankings, one behind the other.
    pub routed: &'a [Routed],
    /// Experts of a row.
    pub top_k: usize,
}

/// Scratch of [`experts`].
#[derive(Debug)]
pub(crate) struct ExpertScratch {
    sorted: Sorted,
    /// `[sorted pair][intermediate]`.
    act: HugeBuf<f32>,
    /// `[row][rank][width]`.
    y: HugeBuf<f32>,
}

impl ExpertScratch {
    pub(crate) fn new() -> Result<ExpertScratch, OutOfMemory> {
        Ok(ExpertScratch { sorted: Sorted::default(), act: HugeBuf::zeroed(0)?, y: HugeBuf::zeroed(0)? })
    }
}

impl Context {
    /// Makes room for [`experts`] on up to `max_rows` rows of `top_k` each. Called at load, once per kind of layer.
    pub fn reserve_experts(
        &mut self,
        max_rows: usize,
        top_k: usize,
        weights: ExpertWeights<'_>,
    ) -> Result<(), OutOfMemory> {
        let (width, intermediate) = (weights.width(), weights.intermediate());
        let pairs = max_rows.min(SORTED_ROWS).saturating_mul(top_k);
        self.reserve_inputs(pairs, width.max(intermediate))?;
        let scratch = &mut self.experts;
        grow(&mut scratch.act, pairs.saturating_mul(intermediate))?;
        grow(&mut scratch.y, pairs.saturating_mul(width))?;
        scratch.sorted.reserve(pairs, weights.down.len());
        Ok(())
    }
}

fn grow(buffer: &mut HugeBuf<f32>, len: usize) -> Result<(), OutOfMemory> {
    if buffer.len() < len {
        *buffer = HugeBuf::zeroed(len)?;
    }
    Ok(())
}

/// The (row, rank) pairs of some rows, expert by expert.
#[derive(Debug, Default)]
struct Sorted {
    /// Number of the pair, `row * top_k + rank`, at each sorted place.
    pairs: Vec<u32>,
    /// Runs of places of one expert, at most [`BLOCK_ROWS`] long.
    runs: Vec<Run>,
    /// The runs again, cut into groups of at most [`GROUP`].
    groups: Vec<Range<usize>>,
    /// Per expert: number of pairs, then the next free place.
    next: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Run {
    expert: usize,
    places: Range<usize>,
}

impl Sorted {
    fn reserve(&mut self, pairs: usize, experts: usize) {
        self.clear();
        self.pairs.reserve(pairs);
        // Each run, and each group, is the last of its expert or full.
        self.runs.reserve(experts.min(pairs) + pairs / BLOCK_ROWS);
        self.groups.reserve(experts.min(pairs) + pairs / GROUP);
        self.next.reserve(experts);
    }

    fn clear(&mut self) {
        self.pairs.clear();
        self.runs.clear();
        self.groups.clear();
        self.next.clear();
    }

    fn rows_per_run(&self) -> usize {
        self.pairs.len().div_ceil(self.runs.len().max(1))
    }

    /// Sorts by counting.
    fn sort(&mut self, routed: &[Routed], experts: usize) {
        self.clear();
        self.next.resize(experts, 0);
        for Routed { expert, .. } in routed {
            self.next[*expert as usize] += 1;
        }
        let mut start = 0;
        for expert in 0..experts {
            let end = start + self.next[expert];
            self.next[expert] = start;
            for run in (start..end).step_by(BLOCK_ROWS) {
                let places = run..(run + BLOCK_ROWS).min(end);
                let groups = places.clone().step_by(GROUP);
                self.groups.extend(groups.map(|first| first..(first + GROUP).min(places.end)));
                self.runs.push(Run { expert, places });
            }
            start = end;
        }
        self.pairs.resize(routed.len(), 0);
        for (pair, Routed { expert, .. }) in routed.iter().enumerate() {
            let place = &mut self.next[*expert as usize];
            self.pairs[*place] = u32::try_from(pair).expect("few pairs");
            *place += 1;
        }
    }
}

/// `out[row] = sum over the row's experts, in the order of its ranking, of weight * expert(x[row])`.
///
/// `x` and `out` have one number of rows, as wide as the experts.
///
/// # Panics
/// If rows are too short or their numbers differ, an expert does not exist, or [`Context::reserve_experts`] was not told
/// of them.
pub fn experts(
    cx: &mut Context,
    x: RowsRef<'_>,
    activation: Activation,
    routes: Routes<'_>,
    weights: ExpertWeights<'_>,
    mut out: RowsMut<'_>,
) {
    let width = weights.width();
    x.check("input of experts", width);
    out.check("output of experts", width);
    assert_eq!(x.n_rows, out.n_rows, "rows of the experts' input and output");
    assert_eq!(routes.routed.len(), x.n_rows * routes.top_k, "routes of {} rows", x.n_rows);
    for first in (0..x.n_rows).step_by(SORTED_ROWS) {
        let rows = first..(first + SORTED_ROWS).min(x.n_rows);
        let routed = &routes.routed[rows.start * routes.top_k..rows.end * routes.top_k];
        let routes = Routes { routed, ..routes };
        let x = x.block(rows.clone());
        let pairs = routed.len();
        let scratch = &cx.experts;
        let room = (scratch.act.len(), scratch.y.len());
        assert!(
            pairs * weights.intermediate() <= room.0 && pairs * width <= room.1,
            "no room for experts of {} rows: reserve it first",
            rows.len()
        );
        cx.experts.sorted.sort(routed, weights.down.len());
        activate(cx, x, activation, routes.top_k, weights);
        project(cx, activation, weights);
        combine(&mut cx.team, cx.isa, &cx.experts.y, routes, out.block(rows), width);
    }
}

/// Fills `act`: gate and up projection of each sorted pair.
fn activate(
    cx: &mut Context,
    x: RowsRef<'_>,
    activation: Activation,
    top_k: usize,
    weights: ExpertWeights<'_>,
) {
    let Context { isa, team, inputs, blocks, experts: ExpertScratch { sorted, act, .. } } = cx;
    let kernel = Kernel::pick(*isa, activation);
    let (n, k) = (weights.intermediate(), weights.width());
    let how = Preparation { isa: *isa, form: kernel.form(activation), k };
    let row = |place: usize| x.row(sorted.pairs[place] as usize / top_k, k);
    let x = inputs.prepare(team, how, sorted.groups.len(), |i| sorted.groups[i].clone(), row);
    let chunks = Chunks::new(weights.gate_up[0].packed(), sorted.rows_per_run(), team.threads(), 2);
    let (blocks, act) = (blocks.share(), SharedRows::new(RowsMut::dense(act, n)));
    team.run(sorted.runs.len() * chunks.count(), |thread, i| {
        let Run { expert, places } = &sorted.runs[i / chunks.count()];
        let panels = chunks.panels(i % chunks.count());
        let (x, w) = (x.inputs(places.clone()), weights.gate_up[*expert].packed());
        // SAFETY: this thread's own block, free as a thread runs one chunk at a time; the places of a run and the columns of a
        // chunk belong to no other.
        unsafe {
            let finished = blocks.multiply(thread, kernel, *isa, x, w, panels);
            finished.store_gated(Gate::Gelu, &act, n, |row| places.start + row);
        }
    });
}

/// Fills `y`: down projection of each pair, at the pair's own number.
fn project(cx: &mut Context, activation: Activation, weights: ExpertWeights<'_>) {
    let Context { isa, team, inputs, blocks, experts: ExpertScratch { sorted, act, y } } = cx;
    let kernel = Kernel::pick(*isa, activation);
    let (n, k) = (weights.width(), weights.intermediate());
    let how = Preparation { isa: *isa, form: kernel.form(activation), k };
    let row = |place: usize| &act[place * k..][..k];
    let x = inputs.prepare(team, how, sorted.groups.len(), |i| sorted.groups[i].clone(), row);
    let chunks = Chunks::new(&weights.down[0], sorted.rows_per_run(), team.threads(), 1);
    let (blocks, y) = (blocks.share(), SharedRows::new(RowsMut::dense(y, n)));
    team.run(sorted.runs.len() * chunks.count(), |thread, i| {
        let Run { expert, places } = &sorted.runs[i / chunks.count()];
        let panels = chunks.panels(i % chunks.count());
        let (x, w) = (x.inputs(places.clone()), &weights.down[*expert]);
        // SAFETY: this thread's own block, free as a thread runs one chunk at a time; each place has a pair of its own, and
        // the columns of a chunk belong to no other.
        unsafe {
            let finished = blocks.multiply(thread, kernel, *isa, x, w, panels);
            finished.store(&y, n, |row| sorted.pairs[places.start + row] as usize);
        }
    });
}

/// Adds up each row's results.
fn combine(team: &mut Team, isa: Isa, y: &[f32], routes: Routes<'_>, out: RowsMut<'_>, width: usize) {
    each_row(team, out, width, |row, out| {
        out.fill(0.0);
        for (rank, Routed { weight, .. }) in
            routes.routed[row * routes.top_k..][..routes.top_k].iter().enumerate()
        {
            add_scaled(isa, *weight, &y[(row * routes.top_k + rank) * width..][..width], out);
        }
    });
}

per_level! {
    /// `out = fma(weight, y, out)`.
    fn add_scaled(weight: f32, y: &[f32], out: &mut [f32]) = add_scaled_of;
}

#[inline(always)]
fn add_scaled_of<V: Vector>(v: V, weight: f32, y: &[f32], out: &mut [f32]) {
    let weight = v.splat(weight);
    let (ys, y_rest) = y.as_chunks::<LANES>();
    let (outs, out_rest) = out.as_chunks_mut::<LANES>();
    for (y, out) in ys.iter().zip(outs) {
        v.store(v.fma(weight, v.load(y), v.load(out)), out);
    }
    let rest = v.fma(weight, v.load_first(y_rest), v.load_first(out_rest));
    v.store_first(rest, out_rest);
}
