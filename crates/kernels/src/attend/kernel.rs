//! How a unit multiplies: FMA on rows of f32, or AMX on rows of bf16.

use std::marker::PhantomData;

use super::layout::{Element, TILE};
use super::product::{Multiply, Product};
use crate::memory::Number;
use crate::numerics::{K_TILE, LANES};
use crate::vector::{Arith, Vector};

/// A tile of rows in work, `rows` of up to 16.
#[derive(Debug)]
pub(super) struct RowTile<'a, X> {
    pub(super) rows: usize,
    /// Queries: `[d tile][row][32]`.
    pub(super) q: &'a [X],
    /// Scores: `[key panel][row][32]`.
    pub(super) s: &'a mut [f32],
    /// Probabilities: `[key tile][row][32]`.
    pub(super) p: &'a mut [X],
    /// Values: `[d panel][row][32]`.
    pub(super) o: &'a mut [f32],
}

/// Where K and V are read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Seen for the first time in a while.
    Memory,
    /// Other tiles of rows have just used them.
    Cache,
}

/// The most tiles of rows that are multiplied together.
pub(super) const TOGETHER: usize = 2;

/// The products of a level and activation type. All give the same bits.
pub(super) trait Kernel {
    /// Vectors of everything beside the products.
    type V: Vector;
    /// Type of K and V.
    type E: Element;
    /// Type of queries and probabilities.
    type X: Number;

    fn vector(&self) -> Self::V;
    /// Stores 32 values that were rounded as [`Kernel::E`].
    fn store_panel(&self, a: Lanes<Self>, b: Lanes<Self>, to: &mut [Self::X; K_TILE]);
    /// `s = q K^T` for up to [`TOGETHER`] tiles of rows; `k` has the tiles of each panel of keys.
    fn scores(
        &self,
        k: &[&[[Self::E; TILE]]],
        d_tiles: usize,
        tiles: &mut [RowTile<'_, Self::X>],
        source: Source,
    );
    /// `o = p V` for up to [`TOGETHER`] tiles of rows; `v` has the panels of each tile of keys.
    fn values(
        &self,
        v: &[&[[Self::E; TILE]]],
        d_tiles: usize,
        tiles: &mut [RowTile<'_, Self::X>],
        source: Source,
    );
}

/// Sixteen values of a kernel's vectors.
pub(super) type Lanes<K> = <<K as Kernel>::V as Arith>::F;

/// FMA at any level, for both types.
pub(super) struct Fma<V, E>(V, PhantomData<E>);

impl<V, E> Fma<V, E> {
    pub(super) fn new(v: V) -> Fma<V, E> {
        Fma(v, PhantomData)
    }
}

impl<V: Multiply, E: Element> Kernel for Fma<V, E> {
    type V = V;
    type E = E;
    type X = f32;

    #[inline(always)]
    fn vector(&self) -> V {
        self.0
    }
    #[inline(always)]
    fn store_panel(&self, a: V::F, b: V::F, to: &mut [f32; K_TILE]) {
        let (first, second) = to.split_at_mut(LANES);
        self.0.store(a, first.first_chunk_mut().expect("half a panel"));
        self.0.store(b, second.first_chunk_mut().expect("half a panel"));
    }
    #[inline(always)]
    fn scores(&self, k: &[&[[E; TILE]]], d_tiles: usize, tiles: &mut [RowTile<'_, f32>], _: Source) {
        for tile in tiles {
            // SAFETY: made by `Product::scores`; the tile is borrowed here.
            unsafe { self.0.scores(Product::scores(k, d_tiles, tile)) };
        }
    }
    #[inline(always)]
    fn values(&self, v: &[&[[E; TILE]]], d_tiles: usize, tiles: &mut [RowTile<'_, f32>], _: Source) {
        for tile in tiles {
            // SAFETY: made by `Product::values`; the tile is borrowed here.
            unsafe { self.0.values(Product::values(v, d_tiles, tile)) };
        }
    }
}
