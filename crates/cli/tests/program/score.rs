//! `paceline score`.

use std::fs;

use serde_json::Value;

use crate::process::{oracle, paceline, refuses, root, stdout};

const STORY: &str = "Once upon a time there was a little fox. The little fox had a red ball. One day the fox went to the park. ";

struct Scored(tempfile::TempDir);

impl Scored {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("text"), text).unwrap();
        Self(folder)
    }

    fn score(&self, args: &[&str]) -> Value {
        let file = self.0.path().join("text");
        let text = stdout(paceline().arg("score").arg(file).args(args).arg("--json"));
        serde_json::from_str(&text).unwrap()
    }
}

#[test]
fn a_score_is_the_mean_of_the_prompts_logprobs() {
    let scored = Scored::new(STORY);
    let got = scored.score(&[]);
    let logprobs: Vec<f64> =
        echo(&["-p", STORY]).iter().map(|entry| entry["logprob"].as_f64().unwrap()).collect();
    assert_eq!(got["tokens"], logprobs.len());
    let mean = -logprobs.iter().sum::<f64>() / logprobs.len() as f64;
    assert!((got["mean_negative_logprob"].as_f64().unwrap() - mean).abs() < 1e-5, "{got}");
    assert!((got["perplexity"].as_f64().unwrap().ln() - mean).abs() < 1e-5, "{got}");
    assert_eq!(got["windows"], 1);
    // Words in an order that nobody writes are worse.
    let mut words: Vec<&str> = STORY.split(' ').collect();
    words.reverse();
    assert!(Scored::new(&words.join(" ")).score(&[])["perplexity"].as_f64() > got["perplexity"].as_f64());
}

/// The prompt's entries of `run --echo`, without that of the first token.
fn echo(args: &[&str]) -> Vec<Value> {
    let run = stdout(paceline().args(["run", "--raw", "-n", "1", "--json", "--echo"]).args(args));
    let mut run: Value = serde_json::from_str(&run).unwrap();
    let Value::Array(entries) = run["prompt_logprobs"].take() else { panic!("{run}") };
    entries.into_iter().skip(1).collect()
}

#[test]
fn a_window_scores_what_follows_its_context() {
    let text = STORY.repeat(2);
    let ids: Vec<String> = echo(&["-p", &text]).iter().map(|entry| entry["token_id"].to_string()).collect();
    let (mut sum, mut scored_to) = (0.0, 0);
    while scored_to < ids.len() {
        let end = if scored_to == 0 { 23 } else { ids.len().min(scored_to + 9) };
        let window = format!("2,{}", ids[end - 23..end].join(","));
        let entries = echo(&["--token-ids", &window]);
        sum -=
            entries[23 - (end - scored_to)..].iter().map(|of| of["logprob"].as_f64().unwrap()).sum::<f64>();
        scored_to = end;
    }
    let got = Scored::new(&text).score(&["--context", "24", "--stride", "9"]);
    assert_eq!((&got["tokens"], &got["windows"]), (&ids.len().into(), &5.into()));
    assert!((got["mean_negative_logprob"].as_f64().unwrap() - sum / ids.len() as f64).abs() < 1e-5, "{got}");
}

#[test]
fn windows_score_every_token_once_and_threads_and_levels_change_no_bit() {
    let scored = Scored::new(&STORY.repeat(12));
    let all = scored.score(&["--context", "2048"]);
    for args in [
        ["--context", "64", "--stride", "32"],
        ["--context", "33", "--stride", "7"],
        ["--context", "20", "--stride", "19"],
    ] {
        let got = scored.score(&args);
        assert_eq!(got["tokens"], all["tokens"], "{args:?}");
        assert!(got["windows"].as_u64().unwrap() > 2, "{got}");
    }
    let value =
        |args: &[&str]| scored.score(&[&["--context", "64"], args].concat())["mean_negative_logprob"].clone();
    assert_eq!(value(&["--threads", "1"]), value(&["--threads", "3"]));
    let file = scored.0.path().join("text");
    let mut scalar = paceline();
    scalar.env("PACELINE_ISA", "scalar").arg("score").arg(root().join("assets/tiny-gemma4")).arg(file);
    let mut swapped = paceline();
    swapped.arg("score").arg(scored.0.path().join("text")).arg(root().join("assets/tiny-gemma4"));
    assert!(stdout(&mut swapped).starts_with("perplexity "));
    let scalar: Value = serde_json::from_str(&stdout(scalar.args(["--context", "64", "--json"]))).unwrap();
    assert_eq!((&scalar["mean_negative_logprob"], &scalar["level"]), (&value(&[]), &"scalar".into()));
}

#[test]
fn what_cannot_be_scored_is_refused() {
    let scored = Scored::new(STORY);
    let file = scored.0.path().join("text");
    let score = |args: &[&str]| {
        let mut command = paceline();
        command.arg("score").arg(&file).args(args);
        command
    };
    for stride in [&[][..], &["--stride", "1"]] {
        let words = ["windows of 1 token have none that follows another", "expected --context 2"];
        refuses(score(&["--context", "1"]).args(stride), 2, &words);
    }
    refuses(&mut score(&["--context", "2", "--stride", "2"]), 2, &["--stride is 2", "expected 1 to 1"]);
    refuses(&mut score(&["--context", "8", "--stride", "8"]), 2, &["--stride is 8", "1 to 7"]);
    refuses(&mut score(&["--context", "100000"]), 2, &["context", "2048"]);
    refuses(paceline().arg("score"), 2, &["FILE"]);
    refuses(paceline().args(["score", "/nonexistent/text"]), 2, &["/nonexistent/text"]);
    refuses(paceline().arg("score").arg(scored.0.path()), 2, &["no text to score", "stands for MODEL"]);
    refuses(paceline().arg("score").arg(oracle("gemma3")).arg(&file), 2, &["no tokenizer.json"]);
    fs::write(&file, "").unwrap();
    refuses(&mut score(&[]), 2, &["no token to score"]);
}
