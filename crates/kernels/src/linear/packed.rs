//! Weights in the one layout that every level reads.
//!
//! ```text
//! [panel of 32 outputs][k tile of 32][2 halves of 16 outputs][16 k pairs][16 outputs][2 k], bf16
//! ```
//! A panel and k tile are 2 KB: two AMX tiles as they stand, or 32 vector lines of 16 outputs x 2 k whose even k become
//! f32 by a shift and odd k by a mask. A panel is one sequential stream. Outputs and k are filled up with +0.
use std::ops::Range;
use std::sync::Mutex;

use crate::memory::{Disjoint, HugeBuf, OutOfMemory};
use crate::numerics::{K_TILE, PANEL, bf16_to_f32};
use crate::pool::Team;

/// Elements of one panel and k tile.
pub(crate) const TILE: usize = PANEL * K_TILE;
/// Bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Fetches weights of a matrix that comes from memory (`FAR`, see [`PackedMatrix::is_far`]): a line that is due one k tile from
/// now into L1, one that is due in four tiles into L2. Measured with AMX against the first alone: 1.05 times as fast at 1
/// row, 1.2 times at 32.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn prefetch_line<const FAR: bool>(in_one: *const u16, in_four: *const u16) {
    use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
    if FAR {
        // SAFETY: a prefetch is a hint that never faults, wherever it points; SSE is part of x86-64.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(in_one.cast());
            _mm_prefetch::<_MM_HINT_T1>(in_four.cast());
        }
    }
}

/// As [`prefetch_line`], for all lines of a k tile and those behind it.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn prefetch_tile<const FAR: bool>(tile: *const u16) {
    for line in 0..TILE * size_of::<u16>() / LINE {
        let line = tile.wrapping_byte_add(line * LINE);
        prefetch_line::<FAR>(line.wrapping_add(TILE), line.wrapping_add(4 * TILE));
    }
}

/// Outputs of one half: one AMX tile, one AVX-512 vector.
const HALF: usize = PANEL / 2;

/// Size in bytes from which on a matrix [is far](PackedMatrix::is_far): 256 outputs by 1536 inputs.
const FAR_BYTES: usize = 256 * 1536 * 2;

/// Weights were refused while they were packed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// An infinity or a NaN, which would spoil every result it meets.
    #[error("the weight of output {output}, input {input} is not finite (bf16 bits {bits:#06x})")]
    NotFinite {
        /// Row of the matrix.
        output: usize,
        /// Column of the matrix.
        input: usize,
        /// Its bf16 bits.
        bits: u16,
    },
    /// No memory for the packed matrix.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
}

/// A weight matrix of `n` outputs by `k` inputs: `y = W x`.
#[derive(Debug)]
pub struct PackedMatrix {
    n: usize,
    k: usize,
    data: HugeBuf<u16>,
}

impl PackedMatrix {
    /// Starts a matrix of zeros, to be filled row by row.
    pub fn builder(n: usize, k: usize) -> Result<MatrixBuilder, OutOfMemory> {
        let tiles = n.div_ceil(PANEL).checked_mul(k.div_ceil(K_TILE));
        let len = tiles.and_then(|tiles| tiles.checked_mul(TILE));
        let len = len.ok_or(OutOfMemory { bytes: usize::MAX })?;
        Ok(MatrixBuilder { matrix: PackedMatrix { n, k, data: HugeBuf::zeroed(len)? } })
    }

    /// Number of outputs.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Number of inputs.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes of the packed weights.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.data)
    }

    /// The weights as they stand in memory, with their padding.
    pub fn packed(&self) -> &[u16] {
        &self.data
    }

    /// The weights of one output, widened: `row` takes [`PackedMatrix::k`] elements. For embeddings that share a head.
    pub fn row(&self, output: usize, row: &mut [f32]) {
        assert!(output < self.n, "output {output} of {}", self.n);
        assert_eq!(row.len(), self.k, "a row of the matrix");
        let lane = Lane::of(output);
        let panel = self.panel(lane.panel);
        for (tile, weights) in row.chunks_mut(K_TILE).zip(panel.chunks_exact(TILE)) {
            for (i, weight) in tile.iter_mut().enumerate() {
                *weight = bf16_to_f32(weights[lane.at(i)]);
            }
        }
    }

    /// Whether to expect its weights in memory rather than in a cache. A model of such matrices is too large for caches;
    /// fetching ahead what is in one costs up to half of a small product's time.
    pub(crate) fn is_far(&self) -> bool {
        self.bytes() >= FAR_BYTES
    }

    pub(crate) fn panels(&self) -> usize {
        self.n.div_ceil(PANEL)
    }

    pub(crate) fn k_tiles(&self) -> usize {
        self.k.div_ceil(K_TILE)
    }

    pub(crate) fn panel(&self, panel: usize) -> &[u16] {
        self.panel_range(panel..panel + 1)
    }

    /// Panels that stand one behind the other.
    pub(crate) fn panel_range(&self, panels: Range<usize>) -> &[u16] {
        let len = self.k_tiles() * TILE;
        &self.data[panels.start * len..panels.end * len]
    }
}

