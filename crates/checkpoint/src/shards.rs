//! The weights of a folder: one file, or shards under an index.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde::Deserialize;

use crate::{Error, ModelFolder, Tensors};

pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// Largest accepted index, in bytes: the limit of a header, since both list names.
pub(crate) const MAX_INDEX_BYTES: u64 = 100_000_000;

/// What an index says.
#[derive(Deserialize)]
pub(crate) struct Index {
    /// Shard of each tensor.
    pub(crate) weight_map: BTreeMap<String, String>,
}

/// All tensors of the folder. The single file wins when there is an index too.
pub(crate) fn open_weights(folder: &ModelFolder) -> Result<Tensors, Error> {
    let origin = folder.origin();
    if let Some(bytes) = folder.bytes(SINGLE)? {
        let file = origin.join(SINGLE);
        let mut tensors = Tensors::empty(&file);
        tensors.add_file(&file, bytes)?;
        return Ok(tensors);
    }
    let Some(bytes) = folder.read(INDEX, MAX_INDEX_BYTES)? else {
        return Err(Error::MissingWeights { folder: origin.to_path_buf() });
    };
    let index_file = origin.join(INDEX);
    let index: Index = serde_json::from_slice(&bytes)
        .map_err(|error| Error::Json { file: index_file.clone(), message: error.to_string() })?;
    open_shards(folder, &index_file, &index)
}

/// Every tensor of every shard that the index names, also those that the index leaves out: whether they are known is
/// for the model to say.
fn open_shards(folder: &ModelFolder, index_file: &Path, index: &Index) -> Result<Tensors, Error> {
    let mut tensors_of: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tensor, shard) in &index.weight_map {
        tensors_of.entry(shard).or_default().push(tensor);
    }
    if tensors_of.is_empty() {
        return Err(Error::MissingWeights { folder: folder.origin().to_path_buf() });
    }
    let mut all = Tensors::empty(folder.origin());
    for (shard, promised) in tensors_of {
        let index = || index_file.to_path_buf();
        // The index is a stranger's: it may name files of this folder only.
        if Path::new(shard).file_name().is_none_or(|name| name != shard) {
            return Err(Error::BadShardName { index: index(), shard: shard.to_owned() });
        }
        let Some(bytes) = folder.bytes(shard)? else {
            return Err(Error::MissingShard { index: index(), shard: shard.to_owned() });
        };
        let found: HashSet<String> = all.add_file(&folder.origin().join(shard), bytes)?.into_iter().collect();
        if let Some(&tensor) = promised.iter().find(|&&tensor| !found.contains(tensor)) {
            let (shard, tensor) = (shard.to_owned(), tensor.to_owned());
            return Err(Error::TensorNotInShard { index: index(), shard, tensor });
        }
    }
    Ok(all)
}
