//! `paceline run`: generates text.

pub(crate) mod report;
pub(crate) mod stream;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::ArgGroup;
use paceline::{Engine, ModelFolder, Sizes, Tokenizer};

use crate::clock;
use crate::draft::DraftArgs;
use crate::failure::{Failure, note};
use crate::loading::{Loading, MachineArgs};
use crate::made_up::MadeUpArgs;
use crate::model;
use crate::numbers::{at_least_one, within};
use crate::peak_memory::peak_memory_bytes;
use crate::prompts::{Prompt, Source, TokenIds};
use crate::requests::{Requests, origin};
use crate::sampling::{LogprobArgs, SamplingArgs};
use report::RunFacts;
use stream::{Place, Wanted};

/// Most prompts of a file that are worked on at one time; the others wait.
const MAX_SLOTS: usize = 16;
/// Most continuations of a prompt.
const MAX_CHOICES: u32 = 1024;

/// Generates text from a prompt
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "paceline run [MODEL] [-p TEXT | --prompt-file F | --token-ids IDS | --prompts-file F | -] [OPTIONS]",
    group = ArgGroup::new("source").args(["prompt", "prompt_file", "token_ids", "prompts_file"])
)]
pub(crate) struct Args {
    /// Folder with config.json, model.safetensors and tokenizer.json, or OWNER/NAME[@REVISION] on the hub; left out, the built-in
    /// tiny model. A `-` in its place or behind it reads the prompt from standard input
    #[arg(value_name = "MODEL", num_args = 0..=2)]
    places: Vec<PathBuf>,
    /// The prompt
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// File with the prompt
    #[arg(long, value_name = "F")]
    prompt_file: Option<PathBuf>,
    /// Token ids of the prompt, used as they are
    #[arg(long, value_name = "2,105,...", value_parser = crate::prompts::parse_token_ids, allow_hyphen_values = true)]
    token_ids: Option<TokenIds>,
    /// File with a prompt on each line: JSON objects if the first line that is not empty begins with `{`, else plain text. Objects:
    /// {"prompt" or "token_ids", "n", "temperature", "seed", ...}
    #[arg(long, value_name = "F")]
    prompts_file: Option<PathBuf>,
    /// Most tokens to generate
    #[arg(short, value_name = "N", default_value_t = 1024, value_parser = at_least_one::<usize>, allow_hyphen_values = true)]
    n: usize,
    /// Text that ends the output and is not part of it; may be given more than once
    #[arg(long, value_name = "S", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Use the prompt as it is, without the model's chat template
    #[arg(long)]
    raw: bool,
    /// Go on after tokens that end a text
    #[arg(long)]
    ignore_eos: bool,
    #[command(flatten)]
    draft: DraftArgs,
    #[command(flatten)]
    machine: MachineArgs,
    /// Most tokens of the prompt that one pass reads
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = at_least_one::<usize>, allow_hyphen_values = true)]
    prefill_chunk: usize,
    #[command(flatten)]
    made_up: MadeUpArgs,
    /// Most tokens of prompt and output together; left out, what the prompt and -n need
    #[arg(long, value_name = "N", value_parser = at_least_one::<usize>, allow_hyphen_values = true)]
    context: Option<usize>,
    /// Print one JSON object for each output and nothing else
    #[arg(long)]
    json: bool,
    /// Continuations of each prompt, by the same seed with noise of their own; with a temperature they differ
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = within(1..=MAX_CHOICES), allow_hyphen_values = true)]
    choices: u32,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    logprobs: LogprobArgs,
}

/// Runs the subcommand.
pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let (place, source) = place_and_source(&args)?;
    let prompts = source.read()?;
    let folder = args.made_up.open(place.as_deref())?;
    let isa = model::isa()?;
    let description = paceline_models::describe(folder.config())?;
    let tokenizer = tokenizer(&folder, description.vocab_size)?;
    let requests = requests(&args, &folder, tokenizer.as_deref(), prompts)?;
    // Lines of a file may have temperatures of their own.
    let warmest = requests.iter().map(|wanted| wanted.request.sampling.temperature).fold(0.0, f32::max);
    let sizes = sizes(&args, &requests, description.max_positions);
    let drafters = args.draft.open(&args.made_up)?;
    let start = Instant::now();
    let loading = Loading {
        folder: &folder,
        description: &description,
        drafters: &drafters,
        draft: drafters.options(),
        sizes,
        isa,
        machine: &args.machine,
        tokenizer,
    };
    let mut engine = loading.run()?;
    let load = start.elapsed();
    engine.set_clock(clock::now);
    let level = engine.backend_info().level;
    let facts = |engine: &Engine| RunFacts {
        load,
        level: level.clone(),
        peak_memory_bytes: peak_memory_bytes(),
        rounds: engine.times(),
    };
    let form = match (args.json, args.prompts_file.is_some() || args.choices > 1) {
        (true, _) => stream::Form::Json,
        (false, true) => stream::Form::TextOfSeveral,
        (false, false) => stream::Form::Text,
    };
    stream::generate(&mut engine, requests, form, &facts)?;
    args.sampling.note_idle(warmest);
    if args.choices > 1 && warmest == 0.0 {
        note("all --choices of a prompt are the same text at temperature 0; --temperature T draws");
    }
    Ok(())
}

