//! `paceline inspect`: what a model is and what it needs, from its config alone. No weight is read.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use paceline::{Activation, MemoryNeeded, Sizes};
use paceline_checkpoint::ModelFolder;
use paceline_models::{Description, Parameters};

use crate::draft::DrafterArgs;
use crate::failure::Failure;
use crate::made_up::{MadeUpArgs, open_shape};
use crate::memory;
use crate::model::{self, ActivationArg, ModelArg};
use crate::numbers::{at_least_one, bytes, counted, grouped, whole};
use crate::shapes;

/// Bytes of a weight.
const WEIGHT_BYTES: u64 = MemoryNeeded::WEIGHT_BYTES;
/// Contexts whose memory is shown if none is asked for, beside the model's own.
const CONTEXTS: [usize; 2] = [4096, 32_768];

/// Shows architecture, parameters, memory and CPU level of a model without reading its weights
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// A published size by its name in the place of MODEL
    #[arg(long, value_name = "NAME", conflicts_with = "model", value_parser = shapes::parser())]
    shape: Option<String>,
    /// Print config.json as it is and nothing else
    #[arg(long)]
    config: bool,
    /// Tokens of a sequence to show the memory for; left out, some usual numbers
    #[arg(long, value_name = "N", value_parser = at_least_one::<usize>, allow_hyphen_values = true)]
    context: Option<usize>,
    #[command(flatten)]
    draft: DrafterArgs,
    /// As for `run`, and without effect: no weight is read here
    #[arg(long, value_name = "SEED", value_parser = whole::<u64>, allow_hyphen_values = true)]
    random_weights: Option<u64>,
    /// Type of the activations, and so of K/V
    #[arg(long, value_enum, default_value = "bf16")]
    activations: ActivationArg,
}

/// Runs the subcommand.
pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let folder = match &args.shape {
        Some(name) => open_shape(name)?,
        None => model::open(args.model.model.as_deref())?,
    };
    if args.config {
        return io::stdout().lock().write_all(&folder.config_bytes()?).map_err(Failure::output);
    }
    let isa = model::isa()?;
    let description = paceline_models::describe(folder.config())?;
    let contexts = contexts(args.context, &description);
    let mut text = about(&folder, &description)?;
    parameters(&mut text, &description.parameters);
    let drafters = args.draft.open(&MadeUpArgs::configs_alone())?;
    for (i, drafter) in drafters.each_name().iter().enumerate() {
        line(&mut text, if i == 0 { "drafted by" } else { "then by" }, drafter);
    }
    let draft = drafters.options();
    kv_of_a_token(&mut text, &description, args.activations.into());
    let activation = args.activations.into();
    for (i, &context) in contexts.iter().enumerate() {
        let needed = MemoryNeeded::of(&folder, draft.as_ref(), Sizes::single(context), activation)?;
        let (all, parts) = (bytes(needed.total()), memory::parts(needed, ""));
        let value = format!("{all} at {} tokens: {parts}; buffers come on top", grouped(context as u64));
        line(&mut text, if i == 0 { "memory" } else { "" }, &value);
    }
    line(&mut text, "level", &isa.level().to_string());
    io::stdout().lock().write_all(text.as_bytes()).map_err(Failure::output)
}

fn contexts(asked: Option<usize>, description: &Description) -> Vec<usize> {
    let most = description.max_positions;
    match asked {
        Some(context) => vec![context],
        None => CONTEXTS.into_iter().filter(|&context| context < most).chain([most]).collect(),
    }
}

/// A named value.
fn line(text: &mut String, name: &str, value: &str) {
    let _ = writeln!(text, "{name:<14} {value}");
}

fn about(folder: &ModelFolder, description: &Description) -> Result<String, Failure> {
    let mut text = String::new();
    line(&mut text, "model", &folder.origin().display().to_string());
    line(&mut text, "architecture", &description.architecture);
    line(&mut text, "layers", &description.n_layers.to_string());
    for layers in &description.layer_lines {
        line(&mut text, "", layers);
    }
    line(&mut text, "hidden size", &grouped(description.hidden_size as u64));
    line(&mut text, "vocabulary", &grouped(description.vocab_size as u64));
    line(&mut text, "context", &format!("up to {} tokens", grouped(description.max_positions as u64)));
    let ends: Vec<String> = folder.generation()?.end_token_ids.iter().map(u32::to_string).collect();
    line(&mut text, "end tokens", &if ends.is_empty() { "none".to_owned() } else { ends.join(", ") });
    line(&mut text, "parameters", &grouped(description.total_parameters()));
    Ok(text)
}

fn parameters(text: &mut String, parts: &[Parameters]) {
    let row = |text: &mut String, cells: [&str; 5]| {
        let [kind, count, stored, read, place] = cells;
        let _ = writeln!(text, "  {kind:<22} {count:>16} {stored:>11} {read:>13}  {place}");
    };
    row(text, ["kind", "parameters", "bytes", "read a token", "kept in"]);
    for part in parts {
        let place = if part.mapped { "mapped file" } else { "memory" };
        let (stored, read) = (part.count * WEIGHT_BYTES, part.read_per_token * WEIGHT_BYTES);
        row(text, [part.kind, &grouped(part.count), &bytes(stored), &bytes(read), place]);
    }
    let sum = |value: fn(&Parameters) -> u64| parts.iter().map(value).sum::<u64>();
    let (count, read) = (sum(|part| part.count), sum(|part| part.read_per_token));
    row(text, ["all", &grouped(count), &bytes(count * WEIGHT_BYTES), &bytes(read * WEIGHT_BYTES), ""]);
}

fn kv_of_a_token(text: &mut String, description: &Description, activation: Activation) {
    for (i, group) in description.kv_groups.iter().enumerate() {
        let layers = counted(group.layers as u64, "layer");
        let of = match group.window {
            Some(window) => format!("in {layers} with a window of {window} tokens"),
            None => format!("in {layers} without a window"),
        };
        let name = if i == 0 { "K/V a token" } else { "" };
        line(text, name, &format!("{} {of}", bytes(group.bytes(activation, 1))));
    }
}
