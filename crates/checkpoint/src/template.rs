//! Chat templates: a conversation in, the prompt's text out.
//!
//! Templates are programs in the language of Jinja2, written for the environment in which `transformers` runs them:
//! blocks trimmed, Python's methods on values, `tojson` without escaping, `raise_exception` and `strftime_now`. The
//! same environment is made here. A template comes with a checkpoint, that is, from a stranger: it can reach nothing
//! but its variables, and its steps and memory are limited.

use std::error::Error as _;
use std::fmt;
use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value as TemplateValue, ValueKind, merge_maps};
use minijinja::{Environment, ErrorKind, context, escape_formatter};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::{Map, Value};

use crate::Error;
use crate::deep_stack::{has_stack, with_stack};
use crate::python::{float_repr, to_json};
use crate::strftime::strftime;
use crate::tags::{MAX_TAG_BYTES, overlong_tag};

/// Largest accepted template, in bytes. Published ones have less than 30 kB.
pub(crate) const MAX_TEMPLATE_BYTES: u64 = 1 << 18;
/// Steps that a template has for any conversation; each also pays for 64 bytes of memory.
const BASE_STEPS: u64 = 2_000_000;
/// Further steps for each byte of the conversation: the published templates look at every message once for every
/// other message (3.6 steps for each pair).
const STEPS_PER_BYTE: u64 = 300;
/// Most steps for a conversation of any length: enough for 2,300 short messages, about two seconds.
const MAX_STEPS: u64 = 20_000_000;

// Stack for the deepest recursion that the limits allow. Measured: an `elif` of ten bytes takes up to 2 kB to parse
// unoptimised; a list inside a list takes 1.6 steps to make and 105 bytes to drop, 600 unoptimised.
const STACK: usize = 4 << 20;
const STACK_PER_BYTE: usize = 512;
const STACK_PER_STEP: usize = if cfg!(debug_assertions) { 512 } else { 128 };

/// Bytes of a conversation of usual length, see [`ChatTemplate::STACK`].
const USUAL_BYTES: u64 = 2048;

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// The chat template of a checkpoint.
#[derive(Debug)]
pub struct ChatTemplate {
    file: PathBuf,
    environment: Environment<'static>,
    /// Whether there is a second template for conversations with tools.
    has_tool_use: bool,
    special_tokens: Vec<(String, String)>,
}

/// What a template is asked to render.
#[derive(Clone, Copy, Debug)]
pub struct Conversation<'a> {
    /// List of messages, each an object with `role`, `content` and whatever else the template knows.
    pub messages: &'a Value,
    /// List of tools in their JSON form, if there are any.
    pub tools: Option<&'a Value>,
    /// Whether the text ends with the beginning of the model's answer.
    pub add_generation_prompt: bool,
    /// Further variables, as `enable_thinking`.
    pub variables: &'a Map<String, Value>,
    /// The time that a template may ask for, in seconds since 1970.
    pub unix_seconds: i64,
}

/// The text of `raise_exception`, found again among the causes of an error.
#[derive(Debug)]
struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

impl ChatTemplate {
    /// Stack with which a thread can render conversations of usual length by itself. Only what is used of it takes memory.
    pub const STACK: usize = stack(steps(USUAL_BYTES));

    /// Says that the calling thread was started with [`ChatTemplate::STACK`] beside the stack for its own work. On other threads, and
    /// for longer conversations, [`ChatTemplate::render`] starts a thread each time, which takes longer than most templates.
    pub fn render_on_this_thread() {
        has_stack(Self::STACK);
    }

    /// Parses a template. `file` is its name in messages; `special_tokens` are variables such as `bos_token`.
    ///
    /// # Errors
    /// [`Error::Template`] with the line of the mistake.
    pub fn parse(
        file: &Path,
        source: &str,
        special_tokens: &[(String, String)],
    ) -> Result<ChatTemplate, Error> {
        ChatTemplate::parse_named(file, &[(DEFAULT.to_owned(), source.to_owned())], special_tokens)
    }

    /// Parses named templates, of which one must be called `default`; one called `tool_use` serves conversations with
    /// tools.
    pub(crate) fn parse_named(
        file: &Path,
        sources: &[(String, String)],
        special_tokens: &[(String, String)],
    ) -> Result<ChatTemplate, Error> {
        let wrong = |message: String| Error::Template { file: file.to_path_buf(), message };
        let mut environment = environment();
        for (name, source) in sources.iter().filter(|source| [DEFAULT, TOOL_USE].contains(&&source.0[..])) {
            check_limits(source).map_err(wrong)?;
            let (name, source) = (name.clone(), source.clone());
            with_stack(STACK + STACK_PER_BYTE * source.len(), || {
                environment.add_template_owned(name, source)
            })
            .and_then(|parsed| parsed.map_err(|error| causes(&error)))
            .map_err(wrong)?;
        }
        let has = |name: &str| environment.get_template(name).is_ok();
        if !has(DEFAULT) {
            return Err(wrong("none of its templates is called `default`".to_owned()));
        }
        let has_tool_use = has(TOOL_USE);
        let special_tokens = special_tokens.to_vec();
        Ok(ChatTemplate { file: file.to_path_buf(), environment, has_tool_use, special_tokens })
    }

