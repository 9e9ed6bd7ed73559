//! Loading a model to run it: memory is checked first, a bar shows how far it is, and rounded weights are said.

use std::sync::Arc;

use paceline::{DraftOptions, Engine, EngineParts, Isa, LoadOptions, ModelFolder, Sizes, Tokenizer};
use paceline_models::Description;

use crate::draft::Drafters;
use crate::failure::Failure;
use crate::memory;
use crate::model::{ActivationArg, ThreadsArg};
use crate::progress::Progress;
use crate::weights::WeightsArg;

/// How a model runs, in arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct MachineArgs {
    /// Type of the activations
    #[arg(long, value_name = "TYPE", value_enum, default_value = "bf16")]
    pub(crate) activations: ActivationArg,
    #[command(flatten)]
    pub(crate) threads: ThreadsArg,
    #[command(flatten)]
    pub(crate) weights: WeightsArg,
}

/// What is loaded, and how.
pub(crate) struct Loading<'a> {
    pub(crate) folder: &'a ModelFolder,
    pub(crate) description: &'a Description,
    pub(crate) drafters: &'a Drafters,
    /// What of the drafters the engine is told.
    pub(crate) draft: Option<DraftOptions<'a>>,
    pub(crate) sizes: Sizes,
    pub(crate) isa: Isa,
    pub(crate) machine: &'a MachineArgs,
    /// Where texts are wanted beside token ids.
    pub(crate) tokenizer: Option<Arc<Tokenizer>>,
}

impl Loading<'_> {
    /// Loads it.
    pub(crate) fn run(self) -> Result<Engine, Failure> {
        Ok(Engine::new(self.parts()?)?)
    }

    /// Loads what an engine is made of.
    pub(crate) fn parts(self) -> Result<EngineParts, Failure> {
        let Self { folder, description, drafters, sizes, machine, .. } = self;
        let activation = machine.activations.into();
        memory::check(folder, self.draft.as_ref(), sizes, activation)?;
        let progress = Progress::new("loading layers", description.n_layers);
        let options = LoadOptions {
            isa: self.isa,
            threads: machine.threads.get(),
            activation,
            sizes,
            inexact: machine.weights.inexact(),
            draft: self.draft,
            tokenizer: self.tokenizer,
            progress: &mut |layers, _of| progress.set(layers),
        };
        let parts = paceline::load_parts(folder, options, |cpu| Box::new(cpu))?;
        progress.clear();
        machine.weights.say_rounded(drafters.folders().chain([folder]))?;
        Ok(parts)
    }
}
