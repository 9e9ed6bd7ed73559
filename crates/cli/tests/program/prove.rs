//! `paceline prove`. That it fails where it should is tested beside its code.

use std::fs;
use std::process::Command;

use crate::process::{oracle, paceline, refuses, root, stdout};

/// A proof with time for everything, also on a machine that is slow or stands still for a while.
fn prove() -> Command {
    let mut command = paceline();
    command.args(["prove", "--minutes", "100000"]);
    command
}

#[test]
fn a_pair_is_proved_at_every_level() {
    let mut command = prove();
    command.arg(oracle("gemma4_e")).arg("--draft").arg(oracle("gemma4_e_assistant"));
    let text = stdout(command.args(["-n", "12", "--activations", "f32"]));
    let runs = text.lines().filter(|line| line.ends_with("  same")).count();
    assert!(text.contains(&format!("{runs} runs gave the text of plain decoding")) && runs > 40, "{text}");
    assert!(text.contains("\nscalar ") && text.contains("given drafter: "), "{text}");
    assert!(!text.contains("left out") && !text.contains("beyond the first window: 0"), "{text}");
}

#[test]
fn a_dflash_drafter_is_proved_op_by_op() {
    let mut command = prove();
    command.arg(oracle("gemma4_dense")).arg("--draft").arg(oracle("gemma4_dense_dflash"));
    let text = stdout(command.args(["-n", "10", "--ops", "--draft-block", "full"]));
    assert!(text.contains("runs gave the text of plain decoding") && text.contains("ops: "), "{text}");
    assert!(text.contains("given drafter: ") && !text.contains("given drafter: 0"), "{text}");
    // Its block has room for 7 drafts.
    let most = |who| text.lines().filter_map(|row| drafts_of(row, who)).max();
    assert_eq!((most("given"), most("script")), (Some(7), Some(15)), "{text}");
}

/// The number of drafts of a row of somebody's, where it has one.
fn drafts_of(row: &str, who: &str) -> Option<usize> {
    let words: Vec<_> = row.split_whitespace().collect();
    (words.len() > 3 && words[2] == who).then(|| words[3].parse().ok()).flatten()
}

#[test]
fn made_up_weights_and_long_prompts_are_proved_without_a_drafter() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(oracle("gemma4_dense").join("config.json"), folder.path().join("config.json")).unwrap();
    let mut command = prove();
    command.arg(folder.path()).args(["--random-weights", "7", "--prompt-tokens", "70", "-n", "6"]);
    let text = stdout(command.args(["--threads", "1", "--ops"]).env("PACELINE_ISA", "scalar"));
    assert!(
        text.contains("with no drafter; levels scalar; greedy;") && text.contains("\nscript: "),
        "{text}"
    );
    assert!(text.contains("ops: ") && text.contains("rows beyond the first window: "), "{text}");
}

#[test]
fn sampled_texts_are_proved_too() {
    let mut command = prove();
    command.arg(oracle("gemma4_dense")).arg("--draft").arg(oracle("gemma4_dense_assistant"));
    let sampling = ["--temperature", "0.7", "--seed", "5", "--top-k", "50", "--frequency-penalty", "0.5"];
    let text = stdout(command.args(sampling).args(["-n", "10"]));
    assert!(text.contains("; temperature 0.7, seed 5; compared with plain decoding"), "{text}");
    assert!(
        text.contains("runs gave the text of plain decoding") && text.contains("given drafter: "),
        "{text}"
    );
}

#[test]
fn what_was_not_tried_is_not_proved() {
    // One token leaves no room for a draft.
    refuses(prove().arg(oracle("gemma3")).args(["-n", "1"]), 1, &["not proved", "accepted", "-n"]);
}

#[test]
fn what_cannot_be_proved_is_exit_code_2() {
    refuses(paceline().args(["prove", "/nonexistent/model"]), 2, &["/nonexistent/model"]);
    refuses(prove().arg(oracle("gemma3")).args(["-n", "0"]), 2, &["-n", "at least 1"]);
    refuses(prove().arg(oracle("gemma3")).args(["-n", "1000000"]), 2, &["leaves no room"]);
    for length in ["999999", "18446744073709551615"] {
        let mut command = prove();
        command.arg(oracle("gemma3")).args(["--prompt-tokens", length]);
        refuses(&mut command, 2, &["--prompt-tokens", length, "at most"]);
    }
    for (option, value, word) in [("--top-p", "2", "top_p is 2"), ("--min-tokens", "3", "--min-tokens")] {
        refuses(prove().arg(oracle("gemma3")).args([option, value]), 2, &[word]);
    }
    let pair = |target: &str, drafter: &str| {
        let mut command = prove();
        command.arg(oracle(target)).arg("--draft").arg(oracle(drafter));
        command
    };
    refuses(&mut pair("gemma4_dense", "gemma4_e_assistant"), 2, &["does not fit the target"]);
    let tiny = root().join("assets/tiny-gemma4");
    refuses(paceline().args(["prove", "--draft"]).arg(oracle("gemma3")), 2, &["vocabulary"]);
    refuses(prove().arg(oracle("gemma3")).arg("--draft").arg(tiny), 2, &["vocabulary"]);
}

#[test]
fn drafters_without_a_network_and_whole_models_are_proved_too() {
    let with = |draft: &str, n: &str| {
        let mut command = prove();
        command.arg(oracle("gemma4_dense")).args(["-n", n, "--draft", draft, "--ngram-min", "1"]);
        stdout(command.args(["--threads", "1"]).env("PACELINE_ISA", "scalar"))
    };
    let text = with("ngram", "10");
    assert!(text.contains("with n-grams of 1 to 5 tokens;") && text.contains("given drafter: "), "{text}");
    let model = oracle("gemma4_dense");
    let text = with(&format!("{},ngram", model.display()), "4");
    assert!(text.contains("gemma4_dense, then n-grams of 1 to 5 tokens;"), "{text}");
    // The model always drafts, so nobody asks the n-grams.
    assert!(text.contains("gemma4_dense: ") && !text.contains("gemma4_dense: not tried"), "{text}");
    assert!(text.contains("\ngiven drafter, n-grams of 1 to 5 tokens: not tried"), "{text}");
    // It drafts for itself.
    assert!(text.contains("none of the given drafter's drafts was rejected"), "{text}");
}
