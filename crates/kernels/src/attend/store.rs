//! K and V of a group of layers, in blocks.

use super::layout::{Element, KvLayout, LINE, MAX_HEAD_DIM, PANELS, TILE, tile_place};
use crate::isa::Isa;
use crate::memory::{HugeBuf, OutOfMemory};
use crate::numerics::{Activation, K_TILE, KV_BLOCK, LANES, PANEL};
use crate::vector::{Vector, per_level};

/// The K/V memory of layers that share a layout: `[layer][block][kv head]` blocks, zeros at first.
///
/// Everything in it is finite, always: a tile may read keys that no row sees, with weight +0, and 0 times infinity would
/// not be 0.
#[derive(Debug)]
pub struct KvStore {
    layout: KvLayout,
    layers: usize,
    n_blocks: usize,
    tiles: Tiles,
}

#[derive(Debug)]
enum Tiles {
    Bf16(HugeBuf<u16>),
    F32(HugeBuf<f32>),
}

impl KvStore {
    /// Zeroed memory for `n_blocks` blocks of each of `layers` layers.
    ///
    /// # Panics
    /// If the layout's head dim is no multiple of 8 up to 512, or it has no heads.
    pub fn new(layout: KvLayout, layers: usize, n_blocks: usize) -> Result<KvStore, OutOfMemory> {
        layout.assert_valid();
        let sizes = [layers, n_blocks, layout.kv_heads];
        let len = sizes.into_iter().try_fold(layout.head_block_len(), usize::checked_mul);
        let len = len.ok_or(OutOfMemory { bytes: usize::MAX })?;
        let tiles = match layout.activation {
            Activation::Bf16 => Tiles::Bf16(HugeBuf::zeroed(len)?),
            Activation::F32 => Tiles::F32(HugeBuf::zeroed(len)?),
        };
        Ok(KvStore { layout, layers, n_blocks, tiles })
    }

    /// Shape of a block.
    pub fn layout(&self) -> KvLayout {
        self.layout
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// Blocks of each layer.
    pub fn n_blocks(&self) -> usize {
        self.n_blocks
    }

    /// Writes K and V (`[head_dim]` each, not rounded yet) of one key. Where a value is not finite once it is rounded,
    /// it writes zeros in place of all and returns false.
    ///
    /// # Panics
    /// If a place is outside the store, or K or V is not `head_dim` long.
    #[must_use = "a row that is not finite is a fault of its sequence"]
    pub fn store(&mut self, isa: Isa, place: KvPlace, k: &[f32], v: &[f32]) -> bool {
        let head = self.head_of(place, k.len(), v.len());
        match &mut self.tiles {
            Tiles::Bf16(tiles) => write_bf16(isa, block_mut(tiles, self.layout, head), place.slot, k, v),
            Tiles::F32(tiles) => write_f32(isa, block_mut(tiles, self.layout, head), place.slot, k, v),
        }
    }

    /// Reads what [`KvStore::store`] has written, rounded as it is held.
    ///
    /// # Panics
    /// As [`KvStore::store`].
    pub fn load(&self, place: KvPlace, k: &mut [f32], v: &mut [f32]) {
        let head = self.head_of(place, k.len(), v.len());
        match &self.tiles {
            Tiles::Bf16(tiles) => read(block(tiles, self.layout, head), place.slot, k, v),
            Tiles::F32(tiles) => read(block(tiles, self.layout, head), place.slot, k, v),
        }
    }

    /// The index of a head of which K and V have these lengths.
    fn head_of(&self, place: KvPlace, k_len: usize, v_len: usize) -> usize {
        let dim = self.layout.head_dim;
        assert!(k_len == dim && v_len == dim, "K of {k_len} and V of {v_len} for a head of {dim}");
        self.head_index(place)
    }

    fn head_index(&self, place: KvPlace) -> usize {
        let KvPlace { layer, block, kv_head, slot } = place;
        assert!(
            layer < self.layers
                && (block as usize) < self.n_blocks
                && kv_head < self.layout.kv_heads
                && slot < KV_BLOCK,
            "{place:?} of {} layers, {} blocks, {} heads",
            self.layers,
            self.n_blocks,
            self.layout.kv_heads
        );
        (layer * self.n_blocks + block as usize) * self.layout.kv_heads + kv_head
    }

    /// The tiles of all blocks, if they are of this type.
    pub(super) fn tiles<E: Element>(&self) -> Option<&[[E; TILE]]> {
        let tiles: &dyn std::any::Any = match &self.tiles {
            Tiles::Bf16(tiles) => tiles,
            Tiles::F32(tiles) => tiles,
        };
        tiles.downcast_ref::<HugeBuf<E>>().map(|tiles| tiles.as_chunks().0)
    }
}

/// Where the K and V of one key stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPlace {
    /// Layer within the store.
    pub layer: usize,
    /// Block id.
    pub block: u32,
    /// K/V head of the layer.
    pub kv_head: usize,
    /// Key within the block, `position % KV_BLOCK`.
    pub slot: usize,
}

