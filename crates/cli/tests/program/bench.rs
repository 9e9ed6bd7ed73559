//! `paceline bench`.

use std::fs;

use serde_json::Value;

use crate::process::{copy_of, oracle, paceline, refuses, root, stdout, text};

fn bench(args: &[&str]) -> std::process::Command {
    let mut command = paceline();
    command.arg("bench").args(args);
    command
}

#[test]
fn drafted_answers_stand_beside_plain_ones_of_the_same_text() {
    for (draft, tokens) in
        [("tiny", "0,4"), ("tiny-dflash", "auto,2"), ("ngram", "3"), ("ngram,tiny", "auto")]
    {
        let options = ["--draft", draft, "--draft-tokens", tokens, "-n", "20", "--rounds", "1"];
        let table = stdout(&mut bench(&options));
        assert!(
            table.contains("1.00 x plain, 1.00 tokens a pass") && table.ends_with("every text the same\n"),
            "{table}"
        );
        let answers = stdout(bench(&options).arg("--json"));
        let answers: Vec<Value> = answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let n_ways = 1 + tokens.split(',').count();
        assert_eq!(answers.len(), 4 * n_ways, "four prompts");
        let mut saved = 0;
        for of_prompt in answers.chunks(n_ways) {
            assert_eq!(of_prompt[0]["drafted"], false);
            for answer in of_prompt {
                assert_eq!(answer["token_ids"], of_prompt[0]["token_ids"]);
                // The first token comes with the prompt.
                let n = answer["token_ids"].as_array().unwrap().len() as u64 - 1;
                assert_eq!(answer["n"], n);
                let asks_for_drafts = answer["drafted"] == true && answer["draft_tokens"] != 0;
                let passes = answer["passes"].as_u64().unwrap();
                assert!(passes == n || asks_for_drafts && passes < n, "{answer}");
                saved += n - passes;
            }
        }
        assert!(saved > 0, "{draft} saves no pass");
    }
}

#[test]
fn drafts_of_a_stated_quality_take_the_place_of_the_drafters_own() {
    for draft in ["bench-300m-assistant", "bench-300m-dflash"] {
        refuses(&mut bench(&["--draft", draft, "--draft-acceptance", "0.5"]), 2, &[draft]);
    }
    for draft in ["tiny", "tiny-dflash", "ngram"] {
        let options = ["--draft", draft, "--draft-tokens", "5", "-n", "40", "--rounds", "1", "--ignore-eos"];
        let stated = ["--draft-acceptance", "0,0.5,1", "--json"];
        let answers = stdout(bench(&options).args(stated));
        let answers: Vec<Value> = answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(answers.len(), 4 * 4, "four prompts, plain and three ways");
        for of_prompt in answers.chunks(4) {
            let passes =
                of_prompt.iter().map(|answer| answer["passes"].as_u64().unwrap()).collect::<Vec<_>>();
            assert!(of_prompt.iter().all(|answer| answer["token_ids"] == of_prompt[0]["token_ids"]));
            // The first token comes with the prompt; the other 39 are 6 a round where all drafts are right.
            assert_eq!((passes[0], passes[1], passes[3]), (39, 39, 7), "{draft}");
            assert!((8..39).contains(&passes[2]), "{draft}: {}", passes[2]);
            assert_eq!(
                (&of_prompt[0]["draft_acceptance"], &of_prompt[2]["draft_acceptance"]),
                (&Value::Null, &0.5.into())
            );
        }
    }
    for bad in ["1.1", "-0.1", "x"] {
        refuses(&mut bench(&["--draft", "tiny", "--draft-acceptance", bad]), 2, &["from 0 to 1"]);
    }
}

#[test]
fn a_drafter_that_does_nothing_is_said_to() {
    let folder = copy_of("gemma4_e_assistant");
    let path = folder.path().join("model.safetensors");
    let mut weights = fs::read(&path).unwrap();
    let data = 8 + u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&weights[8..data]).unwrap();
    let offset = |end: usize| header["pre_projection.weight"]["data_offsets"][end].as_u64().unwrap() as usize;
    // The largest finite number.
    weights[data + offset(0)..data + offset(1)]
        .chunks_exact_mut(2)
        .for_each(|value| value.copy_from_slice(&[0x7F, 0x7F]));
    fs::write(&path, weights).unwrap();
    let prompts = folder.path().join("prompts");
    fs::write(&prompts, "{\"token_ids\": [2, 30, 31]}\n{\"token_ids\": [2, 40]}\n").unwrap();
    let mut command = bench(&["-n", "9", "--rounds", "2", "--prompts-file"]);
    let output =
        command.arg(&prompts).arg(oracle("gemma4_e")).arg("--draft").arg(folder.path()).output().unwrap();
    let (said, table) = (text(&output.stderr), text(&output.stdout));
    assert!(output.status.success() && table.ends_with("every text the same\n"), "{said}");
    assert_eq!(
        said,
        "note: drafting is not active (drafted): the drafter failed: its logits were not finite\n"
    );
}

#[test]
fn what_cannot_be_measured_is_refused() {
    refuses(bench(&["-n", "4"]).arg(oracle("gemma4_e")), 2, &["tokenizer.json", "--prompts-file"]);
    let others = oracle("gemma4_e_assistant");
    refuses(
        bench(&["-n", "4", "--draft"]).arg(others),
        2,
        &["does not fit", "backbone_hidden_size", "256", "64"],
    );
    refuses(
        bench(&["--draft", "tiny-dflash", "--draft-tokens", "2,8"]).current_dir(root()),
        2,
        &["8 drafts", "at most 7"],
    );
}
