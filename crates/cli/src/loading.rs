//! Loading a model to run it: memory is checked first, a bar shows how far it is, and rounded weights are said.

use std::sync::Arc;

use paceline::{DraftOptions, Engine, Isa, LoadOptions, ModelFolder, Sizes, Tokenizer};
use paceline_models::Description;

use crate::draft::Drafters;
use crate::failure::Failure;
use crate::memory;
use crate::model::{ActivationArg, ThreadsArg};
use crate::progress::Progress;
use crate::weights::WeightsArg;

/// What is loaded, and how.
pub(crate) struct Loading<'a> {
    pub(crate) folder: &'a ModelFolder,
    pub(crate) description: &'a Description,
    pub(crate) drafters: &'a Drafters,
    /// What of the drafters the engine is told.
    pub(crate) draft: Option<DraftOptions<'a>>,
    pub(crate) sizes: Sizes,
    pub(crate) isa: Isa,
    pub(crate) activations: ActivationArg,
    pub(crate) threads: &'a ThreadsArg,
    pub(crate) weights: &'a WeightsArg,
    /// Where texts are wanted beside token ids.
    pub(crate) tokenizer: Option<Arc<Tokenizer>>,
}

impl Loading<'_> {
    /// Loads it.
    pub(crate) fn run(self) -> Result<Engine, Failure> {
        let Self { folder, description, drafters, sizes, weights, .. } = self;
        memory::check(folder, self.draft.as_ref(), sizes, self.activations.into())?;
        let progress = Progress::new("loading layers", description.n_layers);
        let options = LoadOptions {
            isa: self.isa,
            threads: self.threads.get(),
            activation: self.activations.into(),
            sizes,
            inexact: weights.inexact(),
            draft: self.draft,
            tokenizer: self.tokenizer,
            progress: &mut |layers, _of| progress.set(layers),
        };
        let engine = paceline::load(folder, options)?;
        progress.clear();
        weights.say_rounded(drafters.folders().chain([folder]))?;
        Ok(engine)
    }
}
