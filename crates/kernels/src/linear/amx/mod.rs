//! Products with AMX tiles, in inline assembly: its intrinsics are unstable in Rust 1.95.
//!
//! `TDPBF16PS` adds to a 16 x 16 tile of f32 the product of 16 rows x 32 k and 32 k x 16 outputs of bf16, which is one k
//! tile of the contract for 256 results: an even and an odd chain of 16 FMAs from +0, their sum, added to the tile;
//! subnormals flushed whatever MXCSR says. How many rows a tile has changes nothing for the others, nor does storing
//! the f32 tile and loading it again between k tiles.
//!
//! | rows | kernel | limit |
//! |---|---|---|
//! | 1..=16 | [`one_group`]: one tile of rows, one panel | reading the weights |
//! | 17..=32 | [`two_groups`]: two tiles of rows, one panel | reading the weights |
//! | every further 32 | [`blocked`] | the multiplier and the L2 cache |
mod blocked;
pub(crate) mod tiles;

use super::inputs::{GROUP, Tiled};
use super::packed::{TILE, prefetch_tile};
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
/// `FAR` as for [`prefetch_tile`].
pub(super) fn panels<const FAR: bool>(amx: Amx, weights: &[u16], x: Tiled<'_, u16>, c: &mut [f32]) {
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
            1..=GROUP => one_group::<FAR>(&tiles, rest),
            _ => two_groups::<FAR>(&tiles, rest),
        }
    }
}

/// Up to 16 rows, panel by panel.
///
/// # Safety
/// The job's pointers have the lengths that [`Job`] says.
unsafe fn one_group<const FAR: bool>(tiles: &Tiles, job: Job) {
    let r = job.rows;
    tiles.configure([r, r, 1, 1, r, 1, 16, 16]);
    for panel in 0..job.panels {
        // SAFETY: the panel is there. It has `k_tiles` tiles of weights of two halves of 16 x 64 bytes, and there are as many
        // tiles of `rows` x 64 bytes of the inputs; the two tiles of results are two halves of rows.
        unsafe {
            let (w, c) = (job.w.add(panel * job.k_tiles * TILE), job.c.add(panel * job.c_panel));
            tiles.zero::<0>();
            tiles.zero::<1>();
            for t in 0..job.k_tiles {
                let w = w.add(t * TILE);
                prefetch_tile::<FAR>(w);
                tiles.load::<4, _>(job.x.add(t * r * K_TILE), ROW_BYTES);
                tiles.load::<6, _>(w, ROW_BYTES);
                tiles.multiply::<0, 4, 6>();
                tiles.load::<7, _>(w.add(FULL), ROW_BYTES);
                tiles.multiply::<1, 4, 7>();
            }
            tiles.store::<0>(c, C_STRIDE);
            tiles.store::<1>(c.add(GROUP), C_STRIDE);
        }
    }
}

/// 17 to 32 rows, panel by panel.
///
/// # Safety
/// The job's pointers have the lengths that [`Job`] says.
unsafe fn two_groups<const FAR: bool>(tiles: &Tiles, job: Job) {
    let rest = job.rows - GROUP;
    tiles.configure([16, 16, rest, rest, 16, rest, 16, 16]);
    for panel in 0..job.panels {
        // SAFETY: the panel is there; its tiles are as in `one_group`, with a second group of `rest` rows behind the
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
                prefetch_tile::<FAR>(w);
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
