//! Folders in memory whose files were changed.

use std::fs;
use std::path::Path;

use paceline::ModelFolder;
use serde_json::Value;

/// A folder in memory whose files were changed.
pub(crate) fn changed(folder: &Path, change: impl FnOnce(&mut Value, &mut Vec<u8>)) -> ModelFolder {
    let read = |name: &str| fs::read(folder.join(name)).unwrap();
    let mut config: Value = serde_json::from_slice(&read("config.json")).unwrap();
    let mut weights = read("model.safetensors");
    change(&mut config, &mut weights);
    let files = [("config.json", config.to_string().into_bytes()), ("model.safetensors", weights)];
    ModelFolder::from_files("changed", files).unwrap()
}

/// The bytes of a tensor.
pub(crate) fn bytes_of<'a>(weights: &'a mut [u8], tensor: &str) -> &'a mut [u8] {
    let data = 8 + u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&weights[8..data]).unwrap();
    let offset = |end: usize| header[tensor]["data_offsets"][end].as_u64().unwrap() as usize;
    &mut weights[data + offset(0)..data + offset(1)]
}

/// Gives a tensor another name of the same length.
pub(crate) fn rename(weights: &mut [u8], from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let at = weights.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
    weights[at..at + from.len()].copy_from_slice(to.as_bytes());
}

/// Sets every value of a bf16 tensor.
pub(crate) fn fill(weights: &mut [u8], tensor: &str, bits: u16) {
    bytes_of(weights, tensor)
        .chunks_exact_mut(2)
        .for_each(|value| value.copy_from_slice(&bits.to_le_bytes()));
}

/// Adds tensors to the bytes of a safetensors file: name, type, shape, data.
pub(crate) fn add_tensors(weights: &mut Vec<u8>, tensors: &[(&str, &str, Vec<usize>, Vec<u8>)]) {
    let data = 8 + u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&weights[8..data]).unwrap();
    let mut values = weights[data..].to_vec();
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [values.len(), values.len() + bytes.len()];
        header[*name] = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        values.extend(bytes);
    }
    let mut text = header.to_string().into_bytes();
    // The data begins at a multiple of 8.
    text.resize(text.len().next_multiple_of(8), b' ');
    *weights = [&(text.len() as u64).to_le_bytes()[..], &text, &values].concat();
}

/// Cuts a tensor to its first rows, or adds to them what `row` makes of the first ones.
pub(crate) fn resize_rows(weights: &mut Vec<u8>, tensor: &str, rows: usize, row: fn(&[u8]) -> Vec<u8>) {
    let data = 8 + u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&weights[8..data]).unwrap();
    let (mut all, mut values) = (serde_json::Map::new(), Vec::new());
    for (name, entry) in header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__") {
        let mut bytes = bytes_of(weights, name).to_vec();
        let mut entry = entry.clone();
        if name == tensor {
            let old = entry["shape"][0].as_u64().unwrap() as usize;
            let width = bytes.len() / old;
            bytes.truncate(rows * width);
            for i in 0..rows.saturating_sub(old) {
                let made = row(&bytes[i * width..(i + 1) * width]);
                bytes.extend(made);
            }
            entry["shape"][0] = rows.into();
        }
        entry["data_offsets"] = serde_json::json!([values.len(), values.len() + bytes.len()]);
        values.extend(bytes);
        all.insert(name.clone(), entry);
    }
    let mut text = Value::Object(all).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    *weights = [&(text.len() as u64).to_le_bytes()[..], &text, &values].concat();
}
