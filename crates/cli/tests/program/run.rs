//! `paceline run`.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::process::{
    copy_of, copy_of_folder, error_line, oracle, paceline, refuses, root, stdout, text, with_stdin,
};

const FOX: &str = "Tell me a short story about a fox.";

fn run(args: &[&str]) -> Command {
    let mut command = paceline();
    command.arg("run").args(args);
    command
}

fn run_in(folder: &Path, args: &[&str]) -> Command {
    let mut command = paceline();
    command.arg("run").arg(folder).args(args);
    command
}

/// The objects of `--json`.
fn json(command: &mut Command) -> Vec<Value> {
    let text = stdout(command.arg("--json"));
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

fn one(command: &mut Command) -> Value {
    let mut objects = json(command);
    assert_eq!(objects.len(), 1);
    objects.remove(0)
}

#[test]
fn the_builtin_model_tells_a_story() {
    let story = stdout(&mut run(&["-p", FOX, "-n", "120"]));
    assert!(story.starts_with("Once there was a little fox"), "{story}");
    assert!(story.ends_with('\n') && !story.contains('<'), "{story}");
}

#[test]
fn json_has_the_documented_form() {
    let got = one(&mut run(&["-p", "What is 17 + 25?"]));
    let fields = got.as_object().unwrap();
    let expected = [
        "token_ids",
        "text",
        "finish_reason",
        "prompt_tokens",
        "seed",
        "sampling",
        "level",
        "logprobs",
        "timings",
        "peak_memory_bytes",
        "draft",
    ];
    let mut names: Vec<&str> = fields.keys().map(String::as_str).collect();
    names.sort_unstable();
    let mut wanted = expected.to_vec();
    wanted.sort_unstable();
    assert_eq!(names, wanted);
    assert_eq!(got["text"], "17 + 25 = 42.");
    assert_eq!(got["finish_reason"], "stop");
    assert_eq!(got["token_ids"].as_array().unwrap().last().unwrap(), 6, "the end token is counted");
    assert!(got["draft"].is_null() && got["logprobs"].is_null());
    assert!(["scalar", "avx2", "avx512", "avx512bf16", "amx"].contains(&got["level"].as_str().unwrap()));
    for field in ["load_ms", "prefill_ms", "prefill_tokens_per_s", "decode_ms", "decode_tokens_per_s"] {
        assert!(got["timings"][field].as_f64().unwrap() > 0.0, "{field}: {got}");
    }
    if cfg!(target_os = "linux") {
        assert!(got["peak_memory_bytes"].as_u64().unwrap() > 10_000_000, "the weights alone have more");
    }
}

#[test]
fn every_way_to_give_a_prompt_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt.txt");
    fs::write(&file, FOX).unwrap();
    let expected = stdout(&mut run(&["-p", FOX, "-n", "20"]));
    assert_eq!(stdout(run(&["-n", "20", "--prompt-file"]).arg(&file)), expected);
    let piped = with_stdin(&mut run(&["-", "-n", "20"]), FOX.as_bytes());
    assert!(piped.status.success());
    assert_eq!(text(&piped.stdout), expected);
    let rendered = format!("<bos><|turn>user\n{FOX}<turn|>\n<|turn>model\n");
    for prompt in [rendered.as_str(), rendered.trim_start_matches("<bos>")] {
        assert_eq!(stdout(&mut run(&["--raw", "-n", "20", "-p", prompt])), expected, "{prompt}");
    }
}

#[test]
fn raw_leaves_the_template_out() {
    let raw = one(&mut run(&["--raw", "-p", "Once", "-n", "1"]));
    let chat = one(&mut run(&["-p", "Once", "-n", "1"]));
    assert!(raw["prompt_tokens"].as_u64() < chat["prompt_tokens"].as_u64());
}

