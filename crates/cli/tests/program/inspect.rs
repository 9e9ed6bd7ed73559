//! `paceline inspect`.

use crate::process::{oracle, paceline, refuses, stdout};

#[test]
fn a_model_is_described_without_its_weights() {
    let text = stdout(paceline().arg("inspect").arg(oracle("gemma4_moe")).env("PACELINE_ISA", "scalar"));
    for line in [
        "architecture   gemma4_text",
        "layers         3",
        "parameters     241,883",
        "  experts                         147,456   294.91 kB      73.73 kB  memory",
        "K/V a token    256 B in 2 layers with a window of 16 tokens",
        "level          scalar",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line:?} in:\n{text}");
    }
}

#[test]
fn the_config_alone_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(oracle("gemma4_dense").join("config.json"), folder.path().join("config.json")).unwrap();
    assert!(stdout(paceline().arg("inspect").arg(folder.path())).contains("gemma4_text"));
}

#[test]
fn f32_activations_double_the_kv() {
    let text = stdout(paceline().arg("inspect").arg(oracle("gemma4_moe")).args(["--activations", "f32"]));
    assert!(text.contains("K/V a token    512 B in 2 layers"), "{text}");
}

#[test]
fn what_is_no_model_is_refused() {
    refuses(paceline().args(["inspect", "/nonexistent/model"]), 2, &["/nonexistent/model", "no such folder"]);
    refuses(paceline().arg("inspect").arg(oracle("gemma4_dense").join("config.json")), 2, &["is a file"]);
    refuses(paceline().arg("inspect").arg(oracle("gemma4_e_assistant")), 2, &["assistant", "--draft"]);
    refuses(paceline().arg("inspect").env("PACELINE_ISA", "sse9"), 2, &["PACELINE_ISA", "sse9"]);
}

#[test]
fn drafters_are_counted_by_their_configs() {
    let shape = |words: &[&str]| {
        let shape = ["inspect", "--shape", "gemma4-26b-a4b", "--context", "4096"];
        stdout(paceline().args(shape).args(words))
    };
    let memory = |text: &str| {
        text.lines().find(|line| line.starts_with("memory")).expect("a line of memory").to_owned()
    };
    let (alone, drafted) = (shape(&[]), shape(&["--draft", "gemma4-26b-a4b-dflash"]));
    assert!(drafted.contains("drafted by     gemma4-26b-a4b-dflash"), "{drafted}");
    assert!(!alone.contains("drafted by") && !memory(&alone).contains("drafters' buffers"), "{alone}");
    assert!(memory(&drafted).contains(" of drafters' buffers"), "{drafted}");
    assert_ne!(memory(&alone).split(" of weights").next(), memory(&drafted).split(" of weights").next());
    // n-grams have no config, and yet they take memory, up to a bound.
    let found = shape(&["--draft", "ngram,gemma4-26b-a4b-assistant"]);
    assert!(
        found.contains("drafted by     n-grams of 2 to 5 tokens\nthen by        gemma4-26b-a4b-assistant\n"),
        "{found}"
    );
    let found = memory(&shape(&["--draft", "ngram"]));
    assert!(found.contains(", 147.46 kB of drafters' buffers"), "{found}");
    let longest = ["inspect", "--shape", "gemma4-26b-a4b", "--draft", "ngram", "--ngram-max", "9"];
    let found = stdout(paceline().args(longest));
    assert!(
        found.contains("at 262,144 tokens") && found.contains(", 8.91 MB of drafters' buffers"),
        "{found}"
    );
    let other = ["inspect", "--shape", "gemma4-31b", "--draft", "gemma4-26b-a4b-dflash"];
    refuses(paceline().args(other), 2, &["does not fit the target"]);
    // Without a memory of its own to count, an assistant is compared all the same.
    for (target, drafter, what) in [
        ("gemma4-31b", "gemma4-e2b-assistant", "backbone_hidden_size"),
        ("gemma4-e4b", "gemma4-e2b-assistant", "backbone_hidden_size"),
    ] {
        let other = ["inspect", "--shape", target, "--draft", drafter, "--random-weights", "7"];
        refuses(paceline().args(other), 2, &["does not fit the target", what]);
    }
    let mut other = paceline();
    other.arg("inspect").arg(oracle("gemma3")).arg("--draft").arg(oracle("gemma4_e_assistant"));
    refuses(&mut other, 2, &["does not fit the target"]);
    refuses(paceline().args(["inspect", "--draft"]).arg(oracle("gemma3")), 2, &["vocabulary"]);
}