/// Which of the places is the model, and where prompts come from.
fn place_and_source(args: &Args) -> Result<(Option<PathBuf>, Source), Failure> {
    let is_stdin = |place: &PathBuf| place.as_os_str() == "-";
    let (model, stdin) = match &args.places[..] {
        [] => (None, false),
        [one] if is_stdin(one) => (None, true),
        [one] => (Some(one.clone()), false),
        [one, two] if is_stdin(two) => (Some(one.clone()), true),
        [_, other, ..] => {
            let other = other.display();
            return Err(Failure::bad_input(format!(
                "unexpected argument `{other}` after MODEL; a prompt is given with -p, and `-` reads it from standard input"
            )));
        }
    };
    let given = [
        args.prompt.clone().map(Source::Argument),
        args.prompt_file.clone().map(Source::File),
        args.token_ids.clone().map(|TokenIds(ids)| Source::TokenIds(ids)),
        args.prompts_file.clone().map(Source::Lines),
        stdin.then_some(Source::Stdin),
    ];
    let mut given = given.into_iter().flatten();
    match (given.next(), given.next()) {
        (Some(source), None) => Ok((model, source)),
        (Some(_), Some(_)) => {
            Err(Failure::bad_input("`-` reads the prompt from standard input; give no other prompt"))
        }
        (None, _) => {
            let ways = "expected -p TEXT, --prompt-file F, --token-ids IDS, --prompts-file F, or `-` for standard input";
            Err(Failure::bad_input(match &model {
                // Most likely it was meant as the prompt.
                Some(text) if is_no_place(text) => {
                    let text = text.display();
                    format!(
                        "no prompt: `{text}` stands in the place of MODEL; a prompt is given as -p \"{text}\"; {ways}"
                    )
                }
                _ => format!("no prompt; {ways}"),
            }))
        }
    }
}

/// Whether a text can hardly be meant as a folder or as a name on the hub.
fn is_no_place(text: &Path) -> bool {
    let shown = text.to_string_lossy();
    !text.exists() && (shown.contains(char::is_whitespace) || !shown.contains('/'))
}

fn tokenizer(folder: &ModelFolder, vocab_size: usize) -> Result<Option<Arc<Tokenizer>>, Failure> {
    let Some(tokenizer) = folder.tokenizer()? else { return Ok(None) };
    tokenizer.check_vocabulary(vocab_size)?;
    Ok(Some(Arc::new(tokenizer)))
}

fn requests(
    args: &Args,
    folder: &ModelFolder,
    tokenizer: Option<&Tokenizer>,
    prompts: Vec<Prompt>,
) -> Result<Vec<Wanted>, Failure> {
    let mut maker = Requests::new(folder, tokenizer, args.raw)?;
    let mut wanted = Vec::with_capacity(prompts.len() * args.choices as usize);
    for (index, prompt) in prompts.into_iter().enumerate() {
        let origin = origin(args.prompts_file.as_ref(), &prompt);
        let request = maker.make(prompt, args.n, &args.sampling);
        let mut request = request.map_err(|failure| failure.within_any(origin.as_deref()))?;
        request.stop = args.stop.clone();
        request.ignore_eos = args.ignore_eos;
        request.logprobs = args.logprobs.options();
        let place = Place { prompt: origin.is_some().then_some(index), choice: None };
        let first = Wanted { place, origin, request };
        first.request.check_settings().map_err(|why| Failure::bad_input(first.without(why)))?;
        let mut request = first.request;
        if args.choices > 1 && request.sampling.temperature != 0.0 {
            // One seed for all of them.
            request.sampling.seed.get_or_insert_with(paceline::draw_seed);
        }
        for choice in 0..args.choices {
            let place = Place { choice: (args.choices > 1).then_some(choice), ..place };
            request.choice = choice;
            wanted.push(Wanted { place, origin: first.origin.clone(), request: request.clone() });
        }
    }
    Ok(wanted)
}

/// An engine that is just large enough.
fn sizes(args: &Args, wanted: &[Wanted], max_positions: usize) -> Sizes {
    let requests = || wanted.iter().map(|wanted| &wanted.request);
    let needed = requests().map(|request| request.prompt.len().saturating_add(request.max_tokens));
    let needed = needed.max().unwrap_or(1).max(1);
    Sizes {
        context: args.context.unwrap_or(needed.min(max_positions)),
        n_slots: wanted.len().min(MAX_SLOTS),
        prefill_rows: args
            .prefill_chunk
            .min(requests().map(|request| request.prompt.len()).sum::<usize>().max(1)),
        score_prompts: args.logprobs.echo(),
        ..Sizes::single(1)
    }
}
