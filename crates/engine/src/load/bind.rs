//! Drafters from their folders, bound to a target.

use paceline_backend::{Backend, KvGroupSpec};
use paceline_checkpoint::{Inexact, ModelFolder, VocabularyDifference};
use paceline_models::{
    AssistantConfig, DFlash, DFlashConfig, DFlashRoom, Description, DrafterSize, Gemma4Assistant, Limits,
    LoadOptions, ModelError, Target,
};

use super::{LoadError, MAX_DRAFTS};
use crate::drafters::{
    AssistantConventions, AssistantDrafter, Chain, DFlashDrafter, DraftBlock, Drafter, ModelDrafter,
    NgramDrafter, NgramLengths, PredictionDrafter,
};

/// Drafters to load.
#[derive(Clone, Debug)]
pub struct DraftOptions<'a> {
    /// Who drafts. Of several, the first that proposes something for a sequence in a round. Not empty.
    pub sources: Vec<DraftSource<'a>>,
    /// Drafts a round, which every drafter has to be able to draft; `None`: what each drafter suggests.
    pub tokens_per_round: Option<usize>,
    /// Of requests that do not say, see [`crate::DraftSettings::confidence`].
    pub confidence: f32,
    /// Settings of an assistant.
    pub assistant: AssistantConventions,
    /// Setting of a DFlash drafter.
    pub block: DraftBlock,
}

impl DraftOptions<'_> {
    /// Drafts that a round can have at most, whatever is asked for.
    ///
    /// # Errors
    /// The config of a drafter is not in order.
    pub fn most_drafts(&self) -> Result<usize, LoadError> {
        let of_source = |source: &DraftSource<'_>| match source {
            DraftSource::Checkpoint(folder) if DFlashConfig::describes(folder.config())? => {
                Ok(DFlashConfig::parse(folder.config())?.most_drafts().min(MAX_DRAFTS))
            }
            _ => Ok(MAX_DRAFTS),
        };
        let all = self.sources.iter().map(of_source).collect::<Result<Vec<_>, LoadError>>()?;
        Ok(all.into_iter().max().unwrap_or(0))
    }
}

/// One drafter to load.
#[derive(Clone, Copy, Debug)]
pub enum DraftSource<'a> {
    /// A checkpoint; its config says which kind of drafter it is.
    Checkpoint(&'a ModelFolder),
    /// What stood in the text before.
    Ngram(NgramLengths),
    /// What a request expects ([`crate::Request::prediction`]). Stands first, so that it goes before what others guess.
    Prediction,
}

/// Drafters of which the configs are read.
pub(super) struct DraftersToBind<'a> {
    options: &'a DraftOptions<'a>,
    list: Vec<ToBind<'a>>,
    /// Tokens of a sequence at most.
    context: usize,
}

