//! Attention over K/V blocks: the contract is in [`crate::numerics`] and, as code, in [`mod@reference`].
//!
//! ```text
//! attend_split: a tile of up to 16 (row, query head) pairs against the 256 keys of a split
//!   s = q K^T            product, tile order over the head dim
//!   m = max s, p = exp(s - m), l = sum p       plain IEEE; p is +0 for a key that its row does not see
//!   o = p V              product, tile order over the keys
//! splits fold inside spans of 2048 keys, spans fold, both ascending; out = o / l
//! ```
//! A row's bits depend on its own query and the keys that it sees. Rows of a tile never mix; panels of keys that no row of a
//! tile sees are left out, which adds +0; what the products read beside the visible keys has weight +0 and is finite.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod dots;
mod kernel;
mod layout;
mod part;
mod plan;
mod product;
pub mod reference;
mod softmax;
mod store;
mod unit;

use std::ops::Range;

pub use layout::{KvLayout, MAX_HEAD_DIM};
pub use store::{KvPlace, KvStore};

use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::{Amx, Avx512, Avx512Bf16};
use crate::linear::rows::SharedRows;
use crate::linear::{RowsMut, RowsRef};
use crate::memory::{Disjoint, HugeBuf, OutOfMemory};
use crate::numerics::SPAN;
use crate::pool::Team;
use crate::vector::per_level;
use kernel::Fma;
use layout::{Element, TILE};
use part::{Part, TILE_ROWS};
use plan::{Plan, Shape, Unit};
use product::Multiply;
use unit::{Call, Workspace};

/// What one row sees.
#[derive(Clone, Debug)]
pub struct AttendRow<'a> {
    /// Block id of each block of the row's sequence, by absolute position / [`crate::numerics::KV_BLOCK`]. Ids of
    /// blocks that hold no visible position are not looked at, unless they lie between those of rows side by side. Rows
    /// side by side that are given the same slice share the reading of K and V.
    pub block_table: &'a [u32],
    /// Absolute positions that it attends to. Where there are none, the result is zeros.
    pub visible: Range<u32>,
}

/// What the rows of a call attend with.
#[derive(Clone, Copy, Debug)]
pub struct AttendLayer<'a> {
    /// Where K and V are.
    pub store: &'a KvStore,
    /// Layer within the store.
    pub layer: usize,
    /// Query heads, a multiple of the layer's K/V heads: head `h` uses K/V head `h / (n_heads / kv_heads)`.
    pub n_heads: usize,
    /// Factor of each score, applied in f32 to the finished product.
    pub scale: f32,
}

/// Memory for calls of [`attend`], made at load.
#[derive(Debug)]
pub struct AttendScratch {
    plan: Plan,
    threads: usize,
    /// Queries and probabilities of each thread, as f32 or as bf16.
    wide: HugeBuf<f32>,
    narrow: HugeBuf<u16>,
    /// Scores, values and parts of each thread.
    results: HugeBuf<f32>,
    /// Parts of items that several threads share.
    slots: HugeBuf<f32>,
}

impl AttendScratch {
    /// Scratch for a team of `threads` threads, without room for rows: see [`AttendScratch::reserve`].
    pub fn new(threads: usize) -> Result<AttendScratch, OutOfMemory> {
        let none = || HugeBuf::zeroed(0);
        Ok(AttendScratch {
            plan: Plan::default(),
            threads,
            wide: none()?,
            narrow: HugeBuf::zeroed(0)?,
            results: none()?,
            slots: none()?,
        })
    }

    /// Makes room for calls of up to `max_rows` rows of `n_heads` query heads that see up to `max_keys` positions.
    /// Called at load, once for each kind of layer.
    pub fn reserve(
        &mut self,
        layout: KvLayout,
        n_heads: usize,
        max_rows: usize,
        max_keys: usize,
    ) -> Result<(), OutOfMemory> {
        layout.assert_valid();
        let d_tiles = layout.d_tiles();
        self.plan.reserve(max_rows, n_heads.div_ceil(layout.kv_heads), layout.kv_heads, self.threads);
        // Enough to cut what keeps threads busy: a few units each, or one very long row by spans.
        let slots = 32 * self.threads + 2 * max_keys.div_ceil(SPAN);
        grow(&mut self.wide, self.threads * Workspace::<f32>::rows_len(d_tiles))?;
        grow(&mut self.narrow, self.threads * Workspace::<u16>::rows_len(d_tiles))?;
        grow(&mut self.results, self.threads * Workspace::<f32>::results_len(d_tiles))?;
        grow(&mut self.slots, slots * Part::len(d_tiles))
    }
}

fn grow<T: crate::memory::Number>(buffer: &mut HugeBuf<T>, len: usize) -> Result<(), OutOfMemory> {
    if buffer.len() < len {
        *buffer = HugeBuf::zeroed(len)?;
    }
    Ok(())
}

