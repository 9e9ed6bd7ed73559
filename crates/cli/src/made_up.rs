//! Models with made-up weights: what a size costs here, without its checkpoint.

use std::path::Path;

use paceline_checkpoint::ModelFolder;

use crate::failure::Failure;
use crate::numbers::whole;
use crate::{model, shapes};

/// Made-up weights, in arguments.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct MadeUpArgs {
    /// Make the weights up from a seed: MODEL may be a folder with config.json alone, and so may a drafter
    #[arg(long, value_name = "SEED", value_parser = whole::<u64>, allow_hyphen_values = true)]
    random_weights: Option<u64>,
    /// A size by its name in the place of MODEL, for made-up weights
    #[arg(long, value_name = "NAME", requires = "random_weights", value_parser = shapes::parser())]
    shape: Option<String>,
}

impl MadeUpArgs {
    /// For looking at configs without loading anything: a drafter may be what it may be with made-up weights.
    pub(crate) fn configs_alone() -> Self {
        Self { random_weights: Some(0), shape: None }
    }

    /// Whether weights are made up.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.random_weights.is_some()
    }

    /// Opens the model to run.
    pub(crate) fn open(&self, model: Option<&Path>) -> Result<ModelFolder, Failure> {
        let folder = match (&self.shape, model) {
            (Some(_), Some(model)) => {
                let model = model.display();
                return Err(Failure::bad_input(format!(
                    "--shape stands in the place of MODEL, which is {model}"
                )));
            }
            (Some(name), None) => open_shape(name)?,
            (None, model) => model::open(model)?,
        };
        Ok(match self.random_weights {
            Some(seed) => folder.with_random_weights(seed),
            None => folder,
        })
    }

    /// Opens a drafter: with made-up weights it may be the name of a shape or have a config alone.
    pub(crate) fn open_drafter(&self, drafter: &Path) -> Result<ModelFolder, Failure> {
        let Some(seed) = self.random_weights else { return model::open_place(drafter) };
        if !drafter.exists()
            && let Some(shape) = drafter.to_str().and_then(shapes::open)
        {
            return Ok(shape?.with_random_weights(seed));
        }
        let folder = model::open_place(drafter)?;
        Ok(match folder.tensors() {
            Err(paceline_checkpoint::Error::MissingWeights { .. }) => folder.with_random_weights(seed),
            _ => folder,
        })
    }
}

/// The config of a shape that the parser of arguments knows.
pub(crate) fn open_shape(name: &str) -> Result<ModelFolder, Failure> {
    shapes::open(name).unwrap_or_else(|| Err(Failure::bad_input(format!("{name}: no such shape"))))
}
