//! All tensors of a checkpoint by name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::safetensors::{Entry, parse_header};
use crate::text_names::text_name;
use crate::{Error, FileBytes, FileSlice, Tensor};

/// The weights of a checkpoint, from files or made up.
///
/// A model takes each tensor that it needs by name and shape, discards the ones it knows to be dead, and calls
/// [`Tensors::finish`], which refuses whatever is left: an unknown tensor means that the model is not the one that it
/// is taken for.
#[derive(Debug)]
pub struct Tensors {
    /// What error messages about missing tensors name: a file, or a folder of shards.
    origin: Arc<Path>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Stored(BTreeMap<String, Slot>),
    Random { seed: u64 },
}

/// A stored tensor, or the name of its unknown type: an error only for whoever takes it.
#[derive(Debug)]
enum Slot {
    Usable(Tensor),
    UnknownType { file: Arc<Path>, stored_name: String, dtype: String },
}

impl Slot {
    fn label(&self) -> (&str, &Path) {
        match self {
            Slot::Usable(tensor) => (tensor.name(), tensor.file()),
            Slot::UnknownType { file, stored_name, .. } => (stored_name, file),
        }
    }
}

impl Tensors {
    /// All tensors of one safetensors file, given as its bytes; `file` is its name in messages.
    ///
    /// # Errors
    /// [`Error::BadHeader`].
    pub fn from_bytes(file: &Path, bytes: FileBytes) -> Result<Tensors, Error> {
        let mut tensors = Tensors::empty(file);
        tensors.add_file(file, Arc::new(bytes))?;
        Ok(tensors)
    }

    /// Made-up weights for a model of any shape: every tensor that is asked for exists, in the shape that is asked
    /// for, with values that depend on the seed and its name. `origin` is what messages name.
    pub fn random(origin: &Path, seed: u64) -> Tensors {
        Tensors { origin: origin.into(), source: Source::Random { seed } }
    }

    pub(crate) fn empty(origin: &Path) -> Tensors {
        Tensors { origin: origin.into(), source: Source::Stored(BTreeMap::new()) }
    }

    /// Adds all tensors of a file; returns their names.
    pub(crate) fn add_file(&mut self, file: &Path, bytes: Arc<FileBytes>) -> Result<Vec<String>, Error> {
        let Source::Stored(map) = &mut self.source else {
            unreachable!("made-up tensors have no files");
        };
        let entries =
            parse_header(&bytes).map_err(|problem| Error::BadHeader { file: file.to_path_buf(), problem })?;
        let file: Arc<Path> = file.into();
        let mut names = Vec::with_capacity(entries.len());
        for entry in entries {
            if let Some(other) = map.get(&entry.name) {
                let first = other.label().1.to_path_buf();
                return Err(Error::TensorInTwoFiles {
                    tensor: entry.name,
                    first,
                    second: file.to_path_buf(),
                });
            }
            names.push(entry.name.clone());
            map.insert(entry.name.clone(), slot(entry, &file, &bytes));
        }
        Ok(names)
    }

    /// The tensors of the text model under their plain names: known prefixes are cut, vision, audio, rotary tables
    /// and clipping ranges are left out. Their bytes are never read.
    ///
    /// # Errors
    /// [`Error::AmbiguousTensor`] when two stored names mean the same tensor.
    pub fn into_text(self) -> Result<Tensors, Error> {
        let Source::Stored(map) = self.source else {
            return Ok(self);
        };
        let mut text: BTreeMap<String, Slot> = BTreeMap::new();
        for (stored, slot) in map {
            let Some(name) = text_name(&stored) else { continue };
            if let Some(other) = text.get(name) {
                let (tensor, first) = (name.to_owned(), other.label().0.to_owned());
                let file = slot.label().1.to_path_buf();
                return Err(Error::AmbiguousTensor { file, tensor, first, second: stored });
            }
            text.insert(name.to_owned(), slot);
        }
        Ok(Tensors { origin: self.origin, source: Source::Stored(text) })
    }

