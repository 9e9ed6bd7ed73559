//! The index of a sharded checkpoint, over a folder with three small shards of which two have one tensor in common.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use paceline_checkpoint::ModelFolder;

/// Each shard and the tensors in it, of one bf16 value each.
const SHARDS: [(&str, &[&str]); 3] = [
    ("model-00001-of-00002.safetensors", &["embed_tokens.weight", "norm.weight"]),
    ("model-00002-of-00002.safetensors", &["layers.0.layer_scalar"]),
    ("again.safetensors", &["norm.weight"]),
];

fuzz_target!(|index: &[u8]| {
    static FILES: OnceLock<Vec<(&str, Vec<u8>)>> = OnceLock::new();
    let shards = FILES.get_or_init(|| SHARDS.iter().map(|(name, tensors)| (*name, shard(tensors))).collect());
    let mut files = shards.clone();
    files.push(("config.json", b"{}".to_vec()));
    files.push(("model.safetensors.index.json", index.to_vec()));
    let folder = ModelFolder::from_files("folder", files).expect("it has a config");
    if let Ok(tensors) = folder.tensors() {
        let known = |name: &str| SHARDS.iter().any(|(_, tensors)| tensors.contains(&name));
        assert!(tensors.names().all(known), "a tensor that no shard has");
        assert!(tensors.names().count() > 0, "an index without a shard");
    }
});

fn shard(tensors: &[&str]) -> Vec<u8> {
    let entry = |(i, name): (usize, &&str)| {
        format!(r#""{name}":{{"dtype":"BF16","shape":[1],"data_offsets":[{},{}]}}"#, 2 * i, 2 * i + 2)
    };
    let header = format!("{{{}}}", tensors.iter().enumerate().map(entry).collect::<Vec<_>>().join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.resize(file.len() + 2 * tensors.len(), 0);
    file
}
