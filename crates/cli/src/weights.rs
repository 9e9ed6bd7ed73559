//! Weights that bf16 cannot hold: refused, or rounded and said to be.

use clap::ValueEnum;
use paceline::{Inexact, ModelFolder};
use paceline_checkpoint::DType;

use crate::failure::{Failure, note};
use crate::numbers::counted;

/// How weights are held, in arguments.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct WeightsArg {
    /// Round weights that are stored as f32 or f16 where bf16 cannot hold them; left out, a model with such weights is refused
    #[arg(long, value_name = "TYPE", value_enum)]
    weights: Option<WeightType>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum WeightType {
    /// Rounded to the nearest bf16
    Bf16,
}

impl WeightsArg {
    /// What to do with weights that bf16 cannot hold.
    pub(crate) fn inexact(&self) -> Inexact {
        match self.weights {
            Some(WeightType::Bf16) => Inexact::Round,
            None => Inexact::Refuse,
        }
    }

    /// Says which of the loaded folders have weights that may have been rounded.
    pub(crate) fn say_rounded<'a>(
        &self,
        folders: impl IntoIterator<Item = &'a ModelFolder>,
    ) -> Result<(), Failure> {
        if self.inexact() == Inexact::Refuse {
            return Ok(());
        }
        for folder in folders {
            let wide = wide_tensors(folder)?;
            if wide > 0 {
                let (origin, tensors) = (folder.origin().display(), counted(wide as u64, "tensor"));
                note(&format!(
                    "{origin}: the values of {tensors} of type f32 or f16 are rounded to bf16, so what runs is not quite the model that \
                     is stored"
                ));
            }
        }
        Ok(())
    }
}

/// Tensors of the text model whose values bf16 may be unable to hold.
fn wide_tensors(folder: &ModelFolder) -> Result<usize, Failure> {
    let tensors = folder.tensors()?.into_text()?;
    let types = tensors.names().filter_map(|name| tensors.get(name)).map(|tensor| tensor.dtype());
    Ok(types.filter(|dtype| matches!(dtype, DType::F32 | DType::F16)).count())
}
