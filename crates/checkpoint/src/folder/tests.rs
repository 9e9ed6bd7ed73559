use tempfile::TempDir;

use super::*;
use crate::HeaderProblem;
use crate::test_files::file_of;

/// A folder on disk with the given files.
fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

fn tensors_of(files: &[(&str, &[u8])]) -> Result<Vec<String>, Error> {
    let mut files = files.to_vec();
    files.push(("config.json", b"{}"));
    let dir = folder(&files);
    let on_disk = ModelFolder::open(dir.path()).unwrap().tensors();
    let in_memory = ModelFolder::from_files("toy", files.iter().map(|&(n, b)| (n, b.to_vec()))).unwrap();
    let in_memory = in_memory.tensors();
    assert_eq!(on_disk.is_ok(), in_memory.is_ok());
    Ok(on_disk?.names().map(str::to_owned).collect())
}

fn shard(names: &[&str]) -> Vec<u8> {
    let rows: Vec<(&str, &str, &[usize], &[u8])> =
        names.iter().map(|&name| (name, "U8", &[1][..], &[7][..])).collect();
    file_of(&rows)
}

fn index(map: &[(&str, &str)]) -> Vec<u8> {
    let map: BTreeMap<&str, &str> = map.iter().copied().collect();
    serde_json::json!({"metadata": {"total_size": 2}, "weight_map": map}).to_string().into_bytes()
}

#[test]
fn what_is_no_model_folder_is_explained() {
    let dir = folder(&[("config.json", b"{}")]);
    assert!(matches!(ModelFolder::open(&dir.path().join("absent")), Err(Error::NoFolder { .. })));
    assert!(matches!(ModelFolder::open(&dir.path().join("config.json")), Err(Error::NotAFolder { .. })));
    // Below a file there is no folder either; the operating system calls that another error.
    assert!(matches!(ModelFolder::open(&dir.path().join("config.json/x")), Err(Error::Io { .. })));
    let empty = folder(&[]);
    let error = ModelFolder::open(empty.path()).unwrap_err();
    assert!(error.to_string().ends_with("has no config.json; every model folder needs one"), "{error}");
    let error = ModelFolder::open(dir.path()).unwrap().tensors().unwrap_err();
    assert!(matches!(error, Error::MissingWeights { .. }), "{error}");
    let other_form = folder(&[("b.gguf", b"GGUF"), ("a.GGUF", b"GGUF")]);
    for place in [other_form.path().to_path_buf(), other_form.path().join("a.GGUF")] {
        let error = ModelFolder::open(&place).unwrap_err().to_string();
        assert!(error.contains("a.GGUF: GGUF is not read; expected the folder"), "{error}");
    }
}

#[test]
fn unreadable_files_are_named() {
    let dir = folder(&[("config.json", b"{}")]);
    fs::create_dir(dir.path().join("model.safetensors")).unwrap();
    let error = ModelFolder::open(dir.path()).unwrap().tensors().unwrap_err();
    assert!(error.to_string().contains("model.safetensors: cannot be read: not a regular file"), "{error}");
    fs::create_dir(dir.path().join("generation_config.json")).unwrap();
    let error = ModelFolder::open(dir.path()).unwrap().generation().unwrap_err();
    assert!(error.to_string().contains("generation_config.json: cannot be read"), "{error}");
}

#[test]
fn oversized_and_broken_configs_are_refused() {
    let large = vec![b' '; MAX_CONFIG_BYTES as usize + 1];
    let dir = folder(&[("config.json", &large)]);
    assert!(matches!(ModelFolder::open(dir.path()), Err(Error::FileTooLarge { .. })));
    assert!(matches!(
        ModelFolder::from_files("toy", [("config.json", large)]),
        Err(Error::FileTooLarge { .. })
    ));
    let dir = folder(&[("config.json", b"{")]);
    assert!(matches!(ModelFolder::open(dir.path()), Err(Error::Json { .. })));
    let dir = folder(&[("config.json", b"{}"), ("generation_config.json", b"[]")]);
    assert!(matches!(ModelFolder::open(dir.path()).unwrap().generation(), Err(Error::Json { .. })));
}

#[test]
fn one_file_of_weights() {
    assert_eq!(tensors_of(&[("model.safetensors", &shard(&["a", "b"]))]).unwrap(), ["a", "b"]);
    for bytes in [&b""[..], &shard(&["a"])[..20]] {
        let error = tensors_of(&[("model.safetensors", bytes)]).unwrap_err();
        assert!(matches!(error, Error::BadHeader { .. }), "{error}");
    }
    // A cut download: the header is whole, the data is not.
    let whole = shard(&["a", "b"]);
    let error = tensors_of(&[("model.safetensors", &whole[..whole.len() - 1])]).unwrap_err();
    let Error::BadHeader { problem: HeaderProblem::Offsets { tensor, .. }, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(tensor, "b");
}

#[test]
fn shards_under_an_index() {
    let map = index(&[("a", "s1.safetensors"), ("b", "s2.safetensors"), ("c", "s1.safetensors")]);
    let (first, second) = (shard(&["a", "c", "unlisted"]), shard(&["b"]));
    let files = [
        ("model.safetensors.index.json", &map[..]),
        ("s1.safetensors", &first[..]),
        ("s2.safetensors", &second[..]),
    ];
    assert_eq!(tensors_of(&files).unwrap(), ["a", "b", "c", "unlisted"]);

    let error = tensors_of(&files[..2]).unwrap_err();
    assert!(
        error.to_string().contains("names the shard `s2.safetensors`, which is not in the folder"),
        "{error}"
    );

    let empty = shard(&["z"]);
    let error = tensors_of(&[files[0], files[1], ("s2.safetensors", &empty)]).unwrap_err();
    assert!(error.to_string().contains("says that tensor `b` is in `s2.safetensors`, but that"), "{error}");

    let twice = shard(&["b", "a"]);
    let error = tensors_of(&[files[0], files[1], ("s2.safetensors", &twice)]).unwrap_err();
    assert!(matches!(&error, Error::TensorInTwoFiles { tensor, .. } if tensor == "a"), "{error}");
    assert!(error.to_string().contains("s2.safetensors: tensor `a` is also in"), "{error}");
}

#[test]
fn a_bad_index_is_refused() {
    const INDEX: &str = "model.safetensors.index.json";
    for text in ["", "[]", "{}", r#"{"weight_map": {"a": 3}}"#, r#"{"weight_map": []}"#] {
        let error = tensors_of(&[(INDEX, text.as_bytes())]).unwrap_err();
        assert!(matches!(error, Error::Json { .. }), "{text}: {error}");
    }
    let error = tensors_of(&[(INDEX, br#"{"weight_map": {}}"#)]).unwrap_err();
    assert!(matches!(error, Error::MissingWeights { .. }));
    for name in ["../s.safetensors", "/etc/passwd", "..", ".", "", "sub/s.safetensors", "s.safetensors/"] {
        let error = tensors_of(&[(INDEX, &index(&[("a", name)]))]).unwrap_err();
        assert!(matches!(error, Error::BadShardName { .. }), "{name}: {error}");
    }
}

#[test]
fn a_tensor_outlives_its_folder() {
    let dir = folder(&[("config.json", b"{}"), ("model.safetensors", &shard(&["a"]))]);
    let mut tensors = ModelFolder::open(dir.path()).unwrap().tensors().unwrap();
    let tensor = tensors.take("a", &[1]).unwrap();
    drop((tensors, dir));
    assert_eq!(tensor.n_elements(), 1);
    assert!(tensor.to_f32().is_err()); // U8 is no weight
}
