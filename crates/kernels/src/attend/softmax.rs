//! From the scores of a tile of rows to its probabilities.

use super::kernel::{Kernel, RowTile};
use super::layout::Element;
use super::part::{Sums, TILE_ROWS};
use crate::math::exp_of_negative;
use crate::numerics::{K_TILE, LANES, PANEL};
use crate::vector::{Arith, Vector};

/// The keys that a row sees, from `.0` to before `.1`.
type Keys = (usize, usize);

/// Probabilities of each row relative to its largest score, and the sums of the unrounded ones. A row that sees no key has
/// probabilities and sum 0. Panel by panel, so that scores and probabilities are passed through in order.
#[inline(always)]
pub(super) fn softmax<K: Kernel>(
    kernel: &K,
    tile: &mut RowTile<'_, K::X>,
    keys: &[Keys; TILE_ROWS],
    scale: f32,
) -> Sums {
    let v = kernel.vector();
    let rows = tile.rows;
    let keys = &keys[..rows];
    // Where every row sees every key of a panel, no lane has to be left out.
    let all = keys.iter().fold((0, usize::MAX), |all, row| (all.0.max(row.0), all.1.min(row.1)));
    let scale = v.splat(scale);

    let mut m = [v.splat(f32::NEG_INFINITY); TILE_ROWS];
    for (panel, s) in tile.s.chunks_exact(rows * PANEL).enumerate() {
        let at = panel * PANEL;
        if sees_whole(all, at) {
            for (m, s) in m.iter_mut().zip(s.as_chunks::<PANEL>().0) {
                for x in s.as_chunks().0 {
                    *m = v.max(v.mul(v.load(x), scale), *m);
                }
            }
            continue;
        }
        for ((m, s), keys) in m.iter_mut().zip(s.as_chunks::<PANEL>().0).zip(keys) {
            for (half, x) in s.as_chunks().0.iter().enumerate() {
                let x = v.mul(v.load(x), scale);
                *m = v.max(v.select(lanes(v, *keys, at + half * LANES), x, v.splat(f32::NEG_INFINITY)), *m);
            }
        }
    }
    let mut sums = Sums::default();
    for (m, largest) in m.iter().zip(&mut sums.m[..rows]) {
        *largest = v.max_lane(*m);
    }

    let mut l = [v.splat(0.0); TILE_ROWS];
    let panels = tile.s.chunks_exact(rows * PANEL).zip(tile.p.chunks_exact_mut(rows * K_TILE));
    for (panel, (s, p)) in panels.enumerate() {
        let at = panel * PANEL;
        let in_rows = s.as_chunks::<PANEL>().0.iter().zip(p.as_chunks_mut::<K_TILE>().0);
        if sees_whole(all, at) {
            for (((s, p), l), m) in in_rows.zip(&mut l).zip(&sums.m) {
                let m = v.splat(*m);
                let [a, b] = halves(s);
                let a = exp_of_negative(v, v.sub(v.mul(v.load(a), scale), m));
                let b = exp_of_negative(v, v.sub(v.mul(v.load(b), scale), m));
                *l = v.add(v.add(*l, a), b);
                kernel.store_panel(K::E::round_probability(v, a), K::E::round_probability(v, b), p);
            }
            continue;
        }
        for ((((s, p), l), m), keys) in in_rows.zip(&mut l).zip(&sums.m).zip(keys) {
            let m = v.splat(*m);
            let [a, b] = halves(s);
            let a = exp_of_negative(v, v.sub(v.mul(v.load(a), scale), m));
            let b = exp_of_negative(v, v.sub(v.mul(v.load(b), scale), m));
            let a = v.select(lanes(v, *keys, at), a, v.splat(0.0));
            let b = v.select(lanes(v, *keys, at + LANES), b, v.splat(0.0));
            *l = v.add(v.add(*l, a), b);
            kernel.store_panel(K::E::round_probability(v, a), K::E::round_probability(v, b), p);
        }
    }
    for (l, sum) in l.iter().zip(&mut sums.l[..rows]) {
        *sum = v.sum(*l);
    }
    sums
}

/// Whether all keys of the panel at `at` are among `keys`.
#[inline(always)]
fn sees_whole(keys: Keys, at: usize) -> bool {
    keys.0 <= at && at + PANEL <= keys.1
}

/// Which of the 16 keys from `at` on are among `keys`.
#[inline(always)]
fn lanes<V: Vector>(v: V, keys: Keys, at: usize) -> V::Mask {
    v.lanes(keys.0.saturating_sub(at), keys.1.saturating_sub(at))
}

#[inline(always)]
fn halves(row: &[f32; PANEL]) -> &[[f32; LANES]; 2] {
    row.as_chunks().0.first_chunk().expect("a panel is two vectors")
}
