//! Two `__m256` as sixteen lanes.

use std::arch::x86_64::*;

use super::{Arith, Vector};
use crate::isa::Avx2;
use crate::numerics::LANES;

/// Lanes 0..8 and 8..16.
type Pair = (__m256, __m256);

/// One intrinsic on both halves. Every method takes `self`, the proof that AVX2 and FMA exist.
macro_rules! halves {
    ($op:ident($($x:ident),+)) => {
        // SAFETY: the intrinsic only needs AVX2 or FMA, whose presence the token `self` proves.
        unsafe { ($op($($x.0),+), $op($($x.1),+)) }
    };
}

/// One integer intrinsic on the bits of both halves.
macro_rules! int_halves {
    ($op:ident($($x:ident),+)) => {
        // SAFETY: the intrinsics only need AVX2, whose presence the token `self` proves.
        unsafe {
            (
                _mm256_castsi256_ps($op($(_mm256_castps_si256($x.0)),+)),
                _mm256_castsi256_ps($op($(_mm256_castps_si256($x.1)),+)),
            )
        }
    };
}

impl Arith for Avx2 {
    type F = Pair;
    type Mask = Pair;

    #[inline(always)]
    fn splat(self, x: f32) -> Pair {
        // SAFETY: needs AVX, which the token proves.
        let v = unsafe { _mm256_set1_ps(x) };
        (v, v)
    }
    #[inline(always)]
    fn add(self, a: Pair, b: Pair) -> Pair {
        halves!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Pair, b: Pair) -> Pair {
        halves!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Pair, b: Pair) -> Pair {
        halves!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: Pair, b: Pair) -> Pair {
        halves!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Pair, b: Pair, c: Pair) -> Pair {
        halves!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: Pair, b: Pair) -> Pair {
        halves!(_mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: Pair, b: Pair) -> Pair {
        halves!(_mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn lt(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: needs AVX, which the token proves.
        unsafe { (_mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0), _mm256_cmp_ps::<_CMP_LT_OQ>(a.1, b.1)) }
    }
    #[inline(always)]
    fn le(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: needs AVX, which the token proves.
        unsafe { (_mm256_cmp_ps::<_CMP_LE_OQ>(a.0, b.0), _mm256_cmp_ps::<_CMP_LE_OQ>(a.1, b.1)) }
    }
    #[inline(always)]
    fn select(self, mask: Pair, a: Pair, b: Pair) -> Pair {
        halves!(_mm256_blendv_ps(b, a, mask))
    }
    #[inline(always)]
    fn and(self, a: Pair, b: Pair) -> Pair {
        halves!(_mm256_and_ps(a, b))
    }
    #[inline(always)]
    fn or(self, a: Pair, b: Pair) -> Pair {
        halves!(_mm256_or_ps(a, b))
    }
    #[inline(always)]
    fn xor(self, a: Pair, b: Pair) -> Pair {
        halves!(_mm256_xor_ps(a, b))
    }
    #[inline(always)]
    fn add_bits(self, a: Pair, b: Pair) -> Pair {
        int_halves!(_mm256_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub_bits(self, a: Pair, b: Pair) -> Pair {
        int_halves!(_mm256_sub_epi32(a, b))
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: Pair) -> Pair {
        // SAFETY: needs AVX2, which the token proves.
        unsafe {
            let n = _mm_cvtsi32_si128(N.cast_signed());
            (
                _mm256_castsi256_ps(_mm256_sll_epi32(_mm256_castps_si256(a.0), n)),
                _mm256_castsi256_ps(_mm256_sll_epi32(_mm256_castps_si256(a.1), n)),
            )
        }
    }
    #[inline(always)]
    fn shr<const N: u32>(self, a: Pair) -> Pair {
        // SAFETY: needs AVX2, which the token proves.
        unsafe {
            let n = _mm_cvtsi32_si128(N.cast_signed());
            (
                _mm256_castsi256_ps(_mm256_srl_epi32(_mm256_castps_si256(a.0), n)),
                _mm256_castsi256_ps(_mm256_srl_epi32(_mm256_castps_si256(a.1), n)),
            )
        }
    }
    #[inline(always)]
    fn mul_wide(self, a: Pair, b: Pair) -> (Pair, Pair) {
        let (x, y) = (wide_products(self, a.0, b.0), wide_products(self, a.1, b.1));
        ((x.0, y.0), (x.1, y.1))
    }
    #[inline(always)]
    fn i32_to_f32(self, a: Pair) -> Pair {
        // SAFETY: needs AVX, which the token proves.
        unsafe {
            (_mm256_cvtepi32_ps(_mm256_castps_si256(a.0)), _mm256_cvtepi32_ps(_mm256_castps_si256(a.1)))
        }
    }
}

/// A mask of `n` set lanes starts at `8 - n`: all bits set, then clear.
static FIRST: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// True for lanes `0 .. n` of eight.
#[inline(always)]
fn first(_: Avx2, n: usize) -> __m256i {
    let from = 8 - n.min(8);
    // SAFETY: `from` is at most 8, so eight of the sixteen values of `FIRST` follow it; AVX is proved by the token.
    unsafe { _mm256_loadu_si256(FIRST.as_ptr().add(from).cast()) }
}

/// True for lanes `start .. end` of eight.
#[inline(always)]
fn between(token: Avx2, start: usize, end: usize) -> __m256 {
    // SAFETY: needs AVX2, which the token proves.
    unsafe { _mm256_castsi256_ps(_mm256_andnot_si256(first(token, start), first(token, end))) }
}

/// [`Arith::mul_wide`] of eight lanes.
#[inline(always)]
fn wide_products(_: Avx2, a: __m256, b: __m256) -> (__m256, __m256) {
    // SAFETY: needs AVX2, which the token proves.
    unsafe {
        let (a, b) = (_mm256_castps_si256(a), _mm256_castps_si256(b));
        // Products of lanes 0, 2, .. and of lanes 1, 3, ..
        let even = _mm256_mul_epu32(a, b);
        let odd = _mm256_mul_epu32(_mm256_srli_epi64::<32>(a), _mm256_srli_epi64::<32>(b));
        let low = _mm256_blend_epi32::<0b1010_1010>(even, _mm256_slli_epi64::<32>(odd));
        let high = _mm256_blend_epi32::<0b1010_1010>(_mm256_srli_epi64::<32>(even), odd);
        (_mm256_castsi256_ps(low), _mm256_castsi256_ps(high))
    }
}

/// [`Vector::transpose4`] of eight lanes.
#[inline(always)]
fn transpose4(_: Avx2, a: __m256, b: __m256, c: __m256, d: __m256) -> [__m256; 4] {
    // SAFETY: needs AVX, which the token proves.
    unsafe {
        let (ab_low, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        let (cd_low, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
        [
            _mm256_shuffle_ps::<0x44>(ab_low, cd_low),
            _mm256_shuffle_ps::<0xEE>(ab_low, cd_low),
            _mm256_shuffle_ps::<0x44>(ab_high, cd_high),
            _mm256_shuffle_ps::<0xEE>(ab_high, cd_high),
        ]
    }
}

impl Vector for Avx2 {
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Pair {
        // SAFETY: the array holds sixteen values; AVX is proved by the token.
        unsafe { (_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))) }
    }
    #[inline(always)]
    fn store(self, x: Pair, out: &mut [f32; LANES]) {
        // SAFETY: the array holds sixteen values; AVX is proved by the token.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), x.0);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), x.1);
        }
    }
    #[inline(always)]
    fn load_first(self, x: &[f32]) -> Pair {
        let (p, n) = (x.as_ptr(), x.len());
        // SAFETY: the masks select lanes below `x.len()` only, and masked loads touch no other memory. The address of
        // the second half is only formed (wrapping), not read, when its mask is empty. AVX is proved by the token.
        unsafe {
            (
                _mm256_maskload_ps(p, first(self, n)),
                _mm256_maskload_ps(p.wrapping_add(8), first(self, n.saturating_sub(8))),
            )
        }
    }
    #[inline(always)]
    fn store_first(self, x: Pair, out: &mut [f32]) {
        let (p, n) = (out.as_mut_ptr(), out.len());
        // SAFETY: as in `load_first`, for masked stores.
        unsafe {
            _mm256_maskstore_ps(p, first(self, n), x.0);
            _mm256_maskstore_ps(p.wrapping_add(8), first(self, n.saturating_sub(8)), x.1);
        }
    }
    #[inline(always)]
    fn lanes(self, start: usize, end: usize) -> Pair {
        (between(self, start, end), between(self, start.saturating_sub(8), end.saturating_sub(8)))
    }
    #[inline(always)]
    fn any(self, mask: Pair) -> bool {
        // SAFETY: needs AVX, which the token proves.
        unsafe { _mm256_movemask_ps(_mm256_or_ps(mask.0, mask.1)) != 0 }
    }
    #[inline(always)]
    fn transpose4(self, [a, b, c, d]: [Pair; 4]) -> [Pair; 4] {
        let (x, y) = (transpose4(self, a.0, b.0, c.0, d.0), transpose4(self, a.1, b.1, c.1, d.1));
        [(x[0], y[0]), (x[1], y[1]), (x[2], y[2]), (x[3], y[3])]
    }
    #[inline(always)]
    fn sum(self, x: Pair) -> f32 {
        // SAFETY: needs AVX, which the token proves.
        unsafe { sum_of_8(_mm256_add_ps(x.0, x.1)) }
    }
    #[inline(always)]
    fn max_lane(self, x: Pair) -> f32 {
        // SAFETY: needs AVX, which the token proves.
        unsafe { max_of_8(_mm256_max_ps(x.0, x.1)) }
    }

    const ROWS: usize = 2;
    #[inline(always)]
    fn fma_z(self, a: Pair, b: Pair, c: Pair) -> Pair {
        self.fma(a, b, c)
    }
    #[inline(always)]
    fn add_z(self, a: Pair, b: Pair) -> Pair {
        self.add(a, b)
    }
    #[inline(always)]
    fn bf16_pairs(self, pairs: &[u16; 2 * LANES]) -> (Pair, Pair) {
        // SAFETY: the array holds 64 bytes; AVX is proved by the token.
        let both = unsafe {
            (_mm256_loadu_ps(pairs.as_ptr().cast()), _mm256_loadu_ps(pairs.as_ptr().add(LANES).cast()))
        };
        (self.shl::<16>(both), self.and(both, self.splat_bits(0xFFFF_0000)))
    }
    #[inline(always)]
    fn prefetch<T>(self, line: *const T) {
        // SAFETY: a prefetch is a hint that never faults; SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
    }
}

/// The last three levels of [`Vector::sum`].
///
/// # Safety
/// The processor has AVX.
#[inline(always)]
pub(super) unsafe fn sum_of_8(x: __m256) -> f32 {
    // SAFETY: the caller proves AVX.
    unsafe {
        let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps::<1>(x, x)))
    }
}

/// The last three levels of [`Vector::max_lane`].
///
/// # Safety
/// The processor has AVX.
#[inline(always)]
pub(super) unsafe fn max_of_8(x: __m256) -> f32 {
    // SAFETY: the caller proves AVX.
    unsafe {
        let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps::<1>(x, x)))
    }
}
