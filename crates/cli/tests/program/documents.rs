//! The documents at the root: what they name is there.

use std::fs;

use crate::process::root;

/// Texts between single backticks.
fn quoted(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    prose.flat_map(|prose| prose.split('`').skip(1).step_by(2)).collect()
}

/// Whether a quoted text is meant as a path from the root. (One that begins with a slash is a server's.)
fn is_path(word: &str) -> bool {
    let extensions = [".rs", ".md", ".toml", ".json", ".jinja", ".py"];
    let plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
    let first = word.split('/').next().unwrap_or_default();
    plain
        && !word.starts_with('/')
        && (extensions.iter().any(|end| word.ends_with(end))
            || ["crates", "bench", "assets", ".ci"].contains(&first))
}

#[test]
fn every_path_that_is_named_exists() {
    let mut n_paths = 0;
    let docs = ["docs/drafting.md", "docs/sampling.md", "docs/server.md", "docs/speed.md"];
    for document in ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"].into_iter().chain(docs) {
        let text = fs::read_to_string(root().join(document)).unwrap();
        for path in quoted(&text).into_iter().filter(|word| is_path(word)) {
            // These are files of a model's folder, not of the repository.
            if ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
                .contains(&path)
            {
                continue;
            }
            assert!(root().join(path).exists(), "{document} names `{path}`, which is not there");
            n_paths += 1;
        }
    }
    assert!(n_paths > 40, "only {n_paths} paths found: is the test still looking?");
}

#[test]
fn every_crate_has_its_paragraph() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            text.contains(&format!("**`crates/{name}`**")),
            "ARCHITECTURE.md has no paragraph for {name}"
        );
    }
}

#[test]
fn the_notice_of_wordnet_is_kept() {
    let text = fs::read_to_string(root().join("NOTICE")).unwrap();
    assert!(text.contains("WordNet 3.0 Copyright 2006 by Princeton University. All rights reserved."));
}
