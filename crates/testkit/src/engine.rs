//! An engine around the toy.

use std::sync::Arc;

use paceline::drafters::{Chain, Drafter, NgramDrafter, NgramLengths, PredictionDrafter};
use paceline::{Activation, Detokenizer, Engine, EngineParts, Sizes, TextDecoder};
use paceline_backend::{KvGroupSpec, Sampling, TokenId};
use paceline_models::{Exports, Limits, Target};

use crate::assistant::ToyAssistant;
use crate::nasty::{Nasty, NastyDrafter};
use crate::own_kv::ToyOwnKv;
use crate::toy::{TEXT_END, ToyBackend, ToyModel, ToyTarget, group_spec, toy_text};

/// What drafts for the toy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToyDrafter {
    /// Nothing.
    None,
    /// [`NastyDrafter`], with its limits by round.
    Nasty(Nasty, Vec<usize>),
    /// [`ToyAssistant`].
    Assistant,
    /// [`ToyOwnKv`], with the windows of its groups.
    OwnKv(Vec<Option<usize>>),
    /// n-grams of 1 to 3 tokens: single ones, because the toy's habits are all that repeats in its texts.
    Ngram,
    /// What the request predicts.
    Prediction,
    /// Several, in order.
    Chain(Vec<ToyDrafter>),
}

impl ToyDrafter {
    /// K/V groups that it owns. Only one member of a chain may own some.
    pub fn kv_groups(&self) -> Vec<KvGroupSpec> {
        match self {
            ToyDrafter::OwnKv(windows) => windows.iter().map(|&window| group_spec(window)).collect(),
            ToyDrafter::Chain(members) => members.iter().flat_map(ToyDrafter::kv_groups).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether a member chooses drafts on the backend, where it can say how sure it is.
    pub fn drafts_on_the_backend(&self) -> bool {
        match self {
            ToyDrafter::Assistant => true,
            ToyDrafter::Chain(members) => members.iter().any(ToyDrafter::drafts_on_the_backend),
            _ => false,
        }
    }

    fn make(
        &self,
        model: &ToyModel,
        sampling: &Sampling,
        exports: &Exports,
        backend: &mut ToyBackend,
        limits: &Limits,
    ) -> Option<Box<dyn Drafter>> {
        match self {
            ToyDrafter::None => None,
            ToyDrafter::Nasty(nasty, cycle) => {
                Some(Box::new(NastyDrafter::new(*nasty, model, sampling, cycle)))
            }
            ToyDrafter::Assistant => {
                Some(Box::new(ToyAssistant::new(exports, backend, limits).expect("the toy has memory")))
            }
            ToyDrafter::OwnKv(windows) => {
                Some(Box::new(ToyOwnKv::new(model, windows, backend, limits).expect("the toy has memory")))
            }
            ToyDrafter::Ngram => {
                let lengths = NgramLengths::new(1, 3).expect("lengths in order");
                Some(Box::new(NgramDrafter::new(lengths, NgramDrafter::DEFAULT_DRAFTS)))
            }
            ToyDrafter::Prediction => {
                Some(Box::new(PredictionDrafter::new(PredictionDrafter::DEFAULT_DRAFTS)))
            }
            ToyDrafter::Chain(members) => {
                let make = |member: &ToyDrafter| member.make(model, sampling, exports, backend, limits);
                Some(Box::new(Chain::new(members.iter().filter_map(make).collect())))
            }
        }
    }
}

/// An engine whose target is the toy, with [`toy_text`] for its text and [`TEXT_END`] for its end token, which never chooses
/// `suppress`.
///
/// # Panics
/// If the sizes do not fit the toy.
pub fn toy_engine(model: &ToyModel, sizes: Sizes, drafter: &ToyDrafter, suppress: &[TokenId]) -> Engine {
    let mut suppressed: Vec<u32> = suppress.iter().map(|token| token.0).collect();
    suppressed.sort_unstable();
    toy_engine_for(model, sizes, drafter, suppress, &Sampling { suppressed, ..Sampling::default() })
}

/// [`toy_engine`] for requests that ask for `sampling`: that is what a [`NastyDrafter`] takes them to ask for.
///
/// # Panics
/// If the sizes do not fit the toy.
pub fn toy_engine_for(
    model: &ToyModel,
    sizes: Sizes,
    drafter: &ToyDrafter,
    suppress: &[TokenId],
    sampling: &Sampling,
) -> Engine {
    let limits = sizes.limits(&ToyTarget::description_of(model), &drafter.kv_groups(), Activation::F32);
    let limits = limits.expect("sizes that fit");
    let mut backend = ToyBackend::new(model);
    let target = ToyTarget::load(model, &mut backend, &limits).expect("the toy has memory");
    let drafter = drafter.make(model, sampling, target.exports(), &mut backend, &limits);
    Engine::new(EngineParts {
        backend: Box::new(backend),
        target: Box::new(target),
        drafter,
        draft_confidence: 0.0,
        sizes,
        end_tokens: vec![TEXT_END],
        suppress: suppress.to_vec(),
        text: Some(Arc::new(ToyDecoder)),
    })
    .expect("parts that fit")
}

/// [`toy_text`] of each token.
pub struct ToyDecoder;

impl TextDecoder for ToyDecoder {
    fn detokenizer(&self) -> Box<dyn Detokenizer> {
        Box::new(ToyDecoder)
    }
}

impl Detokenizer for ToyDecoder {
    fn push(&mut self, token: TokenId) -> String {
        toy_text(token)
    }

    fn finish(&mut self) -> String {
        String::new()
    }
}
