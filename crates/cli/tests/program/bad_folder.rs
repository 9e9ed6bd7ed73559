//! Model folders with something wrong: each is refused with the file, and the tensor or field.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Map, Value, json};

use crate::process::{copy_of, oracle, paceline, refuses, text};

/// Runs a changed copy of `name`, which must be refused with all of `words`.
fn refused(name: &str, change: impl FnOnce(&Path), words: &[&str]) {
    let copy = copy_of(name);
    change(copy.path());
    refuses(paceline().arg("run").arg(copy.path()).args(["--token-ids", "2,3", "-n", "2"]), 2, words);
}

fn change_json(path: &Path, change: impl FnOnce(&mut Map<String, Value>)) {
    let mut config: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(config.as_object_mut().unwrap());
    fs::write(path, config.to_string()).unwrap();
}

/// Changes the header of the weights, whose length may change with it.
fn change_header(folder: &Path, change: impl FnOnce(&mut Map<String, Value>)) {
    let path = folder.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    change(header.as_object_mut().unwrap());
    let header = header.to_string().into_bytes();
    let changed = [&(header.len() as u64).to_le_bytes(), &header[..], &bytes[8 + len..]].concat();
    fs::write(path, changed).unwrap();
}

/// Overwrites the first `n` values of a bf16 tensor.
fn change_tensor(folder: &Path, tensor: &str, n: usize, value: u16) {
    let path = folder.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    let begin = 8 + len + header[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[begin..begin + 2 * n].copy_from_slice(&value.to_le_bytes().repeat(n));
    fs::write(path, bytes).unwrap();
}

#[test]
fn fields_of_the_config() {
    let put = |field: &'static str, value: Value| {
        move |folder: &Path| {
            change_json(&folder.join("config.json"), |config| drop(config.insert(field.into(), value)))
        }
    };
    for field in [
        "hidden_size",
        "sliding_window",
        "layer_types",
        "attention_k_eq_v",
        "final_logit_softcapping",
        "num_hidden_layers",
        "num_attention_heads",
        "rms_norm_eps",
        "vocab_size",
        "model_type",
    ] {
        let drop_field =
            |folder: &Path| change_json(&folder.join("config.json"), |config| drop(config.remove(field)));
        refused("gemma4_dense", drop_field, &["config.json", field]);
    }
    refused("gemma4_dense", put("model_type", json!("gemma99")), &["gemma99", "supported are gemma4"]);
    refused("gemma4_dense", put("hidden_size", json!(65)), &["65"]);
    refused("gemma4_dense", put("num_hidden_layers", json!(7)), &["layer_types", "7"]);
    refused("gemma4_dense", put("hidden_size", json!(-64)), &["hidden_size", "-64"]);
    refused("gemma4_dense", put("hidden_size", json!(1u64 << 60)), &["hidden_size"]);
    refused("gemma4_dense", put("rms_norm_eps", json!("small")), &["rms_norm_eps"]);
    refused("gemma4_e", put("num_kv_shared_layers", json!(6)), &["num_kv_shared_layers"]);
    let nan = |folder: &Path| {
        let path = folder.join("config.json");
        let text = fs::read_to_string(&path).unwrap().replace("1e-06", "NaN");
        fs::write(path, text).unwrap();
    };
    refused("gemma4_dense", nan, &["config.json", "NaN"]);
}

