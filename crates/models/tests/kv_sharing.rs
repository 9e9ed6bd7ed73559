//! Layers that share K/V read their source's and write none.

mod common;

use std::collections::HashMap;

use common::{Room, load_into, oracle};
use paceline_backend::{
    Activation, Backend, CpuBackend, CpuOptions, Isa, KvBlockId, KvLayer, Op, Pass, Record, Recorder, SlotId,
    SlotInit, TokenId,
};
use paceline_checkpoint::{Inexact, ModelFolder};
use paceline_models::{Gemma4Assistant, Target};

const SLOT: SlotId = SlotId(0);
const ROWS: usize = 20;

fn open(folder: &ModelFolder) -> (Recorder<CpuBackend>, Box<dyn Target>) {
    let options = CpuOptions { isa: Isa::best().0, threads: 1, activation: Activation::Bf16 };
    let mut backend = Recorder::new(CpuBackend::new(options).unwrap());
    let target = load_into(&mut backend, folder, Room { rows: ROWS, logit_rows: ROWS, tokens: ROWS }, &[]);
    (backend, target)
}

fn start(backend: &mut Recorder<CpuBackend>, target: &dyn Target) {
    backend.reserve(1, 64, ROWS).unwrap();
    backend.open(SLOT, SlotInit::greedy((0..ROWS as u32).map(|i| TokenId(20 + i)).collect(), 64));
    for &group in target.kv_groups() {
        backend.put_blocks(SLOT, group, 0, &[KvBlockId(0)]);
    }
}

/// K/V that a pass stores and reads, in order.
fn stored_and_read(records: &[Record]) -> (Vec<KvLayer>, Vec<KvLayer>) {
    let ops = records.iter().filter_map(|record| match record {
        Record::Run { op, .. } => Some(op),
        _ => None,
    });
    let stored = ops.clone().filter_map(|op| op.operands().stored).collect();
    let read = ops.filter_map(|op| match op {
        Op::Attend { layer, .. } => Some(*layer),
        _ => None,
    });
    (stored, read.collect())
}

#[test]
fn source_layers_are_written_once_a_pass_and_never_by_others() {
    // Seven layers, the first four own K/V; the sources of the others are layers 3 (sliding) and 2 (full). The wrapped checkpoint
    // has K/V weights in the shared layers too, which are junk.
    for name in ["gemma4_e", "gemma4_e_wrapped"] {
        let (mut backend, target) = open(&ModelFolder::open(&oracle(name)).unwrap());
        start(&mut backend, target.as_ref());
        for n_known in [7, 12, 1] {
            let mut pass = Pass::builder();
            pass.scored(SLOT, n_known, true, false);
            let pass = pass.build();
            backend.take();
            backend.begin(&pass);
            target.forward(&mut backend, &pass);
            let (stored, read) = stored_and_read(&backend.take());
            let mut times: HashMap<KvLayer, usize> = HashMap::new();
            stored.iter().for_each(|layer| *times.entry(*layer).or_default() += 1);
            assert_eq!(stored.len(), 4, "{name}");
            assert!(times.values().all(|&n| n == 1), "{name}: {times:?}");
            assert_eq!(read[..4], stored, "{name}: a layer that owns K/V reads its own");
            assert!(read[4..].iter().all(|layer| [stored[2], stored[3]].contains(layer)), "{name}");
            assert_eq!(read.len(), 7);
            let exports = target.exports();
            assert_eq!([exports.full.unwrap().kv, exports.sliding.unwrap().kv], [stored[2], stored[3]]);
            backend.run(&Op::Commit, pass.all());
            backend.collect(SLOT);
        }
    }
}

#[test]
fn an_assistant_stores_nothing_and_leaves_the_targets_keys_as_they_are() {
    let (mut backend, target) = open(&ModelFolder::open(&oracle("gemma4_e")).unwrap());
    let drafter = ModelFolder::open(&oracle("gemma4_e_assistant")).unwrap();
    let (config, tensors) = (drafter.config(), drafter.tensors().unwrap());
    let exports = target.exports().clone();
    let assistant =
        Gemma4Assistant::bind(config, tensors, &mut backend, &exports, 1, Inexact::Refuse).unwrap();
    start(&mut backend, target.as_ref());
    let mut pass = Pass::builder();
    pass.target(SLOT, ROWS, 0, true, false);
    let pass = pass.build();
    backend.begin(&pass);
    target.forward(&mut backend, &pass);
    backend.run(&Op::Commit, pass.all());
    let keep = Op::KeepCommitted { src: exports.hidden_post_norm, out: assistant.slot_hidden() };
    backend.run(&keep, pass.all());
    let sources = [exports.full.unwrap().kv, exports.sliding.unwrap().kv];
    let keys = |backend: &Recorder<CpuBackend>| {
        let at = |layer| (0..ROWS).map(move |position| backend.peek_kv(layer, SLOT, position));
        sources.map(|layer| at(layer).collect::<Vec<_>>())
    };
    let before = keys(&backend);
    backend.take();
    for step in 0..5 {
        let mut pass = Pass::builder();
        pass.borrowed(SLOT, step, 0);
        let pass = pass.build();
        backend.begin(&pass);
        assistant.step(&mut backend, &pass, step);
    }
    let (stored, read) = stored_and_read(&backend.take());
    assert!(stored.is_empty() && read.len() == 5 * 4, "{stored:?} {read:?}");
    assert!(read.iter().all(|layer| sources.contains(layer)));
    assert_eq!(keys(&backend), before);
}
