//! How K and V lie in a block.
//!
//! A block holds [`KV_BLOCK`] keys of one layer and one K/V head, K before V, both as *tiles* of 32 outputs x 32 k in the
//! packing of weights, so that the products of attention read them as products read weights: two ready AMX tiles, or 32
//! vector lines.
//!
//! ```text
//! K  [2 panels of 32 keys ][d tile ]   scores: keys are the outputs, dims are k
//! V  [2 tiles  of 32 keys ][d panel]   values: dims are the outputs, keys are k
//!
//! tile  [2 halves of 16 outputs][16 k pairs] lines of 32 elements
//! line  bf16  [16 outputs][even k, odd k]    one vector, split by a shift and a mask
//!       f32   [even k, odd k][16 outputs]    two vectors
//! ```
//! A head dim is padded to a multiple of 32 with zeros, which change no bit of a product.

use crate::memory::Number;
use crate::numerics::{Activation, K_TILE, KV_BLOCK, LANES, PANEL, bf16_to_f32};
use crate::vector::Vector;

/// Elements of a tile.
pub(super) const TILE: usize = PANEL * K_TILE;
/// Elements of a line of a tile.
pub(super) const LINE: usize = 2 * LANES;
/// Panels (K) or tiles (V) of 32 keys in a block.
pub(super) const PANELS: usize = KV_BLOCK / PANEL;
/// The largest head dim.
pub const MAX_HEAD_DIM: usize = 512;

/// Shape of the K/V of one group of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Elements of a head: a multiple of 8, at most [`MAX_HEAD_DIM`].
    pub head_dim: usize,
    /// K/V heads of a layer.
    pub kv_heads: usize,
    /// Type in which K and V are held, and to which queries and probabilities are rounded.
    pub activation: Activation,
}

impl KvLayout {
    /// Elements of one block of one layer and K/V head: K and V with their padding.
    pub fn head_block_len(&self) -> usize {
        2 * PANELS * self.d_tiles() * TILE
    }

    /// Bytes of one block of one layer, all K/V heads.
    pub fn layer_block_bytes(&self) -> usize {
        let element = match self.activation {
            Activation::Bf16 => size_of::<u16>(),
            Activation::F32 => size_of::<f32>(),
        };
        self.head_block_len() * self.kv_heads * element
    }

    /// Tiles of 32 over the padded head dim.
    pub(super) fn d_tiles(&self) -> usize {
        self.head_dim.div_ceil(K_TILE)
    }

    pub(super) fn assert_valid(&self) {
        let dim = self.head_dim;
        assert!(dim.is_multiple_of(8) && (8..=MAX_HEAD_DIM).contains(&dim), "head dim {dim}");
        assert!(self.kv_heads > 0, "no K/V heads");
    }
}

/// Type of a stored K or V.
pub(crate) trait Element: Number {
    /// A value that this type holds exactly.
    fn narrow(x: f32) -> Self;
    fn widen(self) -> f32;
    /// Place in a line of an output (0..16) with an even or odd k.
    fn place(output: usize, parity: usize) -> usize;
    /// The even and the odd k of the sixteen outputs of a line.
    fn pairs<V: Vector>(v: V, line: &[Self; LINE]) -> (V::F, V::F);
    /// Rounds a vector as this type.
    fn round_lanes<V: Vector>(v: V, x: V::F) -> V::F;
    /// [`Element::round_lanes`] for probabilities, which are +0, normal, or NaN.
    fn round_probability<V: Vector>(v: V, x: V::F) -> V::F;
}

impl Element for u16 {
    #[inline(always)]
    fn narrow(x: f32) -> u16 {
        (x.to_bits() >> 16) as u16
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        bf16_to_f32(self)
    }
    #[inline(always)]
    fn place(output: usize, parity: usize) -> usize {
        output * 2 + parity
    }
    #[inline(always)]
    fn pairs<V: Vector>(v: V, line: &[u16; LINE]) -> (V::F, V::F) {
        v.bf16_pairs(line)
    }
    #[inline(always)]
    fn round_lanes<V: Vector>(v: V, x: V::F) -> V::F {
        v.round_bf16(x)
    }
    #[inline(always)]
    fn round_probability<V: Vector>(v: V, x: V::F) -> V::F {
        v.round_probability(x)
    }
}

impl Element for f32 {
    #[inline(always)]
    fn narrow(x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    #[inline(always)]
    fn place(output: usize, parity: usize) -> usize {
        parity * LANES + output
    }
    #[inline(always)]
    fn pairs<V: Vector>(v: V, line: &[f32; LINE]) -> (V::F, V::F) {
        let ([even, odd], []) = line.as_chunks::<LANES>() else { unreachable!("a line is two vectors") };
        (v.load(even), v.load(odd))
    }
    #[inline(always)]
    fn round_lanes<V: Vector>(_: V, x: V::F) -> V::F {
        x
    }
    #[inline(always)]
    fn round_probability<V: Vector>(_: V, x: V::F) -> V::F {
        x
    }
}

/// Place in a tile of an output and a k, both 0..32.
#[inline(always)]
pub(super) fn tile_place<E: Element>(output: usize, k: usize) -> usize {
    output / LANES * (TILE / 2) + k / 2 * LINE + E::place(output % LANES, k % 2)
}
