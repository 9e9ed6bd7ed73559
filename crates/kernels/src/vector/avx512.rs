//! One `__m512` as sixteen lanes.

use std::arch::x86_64::*;

use super::avx2::{max_of_8, sum_of_8};
use super::{Arith, Vector};
use crate::isa::Avx512;
use crate::numerics::LANES;

/// One intrinsic. Every method takes `self`, the proof that AVX-512 F, BW, DQ and VL exist.
macro_rules! proved {
    ($op:expr) => {
        // SAFETY: the intrinsics only need AVX-512 F, BW, DQ or VL, whose presence the token `self` proves.
        unsafe { $op }
    };
}

/// The bits of the lanes.
macro_rules! int {
    ($x:expr) => {
        _mm512_castps_si512($x)
    };
}

impl Arith for Avx512 {
    type F = __m512;
    type Mask = __mmask16;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        proved!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        proved!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        proved!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        proved!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        proved!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        proved!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        proved!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        proved!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn lt(self, a: __m512, b: __m512) -> __mmask16 {
        proved!(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b))
    }
    #[inline(always)]
    fn le(self, a: __m512, b: __m512) -> __mmask16 {
        proved!(_mm512_cmp_ps_mask::<_CMP_LE_OQ>(a, b))
    }
    #[inline(always)]
    fn select(self, mask: __mmask16, a: __m512, b: __m512) -> __m512 {
        proved!(_mm512_mask_blend_ps(mask, b, a))
    }
    #[inline(always)]
    fn and(self, a: __m512, b: __m512) -> __m512 {
        proved!(_mm512_and_ps(a, b))
    }
    #[inline(always)]
    fn or(self, a: __m512, b: __m512) -> __m512 {
        proved!(_mm512_or_ps(a, b))
    }
    #[inline(always)]
    fn xor(self, a: __m512, b: __m512) -> __m512 {
        proved!(_mm512_xor_ps(a, b))
    }
    #[inline(always)]
    fn add_bits(self, a: __m512, b: __m512) -> __m512 {
        proved!(_mm512_castsi512_ps(_mm512_add_epi32(int!(a), int!(b))))
    }
    #[inline(always)]
    fn sub_bits(self, a: __m512, b: __m512) -> __m512 {
        proved!(_mm512_castsi512_ps(_mm512_sub_epi32(int!(a), int!(b))))
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: __m512) -> __m512 {
        proved!(_mm512_castsi512_ps(_mm512_slli_epi32::<N>(int!(a))))
    }
    #[inline(always)]
    fn shr<const N: u32>(self, a: __m512) -> __m512 {
        proved!(_mm512_castsi512_ps(_mm512_srli_epi32::<N>(int!(a))))
    }
    #[inline(always)]
    fn mul_wide(self, a: __m512, b: __m512) -> (__m512, __m512) {
        /// Lanes 1, 3, ..
        const ODD: __mmask16 = 0b1010_1010_1010_1010;
        proved!({
            let (a, b) = (int!(a), int!(b));
            let even = _mm512_mul_epu32(a, b);
            let odd = _mm512_mul_epu32(_mm512_srli_epi64::<32>(a), _mm512_srli_epi64::<32>(b));
            let low = _mm512_mask_blend_epi32(ODD, even, _mm512_slli_epi64::<32>(odd));
            let high = _mm512_mask_blend_epi32(ODD, _mm512_srli_epi64::<32>(even), odd);
            (_mm512_castsi512_ps(low), _mm512_castsi512_ps(high))
        })
    }
    #[inline(always)]
    fn i32_to_f32(self, a: __m512) -> __m512 {
        proved!(_mm512_cvtepi32_ps(int!(a)))
    }
}

/// A mask of the lanes below `n`.
#[inline(always)]
fn first(n: usize) -> __mmask16 {
    ((1u32 << n.min(LANES)) - 1) as __mmask16
}

