//! `paceline check`.

use std::fs;

use serde_json::Value;

use crate::process::{copy_of, oracle, paceline, refuses, stdout};

/// Folders with recorded targets, with the number of their recorded tensors that are no inputs.
const TARGETS: [(&str, usize); 5] =
    [("gemma4_e", 109), ("gemma4_dense", 98), ("gemma4_moe", 80), ("gemma4_e_wrapped", 109), ("gemma3", 82)];

#[test]
fn every_recorded_tensor_passes() {
    for (name, n_tensors) in TARGETS {
        let text = stdout(paceline().arg("check").arg(oracle(name)).arg("--json"));
        let report: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["passed"], true, "{name}");
        let tensors = report["tensors"].as_array().unwrap();
        assert_eq!(tensors.len(), n_tensors, "{name}");
        for tensor in tensors {
            let (error, allowed) = (tensor["max_error"].as_f64(), tensor["allowed"].as_f64());
            assert!(
                error.unwrap() <= allowed.unwrap() && tensor["values"].as_u64() > Some(0),
                "{name}: {tensor}"
            );
        }
    }
}

/// Folders with recorded assistants, likewise.
const ASSISTANTS: [(&str, usize); 3] =
    [("gemma4_e_assistant", 92), ("gemma4_dense_assistant", 68), ("gemma4_moe_assistant", 68)];

#[test]
fn every_recorded_tensor_of_an_assistant_passes() {
    for (name, n_tensors) in ASSISTANTS {
        let text = stdout(paceline().arg("check").arg(oracle(name)));
        assert!(text.contains(&format!("{n_tensors} of {n_tensors} tensors pass")), "{name}: {text}");
        let copy = copy_of(name);
        fs::rename(copy.path().join("config.hub_style.json"), copy.path().join("config.json")).unwrap();
        let target = oracle(name.strip_suffix("_assistant").unwrap());
        let text = stdout(paceline().arg("check").arg(copy.path()).arg("--target").arg(target));
        assert!(text.contains(&format!("{n_tensors} of {n_tensors} tensors pass")), "{name}: {text}");
    }
}

