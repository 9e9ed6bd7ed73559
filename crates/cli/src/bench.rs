//! `paceline bench`: what decoding costs here, and what drafts gain beside it, in one run.
//!
//! Every prompt is answered alone, plain and with each number of drafts in turn, round by round, so that slow phases of the machine
//! fall on all of them. The texts are compared: a gain counts only if nothing changed.

use std::io::{self, Write};
use std::path::PathBuf;
use std::slice;
use std::time::{Duration, Instant};

use paceline::{Engine, EngineParts, Event, ModelFolder, Request, RoundTimes, Sizes, TokenId, parse_number};
use serde_json::json;

use crate::clock;
use crate::draft::{DraftTokens, DrafterArgs, Drafters, confidence};
use crate::failure::{Failure, note};
use crate::loading::{Loading, MachineArgs};
use crate::made_up::MadeUpArgs;
use crate::model;
use crate::numbers::{at_least_one, counted};
use crate::prompts::{Input, Prompt, Source};
use crate::requests::{Requests, origin};
use crate::sampling::SamplingArgs;
use crate::scripted::{Plan, Prompter, ScriptedDrafter};

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
    draft: DrafterArgs,
    /// Drafts of a round, at most 64, or `auto` for what the drafter suggests; several numbers with commas between are measured in one run
    #[arg(long, value_name = "N|auto[,N...]", default_value = "auto", value_parser = DraftTokens::parse, value_delimiter = ',', requires = "draft", allow_hyphen_values = true)]
    draft_tokens: Vec<DraftTokens>,
    /// How sure a drafter has to be of a draft and all before it for it to be verified; 0 verifies all. With several numbers each number of
    /// drafts is measured with each
    #[arg(long, value_name = "P[,P...]", default_value = "0", value_parser = confidence, value_delimiter = ',', requires = "draft", allow_hyphen_values = true)]
    draft_confidence: Vec<f32>,
    /// Verify drafts of which this share is right, whatever came before them, in the place of what the drafter drafts at its own cost:
    /// what drafts would gain here if they were so good, with made-up weights too. With several numbers each number of drafts is measured
    /// with each
    #[arg(long, value_name = "P[,P...]", value_parser = acceptance, value_delimiter = ',', requires = "draft", conflicts_with = "draft_confidence", allow_hyphen_values = true)]
    draft_acceptance: Vec<f64>,
    /// File with a prompt on each line, as for `run`, with what a line says of its answer; left out, a few short ones, answered greedily
    #[arg(long, value_name = "F")]
    prompts_file: Option<PathBuf>,
    /// Tokens to generate for each prompt that does not say, at most
    #[arg(short, value_name = "N", default_value_t = 128, value_parser = at_least_one::<usize>, allow_hyphen_values = true)]
    n: usize,
    /// How often each prompt is answered in each way
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one::<usize>, allow_hyphen_values = true)]
    rounds: usize,
    /// Go on after tokens that end a text
    #[arg(long)]
    ignore_eos: bool,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    made_up: MadeUpArgs,
    /// Print one JSON object for each answer instead of a table
    #[arg(long)]
    json: bool,
}

/// Parses a probability.
fn acceptance(word: &str) -> Result<f64, String> {
    match parse_number(word) {
        Ok(number) if (0.0..=1.0).contains(&number) => Ok(number.into()),
        _ => Err("expected a number from 0 to 1".to_owned()),
    }
}

/// A way to answer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Plain,
    /// So many drafts, verified as far as the drafter is so sure.
    Drafted(DraftTokens, f32),
    /// So many drafts, of which a stated share is right.
    Stated(DraftTokens, f64),
}

impl Way {
    fn name(self) -> String {
        let count = |DraftTokens(n)| n.map_or("drafted".to_owned(), |n| counted(n as u64, "draft"));
        match self {
            Way::Plain => "plain".to_owned(),
            Way::Drafted(drafts, confidence) if confidence > 0.0 => {
                format!("{}, {confidence}", count(drafts))
            }
            Way::Drafted(drafts, _) => count(drafts),
            Way::Stated(drafts, right) => format!("{}, {:.0} % right", count(drafts), 100.0 * right),
        }
    }