/// What a source is by its config.
enum ToBind<'a> {
    Ngram(NgramLengths),
    Prediction,
    Assistant(&'a ModelFolder, AssistantConfig),
    /// With the target's layers that it reads.
    DFlash(&'a ModelFolder, DFlashConfig, Vec<usize>),
    /// A model that could be a target itself.
    Model(&'a ModelFolder, Description),
}

/// What drafters are fitted to, before anything is loaded.
#[derive(Clone, Copy)]
pub(super) struct Fitting<'a> {
    /// The target's folder.
    pub(super) folder: &'a ModelFolder,
    pub(super) description: &'a Description,
    /// Tokens of a sequence at most.
    pub(super) context: usize,
}

impl<'a> ToBind<'a> {
    /// Recognises a drafter, and checks as much of it as can be checked before anything is loaded.
    fn read(source: &DraftSource<'a>, target: Fitting<'_>) -> Result<Self, LoadError> {
        let folder = match *source {
            DraftSource::Ngram(lengths) => return Ok(ToBind::Ngram(lengths)),
            DraftSource::Prediction => return Ok(ToBind::Prediction),
            DraftSource::Checkpoint(folder) => folder,
        };
        let raw = folder.config();
        if DFlashConfig::describes(raw)? {
            let config = DFlashConfig::parse(raw)?;
            let taps = config.fit(raw, target.description)?;
            return Ok(ToBind::DFlash(folder, config, taps));
        }
        match raw.model_type()? {
            "gemma4_assistant" | "gemma4_unified_assistant" => {
                let config = AssistantConfig::parse(raw)?;
                config.fit(raw, target.description)?;
                Ok(ToBind::Assistant(folder, config))
            }
            found => match paceline_models::describe(raw) {
                Ok(description) => {
                    fit_model(folder, &description, target)?;
                    Ok(ToBind::Model(folder, description))
                }
                Err(ModelError::UnsupportedModel { .. }) => {
                    Err(LoadError::NotADrafter { folder: name(folder), found: found.to_owned() })
                }
                Err(error) => Err(error.into()),
            },
        }
    }

    /// Drafts a round that it suggests.
    fn suggests(&self) -> Result<usize, LoadError> {
        Ok(match self {
            ToBind::Ngram(_) => NgramDrafter::DEFAULT_DRAFTS,
            ToBind::Prediction => PredictionDrafter::DEFAULT_DRAFTS,
            ToBind::Assistant(folder, config) => {
                let suggested = folder.generation()?.num_assistant_tokens.or(config.block_drafts);
                suggested.unwrap_or(AssistantDrafter::DEFAULT_DRAFTS).min(MAX_DRAFTS)
            }
            ToBind::DFlash(_, config, _) => config.most_drafts().min(MAX_DRAFTS),
            ToBind::Model(..) => ModelDrafter::DEFAULT_DRAFTS,
        })
    }

    /// K/V of its own.
    fn kv_groups(&self) -> Vec<KvGroupSpec> {
        match self {
            ToBind::Ngram(_) | ToBind::Prediction | ToBind::Assistant(..) => Vec::new(),
            ToBind::DFlash(_, config, _) => config.kv_groups(),
            ToBind::Model(_, description) => description.kv_groups.clone(),
        }
    }
}

/// Checks that a model's drafts are tokens of the target: by what the ids stand for where there are tokenizers, by their number alone
/// where neither folder has one. With tokenizers the two may be padded to different lengths: what one has beyond the other may then
/// be no token or a special one, but nothing that texts are made of.
fn fit_model(folder: &ModelFolder, model: &Description, target: Fitting<'_>) -> Result<(), LoadError> {
    let misfit =
        |what: String| LoadError::DraftModel { folder: name(folder), target: name(target.folder), what };
    let text = |token: Option<String>| token.map_or("no token".to_owned(), |token| format!("`{token}`"));
    let (own, targets) = (model.vocab_size, target.description.vocab_size);
    let (both, all) = (own.min(targets), own.max(targets));
    match (folder.tokenizer()?, target.folder.tokenizer()?) {
        (Some(here), Some(there)) => {
            if let Some(VocabularyDifference { id, here, there }) = here.first_difference(&there, both) {
                let (here, there) = (text(here), text(there));
                return Err(misfit(format!(
                    "token {id} is {here} in its tokenizer.json and {there} in the target's"
                )));
            }
            let beyond = here.first_of_texts(both..all).or_else(|| there.first_of_texts(both..all));
            if let Some((id, token)) = beyond {
                return Err(misfit(format!(
                    "it has {own} tokens and the target {targets}, and token {id} is `{token}`, which is more than padding"
                )));
            }
        }
        (Some(_), None) => return Err(misfit("it has a tokenizer.json and the target has none".to_owned())),
        (None, Some(_)) => return Err(misfit("it has no tokenizer.json and the target has one".to_owned())),
        (None, None) if own != targets => {
            return Err(misfit(format!(
                "it has {own} tokens and the target {targets}, and there is no tokenizer.json to compare them by"
            )));
        }
        (None, None) => {}
    }
    if target.context > model.max_positions {
        let (context, positions) = (target.context, model.max_positions);
        return Err(LoadError::DraftModelContext { folder: name(folder), context, positions });
    }
    Ok(())
}

fn name(folder: &ModelFolder) -> String {
    folder.origin().display().to_string()
}

/// Sizes of a DFlash drafter where rounds have at most so many drafts.
fn dflash_room<'a>(limits: &Limits, max_drafts: usize, kv_blocks: &'a [usize]) -> DFlashRoom<'a> {
    DFlashRoom {
        tapped_rows: limits.max_rows,
        block_rows: limits.n_slots * (1 + max_drafts),
        logit_rows: limits.logit_rows,
        kv_blocks,
    }
}

/// What drafters are bound to.
pub(super) struct Binding<'a> {
    pub(super) target: &'a dyn Target,
    pub(super) limits: &'a Limits,
    /// Drafts of a round at most.
    pub(super) max_drafts: usize,
    pub(super) inexact: Inexact,
}

impl<'a> DraftersToBind<'a> {
    /// Reads the configs.
    pub(super) fn read(options: &'a DraftOptions<'a>, target: Fitting<'_>) -> Result<Self, LoadError> {
        let list = options.sources.iter().map(|source| ToBind::read(source, target));
        let list: Vec<_> = list.collect::<Result<_, LoadError>>()?;
        let mut tap_readers = list.iter().filter_map(|drafter| match drafter {
            ToBind::DFlash(folder, ..) => Some(name(folder)),
            _ => None,
        });
        if let (Some(first), Some(second)) = (tap_readers.next(), tap_readers.next()) {
            return Err(LoadError::TwoTapReaders { first, second });
        }
        Ok(Self { options, list, context: target.context })
    }

    /// Drafts that a round of the engine has to have room for.
    pub(super) fn most_drafts(&self) -> Result<usize, LoadError> {
        let mut most = 0;
        for drafter in &self.list {
            most = most.max(self.drafts_of(drafter)?);
            if let (ToBind::DFlash(_, config, _), DraftBlock::Full) = (drafter, self.options.block) {
                most = most.max(config.most_drafts());
            }
        }
        Ok(most)
    }