/// Where an output's weights lie.
#[derive(Clone, Copy)]
struct Lane {
    panel: usize,
    /// Offset of its pairs in a tile.
    start: usize,
}

impl Lane {
    fn of(output: usize) -> Lane {
        let within = output % PANEL;
        Lane { panel: output / PANEL, start: within / HALF * (HALF * K_TILE) + within % HALF * 2 }
    }

    /// Place in the tile of its input number `i` there.
    fn at(self, i: usize) -> usize {
        self.start + i / 2 * PANEL + i % 2
    }

    /// Puts one row into its panel.
    fn scatter(self, row: &[u16], panel: &mut [u16]) {
        for (tile, weights) in row.chunks(K_TILE).zip(panel.chunks_exact_mut(TILE)) {
            for (i, &weight) in tile.iter().enumerate() {
                weights[self.at(i)] = weight;
            }
        }
    }
}

fn check_finite(output: usize, row: &[u16]) -> Result<(), PackError> {
    let bad = |bits: u16| bits & 0x7F80 == 0x7F80;
    // Without an early exit the common case is a vector loop.
    if !row.iter().fold(false, |any, &bits| any | bad(bits)) {
        return Ok(());
    }
    let found = row.iter().enumerate().find(|&(_, &bits)| bad(bits)).map(|(input, &bits)| (input, bits));
    let (input, bits) = found.expect("one is bad");
    Err(PackError::NotFinite { output, input, bits })
}

/// A matrix being filled. Rows that are never written stay zero.
#[derive(Debug)]
pub struct MatrixBuilder {
    matrix: PackedMatrix,
}

impl MatrixBuilder {
    /// Sets the weights of one output: `row` is [`PackedMatrix::k`] bf16 bit patterns.
    pub fn write_row(&mut self, output: usize, row: &[u16]) -> Result<(), PackError> {
        assert!(output < self.matrix.n, "output {output} of {}", self.matrix.n);
        assert_eq!(row.len(), self.matrix.k, "a row of the matrix");
        check_finite(output, row)?;
        self.place(output, row);
        Ok(())
    }

    fn place(&mut self, output: usize, row: &[u16]) {
        let lane = Lane::of(output);
        let len = self.matrix.k_tiles() * TILE;
        lane.scatter(row, &mut self.matrix.data[lane.panel * len..][..len]);
    }

    /// Sets every row, on all threads of the team: `read(output, row)` puts the bf16 bits of an output into `row`.
    /// Of several errors, the one of the lowest output is returned.
    pub fn fill<E, F>(&mut self, team: &mut Team, read: F) -> Result<(), E>
    where
        E: From<PackError> + Send,
        F: Fn(usize, &mut [u16]) -> Result<(), E> + Sync,
    {
        let outputs = self.matrix.n;
        self.fill_lanes(team, |lane, row| {
            if lane >= outputs {
                return Ok(false);
            }
            read(lane, row)?;
            check_finite(lane, row)?;
            Ok(true)
        })
    }

    /// As [`MatrixBuilder::fill`] over packed rows, with padding: `read` says whether there is such a row, and checks it.
    fn fill_lanes<E, F>(&mut self, team: &mut Team, read: F) -> Result<(), E>
    where
        E: From<PackError> + Send,
        F: Fn(usize, &mut [u16]) -> Result<bool, E> + Sync,
    {
        let k = self.matrix.k;
        let panel_len = self.matrix.k_tiles() * TILE;
        let buffers = HugeBuf::<u16>::zeroed(team.threads().saturating_mul(k));
        let mut buffers = buffers.map_err(PackError::from)?;
        let buffers = Disjoint::new(&mut buffers);
        let first_error: Mutex<Option<(usize, E)>> = Mutex::new(None);
        let lock = || first_error.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        team.run_pieces(&mut self.matrix.data, panel_len.max(1), |thread, panel, weights| {
            // SAFETY: this thread's own buffer; a thread runs one piece at a time.
            let row = unsafe { buffers.slice_mut(thread * k, k) };
            for output in panel * PANEL..(panel + 1) * PANEL {
                match read(output, row) {
                    Ok(true) => Lane::of(output).scatter(row, weights),
                    Ok(false) => {}
                    Err(error) => {
                        let mut first = lock();
                        if first.as_ref().is_none_or(|(at, _)| output < *at) {
                            *first = Some((output, error));
                        }
                        return;
                    }
                }
            }
        });
        let error = lock().take();
        error.map_or(Ok(()), |(_, error)| Err(error))
    }

