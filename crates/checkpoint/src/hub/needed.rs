//! Which files of a repository make a model.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::session::Listing;
use super::{HubError, HubId};
use crate::shards::{INDEX, Index, MAX_INDEX_BYTES, SINGLE};

pub(super) const CONFIG: &str = "config.json";

/// Form of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weights {
    Single,
    Sharded,
}

/// The form of the weights that a commit has; the single file wins.
pub(super) fn weights(id: &HubId, listing: &Listing) -> Result<Weights, HubError> {
    let missing = |missing: &str| HubError::NotAModel { name: id.to_string(), missing: missing.to_owned() };
    if !listing.has(CONFIG) {
        return Err(missing(CONFIG));
    }
    match (listing.has(SINGLE), listing.has(INDEX)) {
        (true, _) => Ok(Weights::Single),
        (false, true) => Ok(Weights::Sharded),
        (false, false) => Err(missing("model.safetensors or model.safetensors.index.json")),
    }
}

/// Names of the configs, the tokenizer and the templates: what lies at the top and is not weights.
pub(super) fn small_files(listing: &Listing) -> impl Iterator<Item = &str> {
    listing.names().filter(|name| {
        is_plain(name) && (name.ends_with(".json") || name.ends_with(".jinja")) && *name != INDEX
    })
}

/// The shards that an index names.
pub(super) fn shards_of(index: &Path) -> Result<BTreeSet<String>, HubError> {
    let mut bytes = Vec::new();
    let file = File::open(index).map_err(|source| HubError::cache(index, source))?;
    file.take(MAX_INDEX_BYTES).read_to_end(&mut bytes).map_err(|source| HubError::cache(index, source))?;
    let bad = |problem: String| HubError::BadIndex { file: index.to_path_buf(), problem };
    let parsed: Index = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
    let shards: BTreeSet<String> = parsed.weight_map.into_values().collect();
    match shards.iter().find(|shard| !is_plain(shard)) {
        Some(shard) => Err(bad(format!("shard name `{shard:.80}` is not a plain file name"))),
        None => Ok(shards),
    }
}

/// Whether a name is that of a file in the snapshot itself, in an address as in a path.
fn is_plain(name: &str) -> bool {
    !name.starts_with('.') && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}
