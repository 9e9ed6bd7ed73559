//! The MODEL argument, and what belongs to running a model whatever the subcommand.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum;
use paceline::{Activation, Isa};
use paceline_checkpoint::{ModelFolder, Tokenizer};

use crate::builtin;
use crate::failure::{Failure, note};
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
    if place.exists() {
        return Ok(ModelFolder::open(place)?);
    }
    #[cfg(feature = "hub")]
    if let Some(text) = place.to_str()
        && let Ok(id) = text.parse()
    {
        // What begins with a folder that is here is a path with a mistake in it; a revision makes it the name of a model again.
        let first_part = Path::new(text.split('/').next().unwrap_or_default());
        if !first_part.is_dir() || text.contains('@') {
            return Ok(ModelFolder::open(&crate::hub::fetch(&id)?)?);
        }
        let meant = meant(place).unwrap_or_default();
        let first_part = first_part.display();
        return Err(Failure::bad_input(format!(
            "{text}: no such folder, and `{first_part}` is a folder here{meant}; {text}@main is the model of that name on the hub"
        )));
    }
    let opened = ModelFolder::open(place);
    opened.map_err(|error| Failure::bad_input(format!("{error}{}", meant(place).unwrap_or_default())))
}

/// How alike two names have to be for one to be taken for the other mistyped.
const ALIKE: f64 = 0.85;

/// Names the folder beside a place that is not there, if its name is much the same.
fn meant(place: &Path) -> Option<String> {
    let name = place.file_name()?.to_str()?;
    let parent = place.parent()?;
    let beside = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let names = beside.read_dir().ok()?.flatten().filter(|entry| entry.path().is_dir());
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let alike = names.map(|other| (strsim::jaro_winkler(name, &other), other));
    let (_, best) = alike.filter(|(alike, _)| *alike >= ALIKE).max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(format!(" (did you mean `{}`?)", parent.join(best).display()))
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
    let (isa, about) = Isa::from_env()
        .map_err(|error| Failure::bad_input(format!("environment variable PACELINE_ISA: {error}")))?;
    if let Some(about) = about {
        note(&about.to_string());
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
