//! Made-up weights and shapes by name.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use crate::process::{oracle, paceline, refuses, stdout};

/// A folder with the config of an oracle and nothing else, after a change to it.
fn bare(change: impl FnOnce(&mut Value)) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(oracle("gemma4_dense").join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    change(&mut config);
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    folder
}

fn ids(folder: &TempDir, arguments: &[&str]) -> Value {
    let mut run = paceline();
    run.arg("run").arg(folder.path());
    run.args(["--token-ids", "2,30,31", "-n", "12", "--ignore-eos", "--json"]).args(arguments);
    let report: Value = serde_json::from_str(&stdout(&mut run)).unwrap();
    assert_eq!(report["text"], Value::Null);
    report["token_ids"].clone()
}

#[test]
fn the_seed_alone_makes_the_weights() {
    let folder = bare(|_| ());
    let seven = ids(&folder, &["--random-weights", "7"]);
    assert_eq!(seven.as_array().unwrap().len(), 12);
    assert_eq!(seven, ids(&folder, &["--random-weights", "7", "--threads", "1"]));
    assert_ne!(seven, ids(&folder, &["--random-weights", "8"]));
}

#[test]
fn without_a_tokenizer_there_is_no_text() {
    let folder = bare(|_| ());
    let mut run = paceline();
    run.arg("run").arg(folder.path()).args(["--random-weights", "7", "-p", "Hello"]);
    refuses(&mut run, 2, &["has no tokenizer.json", "--token-ids"]);
}

#[test]
fn a_bare_config_needs_the_flag() {
    let folder = bare(|_| ());
    let mut run = paceline();
    run.arg("run").arg(folder.path()).args(["--token-ids", "2,3", "-n", "2"]);
    refuses(&mut run, 2, &["has no weights", "expected model.safetensors"]);
}

#[test]
fn a_drafter_may_be_made_up_too() {
    let target = oracle("gemma4_dense");
    let run = |arguments: &[&str]| {
        let mut run = paceline();
        run.arg("run").arg(&target).args(["--token-ids", "2,3", "-n", "16", "--ignore-eos", "--json"]);
        let report: Value = serde_json::from_str(&stdout(run.args(arguments))).unwrap();
        (report["token_ids"].clone(), report["draft"].clone())
    };
    let (plain, none) = run(&["--random-weights", "3"]);
    assert_eq!(none, Value::Null);
    for (name, kind) in [("gemma4_dense_assistant", "assistant"), ("gemma4_dense_dflash", "dflash")] {
        let folder = tempfile::tempdir().unwrap();
        fs::copy(oracle(name).join("config.json"), folder.path().join("config.json")).unwrap();
        let drafter = folder.path().to_str().unwrap();
        let (drafted, draft) = run(&["--random-weights", "3", "--draft", drafter]);
        assert_eq!(plain, drafted);
        assert_eq!(draft["kind"], kind);
        let mut bare = paceline();
        bare.arg("run").arg(&target).args(["--token-ids", "2,3", "--draft", drafter]);
        refuses(&mut bare, 2, &["has no weights"]);
    }
}

#[test]
fn shapes_have_names_and_configs() {
    let text = stdout(paceline().args(["inspect", "--shape", "bench-300m"]));
    for line in ["model          bench-300m", "layers         16", "vocabulary     65,536"] {
        assert!(text.lines().any(|found| found == line), "no {line:?} in:\n{text}");
    }
    // The config is one that can be written to a folder, as it is or cut to a slice.
    let config = stdout(paceline().args(["inspect", "--shape", "gemma4-12b", "--config"]));
    let parsed: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(parsed["num_hidden_layers"], 48);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), &config).unwrap();
    assert_eq!(stdout(paceline().arg("inspect").arg(folder.path()).arg("--config")), config);
}

#[test]
fn a_shape_that_makes_no_sense_is_refused() {
    let run = |arguments: &[&str], words: &[&str]| {
        refuses(paceline().args(["run", "--token-ids", "2,3"]).args(arguments), 2, words);
    };
    run(&["--shape", "gemma4-e2b"], &["--random-weights"]);
    run(&["--shape", "gemma9", "--random-weights", "1"], &["gemma9", "gemma4-e2b", "bench-300m"]);
    run(&["--random-weights", "x"], &["--random-weights"]);
    run(&["--shape", "gemma4-e2b-assistant", "--random-weights", "1"], &["gemma4_assistant"]);
    let mut run = paceline();
    run.args(["run", "some/folder", "--shape", "gemma4-e2b", "--random-weights", "1", "--token-ids", "2"]);
    refuses(&mut run, 2, &["--shape stands in the place of MODEL", "some/folder"]);
    refuses(paceline().args(["inspect", "some/folder", "--shape", "gemma4-e2b"]), 2, &["--shape"]);
}

#[cfg(target_os = "linux")]
#[test]
fn too_little_memory_is_said_before_loading() {
    let folder = bare(|config| {
        config["intermediate_size"] = (1 << 24).into();
        config["hidden_size"] = (1 << 16).into();
    });
    let mut run = paceline();
    run.arg("run").arg(folder.path()).args(["--token-ids", "2,3", "--random-weights", "1"]);
    refuses(&mut run, 1, &["needs at least", "TB of weights", "are available"]);
}
