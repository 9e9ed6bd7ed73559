//! The noise of a draw: one Gumbel value for each token id, a pure function of (seed, position, choice, id).
//!
//! ```text
//! w = Philox4x32-10(key = seed, counter = (position, id / 4, choice, 0))[id % 4]
//! v = (w + 0.5) * 2^-32, rounded down to f32          0 < v < 1
//! g = -ln(-log1p(-v))                                 -2.82 .. 22.88, finite for every w
//! ```
//! The token with the largest `z / T + g` is an exact draw from the softmax of `z / T`. Because the noise belongs to the position and
//! not to a stream, whatever else was drawn, drafted or rejected before leaves no trace in it.

use super::GROUP;
use super::philox::philox_of;
use crate::math::ln_normal_of;
use crate::numerics::LANES;
use crate::vector::{Arith, Single, Vector};

/// Names the noise of one draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noise {
    /// The request's seed.
    pub seed: u64,
    /// Absolute position of the token to be drawn.
    pub position: u32,
    /// Index among several continuations of one prompt.
    pub choice: u32,
}

/// No value of the noise is larger (that of the word 0 is 22.8738).
pub(super) const HIGHEST: f32 = 22.9;

/// Block (id / 4) of each lane relative to the group's first, such that [`Vector::transpose4`] of the four words leaves ids in
/// ascending order.
const BLOCKS: [f32; LANES] = {
    let mut blocks = [0.0; LANES];
    let mut lane = 0;
    while lane < LANES {
        blocks[lane] = f32::from_bits((lane % 4 * 4 + lane / 4) as u32);
        lane += 1;
    }
    blocks
};

impl Noise {
    /// The noise of one token.
    pub fn of(self, token: u32) -> f32 {
        let words = self.words(Single, f32::from_bits(token / 4));
        gumbel_of(Single, unit_of(Single, words[token as usize % 4]))
    }

    #[inline(always)]
    fn words<A: Arith>(self, a: A, blocks: A::F) -> [A::F; 4] {
        let counter = [a.splat_bits(self.position), blocks, a.splat_bits(self.choice), a.splat_bits(0)];
        philox_of(a, counter, [self.seed as u32, (self.seed >> 32) as u32])
    }

    /// The words of the [`GROUP`] ids from `GROUP * group` on, ascending.
    #[inline(always)]
    pub(super) fn words_of_group<V: Vector>(self, v: V, group: usize) -> [V::F; GROUP / LANES] {
        let first = v.splat_bits((group * (GROUP / 4)) as u32);
        v.transpose4(self.words(v, v.add_bits(first, v.load(&BLOCKS))))
    }

    /// The noise of any ids, given as the bits of the lanes.
    #[inline(always)]
    pub(super) fn of_ids<V: Vector>(self, v: V, ids: V::F) -> V::F {
        let words = self.words(v, v.shr::<2>(ids));
        let which = v.i32_to_f32(v.and(ids, v.splat_bits(3)));
        let low = v.select(v.lt(which, v.splat(1.0)), words[0], words[1]);
        let high = v.select(v.lt(which, v.splat(3.0)), words[2], words[3]);
        gumbel_of(v, unit_of(v, v.select(v.lt(which, v.splat(2.0)), low, high)))
    }
}

/// The noise of words.
#[inline(always)]
pub(super) fn noise_of<A: Arith>(a: A, words: A::F) -> A::F {
    gumbel_of(a, unit_of(a, words))
}

/// At least the noise of words, and (the smallest words aside) at most 0.07 more than `-ln(v)`, without a logarithm: `g <= -ln(v)`, and the bits of a float, read as a
/// number, are its base-2 logarithm with the mantissa's part replaced by a chord below it.
#[inline(always)]
pub(super) fn noise_bound<A: Arith>(a: A, words: A::F) -> A::F {
    const LN_2: f32 = std::f32::consts::LN_2;
    // Half the word, 2^31 * v less what rounding takes or gives; 0 for the smallest two, whose bound is 109.
    let half = a.i32_to_f32(a.shr::<1>(words));
    let margin = 1e-3;
    a.fma(a.i32_to_f32(half), a.splat(-LN_2 / 8_388_608.0), a.splat((127.0 + 31.0) * LN_2 + margin))
}

