//! From model folders to an [`Engine`] on the CPU.

mod bind;
mod needed;

use std::sync::Arc;

use paceline_backend::{Activation, Backend, CpuBackend, CpuOptions, TokenId};
use paceline_checkpoint::{Inexact, ModelFolder, SpecialTokens, Tokenizer};
use paceline_kernels::isa::Isa;
use paceline_models::ModelError;
use thiserror::Error;

use crate::engine::{Engine, EngineParts};
use crate::error::BuildError;
use crate::sizes::Sizes;
use crate::text::{Detokenizer, TextDecoder};
use bind::{Binding, DraftersToBind, Fitting};
pub use bind::{DraftOptions, DraftSource};
pub use needed::MemoryNeeded;

/// Most drafts of a round.
const MAX_DRAFTS: usize = 64;

/// How a model is loaded and run.
pub struct LoadOptions<'a> {
    /// Instructions to use.
    pub isa: Isa,
    /// Threads of an op, at least 1.
    pub threads: usize,
    /// Activation type.
    pub activation: Activation,
    /// Sizes; `draft` raises `max_drafts` to what its drafters need.
    pub sizes: Sizes,
    /// What to do with weights that bf16 cannot hold.
    pub inexact: Inexact,
    /// Who drafts.
    pub draft: Option<DraftOptions<'a>>,
    /// Makes text of tokens, if there is a tokenizer.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Called with the layers loaded so far and their number.
    pub progress: &'a mut dyn FnMut(usize, usize),
}

/// Why a model could not be loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A folder is not in order.
    #[error(transparent)]
    Checkpoint(#[from] paceline_checkpoint::Error),
    /// A checkpoint is not a model, or a drafter does not fit its target.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Sizes do not fit, or there is no memory.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The folder given as drafter is not one.
    #[error(
        "{folder}: model_type `{found}` is not a drafter; expected gemma4_assistant, gemma4_unified_assistant, a DFlash drafter or a model that is supported as a target"
    )]
    NotADrafter {
        /// The folder.
        folder: String,
        /// What its config says.
        found: String,
    },
    /// Two drafters read hidden states of the target, which keeps those of one only.
    #[error(
        "{first} and {second} are both DFlash drafters; expected one of them at most in a list of drafters"
    )]
    TwoTapReaders {
        /// The first folder.
        first: String,
        /// The second.
        second: String,
    },
    /// A draft model whose tokens are not the target's.
    #[error(
        "{folder}: does not draft for {target}: {what}; a draft model needs the vocabulary of its target"
    )]
    DraftModel {
        /// The draft model's folder.
        folder: String,
        /// The target's folder.
        target: String,
        /// What is not the same.
        what: String,
    },
    /// A draft model that ends before the target does.
    #[error(
        "{folder}: has {positions} positions, and the context is {context}; take a smaller context or another drafter"
    )]
    DraftModelContext {
        /// The draft model's folder.
        folder: String,
        /// Tokens of a sequence at most.
        context: usize,
        /// What its config says.
        positions: usize,
    },
    /// More drafts than the block of a DFlash drafter has masks.
    #[error(
        "{folder}: {found} drafts a round are asked for; expected at most {most}, its block_size less one: ask for fewer, or leave \
         the number to the drafter"
    )]
    BlockDrafts {
        /// The drafter's folder.
        folder: String,
        /// The number.
        found: usize,
        /// What it can draft.
        most: usize,
    },
    /// A number of drafts that no round can have.
    #[error("{found} drafts a round are asked for; expected at most {MAX_DRAFTS}")]
    TooManyDrafts {
        /// The number.
        found: usize,
    },
}

impl From<paceline_backend::BackendError> for LoadError {
    fn from(error: paceline_backend::BackendError) -> Self {
        BuildError::from(error).into()
    }
}

/// Loads a target, and a drafter bound to it, on the CPU.
///
/// # Errors
/// What is wrong with a folder, a size or the pair.
pub fn load(folder: &ModelFolder, options: LoadOptions<'_>) -> Result<Engine, LoadError> {
    Ok(Engine::new(load_parts(folder, options, |cpu| Box::new(cpu))?)?)
}

/// Loads what [`load`] makes an engine of. `wrap` may put something around the backend that watches it.
///
/// # Errors
/// As [`load`].
pub fn load_parts(
    folder: &ModelFolder,
    options: LoadOptions<'_>,
    wrap: impl FnOnce(CpuBackend) -> Box<dyn Backend>,
) -> Result<EngineParts, LoadError> {
    let LoadOptions { isa, threads, activation, mut sizes, inexact, draft, tokenizer, progress } = options;
    let description = paceline_models::describe(folder.config())?;
    let fitting = Fitting { folder, description: &description, context: sizes.context };
    let drafters = draft.as_ref().map(|draft| DraftersToBind::read(draft, fitting)).transpose()?;
    if let Some(drafters) = &drafters {
        sizes.max_drafts = sizes.max_drafts.max(drafters.most_drafts()?);
    }
    let drafter_kv = drafters.as_ref().map(DraftersToBind::kv_groups).unwrap_or_default();
    let limits = sizes.limits(&description, &drafter_kv, activation)?;
    let generation = folder.generation()?;
    let mut backend = wrap(CpuBackend::new(CpuOptions { isa, threads, activation })?);
    let options = paceline_models::LoadOptions {
        limits: limits.clone(),
        tap_layers: drafters.as_ref().map_or(&[], DraftersToBind::tap_layers),
        vocab_size: None,
        inexact,
        progress: &mut |done| progress(done, description.n_layers),
    };
    let target = paceline_models::load(folder.config(), folder.tensors()?, backend.as_mut(), options)?;
    let bind = |drafters: DraftersToBind<'_>| {
        let binding = Binding { target: &*target, limits: &limits, max_drafts: sizes.max_drafts, inexact };
        drafters.bind(&binding, backend.as_mut())
    };
    let draft_confidence = draft.as_ref().map_or(0.0, |draft| draft.confidence);
    let drafter = drafters.map(bind).transpose()?.flatten();
    let ids = |ids: Vec<u32>| ids.into_iter().map(TokenId).collect();
    Ok(EngineParts {
        backend,
        target,
        drafter,
        draft_confidence,
        sizes,
        end_tokens: ids(generation.end_token_ids),
        suppress: ids(generation.suppress_token_ids),
        text: tokenizer.map(|tokenizer| Arc::new(Decoder(tokenizer)) as Arc<dyn TextDecoder>),
    })
}

/// Text of tokens, special ones left out.
struct Decoder(Arc<Tokenizer>);

impl TextDecoder for Decoder {
    fn detokenizer(&self) -> Box<dyn Detokenizer> {
        let inner = paceline_checkpoint::Detokenizer::new(SpecialTokens::Skip);
        Box::new(Pieces { tokenizer: self.0.clone(), inner })
    }
}

struct Pieces {
    tokenizer: Arc<Tokenizer>,
    inner: paceline_checkpoint::Detokenizer,
}

impl Detokenizer for Pieces {
    fn push(&mut self, token: TokenId) -> String {
        let mut text = String::new();
        self.inner.push(&self.tokenizer, token.0, &mut text);
        text
    }

    fn finish(&mut self) -> String {
        let mut text = String::new();
        self.inner.finish(&mut text);
        text
    }
}