    /// The text of a conversation.
    ///
    /// # Errors
    /// [`Error::TemplateRefused`] when the template raises an exception of its own, [`Error::TemplateTooLong`] when it
    /// does not come to an end, [`Error::Template`] for anything else that goes wrong in it.
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<String, Error> {
        let n_bytes = size(conversation.messages) + conversation.tools.map_or(0, size);
        let steps = steps(n_bytes);
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(steps));
        let now = conversation.unix_seconds;
        environment.add_function("strftime_now", move |format: &str| {
            strftime(format, now).map_err(|unknown| {
                let message = format!("strftime_now: `{unknown}` is not supported");
                minijinja::Error::new(ErrorKind::InvalidOperation, message)
            })
        });
        let name = if self.has_tool_use && conversation.tools.is_some() { TOOL_USE } else { DEFAULT };
        with_stack(stack(steps), || {
            environment
                .get_template(name)
                .and_then(|template| template.render(self.variables(conversation)))
                .map_err(|error| self.explain(&error, steps))
        })
        .unwrap_or_else(|message| Err(Error::Template { file: self.file.clone(), message }))
    }

    /// All variables. What the caller names wins over the special tokens, and the conversation over both.
    fn variables(&self, conversation: &Conversation<'_>) -> TemplateValue {
        let tokens = TemplateValue::from_pairs(self.special_tokens.iter().cloned());
        let given = TemplateValue::from(Serde(conversation.variables));
        context! {
            messages => TemplateValue::from(Serde(conversation.messages)),
            tools => TemplateValue::from(Serde(conversation.tools)),
            documents => (),
            add_generation_prompt => conversation.add_generation_prompt,
            ..merge_maps([tokens, given])
        }
    }

    fn explain(&self, error: &minijinja::Error, limit: u64) -> Error {
        let file = self.file.clone();
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(error) = cause {
            if let Some(Refused(message)) = error.downcast_ref() {
                return Error::TemplateRefused { file, message: message.clone() };
            }
            let kind = error.downcast_ref().map(minijinja::Error::kind);
            if kind == Some(ErrorKind::OutOfFuel) {
                return Error::TemplateTooLong { file, limit };
            }
            cause = error.source();
        }
        Error::Template { file, message: causes(error) }
    }
}

/// Steps for a conversation of so many bytes.
const fn steps(n_bytes: u64) -> u64 {
    let steps = BASE_STEPS.saturating_add(STEPS_PER_BYTE.saturating_mul(n_bytes));
    if steps < MAX_STEPS { steps } else { MAX_STEPS }
}

/// Stack for so many steps, which are at most [`MAX_STEPS`].
const fn stack(steps: u64) -> usize {
    STACK + STACK_PER_STEP * steps as usize
}

/// The environment of chat templates, without the functions that depend on the conversation.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("these settings are valid together"));
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.add_filter("tojson", to_json);
    // As in Jinja2, texts and mappings are sequences too, and so is what is undefined.
    environment.add_test("sequence", |value: &TemplateValue| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined)
    });
    environment.add_function("raise_exception", |message: &str| -> Result<(), minijinja::Error> {
        let error = minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception");
        Err(error.with_source(Refused(message.to_owned())))
    });
    environment.set_formatter(|out, state, value| match f64::try_from(value.clone()) {
        Ok(number) if value.kind() == ValueKind::Number && !value.is_integer() => {
            Ok(out.write_str(&float_repr(number))?)
        }
        _ => escape_formatter(out, state, value),
    });
    environment
}

fn check_limits(source: &str) -> Result<(), String> {
    let n_bytes = source.len() as u64;
    if n_bytes > MAX_TEMPLATE_BYTES {
        return Err(format!("it has {n_bytes} bytes, more than the limit of {MAX_TEMPLATE_BYTES}"));
    }
    if source.trim().is_empty() {
        // It would render every conversation to nothing at all.
        return Err(
            "it is empty; expected a template, or no template at all where the model has none".to_owned()
        );
    }
    match overlong_tag(source) {
        Some(line) => Err(format!("the tag in line {line} has more than {MAX_TAG_BYTES} bytes of code")),
        None => Ok(()),
    }
}

/// An error with all its causes on one line.
fn causes(error: &minijinja::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text.replace('\n', " ")
}

/// Roughly the bytes of a value's JSON.
fn size(value: &Value) -> u64 {
    match value {
        Value::String(text) => text.len() as u64 + 2,
        Value::Array(items) => items.iter().map(|item| size(item) + 1).sum(),
        Value::Object(fields) => fields.iter().map(|(key, item)| key.len() as u64 + size(item) + 3).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 4,
    }
}

#[cfg(test)]
mod tests;