#[test]
fn budgets_stops_and_end_tokens_end_the_text() {
    let all = one(&mut run(&["-p", FOX, "-n", "40"]));
    assert_eq!(all["finish_reason"], "length");
    let ids = all["token_ids"].as_array().unwrap();
    for n in [1, 2, 17] {
        let some = one(&mut run(&["-p", FOX, "-n", &n.to_string()]));
        assert_eq!(some["token_ids"].as_array().unwrap()[..], ids[..n], "-n {n}");
    }
    let stopped = one(&mut run(&["-p", FOX, "-n", "40", "--stop", "zebra", "--stop", "little"]));
    assert_eq!((&stopped["text"], &stopped["finish_reason"]), (&"Once there was a ".into(), &"stop".into()));
    let on = one(&mut run(&["-p", "What is 17 + 25?", "-n", "30", "--ignore-eos"]));
    assert_eq!((on["token_ids"].as_array().unwrap().len(), &on["finish_reason"]), (30, &"length".into()));
    let full = one(&mut run(&["-p", FOX, "--context", "30"]));
    let n_tokens =
        full["prompt_tokens"].as_u64().unwrap() + full["token_ids"].as_array().unwrap().len() as u64;
    assert_eq!((n_tokens, &full["finish_reason"]), (30, &"length".into()));
}

#[test]
fn sizes_threads_and_levels_do_not_change_the_tokens() {
    for activations in ["bf16", "f32"] {
        let common = [
            "--activations",
            activations,
            "-n",
            "24",
            "--token-ids",
            "2,9,30,31,32,33,34,35,36,37,38,39,40,41,42,43,44,45",
        ];
        let folder = oracle("gemma4_e");
        let expected = one(&mut run_in(&folder, &common))["token_ids"].clone();
        for more in [
            ["--prefill-chunk", "1"],
            ["--prefill-chunk", "7"],
            ["--threads", "1"],
            ["--threads", "3"],
            ["--context", "300"],
        ] {
            assert_eq!(
                one(run_in(&folder, &common).args(more))["token_ids"],
                expected,
                "{activations} {more:?}"
            );
        }
        let scalar = one(run_in(&folder, &common).env("PACELINE_ISA", "scalar"));
        assert_eq!((&scalar["token_ids"], &scalar["level"]), (&expected, &"scalar".into()), "{activations}");
    }
}

#[test]
fn prompts_of_a_file_are_what_each_is_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompts.txt");
    let prompts = [FOX, "What is the capital of France?", "def add(a, b):", "Hello"];
    fs::write(&file, prompts.join("\n")).unwrap();
    let together = json(run(&["-n", "32", "--prompts-file"]).arg(&file));
    assert_eq!(together.len(), prompts.len());
    for (index, (prompt, got)) in prompts.iter().zip(&together).enumerate() {
        let alone = one(&mut run(&["-n", "32", "-p", prompt]));
        assert_eq!(got["index"], index);
        for field in ["token_ids", "text", "finish_reason", "prompt_tokens"] {
            assert_eq!(got[field], alone[field], "{prompt}: {field}");
        }
    }
    let lines = "{\"token_ids\": [2, 105], \"n\": 3}\n{\"prompt\": \"Hello\"}\n";
    fs::write(&file, lines).unwrap();
    let together = json(run(&["-n", "2", "--prompts-file"]).arg(&file));
    let n_tokens: Vec<usize> =
        together.iter().map(|got| got["token_ids"].as_array().unwrap().len()).collect();
    assert_eq!(n_tokens, [3, 2]);
    let text = stdout(run(&["-n", "2", "--prompts-file"]).arg(&file));
    assert!(text.starts_with("==> prompt 0 <==\n") && text.contains("\n==> prompt 1 <==\n"), "{text}");
}

#[test]
fn a_model_without_tokenizer_runs_on_token_ids() {
    let folder = oracle("gemma4_dense");
    let got = one(&mut run_in(&folder, &["--token-ids", "2,30,31", "-n", "4"]));
    assert!(got["text"].is_null());
    let ids: Vec<String> = got["token_ids"].as_array().unwrap().iter().map(Value::to_string).collect();
    assert_eq!(stdout(&mut run_in(&folder, &["--token-ids", "2,30,31", "-n", "4"])), ids.join(",") + "\n");
    refuses(&mut run_in(&folder, &["-p", "x"]), 2, &["tokenizer.json", "--token-ids"]);
    refuses(&mut run_in(&folder, &["--token-ids", "2", "--stop", "x"]), 2, &["tokenizer"]);
}

