//! Loading and running, in few words.

use std::collections::HashMap;
use std::path::Path;

use paceline::{
    Activation, Completion, DraftStatistics, Engine, Inexact, Loader, Model, ModelFolder, Request, RequestId,
    Sizes, TokenId, cpu_backend,
};

/// Sizes for a test.
pub(crate) fn sizes(context: usize, n_slots: usize, prefill_rows: usize, max_drafts: usize) -> Sizes {
    Sizes { context, n_slots, prefill_rows, max_drafts, kv_memory: None }
}

/// Loads a folder and, with it, its drafter's.
pub(crate) fn open(folder: &Path, drafter: Option<&Path>, sizes: Sizes, activation: Activation) -> Model {
    let folder = ModelFolder::open(folder).unwrap();
    let drafter = drafter.map(|path| ModelFolder::open(path).unwrap());
    let progress = &mut |_| {};
    let loader =
        Loader { folder: &folder, drafter: drafter.as_ref(), sizes, inexact: Inexact::Refuse, progress };
    loader.load(cpu_backend(activation).unwrap()).unwrap()
}

pub(crate) fn tokens(ids: &[u32]) -> Vec<TokenId> {
    ids.iter().map(|&id| TokenId(id)).collect()
}

/// Runs requests together; request `i` arrives `stagger * i` steps late.
pub(crate) fn run(engine: &mut Engine, requests: &[Request], stagger: usize) -> Vec<Completion> {
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
