//! `paceline check`: recomputes recorded values of a model, in f32, and compares them.

mod compare;
mod dflash;
mod drafter;
mod findings;
mod machine;
mod oracle;
mod target;
mod trace;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use paceline::Isa;
use paceline_checkpoint::ModelFolder;
use paceline_models::DFlashConfig;
use serde::Serialize;

use crate::failure::Failure;
use crate::model::{self, ThreadsArg};
use compare::Comparison;

/// Recomputes oracle folders and compares every recorded tensor: exit code 0 pass, 1 fail, 2 unusable
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folders with a model and its oracle.safetensors
    #[arg(required = true, value_name = "FOLDER")]
    folders: Vec<PathBuf>,
    /// Folder of the target that a drafter's folder is checked with; left out, the one beside it that its
    /// reference_rounds.json names
    #[arg(long, value_name = "DIR")]
    target: Option<PathBuf>,
    /// Print one JSON object for each folder
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    threads: ThreadsArg,
}

/// What came out for a folder.
#[derive(Debug, Serialize)]
struct Report {
    folder: String,
    passed: bool,
    tensors: Vec<Comparison>,
}

/// Runs the subcommand.
pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let isa = model::isa()?;
    let mut n_failed = 0;
    for folder in &args.folders {
        let tensors = check(folder, &args, isa)?;
        let passed = tensors.iter().all(|tensor| tensor.passed);
        n_failed += usize::from(!passed);
        let report = Report { folder: folder.display().to_string(), passed, tensors };
        let mut out = io::stdout().lock();
        let printed = if args.json { report.print_json(&mut out) } else { report.print(&mut out) };
        printed.and_then(|()| out.flush()).map_err(Failure::output)?;
    }
    match n_failed {
        0 => Ok(()),
        n => Err(Failure::failed(format!("{n} of {} folders do not pass", args.folders.len()))),
    }
}

/// Compares what a folder records, which depends on what it is a folder of.
fn check(folder: &Path, args: &Args, isa: Isa) -> Result<Vec<Comparison>, Failure> {
    let model = ModelFolder::open(folder)?;
    if !folder.join(oracle::TENSORS).is_file() {
        let message = format!("has no {}; expected a folder with recorded values", oracle::TENSORS);
        return Err(Failure::bad_input(format!("{}: {message}", folder.display())));
    }
    let threads = args.threads.get();
    if DFlashConfig::describes(model.config())? {
        dflash::check(&model, args.target.as_deref(), isa, threads)
    } else if folder.join(drafter::ROUNDS).is_file() {
        drafter::check(&model, args.target.as_deref(), isa, threads)
    } else {
        target::check(&model, isa, threads)
    }
}

impl Report {
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}", self.folder)?;
        let width = self.tensors.iter().map(|tensor| tensor.name.len()).max().unwrap_or(0);
        for tensor in &self.tensors {
            let Comparison { name, max_error, allowed, max_magnitude, passed, .. } = tensor;
            let word = if *passed { "ok" } else { "FAIL" };
            writeln!(
                out,
                "  {name:<width$}  {word:<4}  error {max_error:.2e} of {allowed:.2e} allowed, largest value {max_magnitude:.3e}"
            )?;
        }
        let n_passed = self.tensors.iter().filter(|tensor| tensor.passed).count();
        writeln!(out, "  {n_passed} of {} tensors pass", self.tensors.len())
    }

    fn print_json(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut *out, self)?;
        writeln!(out)
    }
}
