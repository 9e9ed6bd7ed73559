//! A target on the CPU backend with one slot.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::{Path, PathBuf};

use paceline_backend::{
    Activation, Backend, Buf, CpuBackend, CpuOptions, Isa, KV_BLOCK, KvBlockId, Mark, Observed, Observer, Op,
    Pass, Rows, SlotId, SlotInit, TokenId,
};
use paceline_checkpoint::{FileBytes, Inexact, ModelFolder, Tensors};
use paceline_models::{Limits, LoadOptions, Target, load};

const SLOT: SlotId = SlotId(0);
/// Tokens of a sequence.
pub(crate) const CAPACITY: usize = 640;
/// Rows of the largest pass.
pub(crate) const MAX_ROWS: usize = 512;

/// Keeps the logits of every row.
#[derive(Default)]
pub(crate) struct Logits(pub(crate) Vec<Vec<f32>>);

impl Observer for Logits {
    fn ran(&mut self, _backend: &mut dyn Backend, _op: &Op, _rows: Rows) {}

    fn marked(&mut self, backend: &dyn Backend, mark: Mark, buf: Buf, rows: Rows) {
        if mark == Mark::Logits {
            self.0.extend((0..rows.len).map(|row| backend.peek(buf, row)));
        }
    }
}

pub(crate) struct Model {
    pub(crate) backend: Observed<CpuBackend, Logits>,
    pub(crate) target: Box<dyn Target>,
}

/// Folder of recorded references.
pub(crate) fn oracle(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/data/oracles").join(name)
}

/// Folder of a built-in model.
pub(crate) fn asset(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets").join(name)
}

/// What a target is loaded for.
pub(crate) struct Room {
    /// Rows of the largest pass.
    pub(crate) rows: usize,
    pub(crate) logit_rows: usize,
    /// Tokens of its one sequence.
    pub(crate) tokens: usize,
}

/// Loads a target into any backend.
pub(crate) fn load_into(
    backend: &mut dyn Backend,
    folder: &ModelFolder,
    room: Room,
    tap_layers: &[usize],
) -> Box<dyn Target> {
    let n_groups = paceline_models::describe(folder.config()).unwrap().kv_groups.len();
    let limits = Limits {
        max_rows: room.rows,
        max_wanted: room.rows,
        logit_rows: room.logit_rows,
        n_slots: 1,
        kv_blocks: vec![room.tokens.div_ceil(KV_BLOCK); n_groups],
        drafter_kv_blocks: Vec::new(),
    };
    let options =
        LoadOptions { limits, tap_layers, vocab_size: None, inexact: Inexact::Refuse, progress: &mut |_| () };
    load(folder.config(), folder.tensors().unwrap(), backend, options).unwrap()
}

pub(crate) fn open(folder: &Path, isa: Isa, activation: Activation) -> Model {
    let folder = ModelFolder::open(folder).unwrap();
    let backend = CpuBackend::new(CpuOptions { isa, threads: 2, activation }).unwrap();
    let mut backend = Observed::new(backend, Logits::default());
    // Fewer rows of logits than are wanted, so that they are made in pieces.
    let target =
        load_into(&mut backend, &folder, Room { rows: MAX_ROWS, logit_rows: 48, tokens: CAPACITY }, &[]);
    backend.reserve(1, CAPACITY, MAX_ROWS).unwrap();
    Model { backend, target }
}

impl Model {
    fn start(&mut self, prompt: &[u32]) {
        let tokens = prompt.iter().map(|&id| TokenId(id)).collect();
        self.backend.open(SLOT, SlotInit::greedy(tokens, CAPACITY));
        let blocks: Vec<_> = (0..CAPACITY.div_ceil(KV_BLOCK) as u32).map(KvBlockId).collect();
        for &group in self.target.kv_groups() {
            self.backend.put_blocks(SLOT, group, 0, &blocks);
        }
    }

    fn pass(&mut self, pass: &Pass) -> Vec<u32> {
        self.backend.begin(pass);
        self.target.forward(&mut self.backend, pass);
        self.backend.run(&Op::Commit, pass.all());
        let report = self.backend.collect(SLOT);
        assert!(!report.fault);
        report.emitted.iter().map(|token| token.0).collect()
    }

    /// Greedy continuation of `n` tokens, the prompt in chunks.
    pub(crate) fn greedy(&mut self, prompt: &[u32], n: usize, chunk: usize) -> Vec<u32> {
        self.start(prompt);
        let mut emitted = Vec::new();
        let mut read = 0;
        while emitted.len() < n {
            let known = if read < prompt.len() { chunk.min(prompt.len() - read) } else { 1 };
            read += known;
            let mut pass = Pass::builder();
            pass.target(SLOT, known, 0, read >= prompt.len(), false);
            emitted.extend(self.pass(&pass.build()));
        }
        self.backend.close(SLOT);
        emitted
    }

    /// Logits of every row of the prompt, read in chunks.
    pub(crate) fn logits(&mut self, prompt: &[u32], chunk: usize) -> Vec<Vec<f32>> {
        self.start(prompt);
        self.backend.observer_mut().0.clear();
        for part in prompt.chunks(chunk) {
            let mut pass = Pass::builder();
            pass.scored(SLOT, part.len(), false, false);
            self.pass(&pass.build());
        }
        self.backend.close(SLOT);
        std::mem::take(&mut self.backend.observer_mut().0)
    }
}

/// The recorded tensors of an oracle.
pub(crate) fn recorded(name: &str) -> Tensors {
    let file = oracle(name).join("oracle.safetensors");
    Tensors::from_bytes(&file, FileBytes::map(&file).unwrap()).unwrap()
}

/// Recorded token ids.
pub(crate) fn ids(tensors: &mut Tensors, name: &str, len: usize) -> Vec<u32> {
    let values = tensors.take(name, &[len]).unwrap().to_i64().unwrap();
    values.iter().map(|&id| id as u32).collect()
}
