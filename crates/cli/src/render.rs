//! `paceline render`: the prompt that a chat template makes of a conversation.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::ArgGroup;
use paceline_checkpoint::{ChatTemplate, Conversation, Error};
use serde_json::{Map, Value};

use crate::chat_prompt::unix_seconds;
use crate::failure::Failure;
use crate::model;
use crate::text_file;

/// Special tokens of a template that comes without its tokenizer: those of the Gemma family.
const SPECIAL_TOKENS: [(&str, &str); 4] =
    [("bos_token", "<bos>"), ("eos_token", "<eos>"), ("pad_token", "<pad>"), ("unk_token", "<unk>")];

/// Prints the prompt that a chat template makes of a conversation
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("whose").args(["model", "template"]))]
pub(crate) struct Args {
    /// Folder with the model whose template is used; left out, the built-in tiny model
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,
    /// File with a template, to be used with the special tokens of the Gemma family
    #[arg(long, value_name = "F.jinja")]
    template: Option<PathBuf>,
    /// File with {"messages", "tools"?, "add_generation_prompt"? (true), and more variables such as "enable_thinking"}
    #[arg(long, value_name = "CONVERSATION.json")]
    input: PathBuf,
}

/// Runs the subcommand.
pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let mut input = read_conversation(&args.input)?;
    let template = match &args.template {
        Some(file) => read_template(file)?,
        None => model_template(args.model.as_deref())?,
    };
    let wrong = |field, expected| {
        let file = args.input.display();
        Failure::bad_input(format!("{file}: field `{field}` is missing or wrong, expected {expected}"))
    };
    let messages = input.shift_remove("messages").filter(Value::is_array);
    let messages = messages.ok_or_else(|| wrong("messages", "a list of messages"))?;
    let tools = input.shift_remove("tools").filter(|tools| !tools.is_null());
    if tools.as_ref().is_some_and(|tools| !tools.is_array()) {
        return Err(wrong("tools", "a list of tools"));
    }
    let add_generation_prompt = match input.shift_remove("add_generation_prompt") {
        None => true,
        Some(value) => value.as_bool().ok_or_else(|| wrong("add_generation_prompt", "true or false"))?,
    };
    let text = template
        .render(&Conversation {
            messages: &messages,
            tools: tools.as_ref(),
            add_generation_prompt,
            variables: &input,
            unix_seconds: unix_seconds(),
        })
        .map_err(|error| match error {
            // The template itself says no: the work was done, and this is its result.
            Error::TemplateRefused { .. } => Failure::failed(error),
            error => error.into(),
        })?;
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::output)
}

fn read_conversation(file: &Path) -> Result<Map<String, Value>, Failure> {
    let text = text_file::read(file)?;
    serde_json::from_str(&text).map_err(|error| {
        Failure::bad_input(format!("{}: is not a conversation in JSON: {error}", file.display()))
    })
}

fn read_template(file: &Path) -> Result<ChatTemplate, Failure> {
    let special_tokens = SPECIAL_TOKENS.map(|(role, text)| (role.to_owned(), text.to_owned()));
    Ok(ChatTemplate::parse(file, &text_file::read(file)?, &special_tokens)?)
}

fn model_template(model: Option<&Path>) -> Result<ChatTemplate, Failure> {
    let folder = model::open(model)?;
    let missing = || {
        let folder = folder.origin().display();
        Failure::bad_input(format!("{folder}: has no chat template; give one with --template"))
    };
    folder.chat_template()?.ok_or_else(missing)
}
