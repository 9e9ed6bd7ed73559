//! Drafters from their folders, bound to a target.

use paceline_backend::Backend;
use paceline_checkpoint::{Inexact, ModelFolder};
use paceline_models::{AssistantConfig, Gemma4Assistant, Target};

use super::{LoadError, MAX_DRAFTS};
use crate::drafters::{AssistantConventions, AssistantDrafter, Chain, Drafter, NgramDrafter, NgramLengths};
use crate::sizes::Sizes;

/// Drafters to load.
#[derive(Clone, Debug)]
pub struct DraftOptions<'a> {
    /// Who drafts. Of several, the first that proposes something for a sequence in a round. Not empty.
    pub sources: Vec<DraftSource<'a>>,
    /// Drafts a round; `None`: what each drafter suggests.
    pub tokens_per_round: Option<usize>,
    /// Settings of an assistant.
    pub assistant: AssistantConventions,
}

/// One drafter to load.
#[derive(Clone, Copy, Debug)]
pub enum DraftSource<'a> {
    /// A checkpoint; its config says which kind of drafter it is.
    Checkpoint(&'a ModelFolder),
    /// What stood in the text before.
    Ngram(NgramLengths),
}

impl DraftOptions<'_> {
    /// Drafts that a round of the engine has to have room for.
    pub(super) fn most_drafts(&self) -> Result<usize, LoadError> {
        let mut most = 0;
        for source in &self.sources {
            most = most.max(self.drafts_of(source)?);
        }
        Ok(most)
    }

    /// The number that is asked for, else the drafter's own.
    fn drafts_of(&self, source: &DraftSource<'_>) -> Result<usize, LoadError> {
        let found = match (self.tokens_per_round, source) {
            (Some(n), _) => n,
            (None, DraftSource::Ngram(_)) => NgramDrafter::DEFAULT_DRAFTS,
            (None, DraftSource::Checkpoint(folder)) => {
                let config = assistant_config(folder)?;
                let suggested = folder.generation()?.num_assistant_tokens;
                suggested.or(config.block_drafts).unwrap_or(AssistantDrafter::DEFAULT_DRAFTS)
            }
        };
        if found > MAX_DRAFTS { Err(LoadError::TooManyDrafts { found }) } else { Ok(found) }
    }
}

/// What drafters are bound to.
pub(super) struct Binding<'a> {
    pub(super) target: &'a dyn Target,
    pub(super) sizes: Sizes,
    pub(super) inexact: Inexact,
}

impl Binding<'_> {
    /// Loads the drafters and binds them; `None` if there are none.
    pub(super) fn bind_all(
        &self,
        draft: &DraftOptions<'_>,
        backend: &mut dyn Backend,
    ) -> Result<Option<Box<dyn Drafter>>, LoadError> {
        let mut drafters = Vec::with_capacity(draft.sources.len());
        for source in &draft.sources {
            let n_drafts = draft.drafts_of(source)?;
            drafters.push(match source {
                DraftSource::Ngram(lengths) => Box::new(NgramDrafter::new(*lengths, n_drafts)),
                DraftSource::Checkpoint(folder) => self.assistant(folder, draft, n_drafts, backend)?,
            });
        }
        Ok(match drafters.len() {
            0 | 1 => drafters.pop(),
            _ => Some(Box::new(Chain::new(drafters))),
        })
    }

    fn assistant(
        &self,
        folder: &ModelFolder,
        draft: &DraftOptions<'_>,
        n_drafts: usize,
        backend: &mut dyn Backend,
    ) -> Result<Box<dyn Drafter>, LoadError> {
        assistant_config(folder)?;
        let (config, tensors, exports) = (folder.config(), folder.tensors()?, self.target.exports());
        let n_slots = self.sizes.n_slots;
        let network = Gemma4Assistant::bind(config, tensors, backend, exports, n_slots, self.inexact)?;
        Ok(Box::new(AssistantDrafter::new(network, exports, draft.assistant, n_drafts)))
    }
}

fn assistant_config(folder: &ModelFolder) -> Result<AssistantConfig, LoadError> {
    match folder.config().model_type()? {
        "gemma4_assistant" | "gemma4_unified_assistant" => Ok(AssistantConfig::parse(folder.config())?),
        found => Err(LoadError::NotADrafter {
            folder: folder.origin().display().to_string(),
            found: found.to_owned(),
        }),
    }
}