#[test]
fn files_of_the_folder() {
    let weights = |folder: &Path| folder.join("model.safetensors");
    refused("gemma4_dense", |f| fs::remove_file(f.join("config.json")).unwrap(), &["config.json"]);
    refused("gemma4_dense", |f| fs::remove_file(weights(f)).unwrap(), &["model.safetensors"]);
    refused("gemma4_dense", |f| fs::write(f.join("config.json"), "{").unwrap(), &["config.json", "JSON"]);
    refused("gemma4_dense", |f| fs::write(f.join("config.json"), "[]").unwrap(), &["config.json", "JSON"]);
    let half = |folder: &Path| {
        let bytes = fs::read(weights(folder)).unwrap();
        fs::write(weights(folder), &bytes[..bytes.len() / 2]).unwrap();
    };
    refused("gemma4_dense", half, &["model.safetensors", "complete"]);
    refused("gemma4_dense", |f| fs::write(weights(f), []).unwrap(), &["model.safetensors", "0 bytes"]);
    let huge = |folder: &Path| {
        let mut bytes = fs::read(weights(folder)).unwrap();
        bytes[..8].copy_from_slice(&(1u64 << 60).to_le_bytes());
        fs::write(weights(folder), bytes).unwrap();
    };
    refused("gemma4_dense", huge, &["model.safetensors", "header"]);
    let run = |folder: &Path| {
        let mut command = paceline();
        command.arg("run").arg(folder).args(["--token-ids", "2,3", "-n", "2"]);
        command
    };
    refuses(&mut run(&oracle("gemma4_dense").join("config.json")), 2, &["is a file"]);
    refuses(&mut run(Path::new("/nonexistent/model")), 2, &["/nonexistent/model"]);
    refuses(&mut run(&oracle("gemma4_dense_assistant")), 2, &["assistant", "--draft"]);
}

#[test]
fn tensors_of_the_file() {
    const NORM: &str = "model.norm.weight";
    let put = |field: &'static str, value: Value| {
        move |folder: &Path| change_header(folder, |header| header[NORM][field] = value)
    };
    refused("gemma4_dense", put("dtype", json!("I16")), &["model.safetensors", NORM, "I16"]);
    refused("gemma4_dense", put("shape", json!([32, 2])), &["model.safetensors", NORM, "[32, 2]", "[64]"]);
    refused("gemma4_dense", put("shape", json!([1u64 << 62, 8])), &["model.safetensors", NORM]);
    refused("gemma4_dense", put("data_offsets", json!([0, 128])), &["model.safetensors"]);
    refused(
        "gemma4_dense",
        put("data_offsets", json!([1u64 << 40, (1u64 << 40) + 128])),
        &["model.safetensors", NORM],
    );
    let rename = |folder: &Path| {
        change_header(folder, |header| {
            let norm = header.remove(NORM).unwrap();
            header.insert("model.layers.0.surprise.weight".into(), norm);
        });
    };
    refused("gemma4_dense", rename, &["norm.weight", "missing"]);
    for (value, word) in [(0x7f80, "inf"), (0x7fc0, "NaN")] {
        for tensor in [NORM, "model.layers.1.mlp.up_proj.weight"] {
            refused(
                "gemma4_dense",
                |folder| change_tensor(folder, tensor, 1, value),
                &[tensor, word, "finite"],
            );
        }
    }
}

#[test]
fn values_that_overflow_fail_the_request() {
    let copy = copy_of("gemma4_dense");
    // 3.4e38 in a norm's weight is finite; what it multiplies by more than 1 is not.
    change_tensor(copy.path(), "model.norm.weight", 64, 0x7f7f);
    let mut command = paceline();
    command.arg("run").arg(copy.path()).args(["--token-ids", "2,30,31,32", "-n", "4"]);
    refuses(&mut command, 1, &["not finite"]);
}

#[test]
fn shards_of_the_index() {
    const MODEL: &str = "gemma4_e_wrapped";
    const INDEX: &str = "model.safetensors.index.json";
    const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    fn list(folder: &Path, tensor: &str, shard: &str) {
        change_json(&folder.join(INDEX), |index| index["weight_map"][tensor] = json!(shard));
    }
    refused(MODEL, |f| fs::remove_file(f.join(SHARDS[1])).unwrap(), &[INDEX, SHARDS[1], "not in the folder"]);
    let words = [INDEX, "model.surprise.weight", SHARDS[0]];
    refused(MODEL, |folder| list(folder, "model.surprise.weight", SHARDS[0]), &words);
    refused(MODEL, |folder| list(folder, "x", "../elsewhere.safetensors"), &[INDEX, "../elsewhere"]);
    // The tensors of a shard once more, in a file of another name.
    let twice = |folder: &Path| {
        fs::copy(folder.join(SHARDS[0]), folder.join("again.safetensors")).unwrap();
        let index: Value = serde_json::from_slice(&fs::read(folder.join(INDEX)).unwrap()).unwrap();
        let map = index["weight_map"].as_object().unwrap();
        let (tensor, _) = map.iter().find(|(_, shard)| *shard == SHARDS[0]).unwrap();
        list(folder, tensor, "again.safetensors");
    };
    refused(MODEL, twice, &["is also in", "again.safetensors", SHARDS[0]]);
}

