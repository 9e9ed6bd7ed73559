//! How a unit multiplies: FMA on rows of f32, or AMX on rows of bf16.

use std::marker::PhantomData;

use super::layout::{Element, TILE};
use super::product::{Multiply, Product};
use crate::memory::Number;
use crate::numerics::LANES;
use crate::vector::Vector;

/// The products of a level and activation type. All give the same bits.
pub(super) trait Kernel {
    /// Vectors of everything beside the products.
    type V: Vector;
    /// Type of K and V.
    type E: Element;
    /// Type of queries and probabilities.
    type X: Number;

    fn vector(&self) -> Self::V;
    /// Stores values that were rounded as [`Kernel::E`].
    fn store_rounded(&self, x: <Self::V as crate::vector::Arith>::F, to: &mut [Self::X; LANES]);
    /// `s [key panel][row][32] = q [d tile][row][32] x K`.
    fn scores(&self, k: &[&[[Self::E; TILE]]], d_tiles: usize, rows: usize, q: &[Self::X], s: &mut [f32]);
    /// `o [d panel][row][32] = p [key tile][row][32] x V`.
    fn values(&self, v: &[&[[Self::E; TILE]]], d_tiles: usize, rows: usize, p: &[Self::X], o: &mut [f32]);
}

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
    fn store_rounded(&self, x: V::F, to: &mut [f32; LANES]) {
        self.0.store(x, to);
    }
    #[inline(always)]
    fn scores(&self, k: &[&[[E; TILE]]], d_tiles: usize, rows: usize, q: &[f32], s: &mut [f32]) {
        // SAFETY: made by `Product::scores`; `q` and `s` are borrowed here.
        unsafe { self.0.scores(Product::scores(k, d_tiles, rows, q, s)) };
    }
    #[inline(always)]
    fn values(&self, v: &[&[[E; TILE]]], d_tiles: usize, rows: usize, p: &[f32], o: &mut [f32]) {
        // SAFETY: made by `Product::values`; `p` and `o` are borrowed here.
        unsafe { self.0.values(Product::values(v, d_tiles, rows, p, o)) };
    }
}
