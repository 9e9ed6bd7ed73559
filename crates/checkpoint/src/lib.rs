//! Reading model folders: weights, configs, and what turns text into tokens and back.
//!
//! A checkpoint is bytes from a stranger. Everything here checks before it trusts: lengths before allocation,
//! offsets before slicing, shapes before use. Bad input is a typed [`Error`] that names the file and the tensor or
//! field, never a panic.
//!
//! - [`ModelFolder`] is the way in: a folder on disk, or files embedded in the program.
//! - [`RawConfig`] and [`Section`] read `config.json` field by field. Nothing here fills in a default; what the
//!   fields mean is the business of the model that asks for them.
//! - [`Tokenizer`] and [`Detokenizer`] turn text into tokens and back, [`ChatTemplate`] a conversation into text.
//! - [`Tensors`] has all weights by name, memory-mapped or made up from a seed ([`Tensors::random`]). A model takes
//!   what it needs by name and shape and then calls [`Tensors::finish`], which refuses what nobody took.
//! - With the feature `hub`, `Hub` fetches a model by its name and gives its folder in the cache.
//!
//! # What it does not do
//! It knows no architecture, converts no layout, and computes nothing but the conversions of stored number types.
//! It writes no file but those of the hub's cache.
//!
//! # Example
//! ```
//! use paceline_checkpoint::{Inexact, ModelFolder};
//!
//! let config = br#"{"model_type": "toy", "hidden_size": 2}"#;
//! let header = br#"{"norm.weight":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}"#;
//! let mut weights = (header.len() as u64).to_le_bytes().to_vec();
//! weights.extend(header);
//! weights.extend([0x80, 0x3f, 0x00, 0x40]); // 1.0 and 2.0
//!
//! let files = [("config.json", config.to_vec()), ("model.safetensors", weights)];
//! let folder = ModelFolder::from_files("toy", files)?;
//! let hidden = folder.config().text()?.required_usize("hidden_size", 1..=1 << 20)?;
//! let mut tensors = folder.tensors()?;
//! let norm = tensors.take("norm.weight", &[hidden])?;
//! assert_eq!(norm.to_f32()?, [1.0, 2.0]);
//! tensors.finish()?;
//! # Ok::<(), paceline_checkpoint::Error>(())
//! ```
#![deny(unsafe_code)]

mod config;
mod deep_stack;
mod detokenizer;
mod dtype;
mod error;
mod file_bytes;
mod folder;
mod generation;
#[cfg(feature = "hub")]
mod hub;
mod json;
#[allow(unsafe_code)]
mod mmap;
mod number;
mod python;
mod random;
mod safetensors;
mod shards;
mod strftime;
mod tags;
mod template;
mod tensor;
mod tensors;
#[cfg(test)]
mod test_files;
mod text_names;
mod tokenizer;
mod tokenizer_config;

pub use config::{RawConfig, SIZES, Section};
pub use detokenizer::{Detokenizer, SpecialTokens};
pub use dtype::DType;
pub use error::{Error, HeaderProblem};
pub use file_bytes::{FileBytes, FileSlice};
pub use folder::ModelFolder;
pub use generation::{GenerationConfig, LEAST_TEMPERATURE, MOST_TEMPERATURE};
#[cfg(feature = "hub")]
pub use hub::{Hub, HubError, HubEvent, HubId, HubSettings, Token};
pub use number::{NumberError, parse_number};
pub use safetensors::{MAX_HEADER_BYTES, MAX_RANK, MAX_TENSORS};
pub use template::{ChatTemplate, Conversation};
pub use tensor::{Inexact, Tensor};
pub use tensors::Tensors;
pub use tokenizer::{Tokenizer, VocabularyDifference};
