//! `paceline serve`: an HTTP server over one model.

mod config;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use paceline::{Engine, ModelFolder, Sizes, Tokenizer};
use paceline_models::Description;
use paceline_server::{Model, ServeError, Server, Settings};
use tracing::level_filters::LevelFilter;

use crate::draft::{DraftArgs, Drafters};
use crate::failure::Failure;
use crate::loading::{Loading, MachineArgs};
use crate::made_up::MadeUpArgs;
use crate::model::{self, ModelArg};
use crate::numbers::{at_least_one, whole, within};

/// Tokens of a sequence if nothing is said: enough for a long conversation, at little memory.
const USUAL_CONTEXT: usize = 8192;
/// Most outputs at one time.
const MAX_RUNNING: u64 = 1024;
/// Most places in the queue.
const MAX_QUEUE: u64 = 1 << 20;
/// The key, where it should not stand among the arguments that everybody on the machine can see.
const KEY_VARIABLE: &str = "PACELINE_API_KEY";

/// Answers clients of OpenAI's interface over HTTP
///
/// The address is printed on a line of its own once the model is loaded; /health answers before that, /ready from then on. SIGTERM or
/// Ctrl-C ends the server: it takes nothing new, finishes what was begun, and cuts off what takes longer than --drain-time.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// File with options under their names here, such as `port = 8080`, and `model`; what is given as an argument wins
    #[arg(long, value_name = "TOML")]
    config: Option<PathBuf>,
    /// Address to listen at; 0.0.0.0 is all of them
    #[arg(long, value_name = "H", default_value = "127.0.0.1")]
    host: String,
    /// Port to listen at; 0 takes a free one
    #[arg(long, value_name = "P", default_value_t = 8000, value_parser = within(0..=u16::MAX), allow_hyphen_values = true)]
    port: u16,
    /// Name of the model for clients; left out, that of its folder
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    model_name: Option<String>,
    /// Key that clients have to send; better in the environment variable PACELINE_API_KEY
    #[arg(long, value_name = "KEY", value_parser = parse_key)]
    api_key: Option<String>,
    #[command(flatten)]
    draft: DraftArgs,
    /// Most tokens of a prompt and its output; left out, 8192 or what the model has
    #[arg(long, value_name = "N", value_parser = at_least_one::<usize>, allow_hyphen_values = true)]
    context: Option<usize>,
    /// Outputs that are worked on at one time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = within(1..=MAX_RUNNING), allow_hyphen_values = true)]
    max_running: u64,
    /// Outputs that wait for their turn; further requests are told to come again (429)
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = within(0..=MAX_QUEUE), allow_hyphen_values = true)]
    queue: u64,
    /// Most tokens of prompts that one pass reads: fewer make running outputs wait less while a long prompt arrives
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = at_least_one::<usize>, allow_hyphen_values = true)]
    prefill_chunk: usize,
    /// Memory for K and V, in MiB; left out, what --max-running outputs of --context tokens need
    #[arg(long, value_name = "MIB", value_parser = whole::<u64>, allow_hyphen_values = true)]
    kv_memory: Option<u64>,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    made_up: MadeUpArgs,
    #[command(flatten)]
    limits: LimitArgs,
    /// What is logged to standard error
    #[arg(long, value_name = "LEVEL", value_enum, default_value = "info")]
    log: LogLevel,
    /// How it is logged
    #[arg(long, value_name = "FORM", value_enum, default_value = "text")]
    log_format: LogFormat,
}

/// Limits, in arguments.
#[derive(Debug, clap::Args)]
struct LimitArgs {
    /// Seconds that an answer may take; 0 for as long as it takes
    #[arg(long, value_name = "S", default_value_t = 3600, value_parser = whole::<u64>, allow_hyphen_values = true)]
    answer_time: u64,
    /// Seconds for the headers of a request, and between two requests of a connection
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = at_least_one::<u64>, allow_hyphen_values = true)]
    header_time: u64,
    /// Seconds for the body of a request
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = at_least_one::<u64>, allow_hyphen_values = true)]
    body_time: u64,
    /// Seconds after which a client that reads nothing is cut off
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = at_least_one::<u64>, allow_hyphen_values = true)]
    stall_time: u64,
    /// Seconds that what was begun has to finish once the server is to end
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = whole::<u64>, allow_hyphen_values = true)]
    drain_time: u64,
    /// Bytes of a body at most
    #[arg(long, value_name = "N", default_value_t = 4 << 20, value_parser = at_least_one::<usize>, allow_hyphen_values = true)]
    max_body: usize,
    /// Connections at one time; more wait
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = at_least_one::<usize>, allow_hyphen_values = true)]
    max_connections: usize,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

impl Args {
    fn settings(&self) -> Result<Settings, Failure> {
        let limits = &self.limits;
        Ok(Settings {
            api_key: key(self.api_key.clone())?,
            queue: usize::try_from(self.queue).map_err(Failure::bad_input)?,
            body_bytes: limits.max_body,
            header_time: Duration::from_secs(limits.header_time),
            body_time: Duration::from_secs(limits.body_time),
            answer_time: Some(limits.answer_time).filter(|&time| time > 0).map(Duration::from_secs),
            stall_time: Duration::from_secs(limits.stall_time),
            connections: limits.max_connections,
            ..Settings::default()
        })
    }

