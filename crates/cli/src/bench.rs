//! `paceline bench`: what decoding costs here, and what drafts gain beside it, in one run.
//!
//! Every prompt is answered alone, plain and drafted in turn, round by round, so that slow phases of the machine fall on both. The
//! texts of the two are compared: a gain counts only if nothing changed.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use paceline::{Engine, Event, Inexact, LoadOptions, ModelFolder, Request, Sizes, TokenId};
use serde_json::json;

use crate::chat_prompt::PromptEncoder;
use crate::draft::{DraftArgs, Drafters};
use crate::failure::Failure;
use crate::made_up::MadeUpArgs;
use crate::memory;
use crate::model::{self, ActivationArg, ThreadsArg};
use crate::progress::Progress;
use crate::prompts::{Input, Source};

/// Answered where no prompts are given.
const PROMPTS: [&str; 4] = [
    "Tell me a short story about a fox.",
    "What is the capital of France?",
    "Write a JSON object with a name and an age.",
    "Write a function that adds two numbers.",
];

/// Measures plain and drafted decoding side by side
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder with the model, or OWNER/NAME[@REVISION] on the hub; left out, the built-in tiny model
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,
    #[command(flatten)]
    draft: DraftArgs,
    /// File with a prompt on each line, as for `run`; left out, a few short ones
    #[arg(long, value_name = "F")]
    prompts_file: Option<PathBuf>,
    /// Tokens to generate for each prompt, at most
    #[arg(short, value_name = "N", default_value_t = 128, value_parser = model::at_least_one)]
    n: usize,
    /// How often each prompt is answered in each way
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = model::at_least_one)]
    rounds: usize,
    /// Go on after tokens that end a text
    #[arg(long)]
    ignore_eos: bool,
    /// Type of the activations
    #[arg(long, value_name = "TYPE", value_enum, default_value = "bf16")]
    activations: ActivationArg,
    #[command(flatten)]
    threads: ThreadsArg,
    #[command(flatten)]
    made_up: MadeUpArgs,
    /// Print one JSON object for each answer instead of a table
    #[arg(long)]
    json: bool,
}

/// One answer and what it took.
struct Answer {
    token_ids: Vec<u32>,
    /// From the request to its first token.
    first: Duration,
    /// From the first token to the last.
    decode: Duration,
    /// Passes of the target after the prompt's.
    passes: u64,
}

impl Answer {
    /// Tokens after the first per second.
    fn rate(&self) -> f64 {
        (self.token_ids.len() - 1) as f64 / self.decode.as_secs_f64()
    }
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let folder = args.made_up.open(args.model.as_deref())?;
    let drafters = args.draft.open(&args.made_up)?;
    let prompts = prompts(args, &folder)?;
    let mut engine = load(args, &folder, &drafters, &prompts)?;
    let ways: &[bool] = if !drafters.is_empty() { &[false, true] } else { &[false] };
    let mut out = io::stdout().lock();
    let mut table = Table::default();
    for &drafted in ways {
        answer(&mut engine, &prompts[0], args, drafted)?; // warms up
    }
    for round in 0..args.rounds {
        for (index, prompt) in prompts.iter().enumerate() {
            let mut texts = Vec::new();
            for &drafted in ways {
                let answer = answer(&mut engine, prompt, args, drafted)?;
                if args.json {
                    let line = json!({
                        "prompt": index, "round": round, "drafted": drafted, "prompt_tokens": prompt.len(),
                        "first_s": answer.first.as_secs_f64(), "decode_s": answer.decode.as_secs_f64(),
                        "n": answer.token_ids.len() - 1, "passes": answer.passes, "token_ids": answer.token_ids,
                    });
                    writeln!(out, "{line}").map_err(Failure::output)?;
                }
                table.add(drafted, &answer);
                texts.push(answer.token_ids);
            }
            if texts.windows(2).any(|pair| pair[0] != pair[1]) {
                return Err(Failure::failed(format!(
                    "prompt {index}: the drafted text differs from the plain one"
                )));
            }
        }
    }
    if !args.json {
        write!(out, "{}", table.render(&engine, &folder)).map_err(Failure::output)?;
    }
    Ok(())
}

