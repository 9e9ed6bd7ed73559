//! Drafters, in arguments.

use std::path::PathBuf;

use clap::ValueEnum;
use paceline::drafters::{AssistantConventions, DraftHidden, DraftPosition};
use paceline_checkpoint::ModelFolder;

use crate::builtin;
use crate::failure::Failure;
use crate::made_up::MadeUpArgs;

/// Who drafts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DraftArg {
    /// Nobody: plain decoding.
    None,
    /// The assistant of the built-in model.
    Tiny,
    /// The assistant in a folder, or of the hub.
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
    pub(crate) fn open(&self, made_up: &MadeUpArgs) -> Result<Option<ModelFolder>, Failure> {
        match self {
            DraftArg::None => Ok(None),
            DraftArg::Tiny => builtin::tiny_assistant().map(Some),
            DraftArg::Folder(path) => made_up.open_drafter(path).map(Some),
        }
    }
}

/// Drafts of a round; `None` leaves it to the drafter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DraftTokens(pub(crate) Option<usize>);

impl DraftTokens {
    /// Parses the argument.
    pub(crate) fn parse(word: &str) -> Result<Self, String> {
        match (word, word.parse()) {
            ("auto", _) => Ok(DraftTokens(None)),
            (_, Ok(n)) => Ok(DraftTokens(Some(n))),
            _ => Err("expected a whole number or `auto`".to_owned()),
        }
    }
}

/// How an assistant is run, in arguments.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct ConventionArgs {
    /// Where an assistant's queries stand: at the newest token, as the format says, or at the last one that was read. Changes which
    /// drafts are accepted, never the text
    #[arg(long, value_name = "P", value_enum, default_value = "bonus")]
    draft_position: PositionArg,
    /// Which hidden state an assistant starts from: after the final norm, as the format says, or before it
    #[arg(long, value_name = "H", value_enum, default_value = "post-norm")]
    draft_hidden: HiddenArg,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PositionArg {
    Bonus,
    LastCommitted,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum HiddenArg {
    PostNorm,
    PreNorm,
}

impl From<ConventionArgs> for AssistantConventions {
    fn from(args: ConventionArgs) -> Self {
        AssistantConventions {
            position: match args.draft_position {
                PositionArg::Bonus => DraftPosition::Bonus,
                PositionArg::LastCommitted => DraftPosition::LastCommitted,
            },
            hidden: match args.draft_hidden {
                HiddenArg::PostNorm => DraftHidden::PostNorm,
                HiddenArg::PreNorm => DraftHidden::PreNorm,
            },
        }
    }
}
