//! Drafters, in arguments.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use paceline::drafters::{AssistantConventions, DraftBlock, DraftHidden, DraftPosition, NgramLengths};
use paceline::{DraftOptions, DraftSource, NumberError, parse_number};
use paceline_checkpoint::ModelFolder;

use crate::builtin;
use crate::failure::{Failure, note};
use crate::made_up::MadeUpArgs;
use crate::numbers::whole;

/// Who drafts and how, in arguments.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DrafterArgs {
    /// Drafter: folder or hub id of an assistant, of a DFlash drafter or of a smaller model with the same vocabulary; `tiny` and
    /// `tiny-dflash` for those of the built-in model, `ngram` for what stood in the text before, or `none`. Several with commas between: the first
    /// that proposes something is taken, round by round; commas of a folder that exists are its own. Changes the speed, never the text
    #[arg(long, value_name = "D[,D...]", value_parser = DraftArg::parse)]
    draft: Option<DraftArg>,
    #[command(flatten)]
    conventions: ConventionArgs,
    #[command(flatten)]
    ngram: NgramArgs,
}

/// Who drafts, how and how much, in arguments.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DraftArgs {
    #[command(flatten)]
    drafter: DrafterArgs,
    /// Drafts of a round, at most 64, or `auto` for what the drafter suggests
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = DraftTokens::parse, requires = "draft", allow_hyphen_values = true)]
    draft_tokens: DraftTokens,
    /// How sure a drafter has to be that a draft and all before it are right, by its own probabilities, for it to be verified; 0 verifies
    /// all. For assistants, DFlash drafters and draft models. Changes the speed, never the text
    #[arg(long, value_name = "P", default_value = "0", value_parser = confidence, requires = "draft", allow_hyphen_values = true)]
    draft_confidence: f32,
}

/// Parses a probability below 1.
pub(crate) fn confidence(word: &str) -> Result<f32, String> {
    match parse_number(word) {
        Ok(number) if (0.0..1.0).contains(&number) => Ok(number),
        Err(NumberError::Vanishes) => Err(format!("`{word}` {}", NumberError::Vanishes)),
        _ => Err("expected a number from 0 that is below 1".to_owned()),
    }
}

/// Drafters whose folders are open, in the order in which they are asked.
#[derive(Debug, Default)]
pub(crate) struct Drafters {
    list: Vec<Opened>,
    tokens_per_round: Option<usize>,
    /// Of requests that do not say.
    confidence: f32,
    conventions: AssistantConventions,
    block: DraftBlock,
}

#[derive(Debug)]
enum Opened {
    Folder(ModelFolder),
    Ngram(NgramLengths),
}

impl DrafterArgs {
    /// Opens the drafters. With made-up weights a drafter may be the name of a shape.
    pub(crate) fn open(&self, made_up: &MadeUpArgs) -> Result<Drafters, Failure> {
        let words = self.draft.as_ref().map_or(&[][..], |DraftArg(words)| words);
        let open = |word: &DraftWord| {
            Ok(match word {
                DraftWord::Tiny => Opened::Folder(builtin::tiny_assistant()?),
                DraftWord::TinyDflash => Opened::Folder(builtin::tiny_dflash()?),
                DraftWord::Ngram => Opened::Ngram(self.ngram.lengths()?),
                DraftWord::Folder(path) => Opened::Folder(open_word(path, made_up)?),
            })
        };
        let list = words.iter().map(open).collect::<Result<_, Failure>>()?;
        if self.ngram.is_said() && !words.contains(&DraftWord::Ngram) {
            note("--ngram-min and --ngram-max do nothing without `ngram` among the drafters");
        }
        let (conventions, block) = (self.conventions.into(), self.conventions.into());
        Ok(Drafters { list, conventions, block, ..Drafters::default() })
    }
}

/// Opens the drafter that a word names. Where there is no such folder, the word may have been meant as one of the others.
fn open_word(path: &Path, made_up: &MadeUpArgs) -> Result<ModelFolder, Failure> {
    made_up.open_drafter(path).map_err(|failure| match failure {
        Failure::BadInput(message) if !path.exists() => {
            Failure::BadInput(format!("{message}; --draft takes {WORDS}"))
        }
        failure => failure,
    })
}

impl DraftArgs {
    /// As [`DrafterArgs::open`].
    pub(crate) fn open(&self, made_up: &MadeUpArgs) -> Result<Drafters, Failure> {
        let drafters = self.drafter.open(made_up)?.with_tokens_per_round(self.draft_tokens.0);
        if self.draft_confidence > 0.0 {
            drafters.note_confidence();
        }
        Ok(Drafters { confidence: self.draft_confidence, ..drafters })
    }
}

