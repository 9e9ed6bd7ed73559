//! `paceline chat`: a conversation, turn by turn.
//!
//! A turn renders the whole conversation and generates from it, so it says what `run` would say to the same messages. As far as the
//! turn before has read the same tokens, they are not read again.

mod command;
mod input;
mod interrupt;
mod session;

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;

use paceline::{Engine, ModelFolder, Request, Sizes, Tokenizer};

use crate::chat_prompt::PromptEncoder;
use crate::draft::DraftArgs;
use crate::failure::{Failure, note};
use crate::loading::{Loading, MachineArgs};
use crate::made_up::MadeUpArgs;
use crate::model::{self, ModelArg};
use crate::numbers::at_least_one;
use crate::sampling::SamplingArgs;
use command::{COMMANDS, Command};
use input::{Entry, Input, Piped, Terminal};
use interrupt::Answering;
use session::Session;

/// Tokens of a conversation if nothing is said: enough for a long one, at little memory.
const USUAL_CONTEXT: usize = 8192;

/// Talks with a model, turn by turn
///
/// A line is a message. `"""` begins one of several lines and `"""` ends it. /help lists commands. Ctrl-C stops an answer, Ctrl-D
/// leaves. From a pipe or a file it reads the same, and writes the answers alone to standard output; where a message gets none,
/// it says so on standard error, goes on, and fails in the end.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// Instructions that stand before the conversation
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// Most tokens of an answer; left out, as many as the context has room for
    #[arg(short, value_name = "N", value_parser = at_least_one::<usize>, allow_hyphen_values = true)]
    n: Option<usize>,
    #[command(flatten)]
    draft: DraftArgs,
    #[command(flatten)]
    machine: MachineArgs,
    /// Most tokens of the conversation; left out, 8192 or what the model has
    #[arg(long, value_name = "N", value_parser = at_least_one::<usize>, allow_hyphen_values = true)]
    context: Option<usize>,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let folder = model::open(args.model.model.as_deref())?;
    let description = paceline_models::describe(folder.config())?;
    let tokenizer = model::tokenizer(&folder, description.vocab_size)?;
    let encoder = PromptEncoder::for_conversation(&folder, &tokenizer)?;
    let sampling = args.sampling.options(&folder.generation()?);
    let mut asked = Request::new(Vec::new(), args.n.unwrap_or(usize::MAX));
    asked.sampling = sampling.clone();
    asked.check_settings().map_err(Failure::bad_input)?;
    args.sampling.note_idle(sampling.temperature);
    let engine = load(args, &folder, &tokenizer)?;
    let mut session = Session::new(engine, encoder, args.system.as_deref(), args.n, sampling);
    if io::stdin().is_terminal() {
        interrupt::install()?;
        let origin = folder.origin().display();
        note(&format!("{origin} answers; /help lists commands, Ctrl-C stops an answer, Ctrl-D leaves"));
        talk(&mut session, &mut Terminal::new()?, Audience::Person)
    } else {
        talk(&mut session, &mut Piped::new(io::stdin().lock()), Audience::Program)
    }
}

fn load(args: &Args, folder: &ModelFolder, tokenizer: &Arc<Tokenizer>) -> Result<Engine, Failure> {
    let description = paceline_models::describe(folder.config())?;
    let context = args.context.unwrap_or(USUAL_CONTEXT.min(description.max_positions));
    let sizes = Sizes { keep_prompts: true, ..Sizes::single(context) };
    let drafters = args.draft.open(&MadeUpArgs::default())?;
    let loading = Loading {
        folder,
        description: &description,
        drafters: &drafters,
        draft: drafters.options(),
        sizes,
        isa: model::isa()?,
        machine: &args.machine,
        tokenizer: Some(Arc::clone(tokenizer)),
    };
    loading.run()
}

/// Who has to hear of a message that got no answer. In either case the next one may do better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Audience {
    /// Reads what is said.
    Person,
    /// Looks at the exit code.
    Program,
}

/// Takes entries until there are no more.
fn talk(session: &mut Session<'_>, input: &mut dyn Input, audience: Audience) -> Result<(), Failure> {
    let mut unanswered = Unanswered::default();
    loop {
        let text = match input.next()? {
            Entry::Text(text) => text,
            Entry::Interrupted => {
                note("/exit or Ctrl-D leaves");
                continue;
            }
            Entry::End => break,
        };
        match Command::parse(&text) {
            Some(Command::Exit) => break,
            Some(command) => obey(session, command),
            None if text.trim().is_empty() => {}
            None => {
                let answering = Answering::begin();
                unanswered.n_messages += 1;
                match (session.turn(&text, &mut write, &|| answering.is_stopped()), audience) {
                    (Ok(()), _) => {}
                    (Err(Failure::ReaderGone), _) => return Err(Failure::ReaderGone),
                    (Err(failure), Audience::Person) => drop(failure.report()),
                    (Err(failure), Audience::Program) => unanswered.add(failure),
                }
            }
        }
    }
    unanswered.result()
}

/// Messages without an answer, for the exit code.
#[derive(Debug, Default)]
struct Unanswered {
    /// All messages up to now.
    n_messages: usize,
    n_failed: usize,
    first: Option<Failure>,
}

impl Unanswered {
    /// The newest message is one.
    fn add(&mut self, failure: Failure) {
        let failure = failure.within(format!("message {}", self.n_messages));
        note(failure.message());
        self.n_failed += 1;
        self.first.get_or_insert(failure);
    }

    fn result(self) -> Result<(), Failure> {
        let Some(first) = self.first else { return Ok(()) };
        Err(first.within(format!("{} of {} messages got no answer", self.n_failed, self.n_messages)))
    }
}

fn obey(session: &mut Session<'_>, command: Command) {
    match command {
        Command::Reset => {
            session.reset();
            note("the conversation begins anew");
        }
        Command::Undo if session.undo() => note("the last message and its answer are taken back"),
        Command::Undo => note("there is nothing to take back"),
        Command::Stats => session.statistics().iter().for_each(|line| note(line)),
        Command::Help => COMMANDS.iter().for_each(|(name, what)| note(&format!("{name:<7} {what}"))),
        Command::Unknown(name) => note(&format!("there is no command {name}; /help lists those there are")),
        Command::Exit => {}
    }
}

/// Writes to standard output at once.
fn write(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::output)
}