    /// Who drafts.
    fn plan(self) -> Plan {
        match self {
            Way::Plain => Plan::Nobody,
            Way::Drafted(..) => Plan::Given,
            Way::Stated(_, right) => Plan::Stated(right),
        }
    }
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
    /// Where the time of all passes went.
    times: RoundTimes,
    /// Why drafting did not happen or stopped, where it was asked for.
    inactive: Option<String>,
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
    let most = args.draft_tokens.iter().filter_map(|DraftTokens(n)| *n).max();
    let drafters = args.draft.open(&args.made_up)?.with_tokens_per_round(most);
    if args.draft_confidence.iter().any(|&confidence| confidence > 0.0) {
        drafters.note_confidence();
    }
    let requests = requests(args, &folder)?;
    let mut parts = load(args, &folder, &drafters, &requests)?;
    let prompter = Prompter::new();
    if !args.draft_acceptance.is_empty() {
        let (given, vocab_size) = (parts.drafter.take(), parts.target.description().vocab_size);
        parts.drafter = Some(Box::new(ScriptedDrafter::new(given, prompter.clone(), vocab_size)));
    }
    let mut engine = Engine::new(parts)?;
    engine.set_clock(clock::now);
    let ways = ways(args, &drafters);
    let mut out = io::stdout().lock();
    let mut table = Table::new(&ways);
    for &way in &ways {
        prompter.set(way.plan(), &[]);
        answer(&mut engine, &requests[0], way)?; // warms up
    }
    let mut said = Vec::new();
    for round in 0..args.rounds {
        for (index, request) in requests.iter().enumerate() {
            let mut text: Option<Vec<u32>> = None;
            for (line, &way) in table.lines.iter_mut().zip(&ways) {
                prompter.set(way.plan(), &[]);
                let answer = answer(&mut engine, request, way)?;
                if args.json {
                    let (asked, confidence, stated) = match way {
                        Way::Plain => (Some(0), 0.0, None),
                        Way::Drafted(DraftTokens(n), confidence) => (n, confidence, None),
                        Way::Stated(DraftTokens(n), right) => (n, 0.0, Some(right)),
                    };
                    let [draft_s, verify_s, choose_s, host_s] =
                        split(&answer.times).map(|part| part.as_secs_f64());
                    let object = json!({
                        "prompt": index, "round": round, "drafted": way != Way::Plain, "draft_tokens": asked, "draft_confidence": confidence,
                        "draft_acceptance": stated,
                        "prompt_tokens": request.prompt.len(), "first_s": answer.first.as_secs_f64(),
                        "decode_s": answer.decode.as_secs_f64(), "n": answer.token_ids.len() - 1, "passes": answer.passes,
                        "draft_s": draft_s, "verify_s": verify_s, "choose_s": choose_s, "host_s": host_s,
                        "token_ids": answer.token_ids,
                    });
                    writeln!(out, "{object}").map_err(Failure::output)?;
                }
                line.add(&answer);
                if let Some(reason) = answer.inactive.filter(|reason| !said.contains(reason)) {
                    note(&format!("drafting is not active ({}): {reason}", way.name()));
                    said.push(reason);
                }
                let plain = text.get_or_insert_with(|| {
                    let ids = answer.token_ids.iter().copied().map(TokenId).collect();
                    prompter.set_script(slice::from_ref(&request.prompt), &[ids]);
                    answer.token_ids.clone()
                });
                if *plain != answer.token_ids {
                    let name = way.name();
                    return Err(Failure::failed(format!(
                        "prompt {index}: the text of `{name}` differs from the plain one"
                    )));
                }
            }
        }
    }
    if !args.json {
        write!(out, "{}", table.render(&engine, &folder)).map_err(Failure::output)?;
    }
    Ok(())
}

/// The plain way, then each number of drafts in all ways that are asked for.
fn ways(args: &Args, drafters: &Drafters) -> Vec<Way> {
    let mut ways = vec![Way::Plain];
    for &drafts in args.draft_tokens.iter().filter(|_| !drafters.is_empty()) {
        if args.draft_acceptance.is_empty() {
            ways.extend(args.draft_confidence.iter().map(|&confidence| Way::Drafted(drafts, confidence)));
        } else {
            ways.extend(args.draft_acceptance.iter().map(|&right| Way::Stated(drafts, right)));
        }
    }
    ways
}

/// What each prompt asks for, plain and by a seed that all its answers share.
fn requests(args: &Args, folder: &ModelFolder) -> Result<Vec<Request>, Failure> {
    let tokenizer = folder.tokenizer()?;
    let prompts = match &args.prompts_file {
        Some(path) => Source::Lines(path.clone()).read()?,
        // Made-up weights do not care what they are asked.
        None if tokenizer.is_none() && args.made_up.is_asked_for() => {
            vec![Prompt::new(Input::TokenIds((2..18).collect()))]
        }
        None => PROMPTS.map(|text| Prompt::new(Input::Text(text.to_owned()))).into(),
    };
    let mut maker = Requests::new(folder, tokenizer.as_ref(), false)?;
    let mut requests = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let origin = origin(args.prompts_file.as_ref(), &prompt);
        let request = maker.make(prompt, args.n, &SamplingArgs::default()).and_then(|mut request| {
            request.check_settings().map_err(Failure::bad_input)?;
            request.ignore_eos = args.ignore_eos;
            if request.sampling.temperature != 0.0 {
                request.sampling.seed.get_or_insert_with(paceline::draw_seed);
            }
            Ok(request)
        });
        requests.push(request.map_err(|failure| failure.within_any(origin.as_deref()))?);
    }
    Ok(requests)
}

