//! Recorded tensors of an oracle folder.

use std::path::{Path, PathBuf};

use paceline_checkpoint::{DType, FileBytes, Tensor, Tensors};

use super::compare::{self, Comparison, Tolerance};
use crate::failure::Failure;

/// File with the recorded tensors.
pub(crate) const TENSORS: &str = "oracle.safetensors";
/// Longest prompt, and longest continuation, that are recomputed.
const MAX_TOKENS: usize = 1 << 14;

/// What `oracle.safetensors` holds.
pub(crate) struct Oracle {
    file: PathBuf,
    tensors: Tensors,
}

/// A recomputed tensor, in the order of its recorded values.
pub(crate) enum Values {
    Floats(Vec<f32>, Tolerance),
    Ids(Vec<i64>),
}

/// A prompt and its greedy continuation.
#[derive(Debug)]
pub(crate) struct Prompt {
    /// Its name, `p0` and so on: the first part of its tensors' names.
    pub(crate) name: String,
    pub(crate) ids: Vec<u32>,
    /// Tokens of the continuation.
    pub(crate) n_greedy: usize,
}

impl Oracle {
    /// Opens the recorded tensors of a folder.
    pub(crate) fn open(folder: &Path) -> Result<Self, Failure> {
        let file = folder.join(TENSORS);
        let tensors = Tensors::from_bytes(&file, FileBytes::map(&file)?)?;
        Ok(Self { file, tensors })
    }

    /// All names, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.names()
    }

    /// Something about the file that makes it unusable.
    pub(crate) fn unusable(&self, what: String) -> Failure {
        Failure::bad_input(format!("{}: {what}", self.file.display()))
    }

    fn get(&self, name: &str) -> Result<&Tensor, Failure> {
        let missing = || self.unusable(format!("tensor `{name}` is missing or has no usable type"));
        self.tensors.get(name).ok_or_else(missing)
    }

    /// Shape of a tensor.
    pub(crate) fn shape(&self, name: &str) -> Result<&[usize], Failure> {
        Ok(self.get(name)?.shape())
    }

    /// Whether a tensor holds ids.
    pub(crate) fn is_ids(&self, name: &str) -> Result<bool, Failure> {
        Ok(matches!(self.get(name)?.dtype(), DType::I32 | DType::I64))
    }

    /// Values of a tensor.
    pub(crate) fn floats(&self, name: &str) -> Result<Vec<f32>, Failure> {
        Ok(self.get(name)?.to_f32()?)
    }

    /// Ids of a tensor.
    pub(crate) fn ids(&self, name: &str) -> Result<Vec<i64>, Failure> {
        Ok(self.get(name)?.to_i64()?)
    }

    /// Compares recomputed values with the recorded ones.
    pub(crate) fn compare(&self, name: &str, values: Values) -> Result<Comparison, Failure> {
        let n_values = self.shape(name)?.iter().product::<usize>();
        let (found, are_ids) = match &values {
            Values::Floats(values, _) => (values.len(), false),
            Values::Ids(ids) => (ids.len(), true),
        };
        if found != n_values || are_ids != self.is_ids(name)? {
            let kind = if are_ids { "ids" } else { "numbers" };
            return Err(
                self.unusable(format!("tensor `{name}` has {n_values} values, expected {found} {kind}"))
            );
        }
        Ok(match values {
            Values::Floats(values, tolerance) => {
                compare::floats(name, &values, &self.floats(name)?, tolerance)
            }
            Values::Ids(ids) => compare::ids(name, &ids, &self.ids(name)?),
        })
    }

    /// The prompt that is recorded as `name`: ids of the vocabulary, at least one.
    pub(crate) fn prompt_ids(&self, name: &str, vocab_size: usize) -> Result<Vec<u32>, Failure> {
        let ids = self.ids(name)?;
        if ids.is_empty() || ids.len() > MAX_TOKENS {
            let found = ids.len();
            return Err(self.unusable(format!("`{name}` has {found} tokens, expected 1 to {MAX_TOKENS}")));
        }
        let in_vocabulary = |id: i64| u32::try_from(id).ok().filter(|&id| (id as usize) < vocab_size);
        let checked = |&id: &i64| {
            in_vocabulary(id)
                .ok_or_else(|| self.unusable(format!("`{name}` holds {id}, expected ids below {vocab_size}")))
        };
        ids.iter().map(checked).collect()
    }

    /// The prompts of a target's folder: `p0`, `p1`, ... as long as there are any.
    pub(crate) fn prompts(&self, vocab_size: usize) -> Result<Vec<Prompt>, Failure> {
        let mut prompts = Vec::new();
        loop {
            let name = format!("p{}", prompts.len());
            let input = format!("{name}.input_ids");
            if !self.tensors.contains(&input) {
                break;
            }
            let ids = self.prompt_ids(&input, vocab_size)?;
            let n_greedy = self.ids(&format!("{name}.greedy_ids"))?.len();
            if n_greedy == 0 || n_greedy > MAX_TOKENS {
                return Err(self.unusable(format!(
                    "`{name}.greedy_ids` has {n_greedy} tokens, expected 1 to {MAX_TOKENS}"
                )));
            }
            prompts.push(Prompt { name, ids, n_greedy });
        }
        if prompts.is_empty() {
            return Err(
                self.unusable("tensor `p0.input_ids` is missing; expected at least one prompt".into())
            );
        }
        Ok(prompts)
    }
}