/// `v` of a word. An f32 holds 24 bits of `2 w + 1`, the integer that `v * 2^33` is. Where that has at most 25 bits it is converted
/// itself, else `w / 2`, which has lost no bit that counts. A conversion rounds to nearest; with the first dropped bit
/// cleared that is down: the bits of `x >> 24` begin with it.
#[inline(always)]
fn unit_of<A: Arith>(a: A, w: A::F) -> A::F {
    let small = a.lt(a.i32_to_f32(a.shr::<24>(w)), a.splat(1.0));
    let x = a.select(small, a.add_bits(a.add_bits(w, w), a.splat_bits(1)), a.shr::<1>(w));
    let x = a.sub_bits(x, a.and(x, a.shr::<24>(x)));
    let scale =
        a.select(small, a.splat(f32::from_bits((127 - 33) << 23)), a.splat(f32::from_bits((127 - 31) << 23)));
    a.mul(a.i32_to_f32(x), scale)
}

/// `-ln(-log1p(-v))` with the operations of [`crate::math::log1p`] and [`crate::math::ln`], less what only other arguments
/// need: `1 - v` is at least 2^-24, and `-log1p(-v)` at least 2^-33.
#[inline(always)]
fn gumbel_of<A: Arith>(a: A, v: A::F) -> A::F {
    let x = a.neg(v);
    let u = a.add(x, a.splat(1.0));
    let lost = a.div(a.sub(x, a.sub(u, a.splat(1.0))), u);
    let log1p = a.add(ln_normal_of(a, u), lost);
    a.neg(ln_normal_of(a, a.neg(log1p)))
}

#[cfg(test)]
mod tests {
    use super::super::philox::philox4x32;
    use super::*;
    use crate::math::{ln, log1p};
    use crate::testing::{Random, assert_same_bits, check_levels};
    use crate::vector::per_level;

    /// Words at every border of the conversion, and many others.
    fn words() -> impl Iterator<Item = u32> {
        let borders = (0..32).flat_map(|bit| (-300i64..300).map(move |d| ((1i64 << bit) + d) as u32));
        let mut random = Random::new(71);
        let others = std::iter::repeat_with(move || random.bits() as u32 >> random.below(32)).take(200_000);
        borders.chain(0..300).chain(u32::MAX - 300..=u32::MAX).chain(others)
    }

    #[test]
    fn units_are_rounded_down_and_inside() {
        for w in words() {
            let v = unit_of(Single, f32::from_bits(w));
            let exact = (f64::from(w) + 0.5) / 4_294_967_296.0;
            assert!(f64::from(v) <= exact, "{w:#x}: {v:e} is above {exact:e}");
            assert!(
                f64::from(f32::from_bits(v.to_bits() + 1)) > exact,
                "{w:#x}: {v:e} is not the last below {exact:e}"
            );
            assert!(v > 0.0 && v < 1.0);
        }
    }

