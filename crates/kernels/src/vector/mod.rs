//! Sixteen f32 lanes, with one set of IEEE operations at every level.
//!
//! Kernels are written once over [`Vector`] and compiled for each level by `per_level!`. A value of a level's token
//! ([`Scalar`], [`Avx2`], [`Avx512`]) is the proof that the processor has its instructions, so the methods are safe.
//! Sixteen *logical* lanes everywhere (an array, two `__m256`, one `__m512`) make equal bits a matter of writing the
//! algorithm once: no reduction ever depends on the width of a register.
//!
//! [`Arith`] is the part that also makes sense for a single number; `f32` code over [`Single`] is the plain form of each
//! elementary function.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;

use crate::numerics::LANES;
pub(crate) use scalar::{Scalar, Single};

/// IEEE arithmetic and bit operations on one or more f32. A comparison with NaN is false.
pub(crate) trait Arith: Copy {
    /// The value or values.
    type F: Copy;
    /// One truth value per lane.
    type Mask: Copy;

    fn splat(self, x: f32) -> Self::F;
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `if a > b { a } else { b }`, as `maxps`.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `if a < b { a } else { b }`, as `minps`.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    fn lt(self, a: Self::F, b: Self::F) -> Self::Mask;
    fn le(self, a: Self::F, b: Self::F) -> Self::Mask;
    /// `if mask { a } else { b }`.
    fn select(self, mask: Self::Mask, a: Self::F, b: Self::F) -> Self::F;

    // The rest works on the 32 bits of each value.
    fn and(self, a: Self::F, b: Self::F) -> Self::F;
    fn or(self, a: Self::F, b: Self::F) -> Self::F;
    fn xor(self, a: Self::F, b: Self::F) -> Self::F;
    fn add_bits(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub_bits(self, a: Self::F, b: Self::F) -> Self::F;
    fn shl<const N: u32>(self, a: Self::F) -> Self::F;
    /// Shifts in zeros.
    fn shr<const N: u32>(self, a: Self::F) -> Self::F;
    /// Low and high half of the 64-bit product of unsigned integers.
    fn mul_wide(self, a: Self::F, b: Self::F) -> (Self::F, Self::F);
    /// The bits as a signed integer, converted to f32.
    fn i32_to_f32(self, a: Self::F) -> Self::F;

    #[inline(always)]
    fn splat_bits(self, bits: u32) -> Self::F {
        self.splat(f32::from_bits(bits))
    }
    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        self.and(a, self.splat_bits(0x7FFF_FFFF))
    }
    /// The magnitude of `a` with the sign of `b`.
    #[inline(always)]
    fn with_sign_of(self, a: Self::F, b: Self::F) -> Self::F {
        self.or(self.abs(a), self.and(b, self.splat_bits(0x8000_0000)))
    }
    /// To bf16 and back, as [`crate::numerics::round_bf16`].
    #[inline(always)]
    fn round_bf16(self, x: Self::F) -> Self::F {
        let y = self.round_probability(x);
        let tiny = self.lt(self.abs(y), self.splat(f32::MIN_POSITIVE));
        let y = self.select(tiny, self.and(x, self.splat_bits(0x8000_0000)), y);
        self.select(self.le(x, x), y, self.splat_bits(0x7FC0_0000))
    }
    /// [`Arith::round_bf16`] where it takes no care: of zeros and normal numbers, and of NaN as the processor makes it.
    #[inline(always)]
    fn round_probability(self, x: Self::F) -> Self::F {
        let odd = self.and(self.shr::<16>(x), self.splat_bits(1));
        let y = self.add_bits(x, self.add_bits(odd, self.splat_bits(0x7FFF)));
        self.and(y, self.splat_bits(0xFFFF_0000))
    }
    #[inline(always)]
    fn neg(self, a: Self::F) -> Self::F {
        self.add_bits(a, self.splat_bits(0x8000_0000))
    }
}

/// [`LANES`] values, with what moves them between memory and lanes.
pub(crate) trait Vector: Arith {
    fn load(self, x: &[f32; LANES]) -> Self::F;
    fn store(self, x: Self::F, out: &mut [f32; LANES]);
    /// Lanes `0 .. x.len()` from memory, +0 in the others. `x` is shorter than [`LANES`].
    fn load_first(self, x: &[f32]) -> Self::F;
    /// Writes lanes `0 .. out.len()`. `out` is shorter than [`LANES`].
    fn store_first(self, x: Self::F, out: &mut [f32]);
    /// True for lanes `start .. end`; both may lie outside the lanes.
    fn lanes(self, start: usize, end: usize) -> Self::Mask;
    fn any(self, mask: Self::Mask) -> bool;
    /// Transposes the 4 x 4 values that four vectors hold at each four lanes: lane `4 q + r` of result `c` is lane `4 q + c`
    /// of `x[r]`.
    fn transpose4(self, x: [Self::F; 4]) -> [Self::F; 4];
    /// The contract's tree: `t[i] += t[i + w]` for w = 8, 4, 2, 1.
    fn sum(self, x: Self::F) -> f32;
    /// The same tree with [`Arith::max`].
    fn max_lane(self, x: Self::F) -> f32;

    // What products need (`numerics`, "Products").

    /// Rows that a product takes together: as many as the registers hold.
    const ROWS: usize;
    /// A step of a product. Vectors leave the flushing of subnormals to the processor: to be called under
    /// [`crate::isa::with_flush`] only.
    fn fma_z(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// An addition of a product, as [`Vector::fma_z`].
    fn add_z(self, a: Self::F, b: Self::F) -> Self::F;
    /// Sixteen pairs of bf16: the first of each pair, and the second, widened.
    fn bf16_pairs(self, pairs: &[u16; 2 * LANES]) -> (Self::F, Self::F);
    /// Asks for a cache line, which need not exist.
    fn prefetch<T>(self, line: *const T);
}

/// Declares a function that runs a generic body, compiled for the level that its first argument proves.
///
/// `fn name(isa, a: A, ..) -> R = body;` where `body` is `#[inline(always)] fn body<V: Vector>(v: V, a: A, ..) -> R`.
macro_rules! per_level {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident;) => {
        $(#[$meta])*
        $vis fn $name(isa: $crate::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2(v: $crate::isa::Avx2, $($arg: $ty),*) $(-> $ret)? {
                    $body(v, $($arg),*)
                }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
                fn avx512(v: $crate::isa::Avx512, $($arg: $ty),*) $(-> $ret)? {
                    $body(v, $($arg),*)
                }
                if let Some(v) = isa.avx512() {
                    // SAFETY: the token proves AVX-512 F, BW, DQ and VL, and with them AVX2 and FMA.
                    return unsafe { avx512(v, $($arg),*) };
                }
                if let Some(v) = isa.avx2() {
                    // SAFETY: the token proves AVX2 and FMA.
                    return unsafe { avx2(v, $($arg),*) };
                }
            }
            let _ = isa;
            $body($crate::vector::Scalar, $($arg),*)
        }
    };
}
pub(crate) use per_level;
