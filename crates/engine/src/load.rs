//! From a checkpoint to an engine.

use std::sync::Arc;

use paceline_backend::{Activation, Backend, BackendError, CpuBackend, CpuOptions, Isa, IsaError, TokenId};
use paceline_checkpoint::{Inexact, ModelFolder, SpecialTokens, Tokenizer};
use paceline_models::{AssistantConfig, Gemma4Assistant, ModelError, Target};
use thiserror::Error;

use crate::drafters::{AssistantDrafter, Drafter, assistant_drafts};
use crate::engine::{Engine, EngineParts};
use crate::error::BuildError;
use crate::sizes::Sizes;
use crate::text::{Detokenizer, TextDecoder};

/// A checkpoint could not be made into an engine.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file of the checkpoint is missing or wrong.
    #[error(transparent)]
    Checkpoint(#[from] paceline_checkpoint::Error),
    /// The checkpoint is not a model that can be run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The CPU level that was asked for is not there.
    #[error(transparent)]
    Isa(#[from] IsaError),
    /// Sizes do not fit, or memory is short.
    #[error(transparent)]
    Build(#[from] BuildError),
}

impl From<BackendError> for LoadError {
    fn from(error: BackendError) -> Self {
        LoadError::Build(error.into())
    }
}

/// Loads a checkpoint.
pub struct Loader<'a> {
    /// The checkpoint.
    pub folder: &'a ModelFolder,
    /// The checkpoint of a drafter for it.
    pub drafter: Option<&'a ModelFolder>,
    /// Sizes of the engine. With a drafter, `max_drafts` is at least 1; see [`suggested_drafts`].
    pub sizes: Sizes,
    /// What to do with stored weights that bf16 cannot hold.
    pub inexact: Inexact,
    /// Called with the number of layers loaded so far.
    pub progress: &'a mut dyn FnMut(usize),
}

impl Loader<'_> {
    /// Loads the weights into a backend and puts an engine around them. The engine makes text if the folder has a tokenizer.
    ///
    /// # Errors
    /// Whatever is wrong with the folders, a model that is not supported, a drafter that does not fit it, sizes that do not fit,
    /// no memory.
    pub fn load(self, mut backend: Box<dyn Backend>) -> Result<Model, LoadError> {
        let Loader { folder, drafter, sizes, inexact, progress } = self;
        let description = paceline_models::describe(folder.config())?;
        let limits = sizes.limits(&description, backend.info().activation)?;
        let tokenizer = folder.tokenizer()?.map(Arc::new);
        if let Some(tokenizer) = &tokenizer {
            tokenizer.check_vocabulary(description.vocab_size)?;
        }
        let generation = folder.generation()?;
        let options = paceline_models::LoadOptions { limits, inexact, progress };
        let target = paceline_models::load(folder.config(), folder.tensors()?, backend.as_mut(), options)?;
        let drafter = drafter
            .map(|folder| bind(folder, backend.as_mut(), target.as_ref(), &sizes, inexact))
            .transpose()?;
        let ids = |ids: Vec<u32>| ids.into_iter().map(TokenId).collect();
        let engine = Engine::new(EngineParts {
            backend,
            target,
            drafter,
            sizes,
            end_tokens: ids(generation.end_token_ids),
            suppress: ids(generation.suppress_token_ids),
            text: tokenizer.clone().map(text_decoder),
        })?;
        Ok(Model { engine, tokenizer })
    }
}

/// Loads a drafter for a target on the same backend.
fn bind(
    folder: &ModelFolder,
    backend: &mut dyn Backend,
    target: &dyn Target,
    sizes: &Sizes,
    inexact: Inexact,
) -> Result<Box<dyn Drafter>, LoadError> {
    let (config, tensors, exports) = (folder.config(), folder.tensors()?, target.exports());
    let network = Gemma4Assistant::bind(config, tensors, backend, exports, sizes.n_slots, inexact)?;
    Ok(Box::new(AssistantDrafter::new(network, exports, folder.generation()?.num_assistant_tokens)))
}

/// Drafts a round that a drafter's checkpoint suggests.
///
/// # Errors
/// Whatever is wrong with its configs.
pub fn suggested_drafts(folder: &ModelFolder) -> Result<usize, LoadError> {
    let config = AssistantConfig::parse(folder.config())?;
    Ok(assistant_drafts(&config, folder.generation()?.num_assistant_tokens))
}

/// The CPU as a backend: the level of `PACELINE_ISA`, or else the best one of this machine, and all its threads.
///
/// # Errors
/// A level that does not exist or that this machine does not have; no memory.
pub fn cpu_backend(activation: Activation) -> Result<Box<dyn Backend>, LoadError> {
    let (isa, _) = Isa::from_env()?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(Box::new(CpuBackend::new(CpuOptions { isa, threads, activation })?))
}

/// A loaded checkpoint.
pub struct Model {
    /// Runs requests.
    pub engine: Engine,
    /// Makes tokens of text; `None` where the folder has no tokenizer.
    pub tokenizer: Option<Arc<Tokenizer>>,
}

/// The text of tokens by a checkpoint's tokenizer, special tokens left out.
pub fn text_decoder(tokenizer: Arc<Tokenizer>) -> Arc<dyn TextDecoder> {
    Arc::new(CheckpointText(tokenizer))
}

struct CheckpointText(Arc<Tokenizer>);

impl TextDecoder for CheckpointText {
    fn detokenizer(&self) -> Box<dyn Detokenizer> {
        let pieces = paceline_checkpoint::Detokenizer::new(SpecialTokens::Skip);
        Box::new(CheckpointPieces { tokenizer: self.0.clone(), pieces })
    }
}

struct CheckpointPieces {
    tokenizer: Arc<Tokenizer>,
    pieces: paceline_checkpoint::Detokenizer,
}

impl Detokenizer for CheckpointPieces {
    fn push(&mut self, token: TokenId) -> String {
        let mut text = String::new();
        self.pieces.push(&self.tokenizer, token.0, &mut text);
        text
    }

    fn finish(&mut self) -> String {
        let mut text = String::new();
        self.pieces.finish(&mut text);
        text
    }
}
