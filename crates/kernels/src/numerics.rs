//! The numeric contract, version 1: what every op computes, in which order, and where values are rounded.
//!
//! A *row* is one position of one sequence in a pass. A row's bits depend on that row's inputs only: never on
//! how many other rows are in the pass, which they are, on threads, or on the CPU level. Everything in this file
//! is part of that promise; changing any of it changes bits and needs a new [`CONTRACT_VERSION`].
//!
//! # Where values are rounded
//! Activations travel between ops as f32. With [`Activation::Bf16`] a value is rounded to bf16 (nearest even,
//! subnormal results to signed zero, NaN to the quiet NaN `0x7FC0`) exactly where it enters a product, and
//! nowhere else; with [`Activation::F32`] nothing is rounded.
//!
//! | point | rounded |
//! |---|---|
//! | scaled embedding `E[t] * s`: `s` and the product | yes (the published models' reference does, spec 3.1) |
//! | per-layer table `T[t] * sqrt(P)`: the factor only | yes |
//! | input of every linear product (norm outputs, attention output, gate * up, the stream itself) | yes |
//! | q, k and v as they enter attention and the cache | yes |
//! | probabilities `p` before `p . V` (the row sum adds the unrounded `p`) | yes |
//! | residual stream, norm output, product output, gate * up, expert outputs, router, logits | no, f32 |
//! | rotary tables | no, f32 |
//!
//! # Subnormals
//! Products flush: inputs and the result of each FMA and of each addition of a product ([`fma_z`], [`add_z`]), with
//! tininess judged after rounding to 24 bits with an unbounded exponent, because AMX does so. Everything outside
//! products is plain IEEE.
//!
//! # Products (`linear`, scores, `p . V`)
//! For each output, k is cut into tiles of [`K_TILE`] (the last one padded with +0). In a tile the even k form one FMA
//! chain from +0 and the odd k another; `s = even + odd`; `y = y + s` from `y = +0`; tiles ascend.
//! (So two k of one chain may go through one instruction that does two FMAs in turn: `vdpbf16ps`.)
//!
//! # Reductions outside products
//! [`LANES`] lanes: lane `i` takes elements `i, i + 16, ...` in ascending order (missing ones count as +0), then
//! `t[i] += t[i + w]` for `w` = 8, 4, 2, 1.
//!
//! # Attention
//! Keys are cut into splits of [`SPLIT`] at absolute positions. In a split: scores in product order over the head dim,
//! each times the layer's factor; `m` = the largest visible score that is not NaN; `p = exp(s - m)` for a visible key, +0
//! for any other (by position alone); `l` = the lane sum (above) of the unrounded `p`; `o` = `p . V` in product order over
//! the keys of the split, then `o + (+0)` so that a skipped tile of zeros is the same as a computed one. Splits fold in
//! ascending order inside spans of [`SPAN`] keys, spans fold in ascending order: `m = max(ma, mb)`, `fa = exp(ma - m)`,
//! `fb = exp(mb - m)`, `l = fma(la, fa, lb * fb)`, `o = fma(oa, fa, ob * fb)`; the first part is taken as it is. A split
//! without a visible key does not exist. At the end `o * (1 / l)`.
//!
//! # Choosing
//! Rules, filters, noise and log-probabilities, all in f32: order and sums stand at the top of the modules of
//! [`crate::select`].
//!
//! # Elementary functions
//! Own code in [`crate::math`], one sequence of IEEE f32 operations (f64 for tables) for all levels.
//! `+ - * / sqrt` and FMA are IEEE. No result depends on a platform's libm.
//!
//! # NaN
//! A NaN's payload and sign are not part of the contract; that a value is NaN is.

/// Version of everything in this module. Part of cache salts and of recorded results.
pub const CONTRACT_VERSION: u32 = 1;
/// Input elements summed in one even and one odd chain before they are added to the running sum.
pub const K_TILE: usize = 32;
/// Outputs of one packed panel of weights, and keys of one packed panel of K.
pub const PANEL: usize = 32;
/// Partial sums of a reduction outside products.
pub const LANES: usize = 16;
/// Keys of one attention split, at absolute positions `SPLIT * i ..`.
pub const SPLIT: usize = 256;
/// Keys of one span: splits fold inside it first.
pub const SPAN: usize = 2048;
/// Keys of one K/V cache block, at absolute positions `KV_BLOCK * i ..`. Divides [`SPLIT`].
pub const KV_BLOCK: usize = 64;