#[test]
fn a_reader_that_goes_is_no_failure() {
    let mut child = run(&["-p", FOX, "--ignore-eos"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut first = [0; 4];
    child.stdout.take().expect("it was piped").read_exact(&mut first).unwrap();
    assert_eq!(&first, b"Once");
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn bad_arguments_are_refused() {
    let long = "2,".repeat(3000) + "2";
    let cases: [(&[&str], &[&str]); 36] = [
        (&[], &["no prompt", "-p TEXT"]),
        (
            &["Why is the sky blue?"],
            &[
                "no prompt: `Why is the sky blue?` stands in the place of MODEL",
                "-p \"Why is the sky blue?\"",
            ],
        ),
        (&["-p", ""], &["prompt is empty"]),
        (&["--token-ids", ""], &["--token-ids", "empty"]),
        (&["--token-ids", "2,x"], &["--token-ids", "`x`"]),
        (&["--token-ids", "2,-3"], &["`-3`"]),
        (&["--token-ids", "2,999999"], &["token 999999", "index 1", "4096"]),
        (&["--token-ids", &long], &["3001 tokens, and the model reads 2048 at most", "longer context"]),
        (&["--token-ids", &long, "--context", "64"], &["3001 tokens, and the model reads 2048 at most"]),
        (&["-p", "x", "-n", "0"], &["-n", "at least 1"]),
        (&["-p", "x", "-n", "many"], &["-n", "many"]),
        (&["-p", "x", "--context", "3"], &["context holds 3", "larger context, up to the model's 2048"]),
        (&["-p", "x", "--context", "100000"], &["context", "100000", "2048"]),
        (&["-p", "x", "--draft", ""], &["--draft"]),
        (&["-p", "x", "--draft", "tiny,"], &["--draft", "ngram"]),
        (&["-p", "x", "--draft", "none,ngram"], &["--draft", "stands alone"]),
        (&["-p", "x", "--draft", "ngram,ngram"], &["--draft", "twice"]),
        (&["-p", "x", "--draft", "ngram", "--ngram-min", "0"], &["--ngram-min 0", "1 <= min"]),
        (&["-p", "x", "--draft", "ngram", "--ngram-min", "6"], &["--ngram-min 6", "--ngram-max 5"]),
        (&["-p", "x", "--draft", "ngram", "--ngram-max", "33"], &["--ngram-max 33", "max <= 32"]),
        (&["-p", "x", "--ngram-max", "3"], &["--draft"]),
        (&["-p", "x", "--draft-tokens", "3"], &["--draft"]),
        (&["-p", "x", "--draft", "tiny", "--draft-tokens", "few"], &["--draft-tokens", "few"]),
        (&["-p", "x", "--draft", "tiny", "--draft-tokens", "100000"], &["100000", "at most"]),
        (&["-p", "x", "--stop", ""], &["stop string 0"]),
        (&["-p", "x", "--threads", "0"], &["--threads"]),
        // Numbers below 0 are no options that nobody knows.
        (&["-p", "x", "-n", "-1"], &["expected a whole number of at least 1"]),
        (&["-p", "x", "--threads", "-1"], &["--threads", "'-1'", "expected a whole number from 1 to 4096"]),
        (
            &["-p", "x", "--random-weights", "x"],
            &["--random-weights", "expected a whole number of at least 0"],
        ),
        (
            &["-p", "x", "--draft", "tiny", "--draft-tokens", "-1"],
            &["expected a whole number of at least 0, or `auto`"],
        ),
        (&["-p", "x", "--draft", "tiny", "--draft-confidence", "-0.1"], &["from 0 that is below 1"]),
        (&["-p", "x", "--draft", "tiny", "--draft-confidence", "1e-50"], &["`1e-50` is not 0", "0 itself"]),
        (
            &["-p", "x", "--draft", "nope"],
            &["nope: no such folder", "; --draft takes a folder, a hub id, `tiny`"],
        ),
        (&["-p", "x", "--prefill-chunk", "0"], &["--prefill-chunk"]),
        (&["-p", "x", "--token-ids", "2"], &["--token-ids"]),
        (&["-p", "x", "--sing"], &["--sing"]),
    ];
    for (args, words) in cases {
        refuses(&mut run(args), 2, words);
    }
}

#[test]
fn bad_prompts_from_outside_are_refused() {
    let output = with_stdin(&mut run(&["-"]), b"caf\xe9");
    assert_eq!(output.status.code(), Some(2));
    let error = error_line(&output, "run -");
    assert!(error.contains("standard input") && error.contains("byte 3"), "{error}");
    let output = with_stdin(&mut run(&["-"]), b"");
    assert_eq!(output.status.code(), Some(2));
    assert!(error_line(&output, "run -").contains("empty"));
    let folder = tempfile::tempdir().unwrap();
    refuses(run(&["--prompt-file"]).arg(folder.path()), 2, &["cannot be read"]);
    refuses(&mut run(&["--prompt-file", "/nonexistent/prompt"]), 2, &["/nonexistent/prompt"]);
    let file = folder.path().join("prompts");
    for (lines, words) in [
        ("\n", "holds no prompt"),
        ("{\"tone\": 1}", "line 1"),
        ("a\n{\"prompt\": \"b\"}", "line 2: expected plain text"),
        ("{\"token_ids\": [2, 9999]}", "line 1"),
    ] {
        fs::write(&file, lines).unwrap();
        refuses(run(&["--prompts-file"]).arg(&file), 2, &[words]);
    }
}

/// A copy of the built-in model's folder with some files replaced.
fn tiny_with(files: &[(&str, &str)]) -> TempDir {
    let copy = copy_of_folder(&root().join("assets/tiny-gemma4"));
    for (name, text) in files {
        fs::write(copy.path().join(name), text).unwrap();
    }
    copy
}

#[test]
fn templates_that_raise_loop_or_are_wrong_are_refused() {
    for (template, words) in [
        ("{{ raise_exception('no users here') }}", "no users here"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "steps"),
        ("{% if %}", "chat_template.jinja"),
        ("", "chat_template.jinja: chat template fails: it is empty"),
    ] {
        let folder = tiny_with(&[("chat_template.jinja", template)]);
        refuses(&mut run_in(folder.path(), &["-p", "x"]), 2, &[words]);
        assert!(stdout(&mut run_in(folder.path(), &["-p", "x", "--raw", "-n", "1"])).ends_with('\n'));
    }
}

#[test]
fn a_model_without_template_says_that_it_uses_the_prompt_as_it_is() {
    let folder = tiny_with(&[]);
    fs::remove_file(folder.path().join("chat_template.jinja")).unwrap();
    let output = run_in(folder.path(), &["-p", "Once", "-n", "3"]).output().unwrap();
    assert!(output.status.success());
    assert_eq!(text(&output.stderr).lines().count(), 1);
    assert!(text(&output.stderr).starts_with("note: the model has no chat template"), "{output:?}");
    assert_eq!(text(&output.stdout), stdout(&mut run_in(folder.path(), &["-p", "Once", "-n", "3", "--raw"])));
}

#[test]
fn tokenizers_of_other_models_are_refused() {
    let folder = copy_of("gemma4_dense");
    fs::copy(root().join("assets/tiny-gemma4/tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    refuses(&mut run_in(folder.path(), &["--token-ids", "2,3"]), 2, &["tokenizer.json", "4096", "320"]);
    fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    refuses(&mut run_in(folder.path(), &["--token-ids", "2,3"]), 2, &["tokenizer.json"]);
}

#[cfg(unix)]
#[test]
fn arguments_that_are_no_text_are_refused() {
    use std::os::unix::ffi::OsStrExt;
    let prompt = std::ffi::OsStr::from_bytes(b"caf\xe9");
    refuses(run(&["-p"]).arg(prompt), 2, &["UTF-8"]);
}

#[test]
fn levels_that_are_not_there_are_refused() {
    refuses(run(&["-p", "x"]).env("PACELINE_ISA", "sse9"), 2, &["PACELINE_ISA", "sse9", "avx2"]);
}

#[test]
fn drafting_changes_the_statistics_and_not_the_text() {
    let plain = one(&mut run(&["-p", FOX, "-n", "60", "--draft", "none"]));
    let drafters: [(&[&str], &str); 5] = [
        (&["tiny"], "assistant"),
        (&["tiny-dflash"], "dflash"),
        (&["tiny-dflash", "--draft-block", "full"], "dflash"),
        (&["tiny", "--draft-confidence", "0.3"], "assistant"),
        (&["tiny-dflash", "--draft-confidence", "0.3"], "dflash"),
    ];
    for (drafter, k) in drafters.iter().flat_map(|drafter| ["auto", "0", "1", "5"].map(|k| (drafter, k))) {
        let (drafter, kind) = *drafter;
        let drafting = ["-p", FOX, "-n", "60", "--draft-tokens", k, "--draft"];
        let mut drafted = one(&mut run(&[&drafting[..], drafter].concat()));
        for field in ["token_ids", "text", "finish_reason", "prompt_tokens"] {
            assert_eq!(drafted[field], plain[field], "{k} drafts of {drafter:?}: {field}");
        }
        let draft = drafted["draft"].take();
        let number = |field: &str| draft[field].as_u64().unwrap_or_else(|| panic!("{field} in {draft}"));
        let list = |field: &str| -> u64 {
            draft[field].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum()
        };
        assert_eq!(draft["kind"], kind);
        assert_eq!(draft["inactive_reason"].is_null(), k != "0", "{draft}");
        assert_eq!(list("accepted_by_position"), number("accepted"), "{draft}");
        assert_eq!(list("accepted_per_round"), number("accepted"), "{draft}");
        assert_eq!(draft["accepted_per_round"].as_array().unwrap().len() as u64, number("rounds"), "{draft}");
        assert_eq!(k != "0", number("accepted") > 0 && number("drafted") >= number("accepted"), "{draft}");
        assert_eq!(k != "0", draft["tokens_per_round"].as_f64().unwrap() > 1.0, "{draft}");
    }
}

#[test]
fn a_drafter_that_does_nothing_is_said_to_for_each_output() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompts.txt");
    fs::write(&file, "Hello\nHi\n").unwrap();
    let said = |words: &[&str]| {
        let mut command = run(&["-n", "3", "--draft", "tiny", "--draft-tokens"]);
        let output = command.args(words).output().unwrap();
        assert!(output.status.success());
        text(&output.stderr)
    };
    let file = file.to_str().unwrap();
    let why = "drafting is not active: 0 drafts a round were asked for\n";
    assert_eq!(said(&["0", "-p", "Hello"]), format!("note: {why}"));
    assert_eq!(said(&["0", "--prompts-file", file]), format!("note: prompt 0: {why}note: prompt 1: {why}"));
    assert_eq!(said(&["2", "-p", "Hello"]) + &said(&["2", "--prompts-file", file]), "");
}

#[test]
fn options_that_do_nothing_are_said_to() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompts.txt");
    fs::write(&file, "{\"prompt\": \"Hello\", \"temperature\": 1, \"seed\": 3}\n{\"prompt\": \"Hi\"}\n")
        .unwrap();
    let said = |words: &[&str]| {
        let output = run(&["-n", "2"]).args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        text(&output.stderr)
    };
    for (words, start) in [
        (&["-p", "Hello", "--top-k", "5"][..], "note: --top-k does nothing at temperature 0"),
        (&["-p", "Hello", "--sample", "--seed", "5", "--json"], "note: --seed does nothing at temperature 0"),
        (&["-p", "Hello", "--choices", "2"], "note: all --choices of a prompt are the same text"),
        (
            &["-p", "Hello", "--draft", "ngram", "--draft-confidence", "0.1"],
            "note: --draft-confidence does nothing",
        ),
        (
            &["-p", "Hello", "--draft", "tiny", "--ngram-max", "7"],
            "note: --ngram-min and --ngram-max do nothing",
        ),
    ] {
        let said = said(words);
        assert!(said.starts_with(start) && said.lines().count() == 1, "{words:?}: {said}");
    }
    for words in [
        &["-p", "Hello", "--top-k", "5", "--temperature", "1", "--seed", "5", "--choices", "2"][..],
        &["-p", "Hello", "--draft", "ngram,tiny", "--draft-confidence", "0.1", "--ngram-max", "7"],
        &["--top-k", "5", "--prompts-file", file.to_str().unwrap()],
        &["-p", "Hello", "--draft", "none", "--draft-confidence", "0.1"],
    ] {
        assert_eq!(said(words), "", "{words:?}");
    }
}

#[test]
fn more_drafts_than_a_drafter_has_and_odd_confidences_are_refused() {
    let drafted = |words: &[&str]| run(&[&["-p", FOX, "-n", "5", "--draft", "tiny-dflash"], words].concat());
    refuses(&mut drafted(&["--draft-tokens", "8"]), 2, &["8 drafts", "expected at most 7", "block_size"]);
    for odd in ["1", "-0.1", "nan", "much"] {
        let argument = format!("--draft-confidence={odd}");
        refuses(&mut drafted(&[&argument]), 2, &["--draft-confidence", "below 1"]);
    }
}

#[test]
fn several_drafters_are_asked_in_order() {
    let repeats =
        ["--token-ids", "2,300,301,302,303,300,301,302,303,300,301,302,303", "-n", "60", "--ignore-eos"];
    let with = |draft: &str| one(run(&repeats).args(["--draft", draft, "--draft-tokens", "4"]));
    let plain = with("none");
    assert!(plain["draft"].is_null());
    for (draft, kinds) in [
        ("ngram", &["ngram"][..]),
        ("ngram,tiny", &["ngram", "assistant"]),
        ("tiny,ngram", &["assistant", "ngram"]),
    ] {
        let drafted = with(draft);
        assert_eq!(drafted["token_ids"], plain["token_ids"], "{draft}");
        let draft = &drafted["draft"];
        assert_eq!(draft["kind"], kinds[0], "{draft}");
        let sources = draft["sources"].as_array().unwrap();
        assert_eq!(sources.iter().map(|source| source["kind"].as_str().unwrap()).collect::<Vec<_>>(), kinds);
        let sum = |field: &str| sources.iter().map(|source| source[field].as_u64().unwrap()).sum::<u64>();
        for field in ["rounds", "drafted", "accepted"] {
            assert_eq!(sum(field), draft[field].as_u64().unwrap(), "{field} of {draft}");
        }
        assert_eq!(draft["source_per_round"].as_array().unwrap().len() as u64, sum("rounds"), "{draft}");
        assert!(sources[0]["accepted"].as_u64().unwrap() > 0, "{draft}");
        // An assistant always proposes something; n-grams do not.
        let second = sources.get(1).map(|source| source["rounds"].as_u64().unwrap() > 0);
        assert_eq!(second, kinds.get(1).map(|kind| *kind == "assistant"), "{draft}");
    }
}

#[test]
fn a_model_that_drafts_for_itself_is_always_right() {
    let tiny = root().join("assets/tiny-gemma4");
    for sampling in [&["--temperature", "0"][..], &["--temperature", "0.9", "--seed", "5"]] {
        let with = |draft: &Path| {
            let mut command = run_in(&tiny, &["-p", FOX, "-n", "40", "--draft-tokens", "3"]);
            one(command.args(sampling).arg("--draft").arg(draft))
        };
        let (plain, drafted) = (with(Path::new("none")), with(&tiny));
        assert_eq!(drafted["token_ids"], plain["token_ids"]);
        let draft = &drafted["draft"];
        assert_eq!(draft["kind"], "model");
        assert!(draft["accepted"].as_u64().unwrap() >= 20, "{draft}");
        assert_eq!(draft["accepted"], draft["drafted"], "{draft}");
    }
}

#[test]
fn drafters_that_do_not_fit_are_refused() {
    let with = |target: &str, drafter: &Path| {
        let mut command = run_in(&oracle(target), &["--token-ids", "2,3,4", "-n", "4", "--draft"]);
        command.arg(drafter);
        command
    };
    refuses(&mut with("gemma4_e", Path::new("/nonexistent/drafter")), 2, &["/nonexistent/drafter"]);
    let tiny = root().join("assets/tiny-gemma4");
    refuses(&mut with("gemma4_e", &tiny), 2, &["tiny-gemma4", "gemma4_e", "tokenizer.json", "vocabulary"]);
    for (target, drafter) in [("gemma4_dense", "gemma4_e_assistant"), ("gemma3", "gemma4_e_assistant")] {
        refuses(&mut with(target, &oracle(drafter)), 2, &["config.json"]);
    }
    refuses(&mut with("gemma4_e", Path::new("tiny")), 2, &["tiny-gemma4-assistant"]);
}
