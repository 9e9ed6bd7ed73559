//! `paceline inspect`: what a model is and what it needs, from its config alone. No weight is read.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use paceline::{Activation, Sizes};
use paceline_backend::{KV_BLOCK, KvGroupSpec};
use paceline_checkpoint::ModelFolder;
use paceline_models::{Description, Parameters};

use crate::failure::Failure;
use crate::model::{self, ActivationArg, ModelArg};
use crate::numbers::{bytes, grouped};

/// Bytes of a weight.
const WEIGHT_BYTES: u64 = 2;
/// Contexts whose memory is shown if none is asked for, beside the model's own.
const CONTEXTS: [usize; 2] = [4096, 32_768];

/// Shows architecture, parameters, memory and CPU level of a model without reading its weights
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// Tokens of a sequence to show the memory for; left out, some usual numbers
    #[arg(long, value_name = "N", value_parser = model::at_least_one)]
    context: Option<usize>,
    /// Type of the activations, and so of K/V
    #[arg(long, value_enum, default_value = "bf16")]
    activations: ActivationArg,
}

/// Runs the subcommand.
pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let folder = model::open(args.model.model.as_deref())?;
    let isa = model::isa()?;
    let description = paceline_models::describe(folder.config())?;
    let contexts = contexts(args.context, &description);
    let mut text = about(&folder, &description)?;
    parameters(&mut text, &description.parameters);
    memory(&mut text, &description, args.activations.into(), &contexts)?;
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

/// K/V of a token and memory at some contexts.
fn memory(
    text: &mut String,
    description: &Description,
    activation: Activation,
    contexts: &[usize],
) -> Result<(), Failure> {
    for (i, group) in description.kv_groups.iter().enumerate() {
        let layers = if group.layers == 1 { "layer" } else { "layers" };
        let of = match group.window {
            Some(window) => format!("in {} {layers} with a window of {window} tokens", group.layers),
            None => format!("in {} {layers} without a window", group.layers),
        };
        let name = if i == 0 { "K/V a token" } else { "" };
        line(text, name, &format!("{} {of}", bytes(kv_bytes(group, activation, 1))));
    }
    let packed = description.parameters.iter().filter(|part| !part.mapped);
    let weights = packed.map(|part| part.count * WEIGHT_BYTES).sum::<u64>();
    for (i, &context) in contexts.iter().enumerate() {
        let blocks = Sizes::single(context).limits(description, activation)?.kv_blocks;
        let groups = description.kv_groups.iter().zip(blocks);
        let kv = groups.map(|(group, blocks)| kv_bytes(group, activation, blocks * KV_BLOCK)).sum::<u64>();
        let value = format!(
            "{} at {} tokens: {} of weights, {} of K/V; buffers come on top",
            bytes(weights + kv),
            grouped(context as u64),
            bytes(weights),
            bytes(kv)
        );
        line(text, if i == 0 { "memory" } else { "" }, &value);
    }
    Ok(())
}

/// Bytes of K and V of `tokens` tokens in a group.
fn kv_bytes(group: &KvGroupSpec, activation: Activation, tokens: usize) -> u64 {
    let value = match activation {
        Activation::Bf16 => 2,
        Activation::F32 => 4,
    };
    2 * (group.layers * group.kv_heads * group.head_dim) as u64 * value * tokens as u64
}
