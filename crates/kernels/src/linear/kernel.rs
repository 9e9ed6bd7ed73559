//! Which kernel multiplies, and how it is called.
use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::inputs::GROUP;
use super::inputs::{Form, Inputs};
use super::packed::PackedMatrix;
use super::scalar;
#[cfg(target_arch = "x86_64")]
use super::{amx, avx2, avx512, avx512_bf16};
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::{Amx, Avx2, Avx512, Avx512Bf16};
use crate::numerics::{Activation, PANEL};

/// The kernel of a level and activation type: never of a number of rows. All read one packing and give the same bits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kernel {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16(Avx512Bf16),
    #[cfg(target_arch = "x86_64")]
    Amx(Amx),
}

impl Kernel {
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn pick(isa: Isa, activation: Activation) -> Kernel {
        // AMX and dot products multiply bf16 only.
        let bf16 = activation == Activation::Bf16;
        let amx = isa.amx().filter(|_| bf16).map(Kernel::Amx);
        let dots = || isa.avx512_bf16().filter(|_| bf16).map(Kernel::Avx512Bf16);
        let avx512 = || isa.avx512().map(Kernel::Avx512);
        let avx2 = || isa.avx2().map(Kernel::Avx2);
        amx.or_else(dots).or_else(avx512).or_else(avx2).unwrap_or(Kernel::Scalar)
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn pick(_: Isa, _: Activation) -> Kernel {
        Kernel::Scalar
    }

    /// The form in which it reads rows.
    pub(crate) fn form(self, activation: Activation) -> Form {
        match self {
            #[cfg(target_arch = "x86_64")]
            Kernel::Amx(amx) => Form::Narrow(amx.avx512()),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512Bf16(dots) => Form::Paired(dots.avx512()),
            _ => Form::Wide(activation),
        }
    }

    /// About how many times as long `rows` rows take as one, where the weights are at hand.
    pub(crate) fn times_over(self, rows: usize) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Kernel::Amx(_) => rows.div_ceil(GROUP),
            _ => rows,
        }
    }

    /// Multiplies all rows with some panels: `c` takes `[panel][row][32 outputs]`.
    pub(crate) fn multiply(self, x: Inputs<'_>, w: &PackedMatrix, panels: Range<usize>, c: &mut [f32]) {
        assert_eq!(x.k_tiles(), w.k_tiles());
        assert_eq!(c.len(), panels.len() * x.rows() * PANEL);
        if w.k_tiles() == 0 {
            return c.fill(0.0);
        }
        if w.is_far() {
            self.multiply_panels::<true>(x, w, panels, c);
        } else {
            self.multiply_panels::<false>(x, w, panels, c);
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn multiply_panels<const FAR: bool>(
        self,
        x: Inputs<'_>,
        w: &PackedMatrix,
        panels: Range<usize>,
        c: &mut [f32],
    ) {
        match (self, x) {
            (Kernel::Amx(amx), Inputs::Narrow(x)) => amx::panels::<FAR>(amx, w.panel_range(panels), x, c),
            (Kernel::Avx512(avx512), Inputs::Wide(x)) => {
                avx512::panels::<FAR>(avx512, w.panel_range(panels), x, c);
            }
            (Kernel::Avx512Bf16(dots), Inputs::Paired(x)) => {
                avx512_bf16::panels::<FAR>(dots, w.panel_range(panels), x, c);
            }
            (Kernel::Avx2(avx2), Inputs::Wide(x)) => avx2::panels::<FAR>(avx2, w.panel_range(panels), x, c),
            (Kernel::Scalar, Inputs::Wide(x)) => scalar::panels(w.panel_range(panels), x, c),
            _ => unreachable!("rows are prepared in the form of their kernel"),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn multiply_panels<const FAR: bool>(
        self,
        x: Inputs<'_>,
        w: &PackedMatrix,
        panels: Range<usize>,
        c: &mut [f32],
    ) {
        let (Kernel::Scalar, Inputs::Wide(x)) = (self, x);
        scalar::panels(w.panel_range(panels), x, c);
    }
}