    #[test]
    fn noise_is_the_formula_and_finite_for_every_word() {
        for w in words() {
            let v = unit_of(Single, f32::from_bits(w));
            let g = gumbel_of(Single, v);
            assert_eq!(g.to_bits(), (-ln(-log1p(-v))).to_bits(), "word {w:#x}");
            let truth = -(-(-f64::from(v)).ln_1p()).ln();
            let error = (f64::from(g) - truth).abs();
            assert!(
                error <= 3e-7 * truth.abs().max(1.0),
                "word {w:#x}: {g:e} is off by {error:e} from {truth:e}"
            );
            assert!(g.is_finite() && g < HIGHEST);
            let bound = noise_bound(Single, f32::from_bits(w));
            assert!(g <= bound, "word {w:#x}: {g:e} is above its bound {bound:e}");
            assert!(bound < -v.ln() + 0.07 || w < 1000, "word {w:#x}: the bound {bound:e} is loose");
        }
        let at = |w: u32| gumbel_of(Single, unit_of(Single, f32::from_bits(w)));
        assert!(
            (at(0) - 22.873_8).abs() < 1e-4 && (at(u32::MAX) + 2.811_7).abs() < 1e-3,
            "{} {}",
            at(0),
            at(u32::MAX)
        );
        // Near 0 the noise tells neighbours apart: there it decides who wins.
        assert!((1..1000).all(|w| at(w) < at(w - 1)));
    }

    #[inline(always)]
    fn fill_of<V: Vector>(v: V, noise: Noise, group: usize, out: &mut [f32]) {
        let (chunks, _) = out.as_chunks_mut::<LANES>();
        for (chunk, words) in chunks.iter_mut().zip(noise.words_of_group(v, group)) {
            v.store(noise_of(v, words), chunk);
        }
    }
    per_level! {
        fn fill(noise: Noise, group: usize, out: &mut [f32]) = fill_of;
    }
    #[inline(always)]
    fn fill_ids_of<V: Vector>(v: V, noise: Noise, ids: &[u32], out: &mut [f32]) {
        let (chunks, _) = out.as_chunks_mut::<LANES>();
        for (chunk, ids) in chunks.iter_mut().zip(ids.as_chunks::<LANES>().0) {
            v.store(noise.of_ids(v, v.load(&ids.map(f32::from_bits))), chunk);
        }
    }
    per_level! {
        fn fill_ids(noise: Noise, ids: &[u32], out: &mut [f32]) = fill_ids_of;
    }

    #[test]
    fn groups_and_lists_equal_single_tokens_at_every_level() {
        let mut random = Random::new(72);
        for _ in 0..40 {
            let noise = Noise {
                seed: random.bits(),
                position: random.bits() as u32 >> random.below(32),
                choice: random.below(5) as u32,
            };
            let group = random.below(5000);
            let ids: Vec<u32> = (0..GROUP).map(|i| (group * GROUP + i) as u32).collect();
            let expected: Vec<f32> = ids.iter().map(|id| noise.of(*id)).collect();
            check_levels(&expected, "noise of a group", |isa, out| fill(isa, noise, group, out));
            let mixed: Vec<u32> = (0..GROUP).map(|_| random.below(262_144) as u32).collect();
            let expected: Vec<f32> = mixed.iter().map(|id| noise.of(*id)).collect();
            check_levels(&expected, "noise of ids", |isa, out| fill_ids(isa, noise, &mixed, out));
        }
    }

    #[test]
    fn counter_and_key_are_as_published() {
        let noise = Noise { seed: 0x0123_4567_89AB_CDEF, position: 77, choice: 3 };
        for token in [0, 1, 2, 3, 4, 262_143] {
            let words = philox4x32([77, token / 4, 3, 0], [0x89AB_CDEF, 0x0123_4567]);
            let v = unit_of(Single, f32::from_bits(words[token as usize % 4]));
            assert_same_bits(&[noise.of(token)], &[-ln(-log1p(-v))], "noise");
        }
    }

    #[test]
    fn every_part_of_the_counter_changes_the_noise() {
        let base = Noise { seed: 1, position: 2, choice: 3 };
        let others = [
            Noise { seed: 2, ..base },
            Noise { seed: 1 | 1 << 32, ..base },
            Noise { position: 3, ..base },
            Noise { choice: 0, ..base },
        ];
        for other in others {
            assert!((0..64).filter(|token| base.of(*token) == other.of(*token)).count() < 2, "{other:?}");
        }
    }
}