#[test]
fn every_recorded_tensor_and_round_of_a_dflash_drafter_passes() {
    let n_tensors = 276;
    let text = stdout(paceline().arg("check").arg(oracle("gemma4_dense_dflash")));
    assert!(text.contains(&format!("{n_tensors} of {n_tensors} tensors pass")), "{text}");
    let copy = copy_of("gemma4_dense_dflash");
    fs::rename(copy.path().join("config.new_style.json"), copy.path().join("config.json")).unwrap();
    let check = |words: &[&str]| {
        let mut command = paceline();
        command.arg("check").arg(copy.path()).arg("--target").arg(oracle("gemma4_dense"));
        if words.is_empty() {
            let text = stdout(&mut command);
            assert!(text.contains(&format!("{n_tensors} of {n_tensors} tensors pass")), "{text}");
        } else {
            refuses(&mut command, 2, words);
        }
    };
    check(&[]);
    let rounds = copy.path().join("reference_rounds.json");
    for (json, word) in [
        ("{", "not usable"),
        (r#"{"target": "gemma4_dense", "tokens": 0, "rounds": {}}"#, "tokens is 0"),
        (r#"{"target": "gemma4_dense", "tokens": 4, "rounds": {"p0": {"8": []}}}"#, "`8` drafts of p0"),
        (r#"{"target": "gemma4_dense", "tokens": 4, "rounds": {"q": {"1": []}}}"#, "q.input_ids"),
        (r#"{"target": "gemma4_dense", "tokens": 4, "rounds": {}}"#, "is nothing that this drafter has"),
    ] {
        fs::write(&rounds, json).unwrap();
        check(&[word]);
    }
    fs::remove_file(copy.path().join("oracle.safetensors")).unwrap();
    check(&["oracle.safetensors"]);
}

#[test]
fn an_assistant_is_checked_with_its_own_target() {
    let copy = copy_of("gemma4_e_assistant");
    refuses(paceline().arg("check").arg(copy.path()), 2, &["gemma4_e", "no such folder"]);
    let mut with_other = paceline();
    with_other.arg("check").arg(copy.path()).arg("--target").arg(oracle("gemma4_dense"));
    refuses(&mut with_other, 2, &["does not fit the target"]);
    for (rounds, word) in [("{", "not usable"), ("{}", "target"), ("{\"target\": \"../x\"}", "../x")] {
        fs::write(copy.path().join("reference_rounds.json"), rounds).unwrap();
        refuses(paceline().arg("check").arg(copy.path()), 2, &["reference_rounds.json", word]);
    }
}

#[test]
fn changed_weights_of_an_assistant_do_not_pass() {
    let copy = copy_of("gemma4_moe_assistant");
    let path = copy.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 0x80;
    fs::write(&path, bytes).unwrap();
    let mut check = paceline();
    refuses(
        check.arg("check").arg(copy.path()).arg("--target").arg(oracle("gemma4_moe")),
        1,
        &["do not pass"],
    );
}

#[test]
fn the_published_form_of_a_config_is_the_same_model() {
    for (name, n_tensors) in TARGETS {
        let copy = copy_of(name);
        fs::rename(copy.path().join("config.hub_style.json"), copy.path().join("config.json")).unwrap();
        let text = stdout(paceline().arg("check").arg(copy.path()));
        assert!(text.contains(&format!("{n_tensors} of {n_tensors} tensors pass")), "{name}: {text}");
    }
}

#[test]
fn changed_weights_do_not_pass() {
    let copy = copy_of("gemma4_dense");
    let path = copy.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let data = bytes.len() - 4096;
    // Every other byte of a bf16 value has its sign.
    bytes[data..].iter_mut().skip(1).step_by(2).for_each(|byte| *byte ^= 0x80);
    fs::write(&path, bytes).unwrap();
    refuses(paceline().arg("check").arg(copy.path()), 1, &["1 of 1 folders do not pass"]);
}

#[test]
fn changed_records_do_not_pass() {
    let copy = copy_of("gemma4_moe");
    let path = copy.path().join("oracle.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    let first_byte = |name: &str| 8 + len + header[name]["data_offsets"][0].as_u64().unwrap() as usize;
    // The highest bits of a float, and the lowest of an id.
    bytes[first_byte("p1.dbg.layer1.experts_out") + 3] ^= 0x40;
    bytes[first_byte("p2.greedy_ids")] ^= 1;
    fs::write(&path, bytes).unwrap();
    let output = paceline().arg("check").arg(copy.path()).arg("--json").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let failed = report["tensors"].as_array().unwrap().iter().filter(|tensor| tensor["passed"] == false);
    let failed: Vec<&str> = failed.map(|tensor| tensor["name"].as_str().unwrap()).collect();
    assert_eq!(failed, ["p1.dbg.layer1.experts_out", "p2.greedy_ids"]);
}

#[test]
fn what_cannot_be_checked_is_exit_code_2() {
    refuses(&mut paceline_check(&["/nonexistent/folder"]), 2, &["/nonexistent/folder"]);
    refuses(&mut paceline_check(&[]), 2, &["FOLDER"]);
    let copy = copy_of("gemma4_e");
    fs::remove_file(copy.path().join("oracle.safetensors")).unwrap();
    refuses(paceline().arg("check").arg(copy.path()), 2, &["has no oracle.safetensors"]);
    fs::write(copy.path().join("oracle.safetensors"), b"short").unwrap();
    refuses(paceline().arg("check").arg(copy.path()), 2, &["oracle.safetensors", "5 bytes"]);
    fs::copy(oracle("gemma3").join("oracle.safetensors"), copy.path().join("oracle.safetensors")).unwrap();
    refuses(paceline().arg("check").arg(copy.path()), 2, &["oracle.safetensors"]);
}

fn paceline_check(folders: &[&str]) -> std::process::Command {
    let mut command = paceline();
    command.arg("check").args(folders);
    command
}
