//! Which kernel multiplies, and how it is called.
use std::ops::Range;

use super::inputs::{Data, Inputs};
use super::packed::PackedMatrix;
use super::scalar;
use crate::isa::Isa;
use crate::numerics::{Activation, PANEL};

/// The kernel of a (level, activation type): never of a number of rows. All read one packing and give the same bits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kernel {
    Scalar,
}

impl Kernel {
    pub(super) fn pick(isa: Isa, activation: Activation) -> Kernel {
        Kernel::Scalar
    }

    /// Multiplies all rows with some panels: `c` takes `[panel][row][32 outputs]`.
    pub(super) fn multiply(self, x: &Inputs<'_>, w: &PackedMatrix, panels: Range<usize>, c: &mut [f32]) {
        assert_eq!(x.k_tiles, w.k_tiles());
        assert_eq!(c.len(), panels.len() * x.rows * PANEL);
        for (panel, c) in panels.zip(c.chunks_exact_mut(x.rows * PANEL)) {
            let weights = w.panel(panel);
            match (self, x.data) {
                (Kernel::Scalar, Data::Wide(x)) => scalar::panel(weights, x, c),
                _ => unreachable!("rows are prepared for their kernel"),
            }
        }
    }
}