    /// The number that is asked for, else the drafter's own.
    fn drafts_of(&self, drafter: &ToBind<'_>) -> Result<usize, LoadError> {
        let found = match self.options.tokens_per_round {
            Some(n) => n,
            None => drafter.suggests()?,
        };
        if found > MAX_DRAFTS {
            return Err(LoadError::TooManyDrafts { found });
        }
        match drafter {
            ToBind::DFlash(folder, config, _) if found > config.most_drafts() => {
                Err(LoadError::BlockDrafts { folder: name(folder), found, most: config.most_drafts() })
            }
            _ => Ok(found),
        }
    }

    /// K/V groups of all drafters, in order.
    pub(super) fn kv_groups(&self) -> Vec<KvGroupSpec> {
        self.list.iter().flat_map(ToBind::kv_groups).collect()
    }

    /// What each drafter takes beside the target.
    pub(super) fn sizes(&self, limits: &Limits, max_drafts: usize) -> impl Iterator<Item = DrafterSize> {
        self.list.iter().map(move |drafter| match drafter {
            ToBind::Ngram(lengths) => {
                let values = limits.n_slots * NgramDrafter::most_values(*lengths, self.context);
                DrafterSize { parameters: 0, buffer_values: values as u64 }
            }
            // Only requests that predict something need it.
            ToBind::Prediction => DrafterSize { parameters: 0, buffer_values: 0 },
            ToBind::Assistant(_, config) => config.size(limits.n_slots),
            ToBind::DFlash(_, config, taps) => config.size(taps.len(), &dflash_room(limits, max_drafts, &[])),
            // Its buffers are as little known as the target's.
            ToBind::Model(_, description) => {
                DrafterSize { parameters: description.packed_parameters(), buffer_values: 0 }
            }
        })
    }

    /// Layers after which a drafter reads the target's stream.
    pub(super) fn tap_layers(&self) -> &[usize] {
        let taps = self.list.iter().find_map(|drafter| match drafter {
            ToBind::DFlash(_, _, taps) => Some(&taps[..]),
            _ => None,
        });
        taps.unwrap_or_default()
    }

    /// Loads the drafters and binds them; `None` if there are none.
    pub(super) fn bind(
        self,
        to: &Binding<'_>,
        backend: &mut dyn Backend,
    ) -> Result<Option<Box<dyn Drafter>>, LoadError> {
        let (exports, limits, inexact) = (to.target.exports(), to.limits, to.inexact);
        let mut drafters: Vec<Box<dyn Drafter>> = Vec::with_capacity(self.list.len());
        let mut kv_blocks = &limits.drafter_kv_blocks[..];
        for drafter in &self.list {
            let n_drafts = self.drafts_of(drafter)?;
            let (own_blocks, others) = kv_blocks.split_at(drafter.kv_groups().len());
            kv_blocks = others;
            drafters.push(match drafter {
                ToBind::Ngram(lengths) => Box::new(NgramDrafter::new(*lengths, n_drafts)),
                ToBind::Prediction => Box::new(PredictionDrafter::new(n_drafts)),
                ToBind::Assistant(folder, _) => {
                    let (raw, tensors) = (folder.config(), folder.tensors()?);
                    let network =
                        Gemma4Assistant::bind(raw, tensors, backend, exports, limits.n_slots, inexact)?;
                    Box::new(AssistantDrafter::new(network, exports, self.options.assistant, n_drafts))
                }
                ToBind::DFlash(folder, ..) => {
                    let (raw, tensors) = (folder.config(), folder.tensors()?);
                    let room = dflash_room(limits, to.max_drafts, own_blocks);
                    let network = DFlash::bind(raw, tensors, backend, exports, room, inexact)?;
                    Box::new(DFlashDrafter::new(network, self.options.block, n_drafts))
                }
                ToBind::Model(folder, _) => {
                    let options = LoadOptions {
                        limits: Limits {
                            max_wanted: limits.n_slots,
                            logit_rows: limits.logit_rows.min(limits.n_slots),
                            kv_blocks: own_blocks.to_vec(),
                            drafter_kv_blocks: Vec::new(),
                            ..limits.clone()
                        },
                        tap_layers: &[],
                        // So it proposes what the target has, and reads a token that it lacks as zeros.
                        vocab_size: Some(to.target.description().vocab_size),
                        inexact,
                        progress: &mut |_| {},
                    };
                    let (raw, tensors) = (folder.config(), folder.tensors()?);
                    let model = paceline_models::load(raw, tensors, backend, options)?;
                    Box::new(ModelDrafter::new(model, limits.max_rows, n_drafts))
                }
            });
        }
        Ok(match drafters.len() {
            0 | 1 => drafters.pop(),
            _ => Some(Box::new(Chain::new(drafters))),
        })
    }
}
