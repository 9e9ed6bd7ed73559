//! The MODEL argument, and what belongs to running a model whatever the subcommand.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum;
use paceline::{Activation, Isa};
use paceline_checkpoint::{ModelFolder, Tokenizer};

use crate::builtin;
use crate::failure::Failure;
use crate::numbers::within;

/// Opens the model that is given, or the built-in one.
pub(crate) fn open(model: Option<&Path>) -> Result<ModelFolder, Failure> {
    match model {
        Some(place) => open_place(place),
        None => builtin::tiny(),
    }
}

/// Opens a folder, or a model of the hub where there is no such folder and it could be the name of one.
pub(crate) fn open_place(place: &Path) -> Result<ModelFolder, Failure> {
    #[cfg(feature = "hub")]
    if !place.exists()
        && let Some(Ok(id)) = place.to_str().map(str::parse)
    {
        return Ok(ModelFolder::open(&crate::hub::fetch(&id)?)?);
    }
    Ok(ModelFolder::open(place)?)
}

/// The tokenizer of a model that nothing can be done with otherwise.
pub(crate) fn tokenizer(folder: &ModelFolder, vocab_size: usize) -> Result<Arc<Tokenizer>, Failure> {
    let tokenizer = folder.tokenizer()?.ok_or_else(|| Failure::bad_input(no_tokenizer(folder)))?;
    tokenizer.check_vocabulary(vocab_size)?;
    Ok(Arc::new(tokenizer))
}

/// Says that a model has no tokenizer.
pub(crate) fn no_tokenizer(folder: &ModelFolder) -> String {
    format!("{}: has no tokenizer.json, so no text can be read", folder.origin().display())
}

/// A model to run, in arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelArg {
    /// Folder with config.json, model.safetensors and tokenizer.json, or OWNER/NAME[@REVISION] on the hub; left out, the built-in
    /// tiny model
    #[arg(value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,
}

/// Type of the activations, in arguments.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ActivationArg {
    /// Values are rounded to bf16 where they enter a product
    Bf16,
    /// Nothing is rounded below f32: for comparison with references
    F32,
}

impl From<ActivationArg> for Activation {
    fn from(arg: ActivationArg) -> Self {
        match arg {
            ActivationArg::Bf16 => Activation::Bf16,
            ActivationArg::F32 => Activation::F32,
        }
    }
}

/// The CPU level that `PACELINE_ISA` asks for, or the best one. Says so where the best one is not what the processor could do.
pub(crate) fn isa() -> Result<Isa, Failure> {
    let (isa, note) = Isa::from_env()
        .map_err(|error| Failure::bad_input(format!("environment variable PACELINE_ISA: {error}")))?;
    if let Some(note) = note {
        // A note that cannot be written changes nothing.
        let _ = writeln!(io::stderr(), "note: {note}");
    }
    Ok(isa)
}

/// Most threads; more than any machine has processors.
const MAX_THREADS: u16 = 4096;

/// Threads, in arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct ThreadsArg {
    /// Threads that compute; left out, one for each processor that the program may use
    #[arg(long, value_name = "N", value_parser = within(1..=MAX_THREADS), allow_hyphen_values = true)]
    threads: Option<u16>,
}

impl ThreadsArg {
    /// The number of threads.
    pub(crate) fn get(&self) -> usize {
        match self.threads {
            Some(threads) => threads.into(),
            None => std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}
