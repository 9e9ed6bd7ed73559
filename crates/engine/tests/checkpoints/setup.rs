//! Loading and running, in few words.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use paceline::drafters::{AssistantConventions, DraftBlock};
use paceline::{
    Activation, Completion, DraftOptions, DraftSource, DraftStatistics, Engine, Inexact, Isa, LoadOptions,
    ModelFolder, Request, RequestId, Sizes, TokenId, load,
};

/// Sizes for a test.
pub(crate) fn sizes(context: usize, n_slots: usize, prefill_rows: usize, max_drafts: usize) -> Sizes {
    Sizes { n_slots, prefill_rows, max_drafts, ..Sizes::single(context) }
}

/// Loads a folder and, with it, its drafter's, which takes part of `sizes` for its drafts.
pub(crate) fn open(folder: &Path, drafter: Option<&Path>, sizes: Sizes, activation: Activation) -> Engine {
    let folder = ModelFolder::open(folder).unwrap();
    let drafter = drafter.map(|path| ModelFolder::open(path).unwrap());
    load(&folder, options(&folder, drafter.as_ref(), sizes, activation, &mut |_, _| {})).unwrap()
}

pub(crate) fn options<'a>(
    folder: &ModelFolder,
    drafter: Option<&'a ModelFolder>,
    sizes: Sizes,
    activation: Activation,
    progress: &'a mut dyn FnMut(usize, usize),
) -> LoadOptions<'a> {
    let sources = drafter.map(DraftSource::Checkpoint).into_iter().collect();
    options_of(folder, sources, sizes, activation, progress)
}

/// With these drafters in order.
pub(crate) fn options_of<'a>(
    folder: &ModelFolder,
    sources: Vec<DraftSource<'a>>,
    sizes: Sizes,
    activation: Activation,
    progress: &'a mut dyn FnMut(usize, usize),
) -> LoadOptions<'a> {
    let draft = (!sources.is_empty()).then(|| DraftOptions {
        sources,
        tokens_per_round: Some(sizes.max_drafts),
        confidence: 0.0,
        assistant: AssistantConventions::default(),
        block: DraftBlock::default(),
    });
    LoadOptions {
        isa: Isa::best().0,
        threads: 2,
        activation,
        sizes,
        inexact: Inexact::Refuse,
        draft,
        tokenizer: folder.tokenizer().unwrap().map(Arc::new),
        progress,
    }
}

pub(crate) fn tokens(ids: &[u32]) -> Vec<TokenId> {
    ids.iter().map(|&id| TokenId(id)).collect()
}

/// Runs requests together; request `i` arrives `stagger * i` steps late.
pub(crate) fn run(engine: &mut Engine, requests: &[Request], stagger: usize) -> Vec<Completion> {
    run_preempted(engine, requests, stagger, usize::MAX)
}

/// As [`run`]; every so many of the first 60 steps one running request is preempted.
pub(crate) fn run_preempted(
    engine: &mut Engine,
    requests: &[Request],
    stagger: usize,
    every: usize,
) -> Vec<Completion> {
    let mut ids: HashMap<RequestId, usize> = HashMap::new();
    let mut completions = vec![Completion::default(); requests.len()];
    let mut events = Vec::new();
    for step in 0.. {
        for (index, request) in requests.iter().enumerate().filter(|(index, _)| index * stagger == step) {
            ids.insert(engine.submit(request.clone()).unwrap(), index);
        }
        if engine.is_idle() && ids.len() == requests.len() {
            break;
        }
        if step < 60 && step % every == every - 1 {
            let mut running: Vec<_> = ids.keys().copied().collect();
            running.sort_unstable();
            running.rotate_left(step % ids.len());
            running.into_iter().find(|&id| engine.preempt(id));
        }
        engine.step(&mut events).unwrap();
        for (id, event) in events.drain(..) {
            completions[ids[&id]].add(event).unwrap();
        }
    }
    engine.check_integrity().unwrap();
    completions
}

/// How drafting went.
pub(crate) fn draft(completion: &Completion) -> &DraftStatistics {
    completion.finished.as_ref().unwrap().draft.as_ref().expect("it was drafted for")
}