/// Each row of `q` attends to what it sees: `q` and `out` are `[rows.len()]` rows of `[n_heads][head_dim]`. Queries are not
/// rounded yet.
///
/// # Panics
/// If shapes do not fit one another, a block table does not hold what its row sees, or [`AttendScratch::reserve`] was not
/// told of as wide a head.
pub fn attend(
    isa: Isa,
    team: &mut Team,
    scratch: &mut AttendScratch,
    layer: AttendLayer<'_>,
    rows: &[AttendRow<'_>],
    q: RowsRef<'_>,
    out: RowsMut<'_>,
) {
    let layout = layer.store.layout();
    let width = layer.n_heads * layout.head_dim;
    q.check("queries", width);
    out.check("output of attention", width);
    assert!(q.n_rows == rows.len() && out.n_rows == rows.len(), "attend: rows of queries and output");
    assert!(layer.layer < layer.store.layers(), "attend: layer {} of the store", layer.layer);
    assert!(layer.n_heads.is_multiple_of(layout.kv_heads), "attend: {} heads, {layout:?}", layer.n_heads);
    assert_eq!(team.threads(), scratch.threads, "attend: scratch of another team");
    let call = AttendCall { layer, rows, q, out };
    if let Some(tiles) = layer.store.tiles::<u16>() {
        #[cfg(target_arch = "x86_64")]
        if let (Some(amx), Some(v)) = (isa.amx(), isa.avx512()) {
            // SAFETY: the token proves AVX-512 F, BW, DQ and VL, and with them AVX2 and FMA.
            return run(team, scratch, call, tiles, TILE_ROWS, |call, units, memory| unsafe {
                units_amx(amx, v, call, units, memory);
            });
        }
        #[cfg(target_arch = "x86_64")]
        if let Some(dots) = isa.avx512_bf16() {
            // SAFETY: the token proves AVX-512 F, BW, DQ and VL, and with them AVX2 and FMA, and dot products.
            return run(team, scratch, call, tiles, FEW, |call, units, memory| unsafe {
                units_dots(dots, call, units, memory);
            });
        }
        run(team, scratch, call, tiles, FEW, |call, units, memory| units_bf16(isa, call, units, memory));
    } else if let Some(tiles) = layer.store.tiles::<f32>() {
        run(team, scratch, call, tiles, FEW, |call, units, memory| units_f32(isa, call, units, memory));
    }
}

/// What a call computes.
struct AttendCall<'a> {
    layer: AttendLayer<'a>,
    rows: &'a [AttendRow<'a>],
    q: RowsRef<'a>,
    out: RowsMut<'a>,
}

/// Memory of the thread that does some units.
struct Memory<'a> {
    wide: &'a mut [f32],
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    narrow: &'a mut [u16],
    results: &'a mut [f32],
}

/// Pairs of a row and a query head that take about as long as one, where there are no tiles of 16: one row of the tiny model takes
/// 2.7 us, five (10 pairs of each K/V head) take 7.1.
const FEW: usize = 4;

/// Plans a call and shares out its units.
fn run<E: Element>(
    team: &mut Team,
    scratch: &mut AttendScratch,
    call: AttendCall<'_>,
    tiles: &[[E; TILE]],
    at_once: usize,
    do_units: impl Fn(&Call<'_, E>, &[Unit], Memory<'_>) + Sync,
) {
    let AttendCall { layer, rows, q, out } = call;
    let (layout, n_blocks) = (layer.store.layout(), layer.store.n_blocks());
    let d_tiles = layout.d_tiles();
    let group = layer.n_heads / layout.kv_heads;
    let slots = scratch.slots.len() / Part::len(d_tiles);
    scratch.plan.make(rows, n_blocks, Shape { layout, group, at_once, threads: scratch.threads, slots });
    let call = Call {
        tiles,
        first_block: layer.layer * n_blocks,
        kv_heads: layout.kv_heads,
        d_tiles,
        head_dim: layout.head_dim,
        group,
        scale: layer.scale,
        rows,
        q,
        out: SharedRows::new(out),
        items: &scratch.plan.items,
        waiting: &scratch.plan.waiting,
        slots: Disjoint::new(&mut scratch.slots),
    };
    let (wide, narrow) = (Disjoint::new(&mut scratch.wide), Disjoint::new(&mut scratch.narrow));
    let results = Disjoint::new(&mut scratch.results);
    let (units, per_chunk) = (&scratch.plan.units, scratch.plan.chunk);
    team.run(units.len().div_ceil(per_chunk), |thread, chunk| {
        let (rows_len, results_len) =
            (Workspace::<E>::rows_len(d_tiles), Workspace::<E>::results_len(d_tiles));
        // SAFETY: this thread's own memory; a thread does one chunk at a time.
        let memory = unsafe {
            Memory {
                wide: wide.slice_mut(thread * rows_len, rows_len),
                narrow: narrow.slice_mut(thread * rows_len, rows_len),
                results: results.slice_mut(thread * results_len, results_len),
            }
        };
        do_units(&call, &units[chunk * per_chunk..][..per_chunk], memory);
    });
}

per_level! {
    fn units_bf16(call: &Call<'_, u16>, units: &[Unit], memory: Memory<'_>) = units_of;
}
per_level! {
    fn units_f32(call: &Call<'_, f32>, units: &[Unit], memory: Memory<'_>) = units_of;
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn units_amx(amx: Amx, v: Avx512, call: &Call<'_, u16>, units: &[Unit], memory: Memory<'_>) {
    let mut work = Workspace::new(memory.narrow, memory.results, call.d_tiles);
    let kernel = amx::AmxKernel::new(amx, v);
    for unit in units {
        unit::run(&kernel, call, unit, &mut work);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
fn units_dots(dots: Avx512Bf16, call: &Call<'_, u16>, units: &[Unit], memory: Memory<'_>) {
    let mut work = Workspace::new(memory.narrow, memory.results, call.d_tiles);
    let kernel = dots::Dots::new(dots);
    for unit in units {
        unit::run(&kernel, call, unit, &mut work);
    }
}

#[inline(always)]
fn units_of<V: Multiply, E: Element>(v: V, call: &Call<'_, E>, units: &[Unit], memory: Memory<'_>) {
    let mut work = Workspace::new(memory.wide, memory.results, call.d_tiles);
    for unit in units {
        unit::run(&Fma::new(v), call, unit, &mut work);
    }
}
