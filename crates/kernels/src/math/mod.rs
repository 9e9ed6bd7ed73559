//! Elementary functions: one sequence of IEEE operations for all levels.
//!
//! The f32 functions are written once over `Arith`; a vector lane and the plain `f32` form are the same bits. Largest
//! errors found against a float64 oracle (the tests fail above the bound):
//!
//! | function | domain | error |
//! |---|---|---|
//! | [`exp`] | all; below [`EXP_LOWEST`] the result is +0, so that no subnormal arises | 1 ulp |
//! | [`tanh`] | all | 1.5 ulp |
//! | [`ln`] | all | 1 ulp |
//! | [`log1p`] | all; full relative precision near 0 | 2 ulp |
//! | [`sin_cos`] (f64) | up to 1e6 in magnitude | 2^-52 absolute |
//! | [`pow`] (f64) | positive base, result in the normal range | 2^-47 relative |

use crate::vector::{Arith, Single};

/// Below this [`exp`] is +0. It is the smallest argument whose result is a normal number.
pub const EXP_LOWEST: f32 = -87.336_54;
/// Above this [`exp`] is infinite. It is the largest argument whose result is finite.
pub const EXP_HIGHEST: f32 = 88.722_83;

/// 1.5 * 2^23: adding it leaves the nearest integer in the low bits of the sum.
const ROUND_F32: f32 = 12_582_912.0;
/// ln 2 in two parts; the first has nine bits, so that its product with an exponent is exact.
const LN2_HIGH: f32 = 355.0 / 512.0;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// `(e^r - 1 - r) / r^2` for |r| <= ln(2) / 2, ascending powers; 2^-29 relative.
const EXPM1: [f32; 6] = [0.5, 0.166_666_67, 0.041_666_463, 0.008_333_31, 0.001_393_373_1, 0.000_198_910_8];
/// `(ln(1 + f) - f + f^2 / 2) / f^3` for sqrt(1/2) <= 1 + f < sqrt(2), ascending powers; 2^-28 relative.
const LN_1P: [f32; 9] = [
    0.333_333_3,
    -0.249_999_97,
    0.200_007_16,
    -0.166_678_03,
    0.142_490_58,
    -0.124_256_87,
    0.116_854_2,
    -0.114_797_34,
    0.069_716_12,
];

/// Up to here [`tanh`] is a polynomial.
const TANH_BORDER: f32 = 0.625;
/// `(tanh(x) / x - 1) / x^2` in powers of x^2, ascending; 2^-27 relative.
const TANH: [f32; 6] =
    [-0.333_333_34, 0.133_333_04, -0.053_959_258, 0.021_768_918, -0.008_343_945, 0.002_292_744_8];

/// e^x. NaN stays NaN.
pub fn exp(x: f32) -> f32 {
    exp_of(Single, x)
}

/// Hyperbolic tangent. NaN stays NaN.
pub fn tanh(x: f32) -> f32 {
    tanh_of(Single, x)
}

/// Natural logarithm: -inf for zeros, NaN below.
pub fn ln(x: f32) -> f32 {
    ln_of(Single, x)
}

/// ln(1 + x) without the cancellation near 0: -inf for -1, NaN below.
pub fn log1p(x: f32) -> f32 {
    log1p_of(Single, x)
}

/// A polynomial in `x`, coefficients in ascending powers.
#[inline(always)]
fn polynomial<A: Arith, const N: usize>(a: A, x: A::F, coefficients: &[f32; N]) -> A::F {
    let mut y = a.splat(coefficients[N - 1]);
    for i in (0..N - 1).rev() {
        y = a.fma(y, x, a.splat(coefficients[i]));
    }
    y
}

/// Splits e^x = 2^n * (1 + m): returns bits whose shift by 23 is n in exponent position, and m = e^r - 1.
#[inline(always)]
fn split_exp<A: Arith>(a: A, x: A::F) -> (A::F, A::F) {
    let shifted = a.fma(x, a.splat(std::f32::consts::LOG2_E), a.splat(ROUND_F32));
    let n = a.sub(shifted, a.splat(ROUND_F32));
    let r = a.fma(n, a.splat(-LN2_HIGH), x);
    let r = a.fma(n, a.splat(-LN2_LOW), r);
    let m = a.fma(a.mul(r, r), polynomial(a, r, &EXPM1), r);
    (shifted, m)
}