    /// The matrix.
    pub fn finish(self) -> PackedMatrix {
        self.matrix
    }
}

/// Which matrix of a [`GatedMatrix`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gated {
    /// The one whose outputs go through the activation function.
    Gate,
    /// The one whose outputs are multiplied by that.
    Up,
}

/// Gate and up projection of one feed-forward block, panel by panel in turn: panel `2 i` holds gate rows `32 i ..`, panel
/// `2 i + 1` the up rows `32 i ..`. So whoever computes an activation has both its factors at hand.
#[derive(Debug)]
pub struct GatedMatrix {
    matrix: PackedMatrix,
    n: usize,
}

impl GatedMatrix {
    /// Starts two matrices of zeros, each `n` outputs by `k` inputs.
    pub fn builder(n: usize, k: usize) -> Result<GatedBuilder, OutOfMemory> {
        let packed = n.div_ceil(PANEL).checked_mul(2 * PANEL).ok_or(OutOfMemory { bytes: usize::MAX })?;
        Ok(GatedBuilder { inner: PackedMatrix::builder(packed, k)?, n })
    }

    /// Number of outputs of each of the two.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Number of inputs.
    pub fn k(&self) -> usize {
        self.matrix.k
    }

    /// Bytes of the packed weights.
    pub fn bytes(&self) -> usize {
        self.matrix.bytes()
    }

    /// The weights of one output, widened: `row` takes [`GatedMatrix::k`] elements.
    pub fn row(&self, which: Gated, output: usize, row: &mut [f32]) {
        assert!(output < self.n, "output {output} of {}", self.n);
        self.matrix.row(packed_row(which, output), row);
    }

    /// Both matrices as one: even panels gate, odd panels up.
    pub(crate) fn packed(&self) -> &PackedMatrix {
        &self.matrix
    }
}

fn packed_row(which: Gated, output: usize) -> usize {
    let pair = output / PANEL * 2 + usize::from(which == Gated::Up);
    pair * PANEL + output % PANEL
}

fn unpacked_row(packed: usize) -> (Gated, usize) {
    let panel = packed / PANEL;
    let which = if panel.is_multiple_of(2) { Gated::Gate } else { Gated::Up };
    (which, panel / 2 * PANEL + packed % PANEL)
}

/// A gated matrix being filled. Rows that are never written stay zero.
#[derive(Debug)]
pub struct GatedBuilder {
    inner: MatrixBuilder,
    n: usize,
}

impl GatedBuilder {
    /// Sets the weights of one output of one of the two matrices: bf16 bit patterns of its `k` inputs.
    pub fn write_row(&mut self, which: Gated, output: usize, row: &[u16]) -> Result<(), PackError> {
        assert!(output < self.n, "output {output} of {}", self.n);
        assert_eq!(row.len(), self.inner.matrix.k, "a row of the matrix");
        check_finite(output, row)?;
        self.inner.place(packed_row(which, output), row);
        Ok(())
    }

    /// Sets every row, on all threads of the team: `read(which, output, row)` puts the bf16 bits of an output into `row`.
    pub fn fill<E, F>(&mut self, team: &mut Team, read: F) -> Result<(), E>
    where
        E: From<PackError> + Send,
        F: Fn(Gated, usize, &mut [u16]) -> Result<(), E> + Sync,
    {
        let outputs = self.n;
        self.inner.fill_lanes(team, |packed, row| {
            let (which, output) = unpacked_row(packed);
            if output >= outputs {
                return Ok(false);
            }
            read(which, output, row)?;
            check_finite(output, row)?;
            Ok(true)
        })
    }

    /// The matrix.
    pub fn finish(self) -> GatedMatrix {
        GatedMatrix { matrix: self.inner.finish(), n: self.n }
    }
}