impl Drafters {
    /// What to load; `None` if nobody drafts.
    pub(crate) fn options(&self) -> Option<DraftOptions<'_>> {
        (!self.is_empty()).then(|| self.with_first(None))
    }

    /// What to load where requests may predict their output: that goes before what the drafters guess.
    pub(crate) fn options_with_predictions(&self) -> DraftOptions<'_> {
        self.with_first(Some(DraftSource::Prediction))
    }

    fn with_first<'a>(&'a self, first: Option<DraftSource<'a>>) -> DraftOptions<'a> {
        let source = |opened: &'a Opened| match opened {
            Opened::Ngram(lengths) => DraftSource::Ngram(*lengths),
            Opened::Folder(folder) => DraftSource::Checkpoint(folder),
        };
        let sources = first.into_iter().chain(self.list.iter().map(source)).collect();
        let (tokens_per_round, confidence) = (self.tokens_per_round, self.confidence);
        DraftOptions { sources, tokens_per_round, confidence, assistant: self.conventions, block: self.block }
    }

    /// One drafter as its format says.
    #[cfg(test)]
    pub(crate) fn of_folder(folder: ModelFolder) -> Self {
        Self { list: vec![Opened::Folder(folder)], ..Self::default() }
    }

    /// With room for so many drafts a round; `None`: for what each drafter suggests.
    pub(crate) fn with_tokens_per_round(self, tokens_per_round: Option<usize>) -> Self {
        Self { tokens_per_round, ..self }
    }

    /// Says that a confidence does nothing, if it does.
    pub(crate) fn note_confidence(&self) {
        let only_ngrams = self.list.iter().all(|opened| matches!(opened, Opened::Ngram(_)));
        if !self.is_empty() && only_ngrams {
            note("--draft-confidence does nothing for n-grams, which give no probabilities");
        }
    }

    /// Whether anybody drafts.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Folders of those that have one.
    pub(crate) fn folders(&self) -> impl Iterator<Item = &ModelFolder> {
        self.list.iter().filter_map(|opened| match opened {
            Opened::Folder(folder) => Some(folder),
            Opened::Ngram(_) => None,
        })
    }

    /// What each is called for people, in order.
    pub(crate) fn each_name(&self) -> Vec<String> {
        let name = |opened: &Opened| match opened {
            Opened::Folder(folder) => folder.origin().display().to_string(),
            Opened::Ngram(lengths) => format!("n-grams of {} to {} tokens", lengths.min(), lengths.max()),
        };
        self.list.iter().map(name).collect()
    }

    /// Who drafts, for people.
    pub(crate) fn names(&self) -> String {
        if self.is_empty() { "no drafter".to_owned() } else { self.each_name().join(", then ") }
    }
}

/// What a word of `--draft` may be.
const WORDS: &str = "a folder, a hub id, `tiny`, `tiny-dflash`, `ngram` or `none`";

/// The words of `--draft`; none for plain decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DraftArg(Vec<DraftWord>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum DraftWord {
    /// The assistant of the built-in model.
    Tiny,
    /// Its DFlash drafter.
    TinyDflash,
    /// What stood in the text before.
    Ngram,
    /// The drafter in a folder, or of the hub.
    Folder(PathBuf),
}

impl DraftArg {
    fn parse(argument: &str) -> Result<Self, String> {
        if argument == "none" {
            return Ok(DraftArg(Vec::new()));
        }
        let mut words: Vec<DraftWord> = Vec::new();
        for word in split(argument) {
            let word = match word {
                "" => {
                    return Err(format!("expected {WORDS}"));
                }
                "none" => return Err("`none` stands alone".to_owned()),
                "tiny" => DraftWord::Tiny,
                "tiny-dflash" => DraftWord::TinyDflash,
                "ngram" => DraftWord::Ngram,
                path => DraftWord::Folder(path.into()),
            };
            if words.contains(&word) {
                return Err("a drafter is given twice".to_owned());
            }
            words.push(word);
        }
        Ok(DraftArg(words))
    }
}

/// The words between the commas. As long a part as is the path of a folder is one word, whatever commas it has.
fn split(argument: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = Some(argument);
    while let Some(from) = rest {
        let commas: Vec<_> = from.match_indices(',').map(|(at, _)| at).collect();
        let mut ends = commas.iter().copied().skip(1).chain((!commas.is_empty()).then_some(from.len())).rev();
        let end = ends.find(|&end| Path::new(&from[..end]).is_dir());
        let end = end.or(commas.first().copied()).unwrap_or(from.len());
        words.push(&from[..end]);
        rest = from.get(end + 1..);
    }
    words
}