fn load(
    args: &Args,
    folder: &ModelFolder,
    drafters: &Drafters,
    requests: &[Request],
) -> Result<EngineParts, Failure> {
    let description = paceline_models::describe(folder.config())?;
    let needed = requests.iter().map(|request| request.prompt.len().saturating_add(request.max_tokens));
    let sizes = Sizes::single(needed.max().unwrap_or(1).min(description.max_positions));
    let loading = Loading {
        folder,
        description: &description,
        drafters,
        draft: drafters.options(),
        sizes,
        isa: model::isa()?,
        machine: &args.machine,
        tokenizer: None,
    };
    loading.parts()
}

fn answer(engine: &mut Engine, request: &Request, way: Way) -> Result<Answer, Failure> {
    let mut request = request.clone();
    match way {
        Way::Plain => request.draft.enabled = false,
        Way::Drafted(DraftTokens(n), confidence) => {
            (request.draft.tokens_per_round, request.draft.confidence) = (n, Some(confidence));
        }
        Way::Stated(DraftTokens(n), _) => request.draft.tokens_per_round = n,
    }
    let id = engine.submit(request).map_err(Failure::bad_input)?;
    let (mut token_ids, mut events) = (Vec::new(), Vec::new());
    let (start, before) = (Instant::now(), engine.times());
    let (mut first, mut passes, mut inactive) = (None, 0, None);
    while !engine.is_idle() {
        engine.step(&mut events).map_err(Failure::failed)?;
        passes += u64::from(first.is_some());
        for (_, event) in events.drain(..).filter(|(other, _)| *other == id) {
            match event {
                Event::Token { id, .. } => token_ids.push(id.0),
                Event::Finished(finished) if way != Way::Plain => {
                    inactive = finished.draft.and_then(|draft| draft.inactive_reason);
                }
                Event::Failed(failed) => return Err(Failure::failed(failed)),
                _ => {}
            }
        }
        if first.is_none() && !token_ids.is_empty() {
            first = Some(start.elapsed());
        }
    }
    let first = first.ok_or_else(|| Failure::failed("a prompt was answered with nothing"))?;
    let times = engine.times() - before;
    Ok(Answer { token_ids, first, decode: start.elapsed() - first, passes, times, inactive })
}

/// Draft, verify, choose and everything else.
fn split(times: &RoundTimes) -> [Duration; 4] {
    [times.draft, times.verify, times.choose, times.host]
}

/// Answers of all ways.
struct Table {
    lines: Vec<Line>,
}

/// Answers of one way.
struct Line {
    name: String,
    rates: Vec<f64>,
    prompt_ms: Vec<f64>,
    tokens: u64,
    passes: u64,
    decode: Duration,
    times: RoundTimes,
}

impl Line {
    fn add(&mut self, answer: &Answer) {
        if answer.passes > 0 {
            self.rates.push(answer.rate());
        }
        self.prompt_ms.push(answer.first.as_secs_f64() * 1e3);
        self.tokens += answer.token_ids.len() as u64 - 1;
        self.passes += answer.passes;
        self.decode += answer.decode;
        self.times += answer.times;
    }

    /// Tokens by seconds over all answers.
    fn rate(&self) -> f64 {
        self.tokens as f64 / self.decode.as_secs_f64()
    }

    fn render(&self, plain: &Line) -> String {
        let (rate, prompt) = (Spread::of(&self.rates), Spread::of(&self.prompt_ms));
        let per_pass = self.tokens as f64 / self.passes as f64;
        let rounds = self.times.rounds();
        let share = |part: Duration| 100.0 * part.as_secs_f64() / rounds.as_secs_f64();
        let [draft, verify, choose, host] = split(&self.times).map(share);
        format!(
            "{:9} {:8.1} tokens/s ({:.1} to {:.1}), {:.2} x plain, {per_pass:.2} tokens a pass, prompt {:.2} ms ({:.2} to {:.2})\n{:9} a pass {:.3} ms: draft {draft:.1} %, verify {verify:.1} %, choose {choose:.1} %, host {host:.1} %\n",
            self.name,
            self.rate(),
            rate.min,
            rate.max,
            self.rate() / plain.rate(),
            prompt.median,
            prompt.min,
            prompt.max,
            "",
            1e3 * self.decode.as_secs_f64() / self.passes as f64,
        )
    }
}

impl Table {
    fn new(ways: &[Way]) -> Table {
        let line = |way: &Way| Line {
            name: way.name(),
            rates: Vec::new(),
            prompt_ms: Vec::new(),
            tokens: 0,
            passes: 0,
            decode: Duration::ZERO,
            times: RoundTimes::default(),
        };
        Table { lines: ways.iter().map(line).collect() }
    }

    fn render(&self, engine: &Engine, folder: &ModelFolder) -> String {
        let mut text = format!("{}: {}\n", folder.origin().display(), engine.backend_info());
        for line in self.lines.iter().filter(|line| line.passes > 0) {
            text += &line.render(&self.lines[0]);
        }
        if self.lines.len() > 1 {
            text += "every text the same\n";
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
