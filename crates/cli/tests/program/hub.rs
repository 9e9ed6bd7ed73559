//! Models by their name on the hub, as far as the cache has them: no test has a network.

use std::fs;
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use crate::process::{paceline, refuses, root, stdout};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A cache with the tiny model under the name `org/tiny`.
fn cache() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let model = home.path().join("hub/models--org--tiny");
    fs::create_dir_all(model.join("refs")).unwrap();
    fs::create_dir_all(model.join("snapshots")).unwrap();
    fs::write(model.join("refs/main"), COMMIT).unwrap();
    symlink(root().join("assets/tiny-gemma4"), model.join("snapshots").join(COMMIT)).unwrap();
    home
}

#[test]
fn a_model_of_the_cache_runs_by_its_name() {
    let home = cache();
    let run = |model: &str| {
        stdout(paceline().env("HF_HOME", home.path()).args(["run", model, "-p", "Hello", "-n", "8"]))
    };
    let text = run("org/tiny");
    assert_eq!(text, run(&format!("org/tiny@{COMMIT}")));
    assert_eq!(text, stdout(paceline().args(["run", "-p", "Hello", "-n", "8"])));
    let inspected = stdout(paceline().env("HF_HOME", home.path()).args(["inspect", "org/tiny"]));
    assert!(inspected.contains(&format!("models--org--tiny/snapshots/{COMMIT}")), "{inspected}");
}

#[test]
fn a_name_that_is_not_in_the_cache_is_explained() {
    let home = cache();
    let mut run = paceline();
    run.env("HF_HOME", home.path()).args(["run", "org/other", "-p", "Hello"]);
    let words = [
        "org/other: is no folder, so it was looked for on the hub",
        "HF_HUB_OFFLINE",
        "refs/main is missing",
    ];
    refuses(&mut run, 2, &words);
    refuses(run.env("HF_ENDPOINT", "hub.example"), 2, &["HF_ENDPOINT", "expected https://host"]);
    let mut run = paceline();
    run.env("HF_HOME", home.path()).args(["run", "-p", "Hello", "--draft", "org/assistant"]);
    refuses(&mut run, 2, &["org/assistant: is no folder"]);
}

#[test]
fn a_folder_wins_over_the_hub() {
    let here = tempfile::tempdir().unwrap();
    fs::create_dir(here.path().join("org")).unwrap();
    symlink(root().join("assets/tiny-gemma4"), here.path().join("org/tiny")).unwrap();
    let inspected = stdout(paceline().current_dir(here.path()).args(["inspect", "org/tiny"]));
    assert!(inspected.contains("model          org/tiny\n"), "{inspected}");
}

#[test]
fn a_mistyped_folder_is_not_looked_for_on_the_hub() {
    let here = tempfile::tempdir().unwrap();
    fs::create_dir_all(here.path().join("org/tiny-gemma4")).unwrap();
    fs::create_dir_all(here.path().join("org/else")).unwrap();
    let inspect = |model: &str| {
        let mut command = paceline();
        command.current_dir(here.path()).args(["inspect", model]);
        command
    };
    let words =
        ["org/tiny-gema4: no such folder", "did you mean `org/tiny-gemma4`?", "org/tiny-gema4@main is"];
    refuses(&mut inspect("org/tiny-gema4"), 2, &words);
    refuses(&mut inspect("./org/tiny-gema4"), 2, &["no such folder", "did you mean `./org/tiny-gemma4`?"]);
    refuses(&mut inspect("orgg"), 2, &["no such folder", "did you mean `org`?"]);
    let far = inspect("org/zebra").output().unwrap();
    let far = String::from_utf8(far.stderr).unwrap();
    assert!(far.contains("no such folder") && !far.contains("did you mean"), "{far}");
    // With a revision it can be no folder's name.
    refuses(&mut inspect("org/tiny-gema4@main"), 2, &["looked for on the hub", "HF_HUB_OFFLINE"]);
}
