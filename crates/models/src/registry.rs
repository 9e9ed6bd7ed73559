//! Which architecture reads which `model_type`.

use paceline_backend::Backend;
use paceline_checkpoint::{Inexact, RawConfig, Tensors};

use crate::dflash::DFlashConfig;
use crate::error::ModelError;
use crate::target::{Description, Limits, Target};
use crate::{gemma3, gemma4};

/// `model_type` values of targets, for messages.
const SUPPORTED: &str = "gemma4, gemma4_text, gemma4_unified, gemma4_unified_text, gemma3, gemma3_text";

/// How a model is loaded.
pub struct LoadOptions<'a> {
    /// Sizes of buffers and K/V.
    pub limits: Limits,
    /// Layers after which a drafter reads the stream, in its order: each below [`Description::n_layers`].
    pub tap_layers: &'a [usize],
    /// Tokens that the model shall have, whatever its config says: rows of its tables beyond them are left out, rows that it lacks are
    /// zeros. For a model that drafts for one whose tables are padded to another length. `None`: as many as the config says.
    pub vocab_size: Option<usize>,
    /// What to do with weights that bf16 cannot hold.
    pub inexact: Inexact,
    /// Called with the number of layers loaded so far.
    pub progress: &'a mut dyn FnMut(usize),
}

enum Architecture {
    Gemma3,
    Gemma4,
}

impl Architecture {
    fn of(raw: &RawConfig) -> Result<Self, ModelError> {
        if DFlashConfig::describes(raw)? {
            return Err(ModelError::DFlashAsModel { file: raw.file().to_path_buf() });
        }
        let (file, found) = (raw.file().to_path_buf(), raw.model_type()?.to_owned());
        match found.as_str() {
            "gemma3" | "gemma3_text" => Ok(Self::Gemma3),
            "gemma4" | "gemma4_text" | "gemma4_unified" | "gemma4_unified_text" => Ok(Self::Gemma4),
            "gemma4_assistant" | "gemma4_unified_assistant" => {
                Err(ModelError::AssistantAsModel { file, found })
            }
            _ => Err(ModelError::UnsupportedModel { file, found, supported: SUPPORTED }),
        }
    }
}

/// What a checkpoint is, from its config alone.
///
/// # Errors
/// A `model_type` that is not supported, and whatever is wrong with the config.
pub fn describe(raw: &RawConfig) -> Result<Description, ModelError> {
    match Architecture::of(raw)? {
        Architecture::Gemma3 => gemma3::describe(raw),
        Architecture::Gemma4 => gemma4::describe(raw),
    }
}

/// Loads a target into a backend. `limits.kv_blocks` has an entry for each of [`Description::kv_groups`]; the caller reserves the
/// backend afterwards.
///
/// # Errors
/// As [`describe`], and tensors that are missing, have other shapes, are not finite, or belong to no known part.
pub fn load(
    raw: &RawConfig,
    tensors: Tensors,
    backend: &mut dyn Backend,
    mut options: LoadOptions<'_>,
) -> Result<Box<dyn Target>, ModelError> {
    match Architecture::of(raw)? {
        Architecture::Gemma3 => Ok(Box::new(gemma3::load(raw, tensors, backend, &mut options)?)),
        Architecture::Gemma4 => Ok(Box::new(gemma4::load(raw, tensors, backend, &mut options)?)),
    }
}
