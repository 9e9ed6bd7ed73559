//! The running result of a tile of rows: what splits and spans fold into.

use crate::math::exp_of_negative;
use crate::numerics::{LANES, PANEL};
use crate::vector::{Arith, Single, Vector};

/// Rows of a tile: up to 16 (row, query head) pairs of one K/V head.
pub(super) const TILE_ROWS: usize = 16;

/// Largest score and sum of probabilities of each row over some keys.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub(super) m: [f32; TILE_ROWS],
    /// At least 1, or NaN, where a key was seen; 0 where none was.
    pub(super) l: [f32; TILE_ROWS],
}

/// Largest score, sum of probabilities, and their product with V (not divided) of up to 16 rows over some keys.
#[derive(Debug)]
pub(super) struct Part<'a> {
    /// As in [`Sums`].
    m: &'a mut [f32; TILE_ROWS],
    /// As in [`Sums`].
    pub(super) l: &'a mut [f32; TILE_ROWS],
    /// `[d panel][row][32]`.
    pub(super) o: &'a mut [f32],
}

impl<'a> Part<'a> {
    /// Elements of memory for a part of full size.
    pub(super) fn len(d_tiles: usize) -> usize {
        TILE_ROWS * (2 + d_tiles * PANEL)
    }

    /// A part in memory of [`Part::len`] elements, with what it holds.
    pub(super) fn of(memory: &'a mut [f32], d_tiles: usize, rows: usize) -> Part<'a> {
        let (m, rest) = memory.split_first_chunk_mut().expect("memory for a part");
        let (l, rest) = rest.split_first_chunk_mut().expect("memory for a part");
        Part { m, l, o: &mut rest[..d_tiles * rows * PANEL] }
    }

    /// Makes it the part over no keys.
    pub(super) fn clear(&mut self) {
        self.l.fill(0.0);
    }

    /// Folds the part over the keys that follow into this one, for each of `rows` rows.
    #[inline(always)]
    pub(super) fn fold<V: Vector>(&mut self, v: V, rows: usize, next: &Part<'_>) {
        let factors = self.fold_sums(rows, next.m, next.l);
        self.fold_values::<V, false>(v, rows, &factors, next.o);
    }

    /// [`Part::fold`] of a single split, whose values come as the product left them.
    #[inline(always)]
    pub(super) fn fold_split<V: Vector>(&mut self, v: V, rows: usize, sums: &Sums, o: &[f32]) {
        let factors = self.fold_sums(rows, &sums.m, &sums.l);
        self.fold_values::<V, true>(v, rows, &factors, o);
    }

    /// Joins m and l, and says what the values of each row are multiplied with.
    #[inline(always)]
    fn fold_sums(&mut self, rows: usize, m: &[f32; TILE_ROWS], l: &[f32; TILE_ROWS]) -> [Fold; TILE_ROWS] {
        let mut factors = [Fold::Keep; TILE_ROWS];
        for r in 0..rows {
            if l[r] == 0.0 {
                continue;
            }
            if self.l[r] == 0.0 {
                (self.m[r], self.l[r], factors[r]) = (m[r], l[r], Fold::Take);
                continue;
            }
            let largest = Single.max(self.m[r], m[r]);
            let (a, b) =
                (exp_of_negative(Single, self.m[r] - largest), exp_of_negative(Single, m[r] - largest));
            self.l[r] = Single.fma(self.l[r], a, l[r] * b);
            (self.m[r], factors[r]) = (largest, Fold::Join(a, b));
        }
        factors
    }

    /// `SPLIT`: what comes next is a split, as the product left it. Adding 0 to it makes a tile of zeros that was skipped
    /// the same as one that was computed.
    #[inline(always)]
    fn fold_values<V: Vector, const SPLIT: bool>(
        &mut self,
        v: V,
        rows: usize,
        factors: &[Fold; TILE_ROWS],
        next: &[f32],
    ) {
        let panels = self.o.chunks_exact_mut(rows * PANEL).zip(next.chunks_exact(rows * PANEL));
        for (ours, next) in panels {
            let rows = ours.chunks_exact_mut(PANEL).zip(next.chunks_exact(PANEL));
            for ((ours, next), factors) in rows.zip(factors) {
                let lanes = ours.as_chunks_mut::<LANES>().0.iter_mut().zip(next.as_chunks::<LANES>().0);
                for (a, b) in lanes {
                    let b = if SPLIT { v.add(v.load(b), v.splat(0.0)) } else { v.load(b) };
                    match *factors {
                        Fold::Keep => {}
                        Fold::Take => v.store(b, a),
                        Fold::Join(fa, fb) => {
                            v.store(v.fma(v.load(a), v.splat(fa), v.mul(b, v.splat(fb))), a);
                        }
                    }
                }
            }
        }
    }
}

/// How the values of a row join.
#[derive(Clone, Copy)]
enum Fold {
    /// The row saw none of the following keys.
    Keep,
    /// The row saw none before.
    Take,
    /// `ours * .0 + next * .1`.
    Join(f32, f32),
}
