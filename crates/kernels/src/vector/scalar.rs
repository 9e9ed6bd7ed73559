//! Plain f32 code: the reference of every vector form, and the level of processors without AVX2.

use super::{Arith, Vector};
use crate::numerics::{LANES, add_z, bf16_to_f32, fma_z};

/// One number. Also serves the few values per row that are not worth a vector.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Single;

/// Sixteen numbers in an array.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar;

impl Arith for Single {
    type F = f32;
    type Mask = bool;

    #[inline(always)]
    fn splat(self, x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn add(self, a: f32, b: f32) -> f32 {
        a + b
    }
    #[inline(always)]
    fn sub(self, a: f32, b: f32) -> f32 {
        a - b
    }
    #[inline(always)]
    fn mul(self, a: f32, b: f32) -> f32 {
        a * b
    }
    #[inline(always)]
    fn div(self, a: f32, b: f32) -> f32 {
        a / b
    }
    #[inline(always)]
    fn fma(self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    #[inline(always)]
    fn max(self, a: f32, b: f32) -> f32 {
        if a > b { a } else { b }
    }
    #[inline(always)]
    fn min(self, a: f32, b: f32) -> f32 {
        if a < b { a } else { b }
    }
    #[inline(always)]
    fn lt(self, a: f32, b: f32) -> bool {
        a < b
    }
    #[inline(always)]
    fn le(self, a: f32, b: f32) -> bool {
        a <= b
    }
    #[inline(always)]
    fn select(self, mask: bool, a: f32, b: f32) -> f32 {
        if mask { a } else { b }
    }
    #[inline(always)]
    fn and(self, a: f32, b: f32) -> f32 {
        f32::from_bits(a.to_bits() & b.to_bits())
    }
    #[inline(always)]
    fn or(self, a: f32, b: f32) -> f32 {
        f32::from_bits(a.to_bits() | b.to_bits())
    }
    #[inline(always)]
    fn xor(self, a: f32, b: f32) -> f32 {
        f32::from_bits(a.to_bits() ^ b.to_bits())
    }
    #[inline(always)]
    fn add_bits(self, a: f32, b: f32) -> f32 {
        f32::from_bits(a.to_bits().wrapping_add(b.to_bits()))
    }
    #[inline(always)]
    fn sub_bits(self, a: f32, b: f32) -> f32 {
        f32::from_bits(a.to_bits().wrapping_sub(b.to_bits()))
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: f32) -> f32 {
        f32::from_bits(a.to_bits() << N)
    }
    #[inline(always)]
    fn shr<const N: u32>(self, a: f32) -> f32 {
        f32::from_bits(a.to_bits() >> N)
    }
    #[inline(always)]
    fn mul_wide(self, a: f32, b: f32) -> (f32, f32) {
        let product = u64::from(a.to_bits()) * u64::from(b.to_bits());
        (f32::from_bits(product as u32), f32::from_bits((product >> 32) as u32))
    }
    #[inline(always)]
    fn i32_to_f32(self, a: f32) -> f32 {
        a.to_bits().cast_signed() as f32
    }
}

/// Applies an operation of [`Single`] lane by lane.
macro_rules! lanewise {
    ($f:ident($($x:ident),+)) => {
        std::array::from_fn(|i| Single.$f($($x[i]),+))
    };
}

type Lanes = [f32; LANES];

impl Arith for Scalar {
    type F = Lanes;
    type Mask = [bool; LANES];

    #[inline(always)]
    fn splat(self, x: f32) -> Lanes {
        [x; LANES]
    }
    #[inline(always)]
    fn add(self, a: Lanes, b: Lanes) -> Lanes {
        lanewise!(add(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Lanes, b: Lanes) -> Lanes {
        lanewise!(sub(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Lanes, b: Lanes) -> Lanes {
        lanewise!(mul(a, b))
    }
    #[inline(always)]
    fn div(self, a: Lanes, b: Lanes) -> Lanes {
        lanewise!(div(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        lanewise!(fma(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: Lanes, b: Lanes) -> Lanes {
        lanewise!(max(a, b))
    }
    #[inline(always)]
    fn min(self, a: Lanes, b: Lanes) -> Lanes {
        lanewise!(min(a, b))
    }
    #[inline(always)]
    fn lt(self, a: Lanes, b: Lanes) -> [bool; LANES] {
        lanewise!(lt(a, b))
    }
    #[inline(always)]
    fn le(self, a: Lanes, b: Lanes) -> [bool; LANES] {
        lanewise!(le(a, b))
    }
    #[inline(always)]
    fn select(self, mask: [bool; LANES], a: Lanes, b: Lanes) -> Lanes {
        lanewise!(select(mask, a, b))
    }
    #[inline(always)]
    fn and(self, a: Lanes, b: Lanes) -> Lanes {
        lanewise!(and(a, b))
    }
    #[inline(always)]
    fn or(self, a: Lanes, b: Lanes) -> Lanes {
        lanewise!(or(a, b))
    }
    #[inline(always)]
    fn xor(self, a: Lanes, b: Lanes) -> Lanes {
        lanewise!(xor(a, b))
    }
    #[inline(always)]
    fn add_bits(self, a: Lanes, b: Lanes) -> Lanes {
        lanewise!(add_bits(a, b))
    }
    #[inline(always)]
    fn sub_bits(self, a: Lanes, b: Lanes) -> Lanes {
        lanewise!(sub_bits(a, b))
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: Lanes) -> Lanes {
        std::array::from_fn(|i| Single.shl::<N>(a[i]))
    }
    #[inline(always)]
    fn shr<const N: u32>(self, a: Lanes) -> Lanes {
        std::array::from_fn(|i| Single.shr::<N>(a[i]))
    }
    #[inline(always)]
    fn mul_wide(self, a: Lanes, b: Lanes) -> (Lanes, Lanes) {
        wide_products(&a, &b)
    }
    #[inline(always)]
    fn i32_to_f32(self, a: Lanes) -> Lanes {
        lanewise!(i32_to_f32(a))
    }
}

impl Vector for Scalar {
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Lanes {
        *x
    }
    #[inline(always)]
    fn store(self, x: Lanes, out: &mut [f32; LANES]) {
        *out = x;
    }
    #[inline(always)]
    fn load_first(self, x: &[f32]) -> Lanes {
        let mut lanes = [0.0; LANES];
        lanes[..x.len()].copy_from_slice(x);
        lanes
    }
    #[inline(always)]
    fn store_first(self, x: Lanes, out: &mut [f32]) {
        let n = out.len();
        out.copy_from_slice(&x[..n]);
    }
    #[inline(always)]
    fn lanes(self, start: usize, end: usize) -> [bool; LANES] {
        std::array::from_fn(|i| start <= i && i < end)
    }
    #[inline(always)]
    fn any(self, mask: [bool; LANES]) -> bool {
        mask.contains(&true)
    }
    #[inline(always)]
    fn transpose4(self, x: [Lanes; 4]) -> [Lanes; 4] {
        std::array::from_fn(|c| std::array::from_fn(|lane| x[lane % 4][lane / 4 * 4 + c]))
    }
    #[inline(always)]
    fn sum(self, x: Lanes) -> f32 {
        tree(x, |a, b| Single.add(a, b))
    }
    #[inline(always)]
    fn max_lane(self, x: Lanes) -> f32 {
        tree(x, |a, b| Single.max(a, b))
    }

    const ROWS: usize = 1;
    #[inline(always)]
    fn fma_z(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        std::array::from_fn(|i| fma_z(a[i], b[i], c[i]))
    }
    #[inline(always)]
    fn add_z(self, a: Lanes, b: Lanes) -> Lanes {
        std::array::from_fn(|i| add_z(a[i], b[i]))
    }
    #[inline(always)]
    fn bf16_pairs(self, pairs: &[u16; 2 * LANES]) -> (Lanes, Lanes) {
        (
            std::array::from_fn(|i| bf16_to_f32(pairs[2 * i])),
            std::array::from_fn(|i| bf16_to_f32(pairs[2 * i + 1])),
        )
    }
    #[inline(always)]
    fn prefetch<T>(self, _: *const T) {}
}

/// Never inlined: with LLVM 22.1.2 the SLP vectoriser, given the pairs of low and high halves in the middle of other code, mixes up
/// lanes (`-C no-vectorize-slp` gives the right ones).
#[inline(never)]
fn wide_products(a: &Lanes, b: &Lanes) -> (Lanes, Lanes) {
    (
        std::array::from_fn(|i| Single.mul_wide(a[i], b[i]).0),
        std::array::from_fn(|i| Single.mul_wide(a[i], b[i]).1),
    )
}

/// Joins lane `i` with lane `i + w` for w = 8, 4, 2, 1.
#[inline(always)]
fn tree(mut t: Lanes, join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut w = LANES / 2;
    while w > 0 {
        for i in 0..w {
            t[i] = join(t[i], t[i + w]);
        }
        w /= 2;
    }
    t[0]
}
