//! Recorded tensors of an oracle folder.

use std::path::{Path, PathBuf};

use paceline_checkpoint::{DType, FileBytes, Tensor, Tensors};

use crate::failure::Failure;

/// File with the recorded tensors.
pub(crate) const TENSORS: &str = "oracle.safetensors";
/// Longest sequence, prompt and continuation, that is recomputed in one pass and one buffer.
const MAX_TOKENS: usize = 1 << 14;

/// What `oracle.safetensors` holds.
pub(crate) struct Oracle {
    file: PathBuf,
    tensors: Tensors,
}

/// A prompt and its greedy continuation.
#[derive(Debug)]
pub(crate) struct Prompt {
    /// Its name, `p0` and so on: the first part of its tensors' names.
    pub(crate) name: String,
    pub(crate) ids: Vec<i64>,
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

    /// The prompts of a target's folder: `p0`, `p1`, ... as long as there are any.
    pub(crate) fn prompts(&self, vocab_size: usize) -> Result<Vec<Prompt>, Failure> {
        let mut prompts = Vec::new();
        loop {
            let name = format!("p{}", prompts.len());
            let input = format!("{name}.input_ids");
            if !self.tensors.contains(&input) {
                break;
            }
            let ids = self.ids(&input)?;
            let n_greedy = self.ids(&format!("{name}.greedy_ids"))?.len();
            let in_vocabulary = |id: &i64| usize::try_from(*id).is_ok_and(|id| id < vocab_size);
            if let Some(id) = ids.iter().find(|id| !in_vocabulary(id)) {
                return Err(self.unusable(format!("`{input}` holds {id}, expected ids below {vocab_size}")));
            }
            if ids.is_empty() || n_greedy == 0 || ids.len() + n_greedy > MAX_TOKENS {
                let found = format!("{} and {n_greedy} tokens", ids.len());
                return Err(self.unusable(format!(
                    "prompt and continuation `{name}` have {found}, expected at least 1 each and {MAX_TOKENS} at most"
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
