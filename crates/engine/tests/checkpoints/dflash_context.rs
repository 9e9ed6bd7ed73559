//! What a DFlash drafter keeps: whatever was drafted, accepted and rejected, in any chunks, company and after any preemption, each
//! committed row has the context K/V that plain decoding gives it, bit for bit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use paceline::drafters::{DraftError, DraftSlot, Drafter};
use paceline::{Activation, Completion, Engine, ModelFolder, Request, RequestId, TokenId, load_parts};
use paceline_backend::{Backend, KvLayer, Pass, SlotId};
use paceline_models::OwnedGroup;
use paceline_testkit::paths::{asset, oracle};

use crate::oracles::prompts;
use crate::setup::{draft, options, sizes, tokens};

/// Context K/V by the tokens up to a row and by layer.
#[derive(Default)]
struct Seen {
    rows: HashMap<(Vec<TokenId>, KvLayer), Vec<u32>>,
    compared: usize,
}

/// A DFlash drafter whose K/V is looked at after each commit.
struct Watched {
    inner: Box<dyn Drafter>,
    /// It proposes nothing, and what it keeps is what others are compared with.
    is_reference: bool,
    seen: Arc<Mutex<Seen>>,
}

impl Watched {
    fn look(&self, backend: &dyn Backend, slot: SlotId) {
        let tokens = backend.peek_tokens(slot);
        let len = tokens.len() - 1;
        let mut seen = self.seen.lock().unwrap();
        for owned in self.inner.kv_groups() {
            let first = owned.spec.window.map_or(0, |window| (len + 1).saturating_sub(window));
            for (layer, row) in (0..owned.spec.layers as u32).flat_map(|l| (first..len).map(move |p| (l, p)))
            {
                let layer = KvLayer { group: owned.group, layer };
                let (k, v) = backend.peek_kv(layer, slot, row);
                let bits: Vec<u32> = k.iter().chain(&v).map(|x| x.to_bits()).collect();
                let key = (tokens[..=row].to_vec(), layer);
                if self.is_reference {
                    seen.rows.insert(key, bits);
                } else {
                    let kept = seen.rows.get(&key).expect("the text is that of plain decoding");
                    assert_eq!(*kept, bits, "row {row} of {len}, {layer:?}");
                    seen.compared += 1;
                }
            }
        }
    }
}

impl Drafter for Watched {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }
    fn suggested_drafts(&self) -> usize {
        self.inner.suggested_drafts()
    }
    fn reads_taps(&self) -> bool {
        self.inner.reads_taps()
    }
    fn kv_groups(&self) -> &[OwnedGroup] {
        self.inner.kv_groups()
    }
    fn draft(&mut self, backend: &mut dyn Backend, slots: &mut [DraftSlot]) -> Result<(), DraftError> {
        if self.is_reference { Ok(()) } else { self.inner.draft(backend, slots) }
    }
    fn verified(&mut self, backend: &mut dyn Backend, pass: &Pass) {
        self.inner.verified(backend, pass);
    }
    fn committed(&mut self, backend: &mut dyn Backend, pass: &Pass) {
        self.inner.committed(backend, pass);
        pass.slots().iter().filter(|part| part.chooses).for_each(|part| self.look(backend, part.slot));
    }
}

/// Runs requests together on an engine with a watched drafter; every so many steps one of them is preempted.
struct Bench<'a> {
    target: &'a ModelFolder,
    drafter: &'a ModelFolder,
    activation: Activation,
    seen: Arc<Mutex<Seen>>,
}

