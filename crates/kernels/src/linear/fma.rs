//! The order in which the vector kernels go through a chunk.
//!
//! ```text
//! for each slice of k          inputs of a group and slice: at most 24 KB, half of an L1 cache
//!   for each group of 16 rows
//!     for each panel           one piece: a stretch of the panel's stream
//! ```
//! Inputs that stay in L1 are read again for every panel at no cost. Whole rows at once (160 KB for 4 rows of 10240) cost
//! a tenth at 4 rows and a fifth at 8.
use super::inputs::{GROUP, Tiled};
use super::packed::TILE;
use crate::numerics::{K_TILE, PANEL};

/// Bytes of the inputs of a group and slice.
const SLICE_BYTES: usize = 24 << 10;

/// Some k tiles of one panel, for the rows of one group.
#[derive(Clone, Copy)]
pub(super) struct Piece<X> {
    /// `[k tile]` of [`TILE`] elements.
    pub(super) w: *const u16,
    pub(super) k_tiles: usize,
    /// `[k tile][row][32]`.
    pub(super) x: *const X,
    pub(super) rows: usize,
    /// `[row][32]`: the sums so far, or nothing where this is the first piece.
    pub(super) c: *mut f32,
    pub(super) first: bool,
    /// The weights of the piece that comes next.
    next: *const u16,
}

impl<X> Piece<X> {
    /// Where the weights lie that are due `ahead` tiles after tile `tile`: for prefetching, perhaps in no memory.
    #[inline(always)]
    pub(super) fn tile_ahead(&self, tile: usize, ahead: usize) -> *const u16 {
        match (tile + ahead).checked_sub(self.k_tiles) {
            None => self.w.wrapping_add((tile + ahead) * TILE),
            Some(beyond) => self.next.wrapping_add(beyond * TILE),
        }
    }
}

/// Calls `run` for the pieces of panels that stand one behind the other, for every row: `c` takes `[panel][row][32 outputs]`. Each
/// piece's pointers are good for what [`Piece`] says while `run` has it.
pub(super) fn each_piece<X>(weights: &[u16], x: Tiled<'_, X>, c: &mut [f32], run: impl Fn(Piece<X>)) {
    let (rows, k_tiles) = (x.rows, x.k_tiles);
    let panels = c.len() / (rows * PANEL);
    assert_eq!(c.len(), panels * rows * PANEL);
    assert_eq!(weights.len(), panels * k_tiles * TILE);
    let slice = (SLICE_BYTES / (rows.min(GROUP) * K_TILE * size_of::<X>())).min(k_tiles);
    for first in (0..k_tiles).step_by(slice) {
        let len = slice.min(k_tiles - first);
        for (group, x) in x.groups().enumerate() {
            let in_group = x.len() / (k_tiles * K_TILE);
            let x = &x[first * in_group * K_TILE..][..len * in_group * K_TILE];
            for panel in 0..panels {
                let start = panel * k_tiles * TILE;
                let w = &weights[start + first * TILE..][..len * TILE];
                let c = &mut c[(panel * rows + group * GROUP) * PANEL..][..in_group * PANEL];
                // Behind the last panel the next slice of the first one; in the end what follows the chunk.
                let next = if panel + 1 < panels {
                    start + (k_tiles + first) * TILE
                } else if first + len < k_tiles {
                    (first + len) * TILE
                } else {
                    weights.len()
                };
                run(Piece {
                    w: w.as_ptr(),
                    k_tiles: len,
                    x: x.as_ptr(),
                    rows: in_group,
                    c: c.as_mut_ptr(),
                    first: first == 0,
                    next: weights.as_ptr().wrapping_add(next),
                });
            }
        }
    }
}
