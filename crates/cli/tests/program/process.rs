//! Runs the program and looks at what it says.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository is there")
}

/// An oracle folder of the repository.
pub(crate) fn oracle(name: &str) -> PathBuf {
    root().join("crates/testkit/data/oracles").join(name)
}

/// The program, without what the caller's environment could change, and without a network.
pub(crate) fn paceline() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.env_remove("PACELINE_ISA").env_remove("PACELINE_API_KEY");
    command.env("HF_HUB_OFFLINE", "1").env("HF_HOME", "/nonexistent");
    for variable in ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_ENDPOINT", "HF_TOKEN_PATH"] {
        command.env_remove(variable);
    }
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

/// The line of error of a run that failed.
pub(crate) fn error_line(output: &Output, command: &str) -> String {
    let error = text(&output.stderr);
    assert!(error.starts_with("error: "), "{command}: {error}");
    assert_eq!(error.lines().count(), 1, "{command}: {error}");
    error
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the program writes UTF-8")
}

/// A copy of an oracle folder that a test may change.
pub(crate) fn copy_of(name: &str) -> TempDir {
    copy_of_folder(&oracle(name))
}

/// A copy of a folder of files that a test may change.
pub(crate) fn copy_of_folder(folder: &Path) -> TempDir {
    let copy = tempfile::tempdir().expect("a temporary folder");
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("a readable entry").path();
        let to = copy.path().join(path.file_name().expect("an entry has a name"));
        fs::write(to, fs::read(&path).expect("a readable file")).expect("a writable copy");
    }
    copy
}

/// Runs the program with `bytes` on standard input.
pub(crate) fn with_stdin(command: &mut Command, bytes: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("it was piped");
    // The program may end without having read all of it.
    let _ = stdin.write_all(bytes);
    drop(stdin);
    child.wait_with_output().expect("the program ends")
}
