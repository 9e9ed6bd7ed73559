//! Messages from a terminal, with line editing and history, or from a pipe.

use std::io::{BufRead, ErrorKind, Read};

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Editor, Helper};

use crate::failure::Failure;

const PROMPT: &str = "> ";
/// Begins and ends a message of several lines.
const QUOTES: &str = "\"\"\"";
/// Largest accepted message from a pipe, in bytes.
const MAX_BYTES: usize = 16 << 20;

/// What was entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Text(String),
    /// Ctrl-C on an empty or half-written line, which is dropped.
    Interrupted,
    End,
}

/// Where entries come from.
pub(super) trait Input {
    /// The next entry, without the quotes of one of several lines.
    fn next(&mut self) -> Result<Entry, Failure>;
}

/// A terminal.
pub(super) struct Terminal(Editor<Lines, MemHistory>);

impl Terminal {
    pub(super) fn new() -> Result<Self, Failure> {
        let mut editor =
            Editor::with_history(Config::default(), MemHistory::new()).map_err(terminal_error)?;
        editor.set_helper(Some(Lines));
        Ok(Self(editor))
    }
}

impl Input for Terminal {
    fn next(&mut self) -> Result<Entry, Failure> {
        match self.0.readline(PROMPT) {
            Ok(text) => {
                self.0.add_history_entry(text.as_str()).map_err(terminal_error)?;
                Ok(Entry::Text(unquoted(&text)))
            }
            Err(ReadlineError::Interrupted) => Ok(Entry::Interrupted),
            Err(ReadlineError::Eof) => Ok(Entry::End),
            Err(error) => Err(terminal_error(error)),
        }
    }
}

fn terminal_error(error: ReadlineError) -> Failure {
    Failure::failed(format!("the terminal cannot be read: {error}"))
}

/// Lets a message go on until its quotes are closed.
struct Lines;

impl Validator for Lines {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match is_open(context.input()) {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}

impl Completer for Lines {
    type Candidate = String;
}

impl Hinter for Lines {
    type Hint = String;
}

impl Highlighter for Lines {}
impl Helper for Lines {}

/// A pipe or a file.
pub(super) struct Piped<R> {
    from: R,
}

impl<R: BufRead> Piped<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from }
    }

    /// Adds a line with its end; false if there was none.
    fn read_line(&mut self, text: &mut String) -> Result<bool, Failure> {
        let bad = |what: &str| Err(Failure::bad_input(format!("standard input: {what}")));
        let room = MAX_BYTES - text.len();
        match self.from.by_ref().take(room as u64 + 1).read_line(text) {
            Ok(0) => Ok(false),
            Ok(_) if text.len() > MAX_BYTES => {
                bad(&format!("a message has more than the {MAX_BYTES} bytes that are accepted"))
            }
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                bad("is not UTF-8 text; convert it to UTF-8")
            }
            Err(error) => bad(&format!("cannot be read: {error}")),
        }
    }
}

impl<R: BufRead> Input for Piped<R> {
    fn next(&mut self) -> Result<Entry, Failure> {
        let mut text = String::new();
        if !self.read_line(&mut text)? {
            return Ok(Entry::End);
        }
        while is_open(&text) {
            if !self.read_line(&mut text)? {
                return Err(Failure::bad_input(format!(
                    "standard input: ends within a message that {QUOTES} began"
                )));
            }
        }
        Ok(Entry::Text(unquoted(&text)))
    }
}

/// Whether a message of several lines has not ended.
fn is_open(text: &str) -> bool {
    text.trim_start().strip_prefix(QUOTES).is_some_and(|rest| !rest.trim_end().ends_with(QUOTES))
}

/// The message without the quotes around it and the end of its last line.
fn unquoted(text: &str) -> String {
    let text = text.trim_end_matches(['\n', '\r']);
    let inside = text.trim().strip_prefix(QUOTES).and_then(|rest| rest.strip_suffix(QUOTES));
    inside.map_or(text, |inside| inside.trim_matches(['\n', '\r'])).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(bytes: &[u8]) -> Result<Vec<String>, Failure> {
        let mut input = Piped::new(bytes);
        let mut texts = Vec::new();
        while let Entry::Text(text) = input.next()? {
            texts.push(text);
        }
        Ok(texts)
    }

    #[test]
    fn a_line_is_a_message_and_quotes_hold_lines_together() {
        let text = b"one\r\n\n  two \n\"\"\"a\n\nb\n\"\"\"\n\"\"\"c\"\"\"\nsay \"\"\" please\nlast";
        let expected = ["one", "", "  two ", "a\n\nb", "c", "say \"\"\" please", "last"];
        assert_eq!(entries(text).unwrap(), expected);
        assert!(entries(b"").unwrap().is_empty());
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for (bytes, part) in [(&b"\"\"\"a\nb\n"[..], "ends within a message"), (b"\xff\n", "not UTF-8")] {
            let Err(Failure::BadInput(message)) = entries(bytes) else { panic!("{bytes:?} is accepted") };
            assert!(message.contains(part), "{message}");
        }
        let long = vec![b'a'; MAX_BYTES + 1];
        assert!(
            matches!(entries(&long), Err(Failure::BadInput(message)) if message.contains("bytes that are"))
        );
    }

    #[test]
    fn a_terminal_waits_for_the_closing_quotes() {
        for (text, open) in
            [("\"\"\"", true), ("\"\"\"a\nb", true), ("\"\"\"a\n\"\"\" ", false), ("a \"\"\"", false)]
        {
            assert_eq!(is_open(text), open, "{text:?}");
        }
    }
}
