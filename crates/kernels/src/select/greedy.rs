//! The largest logit of a tile, and of a row.

use super::{Choice, LogitRules};
use crate::act;
use crate::isa::Isa;
use crate::numerics::LANES;
use crate::vector::{Vector, per_level};

/// Result of one vocabulary tile.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TileBest {
    /// The largest logit, NaN aside; -inf where there is none.
    logit: f32,
    /// The lowest id that has it.
    token: u32,
    /// A logit of the tile is NaN.
    has_nan: bool,
}

/// Applies `rules` to the logits of a tile whose first id is `first`, and finds its best.
pub(super) fn best_of_tile(isa: Isa, logits: &mut [f32], first: usize, rules: LogitRules<'_>) -> TileBest {
    if let Some(cap) = rules.softcap {
        act::softcap(isa, cap, logits);
    }
    for &token in rules.suppressed {
        if let Some(logit) = (token as usize).checked_sub(first).and_then(|i| logits.get_mut(i)) {
            *logit = f32::NEG_INFINITY;
        }
    }
    let (logit, place, has_nan) = largest(isa, logits);
    TileBest { logit, token: (first + place) as u32, has_nan }
}

/// The best of a row from its tiles, ascending.
pub(super) fn join(tiles: &[TileBest]) -> Choice {
    let mut best = TileBest { logit: f32::NEG_INFINITY, token: 0, has_nan: false };
    for tile in tiles {
        if tile.has_nan {
            return Choice { token: 0, fault: true };
        }
        if tile.logit > best.logit {
            best = *tile;
        }
    }
    Choice { token: best.token, fault: best.logit == f32::NEG_INFINITY }
}

per_level! {
    /// The largest value, its first place, and whether there is a NaN (which is never the largest).
    fn largest(x: &[f32]) -> (f32, usize, bool) = largest_of;
}

#[inline(always)]
fn largest_of<V: Vector>(v: V, x: &[f32]) -> (f32, usize, bool) {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut best = v.splat(f32::NEG_INFINITY);
    let mut nan = v.splat(0.0);
    for chunk in chunks {
        let x = v.load(chunk);
        best = v.max(x, best);
        nan = v.select(v.le(x, x), nan, v.splat(1.0));
    }
    let in_rest = v.lanes(0, rest.len());
    let last = v.select(in_rest, v.load_first(rest), v.splat(f32::NEG_INFINITY));
    best = v.max(last, best);
    nan = v.select(v.le(last, last), nan, v.splat(1.0));

    let best = v.max_lane(best);
    let has_nan = v.any(v.lt(v.splat(0.0), nan));
    // Most chunks hold nothing as large: look closer at the first that does.
    let wanted = v.splat(best);
    let chunk = chunks.iter().position(|chunk| v.any(v.le(wanted, v.load(chunk)))).unwrap_or(chunks.len());
    let from = chunk * LANES;
    let place = x[from..].iter().position(|x| *x == best).map_or(0, |i| from + i);
    (best, place, has_nan)
}
