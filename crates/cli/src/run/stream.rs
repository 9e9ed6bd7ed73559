//! Runs requests to their end and writes what comes, as it comes.

use std::collections::VecDeque;
use std::fmt::{self, Display};
use std::io::{self, IsTerminal, Write};

use paceline::{Completion, DraftStatistics, Engine, Event, Failed, Request, RequestId, TokenId};

use super::report::{Clock, Report, RunFacts, speed};
use crate::failure::{Failure, note};
use crate::numbers::counted;
use crate::progress::Progress;
use crate::sampling::under_own_name;

/// Prompts longer than this show how far they are read.
const LONG_PROMPT: usize = 512;

/// How outputs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// One text, as it comes.
    Text,
    /// Each text when it is complete, in order of the prompts, with a line in front.
    TextOfSeveral,
    /// A line of JSON for each output, in order of the prompts.
    Json,
}

/// Which of several outputs it is, where there are several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Place of the prompt among those of a file.
    pub(crate) prompt: Option<usize>,
    /// Place among the continuations of the prompt.
    pub(crate) choice: Option<u32>,
}

impl Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.prompt, self.choice) {
            (Some(prompt), Some(choice)) => write!(f, "prompt {prompt}, choice {choice}"),
            (Some(prompt), None) => write!(f, "prompt {prompt}"),
            (None, Some(choice)) => write!(f, "choice {choice}"),
            (None, None) => f.write_str("output"),
        }
    }
}

/// An output that is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) place: Place,
    /// File and line of its prompt, where there are several.
    pub(crate) origin: Option<String>,
    pub(crate) request: Request,
}

impl Wanted {
    /// Why it is not, with the words that tell it from other outputs.
    pub(crate) fn without(&self, why: impl Display) -> String {
        let choice = self.place.choice.map(|choice| format!("choice {choice}"));
        let words: Vec<_> = self.origin.iter().chain(&choice).map(String::as_str).collect();
        if words.is_empty() { why.to_string() } else { format!("{}: {why}", words.join(", ")) }
    }
}

/// An output on its way.
struct Output {
    id: RequestId,
    wanted: Wanted,
    prompt_tokens: usize,
    /// Tokens of the prompt that were read.
    read: usize,
    completion: Completion,
    /// Why it is left unfinished.
    failed: Option<Failed>,
    clock: Clock,
}