#[inline(always)]
pub(crate) fn exp_of<A: Arith>(a: A, x: A::F) -> A::F {
    let (n, m) = split_exp(a, x);
    let y = a.add_bits(a.add(m, a.splat(1.0)), a.shl::<23>(n));
    let y = a.select(a.lt(x, a.splat(EXP_LOWEST)), a.splat(0.0), y);
    // x * inf is infinite for what is too large and NaN for NaN, whose bits the integer addition has spoilt.
    a.select(a.le(x, a.splat(EXP_HIGHEST)), y, a.mul(x, a.splat(f32::INFINITY)))
}

/// [`exp_of`] for arguments that are not positive, or NaN: the same bits in fewer steps.
#[inline(always)]
pub(crate) fn exp_of_negative<A: Arith>(a: A, x: A::F) -> A::F {
    let (n, m) = split_exp(a, x);
    let power = a.add_bits(a.shl::<23>(n), a.splat(1.0));
    let y = a.mul(a.add(m, a.splat(1.0)), power);
    a.select(a.lt(x, a.splat(EXP_LOWEST)), a.splat(0.0), y)
}

#[inline(always)]
pub(crate) fn tanh_of<A: Arith>(a: A, x: A::F) -> A::F {
    let x2 = a.mul(x, x);
    let small = a.fma(a.mul(x2, x), polynomial(a, x2, &TANH), x);
    // 1 - 2 / (e^(2|x|) + 1), which is 1 from 9.1 on.
    let magnitude = a.min(a.abs(x), a.splat(9.1));
    let (n, m) = split_exp(a, a.add(magnitude, magnitude));
    let power = a.add_bits(a.shl::<23>(n), a.splat(1.0));
    let e = a.fma(power, m, power);
    let large = a.sub(a.splat(1.0), a.div(a.splat(2.0), a.add(e, a.splat(1.0))));
    // NaN is not greater than the border and stays NaN in the polynomial.
    a.with_sign_of(a.select(a.lt(a.splat(TANH_BORDER), a.abs(x)), large, small), x)
}

#[inline(always)]
pub(crate) fn ln_of<A: Arith>(a: A, x: A::F) -> A::F {
    let subnormal = a.lt(x, a.splat(f32::MIN_POSITIVE));
    let scaled = a.select(subnormal, a.mul(x, a.splat(8_388_608.0)), x);
    let exponent_bias = a.select(subnormal, a.splat(-23.0), a.splat(0.0));
    let y = ln_scaled(a, scaled, exponent_bias);
    let y = a.select(a.lt(x, a.splat(f32::INFINITY)), y, x);
    let y = a.select(a.le(x, a.splat(0.0)), a.div(a.splat(-1.0), a.splat(0.0)), y);
    a.select(a.lt(x, a.splat(0.0)), a.splat(f32::NAN), y)
}

/// [`ln_of`] for what is positive, normal and finite: the same bits with less to do.
#[inline(always)]
pub(crate) fn ln_normal_of<A: Arith>(a: A, x: A::F) -> A::F {
    ln_scaled(a, x, a.splat(0.0))
}

/// ln(x * 2^exponent_bias) for a positive, normal, finite `x`.
#[inline(always)]
fn ln_scaled<A: Arith>(a: A, x: A::F, exponent_bias: A::F) -> A::F {
    // Offset so that the exponent field counts from sqrt(1/2): mantissas lie in sqrt(1/2) .. sqrt(2).
    let sqrt_half = a.splat(std::f32::consts::FRAC_1_SQRT_2);
    let offset = a.sub_bits(x, sqrt_half);
    let biased = a.shr::<23>(a.add_bits(offset, a.splat_bits(128 << 23)));
    let e = a.add(a.sub(a.i32_to_f32(biased), a.splat(128.0)), exponent_bias);
    let f = a.sub(a.add_bits(a.and(offset, a.splat_bits(0x007F_FFFF)), sqrt_half), a.splat(1.0));

    let f2 = a.mul(f, f);
    let tail = a.fma(a.mul(f2, f), polynomial(a, f, &LN_1P), a.mul(f2, a.splat(-0.5)));
    let low = a.fma(e, a.splat(LN2_LOW), tail);
    a.fma(e, a.splat(LN2_HIGH), a.add(f, low))
}

#[inline(always)]
pub(crate) fn log1p_of<A: Arith>(a: A, x: A::F) -> A::F {
    let u = a.add(x, a.splat(1.0));
    // What rounding 1 + x has lost, over u: the first-order correction. None where u has no use for one.
    let lost = a.div(a.sub(x, a.sub(u, a.splat(1.0))), u);
    let lost = a.select(a.lt(a.splat(0.0), u), lost, a.splat(0.0));
    let lost = a.select(a.lt(u, a.splat(f32::INFINITY)), lost, a.splat(0.0));
    let y = a.add(ln_of(a, u), lost);
    // Keeps the sign of zero.
    a.select(a.lt(a.abs(x), a.splat(1e-30)), x, y)
}

