//! Why the program ends without having done what it was asked to, and with which exit code.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use paceline::{BuildError, LoadError};
use paceline_backend::BackendError;
use paceline_models::ModelError;

/// An ending that is not success.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The program could not do its work: exit code 1.
    Failed(String),
    /// Arguments, environment or files are not what they have to be: exit code 2.
    BadInput(String),
    /// Whoever read the output has gone. That is its right: nothing is said, and the exit code is 0.
    ReaderGone,
}

impl Failure {
    pub(crate) fn failed(message: impl Display) -> Self {
        Failure::Failed(message.to_string())
    }

    pub(crate) fn bad_input(message: impl Display) -> Self {
        Failure::BadInput(message.to_string())
    }

    /// The same about one of several things, which `place` names.
    pub(crate) fn within(self, place: impl Display) -> Self {
        match self {
            Failure::Failed(message) => Failure::Failed(format!("{place}: {message}")),
            Failure::BadInput(message) => Failure::BadInput(format!("{place}: {message}")),
            Failure::ReaderGone => Failure::ReaderGone,
        }
    }

    /// The same where there may be only one thing.
    pub(crate) fn within_any(self, place: Option<&str>) -> Self {
        match place {
            Some(place) => self.within(place),
            None => self,
        }
    }

    /// What it says; nothing where nobody would hear it.
    pub(crate) fn message(&self) -> &str {
        match self {
            Failure::Failed(message) | Failure::BadInput(message) => message,
            Failure::ReaderGone => "",
        }
    }

    /// An error of writing to standard output.
    pub(crate) fn output(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::ReaderGone,
            _ => Failure::Failed(format!("standard output: cannot be written: {error}")),
        }
    }

    /// Says what happened, on one line of stderr.
    pub(crate) fn report(&self) -> ExitCode {
        let (message, code) = match self {
            Failure::Failed(message) => (message, 1),
            Failure::BadInput(message) => (message, 2),
            Failure::ReaderGone => return ExitCode::SUCCESS,
        };
        // Without stderr the exit code has to do.
        let _ = writeln!(io::stderr(), "error: {}", one_line(message));
        ExitCode::from(code)
    }
}

impl From<paceline_checkpoint::Error> for Failure {
    fn from(error: paceline_checkpoint::Error) -> Self {
        Failure::bad_input(error)
    }
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        match error {
            // A weight that cannot be taken is the file's fault; memory and threads are the machine's.
            BackendError::Source(_) | BackendError::Shape { .. } => Failure::bad_input(error),
            _ => Failure::failed(error),
        }
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::Backend(error) => error.into(),
            error => Failure::bad_input(error),
        }
    }
}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Backend(error) => error.into(),
            error => Failure::bad_input(error),
        }
    }
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Model(error) => error.into(),
            LoadError::Build(error) => error.into(),
            error => Failure::bad_input(error),
        }
    }
}

/// Says something that is no failure, on one line of stderr.
pub(crate) fn note(text: &str) {
    // A note that cannot be written changes nothing.
    let _ = writeln!(io::stderr(), "note: {}", one_line(text));
}

/// Control characters, which file names and texts of others may hold, written out.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.trim().chars() {
        match c {
            c if c.is_control() => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_without_control_characters() {
        assert_eq!(one_line("a\nb\tc\u{1b}[31m é\n"), "a\\nb\\tc\\u{1b}[31m é");
    }
}
