//! `paceline score`: how well a model predicts a text.
//!
//! The text is read in windows of the context's size. Each stands at the text's beginning for the model (a BOS token comes in front,
//! if the tokenizer has one) and scores the tokens that no window before it has scored, with what lies before them in the window
//! as context:
//! ```text
//! text      |---------------------------------------|
//! window 0  [ scored ........ ]
//! window 1          [ context | scored ]                each window after the first scores `stride` tokens
//! window 2                   [ context | scored ]
//! ```
//! Memory is that of one window, whatever the length of the text; sums are f64, in the order of the text.

use std::io::{self, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

use paceline::{Distribution, Engine, Event, LogprobOptions, Request, Sizes, TokenId};
use paceline_checkpoint::Tokenizer;
use serde::Serialize;

use crate::draft::Drafters;
use crate::failure::Failure;
use crate::loading::{Loading, MachineArgs};
use crate::made_up::MadeUpArgs;
use crate::model;
use crate::numbers::{at_least_one, counted};
use crate::progress::Progress;
use crate::run::report::{milliseconds, speed};
use crate::text_file;

/// Tokens of a window if nothing is said.
const USUAL_CONTEXT: usize = 2048;

/// Scores a text: its perplexity, the exponential of the mean negative log-probability of a token
#[derive(Debug, clap::Args)]
#[command(override_usage = "paceline score [MODEL] FILE [OPTIONS]")]
pub(crate) struct Args {
    /// The text, and beside it the folder with the model, or OWNER/NAME[@REVISION] on the hub; left out, the built-in tiny model
    #[arg(value_name = "FILE", num_args = 1..=2, required = true)]
    places: Vec<PathBuf>,
    /// Tokens of a window; left out, 2048 or what the model has
    #[arg(long, value_name = "N", value_parser = at_least_one::<usize>, allow_hyphen_values = true)]
    context: Option<usize>,
    /// Tokens that a window scores after the first one, with the others as context; left out, half a window
    #[arg(long, value_name = "N", value_parser = at_least_one::<usize>, allow_hyphen_values = true)]
    stride: Option<usize>,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    made_up: MadeUpArgs,
    /// Print one JSON object and nothing else
    #[arg(long)]
    json: bool,
}

/// The line of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    perplexity: f64,
    /// Natural logarithms.
    mean_negative_logprob: f64,
    /// Tokens that were scored.
    tokens: usize,
    windows: usize,
    context: usize,
    stride: usize,
    level: String,
    score_ms: f64,
    tokens_per_s: Option<f64>,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let (model, file) = match &args.places[..] {
        [file, model] if file.is_file() && !model.is_file() => (Some(model.as_path()), file),
        [model, file] => (Some(model.as_path()), file),
        [folder, ..] if folder.is_dir() => {
            let folder = folder.display();
            return Err(Failure::bad_input(format!(
                "no text to score: `{folder}` is a folder and stands for MODEL; expected the file with the text behind it"
            )));
        }
        [file, ..] => (None, file),
        [] => unreachable!("the parser asks for at least one"),
    };
    let text = text_file::read(file)?;
    let folder = args.made_up.open(model)?;
    let description = paceline_models::describe(folder.config())?;
    let tokenizer = model::tokenizer(&folder, description.vocab_size)?;
    let context = args.context.unwrap_or(USUAL_CONTEXT.min(description.max_positions));
    let text = Text::new(&tokenizer, &text)?;
    let windows = text.windows(context, args.stride)?;
    let sizes = Sizes { score_prompts: true, ..Sizes::single(context) };
    let loading = Loading {
        folder: &folder,
        description: &description,
        drafters: &Drafters::default(),
        draft: None,
        sizes,
        isa: model::isa()?,
        machine: &args.machine,
        tokenizer: None,
    };
    let mut engine = loading.run()?;

    let progress = Progress::new("scoring", text.tokens.len());
    let start = Instant::now();
    let (mut sum, mut n_scored) = (0.0, 0);
    for window in &windows.list {
        let n_before = window.scored_from - window.tokens.start;
        let prompt = text.bos.iter().chain(&text.tokens[window.tokens.clone()]).copied();
        // The first token of a prompt has no score.
        let skip = (n_before + text.bos.iter().len()).saturating_sub(1);
        score(&mut engine, prompt.collect(), skip, &mut |logprob| {
            sum -= f64::from(logprob);
            n_scored += 1;
        })?;
        progress.set(window.tokens.end);
    }
    progress.clear();
    let time = start.elapsed();
    let mean = sum / n_scored as f64;
    let report = Report {
        perplexity: mean.exp(),
        mean_negative_logprob: mean,
        tokens: n_scored,
        windows: windows.list.len(),
        context,
        stride: windows.stride,
        level: engine.backend_info().level,
        score_ms: milliseconds(time),
        tokens_per_s: speed(n_scored, time),
    };
    print(&report, args.json)
}