impl Vector for Avx512 {
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m512 {
        // SAFETY: the array holds sixteen values; AVX-512F is proved by the token.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, x: __m512, out: &mut [f32; LANES]) {
        // SAFETY: the array holds sixteen values; AVX-512F is proved by the token.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), x) }
    }
    #[inline(always)]
    fn load_first(self, x: &[f32]) -> __m512 {
        // SAFETY: the mask selects lanes below `x.len()` only, and a masked load touches no other memory; AVX-512F is
        // proved by the token.
        unsafe { _mm512_maskz_loadu_ps(first(x.len()), x.as_ptr()) }
    }
    #[inline(always)]
    fn store_first(self, x: __m512, out: &mut [f32]) {
        // SAFETY: the mask selects lanes below `out.len()` only, and a masked store touches no other memory; AVX-512F
        // is proved by the token.
        unsafe { _mm512_mask_storeu_ps(out.as_mut_ptr(), first(out.len()), x) }
    }
    #[inline(always)]
    fn lanes(self, start: usize, end: usize) -> __mmask16 {
        first(end) & !first(start)
    }
    #[inline(always)]
    fn any(self, mask: __mmask16) -> bool {
        mask != 0
    }
    #[inline(always)]
    fn transpose4(self, [a, b, c, d]: [__m512; 4]) -> [__m512; 4] {
        proved!({
            let (ab_low, ab_high) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let (cd_low, cd_high) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            [
                _mm512_shuffle_ps::<0x44>(ab_low, cd_low),
                _mm512_shuffle_ps::<0xEE>(ab_low, cd_low),
                _mm512_shuffle_ps::<0x44>(ab_high, cd_high),
                _mm512_shuffle_ps::<0xEE>(ab_high, cd_high),
            ]
        })
    }
    #[inline(always)]
    fn sum(self, x: __m512) -> f32 {
        proved!(sum_of_8(_mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x))))
    }
    #[inline(always)]
    fn max_lane(self, x: __m512) -> f32 {
        proved!(max_of_8(_mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x))))
    }

    const ROWS: usize = 4;
    #[inline(always)]
    fn fma_z(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        self.fma(a, b, c)
    }
    #[inline(always)]
    fn add_z(self, a: __m512, b: __m512) -> __m512 {
        self.add(a, b)
    }
    #[inline(always)]
    fn bf16_pairs(self, pairs: &[u16; 2 * LANES]) -> (__m512, __m512) {
        // SAFETY: the array holds 64 bytes; AVX-512F is proved by the token.
        let both = unsafe { _mm512_loadu_ps(pairs.as_ptr().cast()) };
        (self.shl::<16>(both), self.and(both, self.splat_bits(0xFFFF_0000)))
    }
    #[inline(always)]
    fn prefetch<T>(self, line: *const T) {
        // SAFETY: a prefetch is a hint that never faults; SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
    }
}

impl Avx512 {
    /// Stores values that are exact in bf16 as bf16.
    #[inline(always)]
    pub(crate) fn store_bf16(self, x: __m512, out: &mut [u16; LANES]) {
        // SAFETY: the array holds 32 bytes; AVX-512 F is proved by the token.
        unsafe {
            let halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(int!(x)));
            _mm256_storeu_si256(out.as_mut_ptr().cast(), halves);
        }
    }
    /// As [`Avx512::store_bf16`], of each four values (2, 0, 3, 1).
    #[inline(always)]
    pub(crate) fn store_bf16_paired(self, x: __m512, out: &mut [u16; LANES]) {
        // SAFETY: the array holds 32 bytes; AVX-512 F and AVX2 are proved by the token.
        unsafe {
            let halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(int!(x)));
            // Bytes of the elements 2, 0, 3, 1 of each eight bytes.
            let places = _mm256_broadcastsi128_si256(_mm_setr_epi8(
                4, 5, 0, 1, 6, 7, 2, 3, 12, 13, 8, 9, 14, 15, 10, 11,
            ));
            _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm256_shuffle_epi8(halves, places));
        }
    }
    /// Twice [`Avx512::store_bf16`] in fewer steps.
    #[inline(always)]
    pub(crate) fn store_bf16_pair(self, a: __m512, b: __m512, out: &mut [u16; 2 * LANES]) {
        const UPPER: [u16; 2 * LANES] = {
            let mut places = [0; 2 * LANES];
            let mut i = 0;
            while i < 2 * LANES {
                places[i] = 2 * i as u16 + 1;
                i += 1;
            }
            places
        };
        // SAFETY: both arrays hold 64 bytes; AVX-512 BW is proved by the token.
        unsafe {
            let places = _mm512_loadu_si512(UPPER.as_ptr().cast());
            _mm512_storeu_si512(out.as_mut_ptr().cast(), _mm512_permutex2var_epi16(int!(a), places, int!(b)));
        }
    }
}
