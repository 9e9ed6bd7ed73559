//! The two products of attention on the packing of blocks, with FMA.
//!
//! Rows are up to 16 queries of one K/V head; what they read and write stands in tiles of `[rows][32]`:
//!
//! ```text
//! scores  [key panel][row][32 keys] = q [d tile][row][32 dims]  x K [key panel][d tile]
//! values  [d panel][row][32 dims]   = p [key tile][row][32 keys] x V [key tile][d panel]
//! ```

use super::kernel::RowTile;
use super::layout::{Element, LINE, TILE};
use crate::numerics::{K_TILE, LANES, PANEL};
use crate::vector::{Scalar, Vector};

/// Bytes from a line to the one that is fetched while it is used: one tile of bf16.
pub(super) const PREFETCH: usize = TILE * size_of::<u16>();

/// One product: `X` is the type of the rows.
#[derive(Clone, Copy)]
pub(super) struct Product<'a, E, X> {
    /// For each panel or tile of 32 keys, its `d_tiles` tiles.
    pub(super) keys: &'a [&'a [[E; TILE]]],
    pub(super) d_tiles: usize,
    pub(super) rows: usize,
    pub(super) x: *const X,
    pub(super) y: *mut f32,
}

impl<'a, E, X> Product<'a, E, X> {
    /// `s = q K^T` of a tile of rows. Panics unless the lengths fit one another.
    pub(super) fn scores(keys: &'a [&'a [[E; TILE]]], d_tiles: usize, tile: &mut RowTile<'_, X>) -> Self {
        let rows = tile.rows;
        assert!(tile.q.len() == d_tiles * rows * K_TILE && tile.s.len() == keys.len() * rows * PANEL);
        Self::new(keys, d_tiles, rows, tile.q, tile.s)
    }

    /// `o = p V` of a tile of rows. Panics unless the lengths fit one another.
    pub(super) fn values(keys: &'a [&'a [[E; TILE]]], d_tiles: usize, tile: &mut RowTile<'_, X>) -> Self {
        let rows = tile.rows;
        assert!(tile.p.len() == keys.len() * rows * K_TILE && tile.o.len() == d_tiles * rows * PANEL);
        Self::new(keys, d_tiles, rows, tile.p, tile.o)
    }

    fn new(keys: &'a [&'a [[E; TILE]]], d_tiles: usize, rows: usize, x: &[X], y: &mut [f32]) -> Self {
        assert!(keys.iter().all(|tiles| tiles.len() == d_tiles));
        Product { keys, d_tiles, rows, x: x.as_ptr(), y: y.as_mut_ptr() }
    }
}