    /// Names of the tensors that are there and not taken yet, sorted. Made-up tensors have none until asked for.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let map = match &self.source {
            Source::Stored(map) => Some(map),
            Source::Random { .. } => None,
        };
        map.into_iter().flat_map(|map| map.keys().map(String::as_str))
    }

    /// Whether a tensor of this name can be taken. Always true of made-up tensors, so ask for the usual form first.
    pub fn contains(&self, name: &str) -> bool {
        match &self.source {
            Source::Stored(map) => map.contains_key(name),
            Source::Random { .. } => true,
        }
    }

    /// The stored tensor `name`, left where it is; `None` when there is none, or its type is unknown to the format.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        match &self.source {
            Source::Stored(map) => match map.get(name)? {
                Slot::Usable(tensor) => Some(tensor),
                Slot::UnknownType { .. } => None,
            },
            Source::Random { .. } => None,
        }
    }

    /// Takes the tensor `name`, which must have exactly the shape `expected`.
    ///
    /// # Errors
    /// [`Error::MissingTensor`], [`Error::ShapeMismatch`], and [`Error::UnknownDType`] for a number type that the
    /// format does not know.
    pub fn take(&mut self, name: &str, expected: &[usize]) -> Result<Tensor, Error> {
        let tensor = self.take_any(name, expected)?;
        if tensor.shape() != expected {
            return Err(shape_mismatch(&tensor, expected));
        }
        Ok(tensor)
    }

    /// Takes the tensor `name`, which must have `n_elements` elements in any shape: for tensors that are stored flat
    /// by some and as a matrix by others.
    ///
    /// # Errors
    /// Those of [`Tensors::take`].
    pub fn take_flat(&mut self, name: &str, n_elements: usize) -> Result<Tensor, Error> {
        let tensor = self.take_any(name, &[n_elements])?;
        if tensor.n_elements() != n_elements {
            return Err(shape_mismatch(&tensor, &[n_elements]));
        }
        Ok(tensor)
    }

    /// Leaves out a tensor that is known to be dead. It need not be there.
    pub fn discard(&mut self, name: &str) {
        if let Source::Stored(map) = &mut self.source {
            map.remove(name);
        }
    }

    /// Ends the loading of a model.
    ///
    /// # Errors
    /// [`Error::UnknownTensors`] when tensors are left that were neither taken nor discarded.
    pub fn finish(self) -> Result<(), Error> {
        let names: Vec<String> = match self.source {
            Source::Stored(map) => map.values().map(|slot| slot.label().0.to_owned()).collect(),
            Source::Random { .. } => Vec::new(),
        };
        if names.is_empty() {
            return Ok(());
        }
        Err(Error::UnknownTensors { file: self.origin.to_path_buf(), names })
    }

    fn take_any(&mut self, name: &str, expected: &[usize]) -> Result<Tensor, Error> {
        let slot = match &mut self.source {
            Source::Random { seed } => {
                return Tensor::random(name, Arc::clone(&self.origin), expected, *seed);
            }
            Source::Stored(map) => map.remove(name),
        };
        match slot {
            Some(Slot::Usable(tensor)) => Ok(tensor),
            Some(Slot::UnknownType { file, stored_name, dtype }) => {
                Err(Error::UnknownDType { file: file.to_path_buf(), tensor: stored_name, dtype })
            }
            None => {
                let (file, tensor) = (PathBuf::from(&*self.origin), name.to_owned());
                Err(Error::MissingTensor { file, tensor, expected: expected.to_vec() })
            }
        }
    }
}

fn slot(entry: Entry, file: &Arc<Path>, bytes: &Arc<FileBytes>) -> Slot {
    let file = Arc::clone(file);
    match entry.dtype {
        Ok(dtype) => {
            let bytes = FileSlice::new(Arc::clone(bytes), entry.range);
            Slot::Usable(Tensor::stored(entry.name, file, dtype, entry.shape, bytes))
        }
        Err(dtype) => Slot::UnknownType { file, stored_name: entry.name, dtype },
    }
}

fn shape_mismatch(tensor: &Tensor, expected: &[usize]) -> Error {
    Error::ShapeMismatch {
        file: tensor.file().to_path_buf(),
        tensor: tensor.name().to_owned(),
        found: tensor.shape().to_vec(),
        expected: expected.to_vec(),
    }
}

#[cfg(test)]
mod tests;
