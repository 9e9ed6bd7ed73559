//! Products with AMX tiles, in inline assembly: its intrinsics are unstable in Rust 1.95.
//!
//! `TDPBF16PS` adds to a 16 x 16 tile of f32 the product of 16 rows x 32 k and 32 k x 16 outputs of bf16, which is one k
//! tile of the contract for 256 results: an even and an odd chain of 16 FMAs from +0, their sum, added to the tile;
//! subnormals flushed whatever MXCSR says. How many rows a tile has changes nothing for the others, nor does storing
//! the f32 tile and loading it again between k tiles.
//!
//! | rows | kernel | limit |
//! |---|---|---|
//! | 1..=16 | [`one_group`]: one tile of rows, two panels | reading the weights |
//! | 17..=32 | [`two_groups`]: two tiles of rows, one panel | reading the weights |
//! | every further 32 | [`blocked`] | the multiplier and the L2 cache |
mod blocked;
pub(crate) mod tiles;

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use super::inputs::{GROUP, Tiled};
use super::packed::{PREFETCH, TILE};
use crate::isa::Amx;
use crate::numerics::{K_TILE, PANEL};
use tiles::{ROW_BYTES, Tiles};

/// Rows of the 2 x 2 kernels.
const PAIR: usize = 2 * GROUP;
/// Elements of the bf16 tile of a full group of rows, and of half a tile of weights.
const FULL: usize = GROUP * K_TILE;
/// Bytes from a row of results to the next.
const C_STRIDE: usize = PANEL * size_of::<f32>();

/// Some rows times some panels that stand one behind the other.
#[derive(Clone, Copy)]
struct Job {
    /// `[panel][k tile]` of [`TILE`] elements.
    w: *const u16,
    k_tiles: usize,
    panels: usize,
    /// `[group][k tile][row][32]`.
    x: *const u16,
    rows: usize,
    /// `[panel][row][32]`, with `c_panel` elements from a panel to the next.
    c: *mut f32,
    c_panel: usize,
}

/// Panels that stand one behind the other, for every row: `c` takes `[panel][row][32 outputs]`.
pub(super) fn panels(amx: Amx, weights: &[u16], x: Tiled<'_, u16>, c: &mut [f32]) {
    let (rows, k_tiles) = (x.rows, x.k_tiles);
    let panels = c.len() / (rows * PANEL);
    assert_eq!(c.len(), panels * rows * PANEL);
    assert_eq!(weights.len(), panels * k_tiles * TILE);
    assert_eq!(x.data().len(), rows * k_tiles * K_TILE);
    let (w, x, c) = (weights.as_ptr(), x.data().as_ptr(), c.as_mut_ptr());
    let job = Job { w, k_tiles, panels, x, rows, c, c_panel: rows * PANEL };
    let whole = if rows > PAIR { rows / PAIR * PAIR } else { 0 };
    let tiles = Tiles::new(amx);
    // SAFETY: the slices behind the pointers have the lengths that `Job` and its numbers say, as asserted. `whole` is a
    // multiple of full groups within the rows, so the rest starts at a group; both parts keep within the slices.
    unsafe {
        if whole > 0 {
            blocked::multiply(&tiles, Job { rows: whole, ..job });
        }
        let rest =
            Job { rows: rows - whole, x: x.add(whole * k_tiles * K_TILE), c: c.add(whole * PANEL), ..job };
        match rest.rows {
            0 => {}
            1..=GROUP => one_group(&tiles, rest),
            _ => two_groups(&tiles, rest),
        }
    }
}

/// Fetches the k tile of weights that follows the one at `tile`.
#[inline(always)]
fn prefetch(tile: *const u16) {
    for line in 0..TILE * 2 / ROW_BYTES {
        // SAFETY: a prefetch is a hint that never faults; SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(tile.wrapping_byte_add(PREFETCH + line * ROW_BYTES).cast()) };
    }
}

/// Up to 16 rows: panels two by two, a last odd one alone.
///
/// # Safety
/// The job's pointers have the lengths that [`Job`] says.
unsafe fn one_group(tiles: &Tiles, job: Job) {
    let r = job.rows;
    tiles.configure([r, r, r, r, r, 16, 16, 16]);
    let panel = job.k_tiles * TILE;
    for first in (0..job.panels / 2 * 2).step_by(2) {
        // SAFETY: panels `first` and `first + 1` are there; the tiles are configured for `rows` rows.
        unsafe { one_by_four(tiles, job, job.w.add(first * panel), job.c.add(first * job.c_panel)) };
    }
    if !job.panels.is_multiple_of(2) {
        let last = job.panels - 1;
        // SAFETY: as above, for the last panel.
        unsafe { one_by_two(tiles, job, job.w.add(last * panel), job.c.add(last * job.c_panel)) };
    }
}

