//! The `--draft` argument.

use std::path::PathBuf;

use paceline_checkpoint::ModelFolder;

use crate::builtin;
use crate::failure::Failure;

/// Who drafts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DraftArg {
    /// Nobody: plain decoding.
    None,
    /// The assistant of the built-in model.
    Tiny,
    /// The assistant in a folder.
    Folder(PathBuf),
}

impl DraftArg {
    /// Parses the argument.
    pub(crate) fn parse(word: &str) -> Result<Self, String> {
        match word {
            "" => Err("expected a folder, `tiny` or `none`".to_owned()),
            "none" => Ok(DraftArg::None),
            "tiny" => Ok(DraftArg::Tiny),
            path => Ok(DraftArg::Folder(path.into())),
        }
    }

    /// Opens the drafter's folder, if there is one.
    pub(crate) fn open(&self) -> Result<Option<ModelFolder>, Failure> {
        match self {
            DraftArg::None => Ok(None),
            DraftArg::Tiny => builtin::tiny_assistant().map(Some),
            DraftArg::Folder(path) => Ok(Some(ModelFolder::open(path)?)),
        }
    }
}