/// 1.5 * 2^52, as [`ROUND_F32`].
const ROUND_F64: f64 = 6_755_399_441_055_744.0;
/// What the double nearest pi / 2 leaves out.
const FRAC_PI_2_LOW: f64 = 6.123_233_995_736_766e-17;
/// What the double nearest ln 2 leaves out.
const LN_2_LOW: f64 = 2.319_046_813_846_299_6e-17;

/// 1 / first!, 1 / (first + step)!, ..
const fn inverse_factorials<const N: usize>(first: u32, step: u32) -> [f64; N] {
    let mut out = [0.0; N];
    let mut i = 0;
    while i < N {
        let (mut n, mut factorial) = (2, 1.0);
        while n <= first + step * i as u32 {
            factorial *= n as f64;
            n += 1;
        }
        out[i] = 1.0 / factorial;
        i += 1;
    }
    out
}

/// 1/3!, 1/5!, ..: the sine after its first term. |r| <= pi/4 leaves 2^-63 after them.
const SIN: [f64; 8] = inverse_factorials(3, 2);
/// 1/4!, 1/6!, ..: the cosine after its second term.
const COS: [f64; 8] = inverse_factorials(4, 2);
/// 1/2!, 1/3!, ..: e^r after its second term. |r| <= ln(2)/2 leaves 2^-58 after them.
const EXP: [f64; 12] = inverse_factorials(2, 1);

/// A polynomial in `x`, coefficients in ascending powers.
#[inline(always)]
fn polynomial_f64<const N: usize>(x: f64, coefficients: &[f64; N]) -> f64 {
    let mut y = coefficients[N - 1];
    for i in (0..N - 1).rev() {
        y = y.mul_add(x, coefficients[i]);
    }
    y
}

/// Sine and cosine in f64, for rotary tables. `x` is at most 1e6 in magnitude.
#[inline(always)]
pub fn sin_cos(x: f64) -> (f64, f64) {
    let shifted = x.mul_add(std::f64::consts::FRAC_2_PI, ROUND_F64);
    let n = shifted - ROUND_F64;
    let r = n.mul_add(-std::f64::consts::FRAC_PI_2, x);
    let r = n.mul_add(-FRAC_PI_2_LOW, r);

    let z = -(r * r);
    let sin = (r * z).mul_add(polynomial_f64(z, &SIN), r);
    let cos = (z * z).mul_add(polynomial_f64(z, &COS), z.mul_add(0.5, 1.0));
    let quarter = shifted.to_bits();
    let (s, c) = if quarter & 1 == 0 { (sin, cos) } else { (cos, sin) };
    let flip = |x: f64, flip: u64| f64::from_bits(x.to_bits() ^ (flip << 63));
    (flip(s, (quarter >> 1) & 1), flip(c, ((quarter + 1) >> 1) & 1))
}

/// Natural logarithm in f64 of a positive normal number.
fn ln_f64(x: f64) -> f64 {
    let offset = x.to_bits().wrapping_sub(std::f64::consts::FRAC_1_SQRT_2.to_bits());
    let e = (offset.cast_signed() >> 52) as f64;
    let m = f64::from_bits((offset & ((1 << 52) - 1)) + std::f64::consts::FRAC_1_SQRT_2.to_bits());
    // ln m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.172: twelve terms leave 2^-61.
    let s = (m - 1.0) / (m + 1.0);
    let s2 = s * s;
    let mut series = 1.0 / 23.0;
    for odd in (1..23).step_by(2).rev() {
        series = f64::mul_add(series, s2, 1.0 / f64::from(odd));
    }
    e.mul_add(std::f64::consts::LN_2, (2.0 * s).mul_add(series, e * LN_2_LOW))
}

/// `base ^ exponent` in f64 for rotary frequencies: `base` positive, the result within 1e-300 .. 1e300.
pub fn pow(base: f64, exponent: f64) -> f64 {
    let x = exponent * ln_f64(base);
    let shifted = x.mul_add(std::f64::consts::LOG2_E, ROUND_F64);
    let n = shifted - ROUND_F64;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-std::f64::consts::LN_2, x));
    let m = (r * r).mul_add(polynomial_f64(r, &EXP), r);
    f64::from_bits((m + 1.0).to_bits().wrapping_add(shifted.to_bits() << 52))
}

#[cfg(test)]
mod tests;