    fn start_logging(&self) {
        let level = match self.log {
            LogLevel::Off => LevelFilter::OFF,
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
        };
        let log = tracing_subscriber::fmt().with_writer(io::stderr).with_max_level(level).with_target(false);
        match self.log_format {
            LogFormat::Text => log.with_ansi(io::IsTerminal::is_terminal(&io::stderr())).init(),
            LogFormat::Json => log.json().init(),
        }
    }
}

fn parse_name(name: &str) -> Result<String, String> {
    match name.trim().is_empty() || name.contains(char::is_control) {
        true => Err("expected a text of at least one visible character".to_owned()),
        false => Ok(name.to_owned()),
    }
}

fn parse_key(key: &str) -> Result<String, String> {
    match key.bytes().all(|byte| byte.is_ascii_graphic()) && !key.is_empty() {
        true => Ok(key.to_owned()),
        false => Err("expected visible ASCII characters without spaces".to_owned()),
    }
}

/// The key of the argument, else of the environment.
fn key(argument: Option<String>) -> Result<Option<String>, Failure> {
    let Some(word) = std::env::var_os(KEY_VARIABLE).filter(|_| argument.is_none()) else {
        return Ok(argument);
    };
    let named =
        |problem: String| Failure::bad_input(format!("environment variable {KEY_VARIABLE}: {problem}"));
    let word = word.to_str().ok_or_else(|| named("is not text".to_owned()))?;
    parse_key(word).map(Some).map_err(named)
}

/// Runs the subcommand.
pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let args = match &args.config {
        Some(file) => config::read(file, args.model.model.is_some())?,
        None => args,
    };
    let settings = args.settings()?;
    let place = args.model.model.as_deref();
    let folder = args.made_up.open(place)?;
    let description = paceline_models::describe(folder.config())?;
    let tokenizer = model::tokenizer(&folder, description.vocab_size)?;
    args.start_logging();
    let server = Server::start(&args.host, args.port, settings)?;
    let drafters = args.draft.open(&args.made_up)?;
    let engine = load(&args, &folder, &description, &drafters, &tokenizer)?;
    let (info, context) = (engine.backend_info(), engine.sizes().context);
    let drafts: Vec<_> = engine.drafters().iter().map(|(kind, n)| format!("{kind} {n}")).collect();
    let drafts = if drafts.is_empty() { "none".to_owned() } else { drafts.join(", ") };
    let name = args.model_name.clone().unwrap_or_else(|| name(&folder, place));
    let served = Model::new(name.clone(), &folder, tokenizer, engine).map_err(Failure::bad_input)?;
    server.publish(served);
    let ready = |address| {
        tracing::info!(
            model = name,
            %address,
            level = info.level,
            threads = info.threads,
            context,
            running = args.max_running,
            queue = args.queue,
            drafts,
            "ready"
        );
        // Whoever started the server may not listen to it.
        let _ = writeln!(io::stdout(), "listening on http://{address}").and_then(|()| io::stdout().flush());
    };
    Ok(server.run(Duration::from_secs(args.limits.drain_time), ready)?)
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        Failure::failed(error)
    }
}

fn load(
    args: &Args,
    folder: &ModelFolder,
    description: &Description,
    drafters: &Drafters,
    tokenizer: &Arc<Tokenizer>,
) -> Result<Engine, Failure> {
    let sizes = Sizes {
        n_slots: usize::try_from(args.max_running).map_err(Failure::bad_input)?,
        prefill_rows: args.prefill_chunk,
        score_prompts: true,
        kv_memory: args.kv_memory.map(|mib| mib.saturating_mul(1 << 20)),
        ..Sizes::single(args.context.unwrap_or(USUAL_CONTEXT.min(description.max_positions)))
    };
    let loading = Loading {
        folder,
        description,
        drafters,
        draft: Some(drafters.options_with_predictions()),
        sizes,
        isa: model::isa()?,
        machine: &args.machine,
        tokenizer: Some(Arc::clone(tokenizer)),
    };
    loading.run()
}

/// What clients call a model: its folder's name, or what it was asked for by.
fn name(folder: &ModelFolder, place: Option<&Path>) -> String {
    let named = match place {
        Some(place) if !place.exists() => place.to_string_lossy().into_owned(),
        Some(place) => {
            let whole = place.canonicalize().unwrap_or_else(|_| place.to_path_buf());
            whole.file_name().unwrap_or_default().to_string_lossy().into_owned()
        }
        None => {
            let origin = folder.origin().display().to_string();
            // That of the model in the program is in brackets, since it is no place.
            let inside = origin.strip_prefix("(built-in ").and_then(|name| name.strip_suffix(')'));
            inside.unwrap_or(&origin).to_owned()
        }
    };
    if named.is_empty() { "model".to_owned() } else { named }
}
