//! How tokens are chosen, and what is told of it.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::process::{copy_of_folder, paceline, refuses, root, stdout, text, with_stdin};

const FOX: &str = "Tell me a short story about a fox.";

fn run(args: &[&str]) -> Command {
    let mut command = paceline();
    command.args(["run", "--json"]).args(args);
    command
}

fn objects(args: &[&str]) -> Vec<Value> {
    stdout(&mut run(args)).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The one object of a run with the fox.
fn fox(args: &[&str]) -> Value {
    let mut objects = objects(&[&["-p", FOX, "-n", "24"], args].concat());
    assert_eq!(objects.len(), 1);
    objects.remove(0)
}

/// An object without what depends on drafts and on the clock.
fn text_alone(mut object: Value) -> Value {
    for field in ["timings", "draft", "peak_memory_bytes"] {
        object.as_object_mut().unwrap().remove(field);
    }
    object
}

#[test]
fn a_seed_gives_its_text_with_any_drafts() {
    let settings: [&[&str]; 5] = [
        &["--temperature", "1.2", "--seed", "7"],
        &["--temperature", "1", "--seed", "8", "--top-k", "40", "--top-p", "0.9"],
        &["--temperature", "1.5", "--seed", "18446744073709551615", "--min-p", "0.05", "--typical-p", "0.9"],
        &["--temperature", "1", "--seed", "9", "--repetition-penalty", "1.3", "--frequency-penalty", "0.5"],
        &["--presence-penalty", "1.5", "--logit-bias", "30=2,31=-3.5", "--min-tokens", "9"],
    ];
    let mut seen = vec![fox(&[])["token_ids"].clone()];
    for setting in settings {
        let more = [setting, &["--logprobs", "2", "--logprobs-of", "sampled", "--echo"]].concat();
        let plain = text_alone(fox(&more));
        assert!(!seen.contains(&plain["token_ids"]), "{setting:?} changes nothing");
        seen.push(plain["token_ids"].clone());
        for k in ["1", "4", "7"] {
            let drafted = fox(&[&more[..], &["--draft", "tiny", "--draft-tokens", k]].concat());
            assert_eq!(text_alone(drafted), plain, "{setting:?}, {k} drafts");
        }
    }
}

#[test]
fn a_missing_seed_is_drawn_and_told() {
    let first = fox(&["--temperature", "1.3"]);
    let second = fox(&["--temperature", "1.3"]);
    assert_ne!(first["seed"], second["seed"]);
    let again = fox(&["--temperature", "1.3", "--seed", &first["seed"].to_string()]);
    assert_eq!(again["token_ids"], first["token_ids"]);
    assert_eq!(fox(&[])["seed"], 0, "nothing is drawn at temperature 0");
}

#[test]
fn what_is_in_force_is_told() {
    let nothing = json!({
        "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "repetition_penalty": 1.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "logit_bias": {}, "min_tokens": 0, "suppress_tokens": [],
        "allowed_tokens": null,
    });
    assert_eq!(fox(&[])["sampling"], nothing);
    let folder = copy_of_folder(&root().join("assets/tiny-gemma4"));
    let defaults =
        r#"{"do_sample": true, "temperature": 0.7, "top_k": 64, "top_p": 0.95, "eos_token_id": [1, 6]}"#;
    fs::write(folder.path().join("generation_config.json"), defaults).unwrap();
    let in_folder = |more: &[&str]| {
        let common = [folder.path().to_str().unwrap(), "-p", FOX, "-n", "4", "--seed", "3"];
        objects(&[&common, more].concat()).remove(0)
    };
    assert_eq!(in_folder(&[])["sampling"], nothing, "the checkpoint is asked only with --sample");
    let got = in_folder(&["--sample", "--top-k", "5", "--suppress-tokens", "8,9", "--logit-bias", "7=-1"]);
    let mut wanted = nothing;
    for (field, value) in [
        ("temperature", json!(0.7)),
        ("top_k", json!(5)),
        ("top_p", json!(0.95)),
        ("suppress_tokens", json!([8, 9])),
        ("logit_bias", json!({"7": -1.0})),
    ] {
        wanted[field] = value;
    }
    // Numbers of f32 in their shortest form, so 0.7 is 0.7.
    assert_eq!(got["sampling"], wanted);
    let alone = in_folder(&[
        "--temperature",
        "0.7",
        "--top-k",
        "5",
        "--top-p",
        "0.95",
        "--suppress-tokens",
        "8,9",
        "--logit-bias",
        "7=-1",
    ]);
    assert_eq!(got["token_ids"], alone["token_ids"]);
}

#[test]
fn the_last_of_several_values_holds() {
    assert_eq!(fox(&["--temperature", "0.5", "--temperature", "0"])["sampling"]["temperature"], 0.0);
}

#[test]
fn logprobs_are_those_of_each_token() {
    let got = fox(&["--logprobs", "3"]);
    let entries = got["logprobs"].as_array().unwrap();
    assert_eq!(entries.len(), got["token_ids"].as_array().unwrap().len());
    for (entry, id) in entries.iter().zip(got["token_ids"].as_array().unwrap()) {
        assert_eq!(&entry["token_id"], id);
        let top = entry["top"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert_eq!(
            (&top[0]["token_id"], &top[0]["logprob"]),
            (id, &entry["logprob"]),
            "greedy takes the first"
        );
        let values: Vec<f64> = top.iter().map(|top| top["logprob"].as_f64().unwrap()).collect();
        assert!(values.is_sorted_by(|a, b| a >= b) && values.iter().map(|p| p.exp()).sum::<f64>() < 1.001);
    }
    assert!(got.get("prompt_logprobs").is_none());
    // Only what is drawn from knows of filters.
    let of = |of: &str| {
        let args =
            ["--temperature", "1", "--seed", "5", "--top-k", "1", "--logprobs", "0", "--logprobs-of", of];
        fox(&args)["logprobs"].clone()
    };
    assert!(of("sampled").as_array().unwrap().iter().all(|entry| entry["logprob"] == 0.0));
    assert!(of("model").as_array().unwrap().iter().any(|entry| entry["logprob"].as_f64().unwrap() < -0.01));
}

#[test]
fn echo_tells_the_prompts_logprobs_in_any_chunks() {
    let whole = fox(&["--echo", "--logprobs", "1"]);
    let entries = whole["prompt_logprobs"].as_array().unwrap();
    assert_eq!(entries.len(), whole["prompt_tokens"].as_u64().unwrap() as usize);
    assert!(
        entries[0].is_null() && entries[1..].iter().all(|entry| entry["logprob"].as_f64().unwrap() <= 0.0)
    );
    for chunk in ["1", "5"] {
        assert_eq!(
            text_alone(fox(&["--echo", "--logprobs", "1", "--prefill-chunk", chunk])),
            text_alone(whole.clone())
        );
    }
    let ids = whole["token_ids"].as_array().unwrap();
    // The same text as a prompt has the same log-probabilities.
    let prompt: Vec<String> = entries[1..].iter().map(|entry| entry["token_id"].to_string()).collect();
    let longer = format!("2,{},{}", prompt.join(","), ids[0]);
    let longer = objects(&["--token-ids", &longer, "-n", "1", "--echo"]).remove(0);
    let of = |entry: &Value| (entry["token_id"].clone(), entry["logprob"].clone());
    assert_eq!(of(longer["prompt_logprobs"].as_array().unwrap().last().unwrap()), of(&whole["logprobs"][0]));
}

#[test]
fn choices_are_one_seed_with_noise_of_their_own() {
    let three = objects(&["-p", FOX, "-n", "24", "--temperature", "1.2", "--choices", "3"]);
    let field = |name: &str| three.iter().map(|object| object[name].clone()).collect::<Vec<_>>();
    assert_eq!(field("choice"), [0, 1, 2]);
    assert!(field("seed").windows(2).all(|pair| pair[0] == pair[1]));
    assert!(field("token_ids").windows(2).all(|pair| pair[0] != pair[1]));
    let seed = three[0]["seed"].to_string();
    let alone = fox(&["--temperature", "1.2", "--seed", &seed]);
    assert_eq!(alone["token_ids"], three[0]["token_ids"], "the first choice is the text without choices");
    let drafted =
        ["-p", FOX, "-n", "24", "--temperature", "1.2", "--choices", "3", "--seed", &seed, "--draft", "tiny"];
    let drafted: Vec<_> = objects(&drafted).iter().map(|object| object["token_ids"].clone()).collect();
    assert_eq!(drafted, field("token_ids"));
    let text = stdout(paceline().args(["run", "-p", FOX, "-n", "4", "--choices", "2"]));
    assert!(text.starts_with("==> choice 0 <==\n") && text.contains("\n==> choice 1 <==\n"), "{text}");
}

#[test]
fn a_line_of_a_file_has_settings_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompts.jsonl");
    let line = |more: &str| format!("{{\"prompt\": \"{FOX}\"{more}}}\n");
    let lines = [
        line(""),
        line(", \"temperature\": 1.3, \"seed\": 5, \"top_k\": 50"),
        line(", \"temperature\": 0, \"logit_bias\": {\"30\": 4}, \"n\": 7"),
    ];
    fs::write(&file, lines.concat()).unwrap();
    let file = file.to_str().unwrap();
    let got = objects(&["--prompts-file", file, "-n", "24", "--temperature", "1.1", "--seed", "2"]);
    let alone = [
        fox(&["--temperature", "1.1", "--seed", "2"]),
        fox(&["--temperature", "1.3", "--seed", "5", "--top-k", "50"]),
        fox(&["--logit-bias", "30=4", "-n", "7", "--seed", "2"]),
    ];
    for (got, alone) in got.iter().zip(&alone) {
        for field in ["token_ids", "seed", "sampling", "finish_reason"] {
            assert_eq!(got[field], alone[field], "{got}");
        }
    }
    for (more, words) in [
        (", \"top_p\": 2", "top_p is 2"),
        (", \"top_p\": \"much\"", "`top_p`: `\"much\"` is not a number"),
        (", \"temperature\": 1e-400", "`temperature`: `1e-400` is not 0"),
        (", \"n\": 3, \"min_tokens\": 4", "min_tokens is 4"),
        (", \"suppress_tokens\": [7, -1]", "`suppress_tokens`: `-1` is not a token id; expected numbers"),
        (", \"allowed_tokens\": \"x\"", "`allowed_tokens`: `\"x\"` is no list of token ids; expected one"),
        (", \"logit_bias\": {\"99999\": 1}", "token 99999 in logit_bias"),
        (", \"seed\": 1, \"seed\": 2", "`seed` stands twice"),
        (", \"logit_bias\": {\"7\": 1, \"7\": 2}", "`logit_bias`: `7` stands twice"),
    ] {
        // Empty lines are no prompts, but lines.
        fs::write(file, [&line(""), "\n", &line(more)].concat()).unwrap();
        refuses(&mut run(&["--prompts-file", file]), 2, &["prompts.jsonl: line 3: ", words]);
        refuses(&mut run(&["--prompts-file", file, "--choices", "2"]), 2, &["prompts.jsonl: line 3", words]);
    }
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let cases: [(&[&str], &[&str]); 37] = [
        (&["--temperature", "-1"], &["temperature is -1", "0, or"]),
        (&["--temperature", "nan"], &["temperature is NaN"]),
        (&["--temperature", "warm"], &["--temperature", "warm"]),
        // Neither is what 0 is: greedy.
        (&["--temperature", "1e-400"], &["--temperature", "`1e-400` is not 0"]),
        (
            &["--temperature", "1e-50"],
            &["--temperature", "`1e-50` is not 0", "expected 0, or 0.000001 to 1000000"],
        ),
        (&["--temperature", "1e-45"], &["expected 0, or 0.000001 to 1000000"]),
        (&["--top-p", "1e-50"], &["--top-p", "`1e-50` is not 0", "0 itself"]),
        (&["--top-p", "1.5"], &["top_p is 1.5", "0 to 1"]),
        (&["--top-p", "-0.1"], &["top_p is -0.1"]),
        (&["--top-k", "-1"], &["--top-k", "-1", "expected a whole number of at least 0"]),
        (&["--top-k", "x"], &["--top-k", "expected a whole number of at least 0"]),
        (&["--min-p", "2"], &["min_p is 2"]),
        (&["--typical-p", "-1"], &["typical_p is -1"]),
        (&["--repetition-penalty", "0"], &["repetition_penalty is 0"]),
        (&["--frequency-penalty", "inf"], &["frequency_penalty is inf"]),
        (&["--seed", "-1"], &["--seed", "-1", "expected a whole number of at least 0"]),
        (&["--seed", "18446744073709551616"], &["--seed", "larger"]),
        (&["--min-tokens", "-1"], &["--min-tokens", "expected a whole number"]),
        (&["--logprobs", "-1"], &["--logprobs", "expected a whole number"]),
        (&["--logit-bias", "7"], &["--logit-bias", "ID=B"]),
        (&["--logit-bias", "7=1,7=2"], &["token 7 has two biases"]),
        (&["--logit-bias", "99999=1"], &["token 99999 in logit_bias", "4096"]),
        (&["--logit-bias", "7=nan"], &["logit_bias is NaN"]),
        (&["--suppress-tokens", ""], &["--suppress-tokens"]),
        (&["--suppress-tokens", "99999"], &["token 99999 in --suppress-tokens", "4096"]),
        (&["--allowed-tokens", "99999"], &["token 99999 in --allowed-tokens", "4096"]),
        (&["--allowed-tokens", "1,6", "--min-tokens", "1"], &["no token could be chosen", "min_tokens"]),
        (&["-n", "3", "--min-tokens", "4"], &["min_tokens is 4", "at most the 3"]),
        (&["--logprobs", "101"], &["logprobs is 101", "at most 100"]),
        (&["--logprobs-of", "sampled"], &["--logprobs"]),
        (&["--choices", "0"], &["--choices"]),
        (&["--choices", "100000"], &["--choices", "1024"]),
        (&["--choices", "x"], &["--choices", "expected a whole number from 1 to 1024"]),
        (&["--temperature", "-1e-3"], &["temperature is -0.001", "0, or"]),
        (&["--min-p", "-.5"], &["min_p is -0.5", "0 to 1"]),
        (&["--logit-bias", "-7=1"], &["--logit-bias", "`-7=1` is no bias"]),
        (&["--suppress-tokens", "-7,8"], &["--suppress-tokens", "`-7` is not a token id"]),
    ];
    for (args, words) in cases {
        refuses(run(&["-p", "x"]).args(args), 2, words);
    }
    refuses(paceline().args(["run", "-p", "x", "--logprobs", "1"]), 2, &["--json"]);
    refuses(paceline().args(["chat", "--top-p", "2"]), 2, &["top_p is 2"]);
    // Numbers below 0 that may be.
    let penalty = |word| fox(&["--presence-penalty", word])["sampling"]["presence_penalty"].clone();
    assert_eq!([penalty("-0.5"), penalty("-1e-3"), penalty("-.5")], [-0.5, -0.001, -0.5]);
}

#[test]
fn a_checkpoint_is_taken_at_its_word() {
    let folder = copy_of_folder(&root().join("assets/tiny-gemma4"));
    let generation = folder.path().join("generation_config.json");
    let path = folder.path().to_str().unwrap();
    let sampling = |more: &[&str]| {
        let common = [path, "-p", FOX, "-n", "2", "--seed", "3"];
        objects(&[&common, more].concat()).remove(0)["sampling"].clone()
    };
    for (text, temperature, top_k) in [
        (r#"{"do_sample": false, "temperature": 0.7, "top_k": 9}"#, 0.0, 9),
        (r#"{"temperature": 0.5, "top_k": 9}"#, 0.5, 9),
        (r#"{"temperature": 0.0}"#, 0.0, 0),
        ("{}", 1.0, 0),
    ] {
        fs::write(&generation, text).unwrap();
        let found = sampling(&["--sample"]);
        assert_eq!((&found["temperature"], &found["top_k"]), (&json!(temperature), &json!(top_k)), "{text}");
        assert_eq!(sampling(&["--sample", "--temperature", "0.25"])["temperature"], 0.25);
        let found = sampling(&[]);
        assert_eq!((&found["temperature"], &found["top_k"]), (&json!(0.0), &json!(0)), "{text}");
    }
    for small in ["1e-20", "1e-50", "1e-400"] {
        fs::write(&generation, format!(r#"{{"temperature": {small}}}"#)).unwrap();
        let words = ["generation_config.json", &format!("`temperature` is {small}")[..], "expected 0"];
        refuses(&mut run(&[path, "-p", "x", "--sample"]), 2, &words);
        refuses(paceline().args(["chat", path]), 2, &words);
        refuses(paceline().args(["serve", path, "--port", "0", "--log", "off"]), 2, &words);
    }
}

#[test]
fn lines_of_a_bench_say_how_they_are_answered() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompts.jsonl");
    let file = file.to_str().unwrap();
    let bench = |more: &[&str]| {
        let mut command = paceline();
        command.args(["bench", "--json", "--rounds", "1", "-n", "5", "--prompts-file", file]).args(more);
        command
    };
    let lines = [
        format!(r#"{{"prompt": "{FOX}"}}"#),
        format!(r#"{{"prompt": "{FOX}", "n": 9, "temperature": 1.2, "seed": 7}}"#),
        format!(r#"{{"prompt": "{FOX}", "n": 3, "temperature": 1.3}}"#),
    ];
    fs::write(file, lines.join("\n")).unwrap();
    let answers = stdout(&mut bench(&["--draft", "tiny", "--draft-tokens", "2"]));
    let answers: Vec<Value> = answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), 6);
    let ids = |prompt: usize, drafted: usize| answers[2 * prompt + drafted]["token_ids"].clone();
    for drafted in [0, 1] {
        assert_eq!(ids(0, drafted), fox(&["-n", "5"])["token_ids"]);
        assert_eq!(ids(1, drafted), fox(&["-n", "9", "--temperature", "1.2", "--seed", "7"])["token_ids"]);
        assert_eq!(ids(2, drafted).as_array().unwrap().len(), 3);
    }
    fs::write(file, "\n{\"prompt\": \"a\", \"top_p\": 2}").unwrap();
    refuses(&mut bench(&[]), 2, &["prompts.jsonl: line 2: top_p is 2"]);
    refuses(
        &mut bench(&["--draft", "tiny", "--draft-confidence", "-0.1,0.2"]),
        2,
        &["from 0 that is below 1"],
    );
    refuses(
        &mut bench(&["--draft", "tiny", "--draft-tokens", "-1,2"]),
        2,
        &["a whole number of at least 0, or `auto`"],
    );
}

#[test]
fn a_conversation_is_sampled_too() {
    let answer = |args: &[&str]| {
        let output = with_stdin(paceline().args(["chat", "-n", "24"]).args(args), FOX.as_bytes());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let warm = answer(&["--temperature", "1.2", "--seed", "7"]);
    let expected =
        stdout(paceline().args(["run", "-p", FOX, "-n", "24", "--temperature", "1.2", "--seed", "7"]));
    assert_eq!(warm, expected);
    assert_ne!(warm, answer(&[]));
    assert_eq!(warm, answer(&["--temperature", "1.2", "--seed", "7", "--draft", "tiny"]));
}