/// Vectors that multiply stored K and V with rows of f32.
pub(super) trait Multiply: Vector {
    /// # Safety
    /// `product` comes from [`Product::scores`], whose slices are still borrowed.
    unsafe fn scores<E: Element>(self, product: Product<'_, E, f32>);
    /// # Safety
    /// `product` comes from [`Product::values`], whose slices are still borrowed.
    unsafe fn values<E: Element>(self, product: Product<'_, E, f32>);
}

impl Multiply for Scalar {
    unsafe fn scores<E: Element>(self, product: Product<'_, E, f32>) {
        // SAFETY: the caller's promise.
        unsafe { scores(self, product) };
    }
    unsafe fn values<E: Element>(self, product: Product<'_, E, f32>) {
        // SAFETY: the caller's promise.
        unsafe { values(self, product) };
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Element, Multiply, Product};
    use crate::isa::{Avx2, Avx512, with_flush};

    /// Implements [`Multiply`] through functions compiled for a level, called with subnormals flushed.
    macro_rules! flushed {
        ($token:ident, $features:literal) => {
            impl Multiply for $token {
                unsafe fn scores<E: Element>(self, product: Product<'_, E, f32>) {
                    /// # Safety
                    /// As [`super::scores`].
                    #[target_feature(enable = $features)]
                    #[inline(never)]
                    unsafe fn scores<E: Element>(v: $token, product: Product<'_, E, f32>) {
                        // SAFETY: the caller's promise.
                        unsafe { super::scores(v, product) };
                    }
                    // SAFETY: the token proves the features; the product is the caller's promise. The function is what
                    // `with_flush` asks for: not inlined, vector operations from memory to memory, no panic.
                    unsafe { with_flush(|| scores(self, product)) };
                }
                unsafe fn values<E: Element>(self, product: Product<'_, E, f32>) {
                    /// # Safety
                    /// As [`super::values`].
                    #[target_feature(enable = $features)]
                    #[inline(never)]
                    unsafe fn values<E: Element>(v: $token, product: Product<'_, E, f32>) {
                        // SAFETY: the caller's promise.
                        unsafe { super::values(v, product) };
                    }
                    // SAFETY: as in `scores`.
                    unsafe { with_flush(|| values(self, product)) };
                }
            }
        };
    }
    flushed!(Avx2, "avx2,fma");
    flushed!(Avx512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");
}

/// # Safety
/// As [`Multiply::scores`].
#[inline(always)]
unsafe fn scores<V: Vector, E: Element>(v: V, product: Product<'_, E, f32>) {
    for (panel, tiles) in product.keys.iter().enumerate() {
        // SAFETY: `y` holds a tile of rows for each panel of keys, `x` one for each of its `d_tiles` tiles.
        unsafe {
            output_panel(
                v,
                tiles.iter(),
                product.rows,
                product.x,
                product.y.add(panel * product.rows * PANEL),
            )
        };
    }
}

/// # Safety
/// As [`Multiply::values`].
#[inline(always)]
unsafe fn values<V: Vector, E: Element>(v: V, product: Product<'_, E, f32>) {
    for panel in 0..product.d_tiles {
        // SAFETY: each tile of keys has `d_tiles` tiles.
        let tiles = product.keys.iter().map(|tiles| unsafe { tiles.get_unchecked(panel) });
        // SAFETY: `y` holds a tile of rows for each panel of dims, `x` one for each tile of keys.
        unsafe {
            output_panel(v, tiles, product.rows, product.x, product.y.add(panel * product.rows * PANEL))
        };
    }
}

/// 32 outputs of all rows.
///
/// # Safety
/// `x` points to a tile of `[rows][32]` for each of `tiles`, `y` to one.
#[inline(always)]
unsafe fn output_panel<'a, V: Vector, E: Element>(
    v: V,
    tiles: impl Iterator<Item = &'a [E; TILE]> + Clone,
    rows: usize,
    x: *const f32,
    y: *mut f32,
) {
    let mut row = 0;
    while row < rows {
        let left = (rows - row).min(V::ROWS);
        // SAFETY: rows `row .. row + left` are there, of `x` and of `y`.
        unsafe {
            let (x, y) = (x.add(row * K_TILE), y.add(row * PANEL));
            match left {
                1 => both_halves::<V, E, 1>(v, tiles.clone(), rows, x, y),
                2 if V::ROWS == 2 => each_half::<V, E, 2>(v, tiles.clone(), rows, x, y),
                2 => both_halves::<V, E, 2>(v, tiles.clone(), rows, x, y),
                3 => both_halves::<V, E, 3>(v, tiles.clone(), rows, x, y),
                _ => both_halves::<V, E, 4>(v, tiles.clone(), rows, x, y),
            }
        }
        row += left;
    }
}

/// `R` rows, the halves of the panel together.
///
/// # Safety
/// As [`half_panels`].
#[inline(always)]
unsafe fn both_halves<'a, V: Vector, E: Element, const R: usize>(
    v: V,
    tiles: impl Iterator<Item = &'a [E; TILE]>,
    stride: usize,
    x: *const f32,
    y: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe { half_panels::<V, E, R, 2>(v, tiles, 0, stride, x, y) };
}

/// `R` rows, one half of the panel after the other, where registers are few.
///
/// # Safety
/// As [`half_panels`].
#[inline(always)]
unsafe fn each_half<'a, V: Vector, E: Element, const R: usize>(
    v: V,
    tiles: impl Iterator<Item = &'a [E; TILE]> + Clone,
    stride: usize,
    x: *const f32,
    y: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        half_panels::<V, E, R, 1>(v, tiles.clone(), 0, stride, x, y);
        half_panels::<V, E, R, 1>(v, tiles, 1, stride, x, y);
    }
}

/// `R` rows and `H` halves of 16 outputs, from half `first` on: an even and an odd chain for each.
///
/// # Safety
/// `x` points to a tile of rows of 32, of `stride` rows, for each of `tiles`, `y` to one; `R` rows are there.
#[inline(always)]
unsafe fn half_panels<'a, V: Vector, E: Element, const R: usize, const H: usize>(
    v: V,
    tiles: impl Iterator<Item = &'a [E; TILE]>,
    first: usize,
    stride: usize,
    x: *const f32,
    y: *mut f32,
) {
    let zero = v.splat(0.0);
    let mut sum = [[zero; H]; R];
    for (t, tile) in tiles.enumerate() {
        let (lines, _) = tile.as_chunks::<LINE>();
        let mut even = [[zero; H]; R];
        let mut odd = [[zero; H]; R];
        for pair in 0..K_TILE / 2 {
            for h in 0..H {
                // SAFETY: a tile has 2 halves of 16 lines.
                let line = unsafe { lines.get_unchecked((first + h) * (K_TILE / 2) + pair) };
                v.prefetch(line.as_ptr().wrapping_byte_add(PREFETCH));
                let (k_even, k_odd) = E::pairs(v, line);
                for r in 0..R {
                    // SAFETY: tile `t` of rows is there and has R rows of 32.
                    let (x_even, x_odd) = unsafe {
                        let x = x.add((t * stride + r) * K_TILE + pair * 2);
                        (*x, *x.add(1))
                    };
                    even[r][h] = v.fma_z(v.splat(x_even), k_even, even[r][h]);
                    odd[r][h] = v.fma_z(v.splat(x_odd), k_odd, odd[r][h]);
                }
            }
        }
        for r in 0..R {
            for h in 0..H {
                sum[r][h] = v.add_z(sum[r][h], v.add_z(even[r][h], odd[r][h]));
            }
        }
    }
    for (r, sum) in sum.iter().enumerate() {
        for (h, sum) in sum.iter().enumerate() {
            // SAFETY: the tile of `y` has R rows of two vectors.
            let out = unsafe { &mut *y.add(r * PANEL + (first + h) * LANES).cast::<[f32; LANES]>() };
            v.store(*sum, out);
        }
    }
}