/// Hands the log-probabilities of a prompt's tokens to `take`, from the second one on and without the first `skip` of them.
fn score(
    engine: &mut Engine,
    prompt: Vec<TokenId>,
    skip: usize,
    take: &mut dyn FnMut(f32),
) -> Result<(), Failure> {
    let mut request = Request::new(prompt, 0);
    request.logprobs = Some(LogprobOptions { top: 0, of: Distribution::Model, prompt: true });
    engine.submit(request).map_err(Failure::bad_input)?;
    let (mut events, mut n_seen) = (Vec::new(), 0);
    while !engine.is_idle() {
        engine.step(&mut events).map_err(Failure::failed)?;
        for (_, event) in events.drain(..) {
            match event {
                Event::Prompt(logprobs) => {
                    let wanted = logprobs.iter().skip(skip.saturating_sub(n_seen));
                    wanted.for_each(|of| take(of.logprob));
                    n_seen += logprobs.len();
                }
                Event::Failed(failed) => return Err(Failure::failed(failed)),
                _ => {}
            }
        }
    }
    Ok(())
}

fn print(report: &Report, json: bool) -> Result<(), Failure> {
    let text = if json {
        serde_json::to_string(report).map_err(Failure::failed)?
    } else {
        let Report { perplexity, mean_negative_logprob: mean, context, stride, .. } = report;
        let (tokens, windows) =
            (counted(report.tokens as u64, "token"), counted(report.windows as u64, "window"));
        format!(
            "perplexity {perplexity:.4} ({mean:.6} nats a token) over {tokens} in {windows} of up to {context} tokens, stride {stride}"
        )
    };
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(Failure::output)
}

/// A text to score.
struct Text {
    /// Stands in front of every window.
    bos: Option<TokenId>,
    tokens: Vec<TokenId>,
}

impl Text {
    fn new(tokenizer: &Tokenizer, text: &str) -> Result<Self, Failure> {
        let ids = |ids: Vec<u32>| ids.into_iter().map(TokenId).collect::<Vec<_>>();
        let bos = ids(tokenizer.encode("")?).first().copied();
        let mut tokens = ids(tokenizer.encode_part(text)?);
        if bos.is_some() && tokens.first() == bos.as_ref() {
            tokens.remove(0);
        }
        Ok(Self { bos, tokens })
    }

    /// The windows that score it.
    fn windows(&self, context: usize, stride: Option<usize>) -> Result<Windows, Failure> {
        let n_bos = usize::from(self.bos.is_some());
        // Without a BOS token the first one of a window has nothing before it.
        let (most, room) = (context.saturating_sub(1), context.saturating_sub(n_bos));
        if most == 0 {
            return Err(Failure::bad_input(format!(
                "windows of {context} token have none that follows another, so nothing can be scored; expected --context 2 or more"
            )));
        }
        let stride = stride.unwrap_or(most.div_ceil(2));
        if stride > most {
            return Err(Failure::bad_input(format!(
                "windows of {context} tokens score at most {most} after the first; --stride is {stride}, expected 1 to {most}"
            )));
        }
        if self.tokens.len() + n_bos < 2 {
            return Err(Failure::bad_input(
                "the text has no token to score; expected at least one that follows another",
            ));
        }
        Ok(Windows { stride, list: windows(self.tokens.len(), room, stride, 1 - n_bos) })
    }
}

struct Windows {
    stride: usize,
    list: Vec<Window>,
}

#[derive(Debug, PartialEq, Eq)]
struct Window {
    /// Of the text.
    tokens: Range<usize>,
    /// Those from here on count.
    scored_from: usize,
}

/// Windows of up to `room` of `n` tokens, which score every token from index `first` on once.
fn windows(n: usize, room: usize, stride: usize, first: usize) -> Vec<Window> {
    let mut list = vec![Window { tokens: 0..room.min(n), scored_from: first }];
    while let Some(last) = list.last().map(|window| window.tokens.end).filter(|&end| end < n) {
        let end = (last + stride).min(n);
        list.push(Window { tokens: end - room..end, scored_from: last });
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_scored_once_with_a_token_before_it() {
        for (n, room, first) in
            [(1, 5, 0), (5, 5, 0), (6, 5, 0), (100, 7, 0), (2, 5, 1), (100, 7, 1), (14, 7, 1)]
        {
            for stride in 1..=room - first {
                let mut next = first;
                for window in windows(n, room, stride, first) {
                    assert!(window.tokens.len() <= room && window.tokens.end <= n);
                    assert_eq!(window.scored_from, next, "{n} tokens, {room} at a time, stride {stride}");
                    assert!(window.scored_from - window.tokens.start >= first);
                    next = window.tokens.end;
                }
                assert_eq!(next, n);
            }
        }
        let two = [Window { tokens: 0..7, scored_from: 0 }, Window { tokens: 3..10, scored_from: 7 }];
        assert_eq!(windows(10, 7, 3, 0), two);
    }
}