/// # Safety
/// `w` and `c` are those of one of the job's panels with another one behind it; the tiles are configured by [`one_group`].
#[inline(always)]
unsafe fn one_by_four(tiles: &Tiles, job: Job, w: *const u16, c: *mut f32) {
    // SAFETY: both panels have `k_tiles` tiles of weights of two halves of 16 x 64 bytes, and there are as many tiles of
    // rows x 64 bytes of the inputs; the four tiles of results are two halves of rows of two panels.
    unsafe {
        tiles.zero::<0>();
        tiles.zero::<1>();
        tiles.zero::<2>();
        tiles.zero::<3>();
        for t in 0..job.k_tiles {
            let (w0, w1) = (w.add(t * TILE), w.add((job.k_tiles + t) * TILE));
            prefetch(w0);
            prefetch(w1);
            tiles.load::<4, _>(job.x.add(t * job.rows * K_TILE), ROW_BYTES);
            tiles.load::<5, _>(w0, ROW_BYTES);
            tiles.multiply::<0, 4, 5>();
            tiles.load::<6, _>(w0.add(FULL), ROW_BYTES);
            tiles.multiply::<1, 4, 6>();
            tiles.load::<7, _>(w1, ROW_BYTES);
            tiles.multiply::<2, 4, 7>();
            tiles.load::<5, _>(w1.add(FULL), ROW_BYTES);
            tiles.multiply::<3, 4, 5>();
        }
        tiles.store::<0>(c, C_STRIDE);
        tiles.store::<1>(c.add(GROUP), C_STRIDE);
        tiles.store::<2>(c.add(job.c_panel), C_STRIDE);
        tiles.store::<3>(c.add(job.c_panel + GROUP), C_STRIDE);
    }
}

/// # Safety
/// `w` and `c` are those of one of the job's panels; the tiles are configured by [`one_group`].
#[inline(always)]
unsafe fn one_by_two(tiles: &Tiles, job: Job, w: *const u16, c: *mut f32) {
    // SAFETY: as in `one_by_four`, for one panel.
    unsafe {
        tiles.zero::<0>();
        tiles.zero::<1>();
        for t in 0..job.k_tiles {
            let w = w.add(t * TILE);
            prefetch(w);
            tiles.load::<4, _>(job.x.add(t * job.rows * K_TILE), ROW_BYTES);
            tiles.load::<5, _>(w, ROW_BYTES);
            tiles.multiply::<0, 4, 5>();
            tiles.load::<6, _>(w.add(FULL), ROW_BYTES);
            tiles.multiply::<1, 4, 6>();
        }
        tiles.store::<0>(c, C_STRIDE);
        tiles.store::<1>(c.add(GROUP), C_STRIDE);
    }
}

/// 17 to 32 rows, panel by panel.
///
/// # Safety
/// The job's pointers have the lengths that [`Job`] says.
unsafe fn two_groups(tiles: &Tiles, job: Job) {
    let rest = job.rows - GROUP;
    tiles.configure([16, 16, rest, rest, 16, rest, 16, 16]);
    for panel in 0..job.panels {
        // SAFETY: the panel is there; its tiles are as in `one_by_four`, with a second group of `rest` rows behind the
        // `k_tiles` full tiles of the first.
        unsafe {
            let (w, c) = (job.w.add(panel * job.k_tiles * TILE), job.c.add(panel * job.c_panel));
            let second = job.x.add(job.k_tiles * FULL);
            tiles.zero::<0>();
            tiles.zero::<1>();
            tiles.zero::<2>();
            tiles.zero::<3>();
            for t in 0..job.k_tiles {
                let w = w.add(t * TILE);
                prefetch(w);
                tiles.load::<6, _>(w, ROW_BYTES);
                tiles.load::<4, _>(job.x.add(t * FULL), ROW_BYTES);
                tiles.multiply::<0, 4, 6>();
                tiles.load::<7, _>(w.add(FULL), ROW_BYTES);
                tiles.multiply::<1, 4, 7>();
                tiles.load::<5, _>(second.add(t * rest * K_TILE), ROW_BYTES);
                tiles.multiply::<2, 5, 6>();
                tiles.multiply::<3, 5, 7>();
            }
            let second = c.add(GROUP * PANEL);
            tiles.store::<0>(c, C_STRIDE);
            tiles.store::<1>(c.add(GROUP), C_STRIDE);
            tiles.store::<2>(second, C_STRIDE);
            tiles.store::<3>(second.add(GROUP), C_STRIDE);
        }
    }
}