fn prompts(args: &Args, folder: &ModelFolder) -> Result<Vec<Vec<TokenId>>, Failure> {
    let tokenizer = folder.tokenizer()?;
    let inputs: Vec<Input> = match &args.prompts_file {
        Some(path) => Source::Lines(path.clone()).read()?.into_iter().map(|prompt| prompt.input).collect(),
        // Made-up weights do not care what they are asked.
        None if tokenizer.is_none() && args.made_up.is_asked_for() => {
            vec![Input::TokenIds((2..18).collect())]
        }
        None => PROMPTS.map(|text| Input::Text(text.to_owned())).into(),
    };
    let mut prompts = Vec::with_capacity(inputs.len());
    for input in inputs {
        let ids = match input {
            Input::TokenIds(ids) => ids,
            Input::Text(text) => PromptEncoder::new(folder, tokenizer.as_ref(), false)?.encode(&text)?,
        };
        prompts.push(ids.into_iter().map(TokenId).collect());
    }
    Ok(prompts)
}

fn load(
    args: &Args,
    folder: &ModelFolder,
    drafters: &Drafters,
    prompts: &[Vec<TokenId>],
) -> Result<Engine, Failure> {
    let description = paceline_models::describe(folder.config())?;
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let sizes = Sizes::single((longest + args.n).min(description.max_positions));
    memory::check(folder, &description, sizes, args.activations.into())?;
    let progress = Progress::new("loading layers", description.n_layers);
    let engine = paceline::load(
        folder,
        LoadOptions {
            isa: model::isa()?,
            threads: args.threads.get(),
            activation: args.activations.into(),
            sizes,
            inexact: Inexact::Refuse,
            draft: drafters.options(),
            tokenizer: None,
            progress: &mut |layers, _of| progress.set(layers),
        },
    )?;
    progress.clear();
    Ok(engine)
}

fn answer(engine: &mut Engine, prompt: &[TokenId], args: &Args, drafted: bool) -> Result<Answer, Failure> {
    let mut request = Request::new(prompt.to_vec(), args.n);
    request.ignore_eos = args.ignore_eos;
    request.draft.enabled = drafted;
    let id = engine.submit(request).map_err(Failure::bad_input)?;
    let (mut token_ids, mut events) = (Vec::new(), Vec::new());
    let (start, mut first, mut passes) = (Instant::now(), None, 0);
    while !engine.is_idle() {
        engine.step(&mut events).map_err(Failure::failed)?;
        passes += u64::from(first.is_some());
        for (_, event) in events.drain(..).filter(|(other, _)| *other == id) {
            match event {
                Event::Token { id, .. } => token_ids.push(id.0),
                Event::Failed(failed) => return Err(Failure::failed(failed)),
                _ => {}
            }
        }
        if first.is_none() && !token_ids.is_empty() {
            first = Some(start.elapsed());
        }
    }
    let first = first.ok_or_else(|| Failure::failed("a prompt was answered with nothing"))?;
    Ok(Answer { token_ids, first, decode: start.elapsed() - first, passes })
}

/// Answers of both ways.
#[derive(Default)]
struct Table {
    rates: [Vec<f64>; 2],
    prompt_ms: [Vec<f64>; 2],
    tokens: [u64; 2],
    passes: [u64; 2],
}

impl Table {
    fn add(&mut self, drafted: bool, answer: &Answer) {
        let way = usize::from(drafted);
        if answer.passes > 0 {
            self.rates[way].push(answer.rate());
        }
        self.prompt_ms[way].push(answer.first.as_secs_f64() * 1e3);
        self.tokens[way] += answer.token_ids.len() as u64 - 1;
        self.passes[way] += answer.passes;
    }

    fn render(&self, engine: &Engine, folder: &ModelFolder) -> String {
        let info = engine.backend_info();
        let mut text = format!("{}: {info}\n", folder.origin().display());
        for (way, name) in
            ["plain", "drafted"].into_iter().enumerate().filter(|(way, _)| self.passes[*way] > 0)
        {
            let (rate, prompt) = (Spread::of(&self.rates[way]), Spread::of(&self.prompt_ms[way]));
            let per_pass = self.tokens[way] as f64 / self.passes[way] as f64;
            text += &format!(
                "{name:8} {:8.1} tokens/s ({:.1} to {:.1}), {per_pass:.2} tokens a pass, prompt {:.2} ms ({:.2} to {:.2})\n",
                rate.median, rate.min, rate.max, prompt.median, prompt.min, prompt.max
            );
        }
        if self.passes[1] > 0 {
            let ratio = Spread::of(&self.rates[1]).median / Spread::of(&self.rates[0]).median;
            text += &format!("drafted / plain {ratio:.2}, every text the same\n");
        }
        text
    }
}

/// Median and range.
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Spread {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |i: usize| sorted.get(i).copied().unwrap_or(f64::NAN);
        Spread { median: at(sorted.len() / 2), min: at(0), max: at(sorted.len().saturating_sub(1)) }
    }
}
