//! What a target keeps of its residual stream for a drafter that reads it.
//!
//! A tap is the stream after a layer, as the next layer reads it. Taps are taken inside the target's own pass, at the rows whose taps
//! are wanted, and stand side by side in one buffer.

use paceline_backend::{Backend, BackendError, Buf, Op, Pass};

/// The taps of a target that was loaded with some.
#[derive(Clone, Debug)]
pub(crate) struct Taps {
    layers: Vec<usize>,
    buf: Buf,
}

impl Taps {
    /// Makes the buffer for passes of up to `max_rows` rows of a stream of `width` values; `None` without layers. Those of a drafter
    /// are checked by its config before anything is loaded.
    pub(crate) fn new(
        layers: &[usize],
        (n_layers, width): (usize, usize),
        max_rows: usize,
        backend: &mut dyn Backend,
    ) -> Result<Option<Self>, BackendError> {
        if layers.is_empty() {
            return Ok(None);
        }
        assert!(layers.iter().all(|&layer| layer < n_layers), "taps {layers:?} of {n_layers} layers");
        let buf = backend.buffer(max_rows, layers.len() * width)?;
        Ok(Some(Self { layers: layers.to_vec(), buf }))
    }

    /// `[tapped rows, taps * width]`.
    pub(crate) fn buf(&self) -> Buf {
        self.buf
    }

    /// The layer in which a forward narrows to the wanted rows: `narrow`, or the one behind the last tapped layer if the pass wants
    /// taps from further up. May be one more than there are layers.
    pub(crate) fn narrow_at(taps: Option<&Self>, narrow: usize, pass: &Pass) -> usize {
        match taps {
            Some(taps) if !pass.tapped().is_empty() => {
                taps.layers.iter().fold(narrow, |narrow, layer| narrow.max(layer + 1))
            }
            _ => narrow,
        }
    }

    /// Takes the taps of a layer, whose stream `x` stands over all rows.
    pub(crate) fn take(&self, backend: &mut dyn Backend, pass: &Pass, layer: usize, x: Buf) {
        let rows = pass.tapped_rows();
        for (tap, _) in self.layers.iter().enumerate().filter(|(_, tapped)| rows.len > 0 && **tapped == layer)
        {
            backend.run(&Op::Tap { x, out: self.buf, column: tap as u32 * x.width }, rows);
        }
    }
}
