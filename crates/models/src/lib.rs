//! The architectures: one each, in forward order, as straight lines of backend ops.
#![forbid(unsafe_code)]

mod dflash;
mod error;
mod gemma3;
mod gemma4;
mod gemma4_assistant;
mod loader;
mod registry;
mod taps;
mod target;

pub use dflash::{DFlash, DFlashConfig, DFlashRoom};
pub use error::ModelError;
pub use gemma4_assistant::{AssistantConfig, Gemma4Assistant};
pub use registry::{LoadOptions, describe, load};
pub use target::{
    Description, DrafterSize, ExportLayer, Exports, LentKv, Limits, OwnedGroup, Parameters, Target,
};