/// Runs all requests together and writes their outputs. One that fails leaves the others alone; in the end all that failed are named.
pub(crate) fn generate(
    engine: &mut Engine,
    wanted: Vec<Wanted>,
    form: Form,
    facts: &dyn Fn(&Engine) -> RunFacts,
) -> Result<(), Failure> {
    let mut outputs = submit(engine, wanted)?;
    let n_prompt = outputs.iter().map(|output| output.prompt_tokens).sum::<usize>();
    let mut progress = (n_prompt > LONG_PROMPT).then(|| Progress::new("reading the prompt", n_prompt));
    let mut n_read_and_gone = 0;
    let (mut events, mut failures) = (Vec::new(), Vec::new());
    while !outputs.is_empty() {
        engine.step(&mut events).map_err(Failure::failed)?;
        for (id, event) in events.drain(..) {
            let Some(output) = outputs.iter_mut().find(|output| output.id == id) else { continue };
            output.take(event, form)?;
        }
        while outputs.front().is_some_and(Output::has_ended) {
            let output = outputs.pop_front().expect("there is a first one");
            n_read_and_gone += output.prompt_tokens;
            match &output.failed {
                Some(why) => failures.push(output.wanted.without(why)),
                None => output.finish(form, &facts(engine))?,
            }
        }
        let n_read = n_read_and_gone + outputs.iter().map(|output| output.read).sum::<usize>();
        if let Some(progress) = progress.take_if(|progress| progress.reach(n_read)) {
            progress.clear();
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(Failure::failed(failures.join("; "))) }
}

fn submit(engine: &mut Engine, wanted: Vec<Wanted>) -> Result<VecDeque<Output>, Failure> {
    let mut outputs = VecDeque::with_capacity(wanted.len());
    let mut first_choice = None;
    for mut wanted in wanted {
        let prompt_tokens = wanted.request.prompt.len();
        if wanted.request.choice > 0 {
            wanted.request.same_prompt_as = first_choice;
        }
        let refused = |why| Failure::bad_input(wanted.without(under_own_name(why)));
        let id = engine.submit(wanted.request.clone()).map_err(refused)?;
        if wanted.request.choice == 0 {
            first_choice = Some(id);
        }
        let (completion, clock) = (Completion::default(), Clock::start());
        outputs.push_back(Output { id, wanted, prompt_tokens, read: 0, completion, failed: None, clock });
    }
    Ok(outputs)
}

impl Output {
    fn take(&mut self, event: Event, form: Form) -> Result<(), Failure> {
        match &event {
            Event::Prefill { done, .. } => self.read = *done,
            Event::Token { id, text, .. } => {
                self.read = self.prompt_tokens;
                self.clock.token();
                if form == Form::Text {
                    self.write_token(*id, text.as_deref())?;
                }
            }
            _ => {}
        }
        self.failed = self.completion.add(event).err();
        Ok(())
    }

    /// Nothing more comes.
    fn has_ended(&self) -> bool {
        self.failed.is_some() || self.completion.finished.is_some()
    }

    /// Writes a token's text, or its id where there is no text.
    fn write_token(&self, id: TokenId, text: Option<&str>) -> Result<(), Failure> {
        let comma = if self.completion.token_ids.is_empty() { "" } else { "," };
        match text {
            Some("") => Ok(()),
            Some(text) => write(text),
            None => write(&format!("{comma}{}", id.0)),
        }
    }

    fn finish(self, form: Form, facts: &RunFacts) -> Result<(), Failure> {
        match form {
            Form::Json => {
                let report = Report::new(self.wanted, self.completion, &self.clock, facts);
                let line = serde_json::to_string(&report).map_err(Failure::failed)?;
                write(&format!("{line}\n"))
            }
            Form::TextOfSeveral => {
                let text = self.completion.text.clone();
                let text = text.unwrap_or_else(|| joined(&self.completion.token_ids));
                write(&format!("==> {} <==\n{}\n", self.wanted.place, text.trim_end_matches('\n')))?;
                self.note_drafting(&format!("{}: ", self.wanted.place));
                Ok(())
            }
            Form::Text => {
                if !self.completion.text.as_ref().is_some_and(|text| text.ends_with('\n')) {
                    write("\n")?;
                }
                self.note_drafting("");
                self.summarise(facts);
                Ok(())
            }
        }
    }

    fn drafting(&self) -> Option<&DraftStatistics> {
        self.completion.finished.as_ref()?.draft.as_ref()
    }

    /// Says why drafting that was asked for did not happen or stopped, `of` which output.
    fn note_drafting(&self, of: &str) {
        for line in self.drafting().iter().flat_map(|draft| drafting_notes(draft)) {
            note(&format!("{of}{line}"));
        }
    }

    /// One line for a person at a terminal.
    fn summarise(&self, facts: &RunFacts) {
        if !io::stderr().is_terminal() {
            return;
        }
        let n_tokens = self.completion.token_ids.len();
        let speed = match speed(n_tokens.saturating_sub(1), self.clock.decode()) {
            Some(speed) => format!(", {speed:.1} tokens/s"),
            None => String::new(),
        };
        let drafts = match self.drafting() {
            Some(draft) => {
                let per_round = draft.tokens_per_round();
                format!(
                    ", {} of {} drafts accepted, {per_round:.2} tokens a round",
                    draft.accepted, draft.drafted
                )
            }
            None => String::new(),
        };
        // A summary that cannot be written changes nothing.
        let _ = writeln!(
            io::stderr(),
            "[prompt {}, output {}{speed}{drafts}, level {}]",
            counted(self.prompt_tokens as u64, "token"),
            counted(n_tokens as u64, "token"),
            facts.level
        );
    }
}

/// Why drafting, or one of several drafters, is not active.
pub(crate) fn drafting_notes(draft: &DraftStatistics) -> Vec<String> {
    if let Some(reason) = &draft.inactive_reason {
        return vec![format!("drafting is not active: {reason}")];
    }
    let stopped =
        draft.sources.iter().filter_map(|source| Some((source.kind, source.inactive_reason.as_ref()?)));
    stopped.map(|(kind, reason)| format!("the {kind} drafter is not active: {reason}")).collect()
}

fn joined(ids: &[TokenId]) -> String {
    ids.iter().map(|id| id.0.to_string()).collect::<Vec<_>>().join(",")
}

/// Writes to standard output at once.
fn write(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::output)
}
