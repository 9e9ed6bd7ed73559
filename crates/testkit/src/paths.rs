//! Where the recorded oracles and the tiny models lie in the repository.

use std::path::{Path, PathBuf};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Folder of a recorded oracle, such as `gemma4_e`.
pub fn oracle(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/oracles").join(name)
}

/// `expected.json` of the tiny models: prompts and their reference runs.
pub fn expected() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/expected.json")
}

/// Folder of a built-in model, such as `tiny-gemma4`.
pub fn asset(name: &str) -> PathBuf {
    repository().join("assets").join(name)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_folders_are_in_the_repository() {
        for file in [
            super::oracle("gemma4_e").join("config.json"),
            super::expected(),
            super::asset("tiny-gemma4").join("config.json"),
        ] {
            assert!(file.is_file(), "{} is missing", file.display());
        }
    }
}