/// Lengths of n-grams, in arguments.
#[derive(Clone, Copy, Debug, clap::Args)]
struct NgramArgs {
    /// Fewest tokens that an n-gram has to repeat
    #[arg(long, value_name = "N", default_value_t = NgramLengths::default().min(), requires = "draft", value_parser = whole::<usize>, allow_hyphen_values = true)]
    ngram_min: usize,
    /// Most tokens that are compared: a longer repetition goes before a shorter one
    #[arg(long, value_name = "N", default_value_t = NgramLengths::default().max(), requires = "draft", value_parser = whole::<usize>, allow_hyphen_values = true)]
    ngram_max: usize,
}

impl NgramArgs {
    /// Whether they are not the usual ones.
    fn is_said(self) -> bool {
        let usual = NgramLengths::default();
        (self.ngram_min, self.ngram_max) != (usual.min(), usual.max())
    }

    fn lengths(self) -> Result<NgramLengths, Failure> {
        let NgramArgs { ngram_min, ngram_max } = self;
        NgramLengths::new(ngram_min, ngram_max).ok_or_else(|| {
            Failure::bad_input(format!(
                "--ngram-min {ngram_min} and --ngram-max {ngram_max}: expected 1 <= min <= max <= {}",
                NgramLengths::MOST
            ))
        })
    }
}

/// Drafts of a round; `None` leaves it to the drafter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DraftTokens(pub(crate) Option<usize>);

impl DraftTokens {
    /// Parses one number.
    pub(crate) fn parse(word: &str) -> Result<Self, String> {
        match word {
            "auto" => Ok(DraftTokens(None)),
            word => match whole(word) {
                Ok(n) => Ok(DraftTokens(Some(n))),
                Err(problem) => Err(format!("{problem}, or `auto`")),
            },
        }
    }
}

/// How an assistant is run, in arguments.
#[derive(Clone, Copy, Debug, clap::Args)]
struct ConventionArgs {
    /// Where an assistant's queries stand: at the newest token, as the format says, or at the last one that was read. Changes which
    /// drafts are accepted, never the text
    #[arg(long, value_name = "P", value_enum, default_value = "bonus")]
    draft_position: PositionArg,
    /// Which hidden state an assistant starts from: after the final norm, as the format says, or before it
    #[arg(long, value_name = "H", value_enum, default_value = "post-norm")]
    draft_hidden: HiddenArg,
    /// How many masks a DFlash drafter fills in: one for each draft, or as many as it was trained with, of which the first are verified
    #[arg(long, value_name = "B", value_enum, default_value = "short")]
    draft_block: BlockArg,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum BlockArg {
    Short,
    Full,
}

impl From<ConventionArgs> for DraftBlock {
    fn from(args: ConventionArgs) -> Self {
        match args.draft_block {
            BlockArg::Short => DraftBlock::Short,
            BlockArg::Full => DraftBlock::Full,
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_of_a_folder_that_exists_are_its_own() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
        for name in ["a,b", "a,b,c", "d"] {
            std::fs::create_dir(path(name)).unwrap();
        }
        let (ab, abc, d, e) = (path("a,b"), path("a,b,c"), path("d"), path("e"));
        for (argument, words) in [
            (abc.clone(), vec![&abc[..]]),
            (format!("{ab},ngram,{d}"), vec![&ab, "ngram", &d]),
            (format!("ngram,{abc},{ab},tiny"), vec!["ngram", &abc, &ab, "tiny"]),
            // Folders that are not there are names between commas.
            (format!("{d},{e},f"), vec![&d, &e, "f"]),
            (format!("{e},f,{d},"), vec![&e, "f", &d, ""]),
        ] {
            assert_eq!(split(&argument), words, "{argument}");
        }
    }

    #[test]
    fn lists_keep_their_order_and_bad_ones_are_refused() {
        let parse = |argument| DraftArg::parse(argument).map(|DraftArg(words)| words);
        assert_eq!(parse("none"), Ok(vec![]));
        let folder = |path: &str| DraftWord::Folder(path.into());
        assert_eq!(parse("a/b,ngram,tiny"), Ok(vec![folder("a/b"), DraftWord::Ngram, DraftWord::Tiny]));
        for bad in ["", ",", "ngram,", ",ngram", "none,ngram", "ngram,none", "ngram,ngram", "x,tiny,x"] {
            assert!(parse(bad).is_err(), "{bad:?} was accepted");
        }
    }
}
