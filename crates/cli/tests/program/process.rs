//! Runs the program and looks at what it says.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository is there")
}

/// An oracle folder of the repository.
pub(crate) fn oracle(name: &str) -> PathBuf {
    root().join("crates/testkit/data/oracles").join(name)
}

/// The program, without what the caller's environment could change.
pub(crate) fn paceline() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.env_remove("PACELINE_ISA");
    command
}

/// What the program printed, if it did what it was asked to.
pub(crate) fn stdout(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{command:?} failed: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Asserts that the program ends with `code` and one line of error that has all of `words` in it.
pub(crate) fn refuses(command: &mut Command, code: i32, words: &[&str]) {
    let output = command.output().expect("the program starts");
    let error = error_line(&output, &format!("{command:?}"));
    assert_eq!(output.status.code(), Some(code), "{command:?}: {error}");
    for word in words {
        assert!(error.contains(word), "{command:?}: no {word:?} in: {error}");
    }
}

fn error_line(output: &Output, command: &str) -> String {
    let error = text(&output.stderr);
    assert!(error.starts_with("error: "), "{command}: {error}");
    assert_eq!(error.lines().count(), 1, "{command}: {error}");
    error
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the program writes UTF-8")
}