fn block<E: Element>(tiles: &[E], layout: KvLayout, head: usize) -> &[[E; TILE]] {
    let len = layout.head_block_len();
    tiles[head * len..][..len].as_chunks().0
}

fn block_mut<E: Element>(tiles: &mut [E], layout: KvLayout, head: usize) -> &mut [[E; TILE]] {
    let len = layout.head_block_len();
    tiles[head * len..][..len].as_chunks_mut().0
}

per_level! {
    fn write_bf16(block: &mut [[u16; TILE]], slot: usize, key: &[f32], value: &[f32]) -> bool = write;
}
per_level! {
    fn write_f32(block: &mut [[f32; TILE]], slot: usize, key: &[f32], value: &[f32]) -> bool = write;
}

/// Writes one key into a block; false if it had to be zeros.
#[inline(always)]
fn write<V: Vector, E: Element>(
    level: V,
    block: &mut [[E; TILE]],
    slot: usize,
    k: &[f32],
    v: &[f32],
) -> bool {
    let [mut k_rounded, mut v_rounded] = [[0.0; MAX_HEAD_DIM]; 2];
    let (k_rounded, v_rounded) = (&mut k_rounded[..k.len()], &mut v_rounded[..v.len()]);
    let finite = round::<V, E>(level, k, k_rounded) & round::<V, E>(level, v, v_rounded);
    if !finite {
        k_rounded.fill(0.0);
        v_rounded.fill(0.0);
    }
    let d_tiles = block.len() / (2 * PANELS);
    let (panel, key) = (slot / PANEL, slot % PANEL);
    let (k_tiles, v_tiles) = block.split_at_mut(PANELS * d_tiles);
    for (tile, k) in k_tiles[panel * d_tiles..].iter_mut().zip(k_rounded.chunks(K_TILE)) {
        // The half of the tile that has the key, line by line: one line has an even and an odd dim.
        let lines = &mut tile.as_chunks_mut::<LINE>().0[key / LANES * (K_TILE / 2)..];
        for (line, pair) in lines.iter_mut().zip(k.as_chunks::<2>().0) {
            line[E::place(key % LANES, 0)] = E::narrow(pair[0]);
            line[E::place(key % LANES, 1)] = E::narrow(pair[1]);
        }
    }
    for (tile, v) in v_tiles[panel * d_tiles..].iter_mut().zip(v_rounded.chunks(PANEL)) {
        // The line of each half that has the key: it has 16 dims.
        let lines = tile.as_chunks_mut::<LINE>().0.iter_mut().skip(key / 2).step_by(K_TILE / 2);
        for (line, v) in lines.zip(v.chunks(LANES)) {
            for (dim, x) in v.iter().enumerate() {
                line[E::place(dim, key % 2)] = E::narrow(*x);
            }
        }
    }
    finite
}

/// Rounds a row as `E`; false if a value is not finite afterwards.
#[inline(always)]
fn round<V: Vector, E: Element>(level: V, from: &[f32], to: &mut [f32]) -> bool {
    let (from, from_rest) = from.as_chunks::<LANES>();
    let (to, to_rest) = to.as_chunks_mut::<LANES>();
    let mut strange = level.splat(0.0);
    for (from, to) in from.iter().zip(to) {
        let x = E::round_lanes(level, level.load(from));
        strange = level.select(level.le(level.abs(x), level.splat(f32::MAX)), strange, level.splat(1.0));
        level.store(x, to);
    }
    let x = E::round_lanes(level, level.load_first(from_rest));
    strange = level.select(level.le(level.abs(x), level.splat(f32::MAX)), strange, level.splat(1.0));
    level.store_first(x, to_rest);
    !level.any(level.lt(level.splat(0.0), strange))
}

fn read<E: Element>(block: &[[E; TILE]], slot: usize, k: &mut [f32], v: &mut [f32]) {
    let d_tiles = block.len() / (2 * PANELS);
    let (panel, key) = (slot / PANEL, slot % PANEL);
    let (k_tiles, v_tiles) = block.split_at(PANELS * d_tiles);
    for (tile, k) in k_tiles[panel * d_tiles..].iter().zip(k.chunks_mut(K_TILE)) {
        for (dim, x) in k.iter_mut().enumerate() {
            *x = tile[tile_place::<E>(key, dim)].widen();
        }
    }
    for (tile, v) in v_tiles[panel * d_tiles..].iter().zip(v.chunks_mut(PANEL)) {
        for (dim, x) in v.iter_mut().enumerate() {
            *x = tile[tile_place::<E>(dim, key)].widen();
        }
    }
}