/// Stores a tensor as f32, with `value` as its first element.
fn widen(folder: &Path, tensor: &str, value: f32) {
    let path = folder.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    let mut data = bytes[8 + len..].to_vec();
    let [begin, end] = [0, 1].map(|i| header[tensor]["data_offsets"][i].as_u64().unwrap() as usize);
    let mut wide: Vec<u8> = data[begin..end].chunks(2).flat_map(|bf16| [0, 0, bf16[0], bf16[1]]).collect();
    wide[..4].copy_from_slice(&value.to_le_bytes());
    let grown = wide.len() - (end - begin);
    data.splice(begin..end, wide);
    for (name, entry) in header.as_object_mut().unwrap() {
        if name == "__metadata__" {
            continue;
        }
        let offsets = &mut entry["data_offsets"];
        let [first, last] = [0, 1].map(|i| offsets[i].as_u64().unwrap() as usize);
        let moved = |at: usize| if at > begin { at + grown } else { at };
        *offsets = json!([moved(first), moved(last)]);
    }
    header[tensor]["dtype"] = json!("F32");
    let header = header.to_string().into_bytes();
    fs::write(path, [&(header.len() as u64).to_le_bytes(), &header[..], &data].concat()).unwrap();
}

#[test]
fn weights_that_bf16_cannot_hold() {
    const TENSOR: &str = "model.layers.1.mlp.up_proj.weight";
    let run = |folder: &Path, arguments: &[&str]| {
        let mut command = paceline();
        command.arg("run").arg(folder).args(["--token-ids", "2,3", "-n", "8", "--json"]).args(arguments);
        command
    };
    let answer = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        (report["token_ids"].clone(), text(&output.stderr))
    };
    let value = 0.1f32;
    let copy = copy_of("gemma4_dense");
    widen(copy.path(), TENSOR, value);
    let words = ["model.safetensors", TENSOR, "0.1", "bf16 cannot hold", "--weights bf16"];
    refuses(&mut run(copy.path(), &[]), 2, &words);
    let (rounded, said) = answer(&mut run(copy.path(), &["--weights", "bf16"]));
    assert!(said.contains("1 tensor of type f32 or f16") && said.contains("rounded to bf16"), "{said}");
    // It is the model whose weights were rounded before, in which there is nothing to say.
    let stored = copy_of("gemma4_dense");
    change_tensor(stored.path(), TENSOR, 1, (((value.to_bits() + 0x8000) >> 16) & 0xffff) as u16);
    assert_eq!(answer(&mut run(stored.path(), &["--weights", "bf16"])), (rounded, String::new()));
    // What bf16 holds exactly is no question.
    let exact = copy_of("gemma4_dense");
    widen(exact.path(), TENSOR, 0.125);
    assert!(run(exact.path(), &[]).output().unwrap().status.success());
    widen(exact.path(), "model.layers.0.mlp.up_proj.weight", f32::MAX);
    let words = ["layers.0.mlp.up_proj.weight", "bf16 cannot hold"];
    refuses(&mut run(exact.path(), &["--weights", "bf16"]), 2, &words);
}

#[test]
fn a_prompt_that_meets_a_damaged_value_fails_alone() {
    let copy = copy_of("gemma4_e");
    // Rows of this table stay in the file: nobody reads them before a prompt does. Token 0 has the first one.
    change_tensor(copy.path(), "model.embed_tokens_per_layer.weight", 4, 0x7FC0);
    let prompts = copy.path().join("prompts.jsonl");
    fs::write(&prompts, "{\"token_ids\": [2, 5]}\n{\"token_ids\": [2, 0]}\n{\"token_ids\": [2, 6]}\n")
        .unwrap();
    let mut command = paceline();
    command.arg("run").arg(copy.path()).arg("--prompts-file").arg(&prompts).args(["-n", "3", "--json"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let lines: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().map(|line| &line["index"]).collect::<Vec<_>>(), [0, 2]);
    let error = text(&output.stderr);
    assert!(error.contains("prompts.jsonl: line 2: ") && error.contains("not finite"), "{error}");
}
