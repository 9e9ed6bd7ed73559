//! Taps against recorded layer outputs, row by row, wherever they are taken and whoever else wants the row.

mod common;

use common::{Room, load_into, oracle};
use paceline_backend::{
    Activation, Backend, CpuBackend, CpuOptions, Isa, KV_BLOCK, KvBlockId, Op, Pass, SlotId, SlotInit,
    TokenId,
};
use paceline_checkpoint::{FileBytes, Inexact, ModelFolder, Tensors};
use paceline_models::{DFlash, DFlashRoom, Target};

const SLOT: SlotId = SlotId(0);
const ROWS: usize = 70;

fn open(name: &str, tap_layers: &[usize]) -> (CpuBackend, Box<dyn Target>) {
    let folder = ModelFolder::open(&oracle(name)).unwrap();
    let options = CpuOptions { isa: Isa::best().0, threads: 2, activation: Activation::F32 };
    let mut backend = CpuBackend::new(options).unwrap();
    let target =
        load_into(&mut backend, &folder, Room { rows: ROWS, logit_rows: 16, tokens: ROWS }, tap_layers);
    (backend, target)
}

/// Rows `[row][layer * H]` of the taps of all layers, of a prompt that is read in chunks.
fn taps(name: &str, layers: &[usize], prompt: &[i64], chunk: usize) -> Vec<Vec<f32>> {
    let (mut backend, target) = open(name, layers);
    backend.reserve(1, ROWS + 1, ROWS).unwrap();
    let tokens: Vec<_> = prompt.iter().map(|&id| TokenId(id as u32)).collect();
    backend.open(SLOT, SlotInit::greedy(tokens, ROWS + 1));
    let blocks: Vec<_> = (0..ROWS.div_ceil(KV_BLOCK) as u32).map(KvBlockId).collect();
    for &group in target.kv_groups() {
        backend.put_blocks(SLOT, group, 0, &blocks);
    }
    let buf = target.exports().taps.unwrap();
    let mut rows = Vec::new();
    while rows.len() < prompt.len() {
        let n = chunk.min(prompt.len() - rows.len());
        let mut pass = Pass::builder();
        pass.target(SLOT, n, 0, rows.len() + n == prompt.len(), true);
        let pass = pass.build();
        backend.begin(&pass);
        target.forward(&mut backend, &pass);
        rows.extend((0..n).map(|row| backend.peek(buf, row)));
        backend.run(&Op::Commit, pass.all());
    }
    rows
}

#[test]
fn taps_of_every_layer_are_as_recorded_in_any_chunks() {
    for name in ["gemma4_e", "gemma4_dense", "gemma4_moe", "gemma3"] {
        let folder = ModelFolder::open(&oracle(name)).unwrap();
        let n_layers = paceline_models::describe(folder.config()).unwrap().n_layers;
        let file = oracle(name).join("oracle.safetensors");
        let recorded = Tensors::from_bytes(&file, FileBytes::map(&file).unwrap()).unwrap();
        let prompt = recorded.get("p3.input_ids").unwrap().to_i64().unwrap();
        // The last layer alone, all of them, and those in the order in which nobody computes them.
        let all: Vec<usize> = (0..n_layers).collect();
        let backwards: Vec<usize> = (0..n_layers).rev().collect();
        for layers in [vec![n_layers - 1], all, backwards] {
            let whole = taps(name, &layers, &prompt, ROWS);
            for chunk in [1, 17, 64] {
                assert!(
                    taps(name, &layers, &prompt, chunk) == whole,
                    "{name}: taps depend on chunks of {chunk}"
                );
            }
            for (tap, layer) in layers.iter().enumerate() {
                let recorded = recorded.get(&format!("p3.layer{layer}")).unwrap().to_f32().unwrap();
                let width = recorded.len() / prompt.len();
                let largest = recorded.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
                for (row, expected) in recorded.chunks_exact(width).enumerate() {
                    let found = &whole[row][tap * width..][..width];
                    let error = found.iter().zip(expected).fold(0.0_f32, |e, (a, b)| e.max((a - b).abs()));
                    assert!(error <= 1e-4 * largest, "{name}, layer {layer}, row {row}: off by {error}");
                }
            }
        }
    }
}

#[test]
fn a_target_without_taps_is_no_target_of_a_dflash_drafter() {
    let (mut backend, target) = open("gemma4_dense", &[]);
    let drafter = ModelFolder::open(&oracle("gemma4_dense_dflash")).unwrap();
    let room = DFlashRoom { tapped_rows: 8, block_rows: 8, logit_rows: 8, kv_blocks: &[1, 1] };
    let (raw, tensors) = (drafter.config(), drafter.tensors().unwrap());
    let bound = DFlash::bind(raw, tensors, &mut backend, target.exports(), room, Inexact::Refuse);
    let message = bound.err().unwrap().to_string();
    assert!(message.contains("does not fit the target") && message.contains("hidden states"), "{message}");
}