impl Bench<'_> {
    fn run(
        &self,
        requests: &[Request],
        (k, n_slots, chunk): (usize, usize, usize),
        preempt_every: usize,
        is_reference: bool,
    ) -> Vec<Completion> {
        let progress = &mut |_, _| {};
        let sizes = sizes(400, n_slots, chunk, k);
        let options = options(self.target, Some(self.drafter), sizes, self.activation, progress);
        let mut parts = load_parts(self.target, options, |cpu| Box::new(cpu)).unwrap();
        let inner = parts.drafter.take().unwrap();
        parts.drafter = Some(Box::new(Watched { inner, is_reference, seen: self.seen.clone() }));
        let mut engine = Engine::new(parts).unwrap();
        let ids: Vec<RequestId> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
        let mut completions = vec![Completion::default(); requests.len()];
        let mut events = Vec::new();
        for step in 1.. {
            if engine.is_idle() {
                break;
            }
            if step % preempt_every == 0 && step < 100 {
                engine.preempt(ids[step % ids.len()]);
            }
            engine.step(&mut events).unwrap();
            engine.check_integrity().unwrap();
            for (id, event) in events.drain(..) {
                let index = ids.iter().position(|other| *other == id).unwrap();
                completions[index].add(event).unwrap();
            }
        }
        completions
    }
}

fn check(target: &ModelFolder, drafter: &ModelFolder, activation: Activation, requests: &[Request]) {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let bench = Bench { target, drafter, activation, seen: seen.clone() };
    let plain = bench.run(requests, (1, 1, 512), usize::MAX, true);
    let (mut accepted, mut rejected) = (0, 0);
    for (setting, preempt_every) in
        [((7, 1, 512), usize::MAX), ((3, 3, 7), usize::MAX), ((5, 2, 64), 4), ((7, 3, 15), 3)]
    {
        let drafted = bench.run(requests, setting, preempt_every, false);
        for (drafted, plain) in drafted.iter().zip(&plain) {
            assert_eq!(drafted.token_ids, plain.token_ids, "{setting:?}");
            accepted += draft(drafted).accepted;
            rejected += draft(drafted).drafted - draft(drafted).accepted;
        }
    }
    let compared = seen.lock().unwrap().compared;
    assert!(compared > 5000 && accepted > 50 && rejected > 50, "{compared}, {accepted}, {rejected}");
}

fn request(prompt: Vec<TokenId>, n: usize) -> Request {
    let mut request = Request::new(prompt, n);
    request.ignore_eos = true;
    request
}

#[test]
fn committed_rows_have_the_context_of_plain_decoding() {
    let target = ModelFolder::open(&oracle("gemma4_dense")).unwrap();
    let drafter = ModelFolder::open(&oracle("gemma4_dense_dflash")).unwrap();
    // The drafter knows the texts of the recorded prompts, of 1 to 70 tokens; beside them lengths at the window of 16 and at a K/V block.
    let recorded = prompts("gemma4_dense");
    let continued = |(i, n): (usize, usize)| {
        let (prompt, greedy) = &recorded[i];
        let tokens = tokens(&[&prompt[..], greedy].concat());
        request(tokens[..n].to_vec(), 45)
    };
    let requests: Vec<_> = [(0, 1), (1, 15), (2, 40), (2, 64), (3, 70)].map(continued).into();
    for activation in [Activation::F32, Activation::Bf16] {
        check(&target, &drafter, activation, &requests);
    }
}

/// A target that shares K/V, with a tap above its last layer of its own, and across its window of 128.
#[test]
fn taps_above_the_layers_that_own_kv_are_taken_at_every_row() {
    let target = ModelFolder::open(&asset("tiny-gemma4")).unwrap();
    let drafter = ModelFolder::open(&asset("tiny-gemma4-dflash")).unwrap();
    let tokenizer = target.tokenizer().unwrap().unwrap();
    let text = "Once there was a little fox called Fenn. Fenn lived in a den by the forest. ".repeat(8);
    let prompt = |text: &str| tokenizer.encode(text).unwrap().into_iter().map(TokenId).collect::<Vec<_>>();
    let requests = [request(prompt("Tell me a story."), 60), request(prompt(&text)[..120].to_vec(), 40)];
    check(&target, &drafter, Activation::Bf16, &requests);
}
