//! The targets against recorded references, in f32: greedy texts and logits, whatever the chunks of the prompt.

use std::path::{Path, PathBuf};

use paceline_backend::{
    Activation, Backend, CpuBackend, CpuOptions, KV_BLOCK, KvBlockId, Op, Pass, SlotId, SlotInit, TokenId,
};
use paceline_checkpoint::{Inexact, ModelFolder, Tensors};
use paceline_kernels::isa::Isa;
use paceline_models::{Limits, LoadOptions, Target, load};

const SLOT: SlotId = SlotId(0);
const CAPACITY: usize = 256;

struct Model {
    backend: CpuBackend,
    target: Box<dyn Target>,
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/data/oracles").join(name)
}

fn open(name: &str, isa: Isa, activation: Activation) -> Model {
    let folder = ModelFolder::open(&folder(name)).unwrap();
    let n_groups = paceline_models::describe(folder.config()).unwrap().kv_groups.len();
    let limits = Limits {
        max_rows: 128,
        max_wanted: 128,
        logit_rows: 128,
        n_slots: 1,
        kv_blocks: vec![CAPACITY.div_ceil(KV_BLOCK); n_groups],
    };
    let mut backend = CpuBackend::new(CpuOptions { isa, threads: 2, activation }).unwrap();
    let options = LoadOptions { limits, inexact: Inexact::Refuse, progress: &mut |_| () };
    let target = load(folder.config(), folder.tensors().unwrap(), &mut backend, options).unwrap();
    backend.reserve(1, CAPACITY, 128).unwrap();
    Model { backend, target }
}

impl Model {
    fn start(&mut self, prompt: &[u32]) {
        let tokens = prompt.iter().map(|&id| TokenId(id)).collect();
        let none: std::sync::Arc<[TokenId]> = [].into();
        let init = SlotInit { tokens, limit: CAPACITY, end_tokens: none.clone(), suppress: none };
        self.backend.open(SLOT, init);
        let blocks: Vec<_> = (0..CAPACITY.div_ceil(KV_BLOCK) as u32).map(KvBlockId).collect();
        for &group in self.target.kv_groups() {
            self.backend.put_blocks(SLOT, group, 0, &blocks);
        }
    }

    fn pass(&mut self, pass: &Pass) -> Vec<TokenId> {
        self.backend.begin(pass);
        self.target.forward(&mut self.backend, pass);
        self.backend.run(&Op::Commit, pass.all());
        let report = self.backend.collect(SLOT);
        assert!(!report.fault);
        report.emitted
    }

    /// Greedy continuation of `n` tokens, the prompt in chunks.
    fn greedy(&mut self, prompt: &[u32], n: usize, chunk: usize) -> Vec<u32> {
        self.start(prompt);
        let mut emitted = Vec::new();
        let mut read = 0;
        while emitted.len() < n {
            let known = if read < prompt.len() { chunk.min(prompt.len() - read) } else { 1 };
            read += known;
            let mut pass = Pass::builder();
            pass.target(SLOT, known, 0, read >= prompt.len(), false);
            emitted.extend(self.pass(&pass.build()).iter().map(|token| token.0));
        }
        self.backend.close(SLOT);
        emitted
    }
}

fn recorded(name: &str) -> Tensors {
    let file = folder(name).join("oracle.safetensors");
    Tensors::from_bytes(&file, paceline_checkpoint::FileBytes::map(&file).unwrap()).unwrap()
}

fn ids(tensors: &mut Tensors, name: &str, len: usize) -> Vec<u32> {
    let values = tensors.take(name, &[len]).unwrap().to_i64().unwrap();
    values.iter().map(|&id| id as u32).collect()
}

#[test]
fn greedy_texts_equal_the_reference() {
    for name in ["gemma4_e", "gemma4_dense", "gemma4_moe", "gemma4_e_wrapped", "gemma3"] {
        let mut model = open(name, Isa::best().0, Activation::F32);
        let mut tensors = recorded(name);
        for (p, len) in [1, 7, 40, 70].into_iter().enumerate() {
            let prompt = ids(&mut tensors, &format!("p{p}.input_ids"), len);
            let expected = ids(&mut tensors, &format!("p{p}.greedy_ids"), 40);
            for chunk in [128, 7] {
                let found = model.greedy(&prompt, expected.len(), chunk);
                assert_eq!(found, expected, "{name}, prompt {p}, chunks of {chunk}");
            }
        }
    }
}