const _: () =
    assert!(SPLIT.is_multiple_of(KV_BLOCK) && KV_BLOCK.is_multiple_of(PANEL) && SPAN.is_multiple_of(SPLIT));

/// Type to which activations are rounded where they enter products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// bfloat16, the default: what the published weights are stored in, and what AMX multiplies.
    Bf16,
    /// float32: nothing is rounded. For comparison with float32 references; never uses AMX.
    F32,
}

impl Activation {
    /// Rounds one value as it would enter a product.
    #[inline]
    pub fn round(self, x: f32) -> f32 {
        match self {
            Activation::Bf16 => bf16_to_f32(round_bf16(x)),
            Activation::F32 => x,
        }
    }
}

/// f32 to bf16 bits: nearest even, subnormal results to signed zero, any NaN to `0x7FC0`.
#[inline]
pub fn round_bf16(x: f32) -> u16 {
    if x.is_nan() {
        return 0x7FC0;
    }
    let bits = x.to_bits();
    let rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) as u16;
    if rounded & 0x7F80 == 0 { rounded & 0x8000 } else { rounded }
}

/// bf16 bits to f32, exact.
#[inline]
pub fn bf16_to_f32(x: u16) -> f32 {
    f32::from_bits(u32::from(x) << 16)
}

/// A subnormal becomes zero of the same sign.
#[inline]
pub fn daz(x: f32) -> f32 {
    if x.is_subnormal() { f32::from_bits(x.to_bits() & 0x8000_0000) } else { x }
}

/// One FMA of a product, `a * b + c`: subnormal inputs count as zero, a tiny result becomes signed zero. Tiny is judged
/// after rounding to 24 bits with an unbounded exponent, as x86 does under FTZ and AMX always.
#[inline]
pub fn fma_z(a: f32, b: f32, c: f32) -> f32 {
    let (a, b, c) = (daz(a), daz(b), daz(c));
    let r = a.mul_add(b, c);
    if r.abs() < f32::MIN_POSITIVE {
        return f32::from_bits(r.to_bits() & 0x8000_0000);
    }
    if r.abs() == f32::MIN_POSITIVE {
        // The smallest normal may have been reached only by rounding on the subnormal grid. The same operation scaled
        // by 2^64, which is exact here, shows what 24 bits alone would have given.
        let scale = f32::from_bits((127 + 64) << 23);
        let big =
            if a.abs() < 1.0 { (a * scale).mul_add(b, c * scale) } else { a.mul_add(b * scale, c * scale) };
        if big.abs() < f32::MIN_POSITIVE * scale {
            return f32::from_bits(r.to_bits() & 0x8000_0000);
        }
    }
    r
}

/// One addition of a product, flushed as [`fma_z`].
#[inline]
pub fn add_z(a: f32, b: f32) -> f32 {
    fma_z(a, 1.0, b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounding_is_nearest_even_and_flushes() {
        assert_eq!(round_bf16(1.0), 0x3F80);
        assert_eq!(round_bf16(f32::from_bits(0x3F80_8000)), 0x3F80); // half way, to even
        assert_eq!(round_bf16(f32::from_bits(0x3F81_8000)), 0x3F82);
        assert_eq!(round_bf16(f32::from_bits(0x0000_FFFF)), 0x0000);
        assert_eq!(round_bf16(f32::from_bits(0x807F_0000)), 0x8000);
        assert_eq!(round_bf16(f32::from_bits(0x007F_FFFF)), 0x0080); // rounds up to the smallest normal
        assert_eq!(round_bf16(f32::NAN), 0x7FC0);
        assert_eq!(round_bf16(f32::MAX), 0x7F80);
    }

    #[test]
    fn fma_flushes_what_only_the_subnormal_grid_rounds_up() {
        let tiny = f32::MIN_POSITIVE;
        assert_eq!(fma_z(tiny, 0.5, 0.0).to_bits(), 0);
        assert_eq!(fma_z(-tiny, 0.5, 0.0).to_bits(), 0x8000_0000);
        // (1 - 2^-24) * 2^-126: 24 bits hold it below the smallest normal, the subnormal grid rounds it up.
        let below_one = f32::from_bits(0x3F7F_FFFF);
        assert_eq!(fma_z(tiny, below_one, 0.0).to_bits(), 0);
        assert_eq!(add_z(tiny, 0.0), tiny);
    }
}
