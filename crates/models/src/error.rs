//! Why a model cannot be loaded.

use std::path::PathBuf;

use paceline_backend::BackendError;
use thiserror::Error;

/// Why a checkpoint cannot be used as a model.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The folder, its config or its tensors are not in order.
    #[error(transparent)]
    Checkpoint(#[from] paceline_checkpoint::Error),
    /// A weight cannot be taken by the backend.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// No architecture here has this name.
    #[error("{file}: model_type `{found}` is not supported; supported are {supported}")]
    UnsupportedModel {
        /// The config.
        file: PathBuf,
        /// What it says.
        found: String,
        /// What would do.
        supported: &'static str,
    },
    /// A drafter was given as a model.
    #[error(
        "{file}: model_type `{found}` is an assistant (a drafter), not a model that can run alone; give its target as the model and this folder with --draft"
    )]
    AssistantAsModel {
        /// The config.
        file: PathBuf,
        /// What it says.
        found: String,
    },
    /// A DFlash drafter was given as a model.
    #[error(
        "{file}: this is a DFlash drafter, not a model that can run alone; give its target as the model and this folder with --draft"
    )]
    DFlashAsModel {
        /// The config.
        file: PathBuf,
    },
    /// A drafter in a format that is known and not supported.
    #[error(
        "{file}: this drafter is in a format that is not supported: {layout}; expected DFlash as z-lab publishes it"
    )]
    UnsupportedDrafter {
        /// The config.
        file: PathBuf,
        /// The format.
        layout: String,
    },
    /// A drafter made for another target.
    #[error(
        "{file}: this drafter does not fit the target ({target}): {what}: the target needs {expected}, the drafter has {found}"
    )]
    IncompatibleDrafter {
        /// The drafter's config.
        file: PathBuf,
        /// The target's architecture.
        target: String,
        /// The field.
        what: String,
        /// The target's value.
        expected: String,
        /// The drafter's value.
        found: String,
    },
    /// An assistant with K/V weights.
    #[error(
        "{file}: tensor `{tensor}` does not belong into an assistant, whose layers read their target's K/V: the checkpoint does not fit its config"
    )]
    StrayTensor {
        /// Where it is.
        file: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// Fields of a config, or values of a tensor, that do not fit together.
    #[error("{file}: {what}: expected {expected}, found {found}")]
    Inconsistent {
        /// The config, or the file of the tensor.
        file: PathBuf,
        /// The fields, or the tensor.
        what: String,
        /// What would fit.
        expected: String,
        /// What is there.
        found: String,
    },
}
