//! The toy as a target: a straight line of ops.

use paceline_backend::{
    Backend, BackendError, Buf, KvGroup, KvGroupSpec, KvLayer, KvWrite, Matrix, Op, Pass, Rope, Sees, Table,
    TokenId, ValueSource, Vector,
};
use paceline_models::{Description, ExportLayer, Exports, LentKv, Limits, Target};

use super::model::{ToyLayer, ToyModel};

/// Values of a row: a 64-bit hash in four pieces of 16 bits, exact in f32.
pub(crate) const HASH_WIDTH: usize = 4;
/// The target's head. A head with another index gives the habit of the row's token, see [`ToyModel::habit`].
pub(crate) const TARGET_HEAD: u32 = 0;

#[derive(Clone, Copy)]
enum Layer {
    /// Reads this K/V, which is its own or another layer's.
    Attention { kv: KvLayer, owns: bool },
    /// State of each slot, and after each row of the pass.
    Recurrent { slots: Buf, rows: Buf },
}

/// [`ToyModel`] as ops.
pub struct ToyTarget {
    description: Description,
    layers: Vec<Layer>,
    groups: Vec<KvGroup>,
    exports: Exports,
    refused: Vec<TokenId>,
    hidden: Buf,
    logits: Buf,
    logit_rows: usize,
}

impl ToyTarget {
    /// What the toy is, before it is loaded. `max_positions` is large.
    pub fn description_of(model: &ToyModel) -> Description {
        Description {
            architecture: "toy".into(),
            n_layers: model.layers.len(),
            layer_lines: Vec::new(),
            vocab_size: model.vocab_size as usize,
            hidden_size: HASH_WIDTH,
            max_positions: 1 << 20,
            mask_token: None,
            parameters: Vec::new(),
            kv_groups: own_groups(model).collect(),
            sliding: None,
            full: None,
        }
    }

    /// Makes its buffers and K/V groups.
    ///
    /// # Errors
    /// As [`Backend::buffer`] and [`Backend::kv_group`].
    ///
    /// # Panics
    /// If a layer shares the K/V of one that has none.
    pub fn load(model: &ToyModel, backend: &mut dyn Backend, limits: &Limits) -> Result<Self, BackendError> {
        let mut groups: Vec<KvGroup> = Vec::new();
        let mut layers: Vec<Layer> = Vec::new();
        for &layer in &model.layers {
            layers.push(match layer {
                ToyLayer::Owns { window } => {
                    let group = backend.kv_group(group_spec(window), limits.kv_blocks[groups.len()])?;
                    groups.push(group);
                    Layer::Attention { kv: KvLayer { group, layer: 0 }, owns: true }
                }
                ToyLayer::Shares { layer: source } => match layers[source] {
                    Layer::Attention { kv, .. } => Layer::Attention { kv, owns: false },
                    Layer::Recurrent { .. } => panic!("layer {source} has no K/V to share"),
                },
                ToyLayer::Recurrent => Layer::Recurrent {
                    slots: backend.buffer(limits.n_slots, HASH_WIDTH)?,
                    rows: backend.buffer(limits.max_rows, HASH_WIDTH)?,
                },
            });
        }
        let hidden = backend.buffer(limits.max_rows, HASH_WIDTH)?;
        let wanted = backend.buffer(limits.max_wanted, HASH_WIDTH)?;
        let logits = backend.buffer(limits.logit_rows, model.vocab_size as usize)?;
        let exports = exports(model, &layers, wanted);
        let description = Self::description_of(model);
        let logit_rows = limits.logit_rows;
        Ok(Self { description, layers, groups, exports, refused: vec![], hidden, logits, logit_rows })
    }

    /// Tokens that its prompts may not hold.
    pub fn refuse(mut self, tokens: &[TokenId]) -> Self {
        self.refused = tokens.to_vec();
        self
    }
}

/// Shape of the toy's K/V.
pub(crate) fn group_spec(window: Option<usize>) -> KvGroupSpec {
    KvGroupSpec { layers: 1, kv_heads: 1, head_dim: HASH_WIDTH, window }
}

fn own_groups(model: &ToyModel) -> impl Iterator<Item = KvGroupSpec> + '_ {
    model.layers.iter().filter_map(|layer| match layer {
        ToyLayer::Owns { window } => Some(group_spec(*window)),
        ToyLayer::Shares { .. } | ToyLayer::Recurrent => None,
    })
}

fn exports(model: &ToyModel, layers: &[Layer], wanted: Buf) -> Exports {
    let owned = layers.iter().filter_map(|layer| match layer {
        Layer::Attention { kv, owns: true } => Some(*kv),
        _ => None,
    });
    let export = |(kv, spec)| ExportLayer { kv, shape: LentKv { spec, value_is_key: false } };
    let owned: Vec<_> = owned.zip(own_groups(model)).map(export).collect();
    let last = |sliding: bool| {
        owned.iter().rev().find(|export| export.shape.spec.window.is_some() == sliding).copied()
    };
    Exports {
        architecture: "toy".into(),
        embedding: Table { index: 0, width: HASH_WIDTH as u32 },
        embedding_scale: 1.0,
        head: Matrix { index: TARGET_HEAD, outputs: model.vocab_size, inputs: HASH_WIDTH as u32 },
        softcap: None,
        hidden_size: HASH_WIDTH,
        vocab_size: model.vocab_size as usize,
        mask_token: None,
        sliding: last(true),
        full: last(false),
        hidden_post_norm: wanted,
        hidden_pre_norm: wanted,
        taps: None,
    }
}

impl Target for ToyTarget {
    fn description(&self) -> &Description {
        &self.description
    }

    fn kv_groups(&self) -> &[KvGroup] {
        &self.groups
    }

    fn exports(&self) -> &Exports {
        &self.exports
    }

    fn refused_tokens(&self) -> &[TokenId] {
        &self.refused
    }

    fn forward(&self, backend: &mut dyn Backend, pass: &Pass) {
        let (x, wanted, logits) = (self.hidden, self.exports.hidden_post_norm, self.logits);
        let table = self.exports.embedding;
        backend.run(&Op::Embed { table, scale: 1.0, out: x, column: 0 }, pass.all());
        for &layer in &self.layers {
            match layer {
                Layer::Attention { kv, owns } => attend(backend, pass, x, kv, owns),
                Layer::Recurrent { slots, rows } => recur(backend, pass, x, slots, rows),
            }
        }
        backend.run(&Op::GatherRows { src: x, out: wanted }, pass.wanted_rows());
        for rows in pass.wanted_rows().pieces(self.logit_rows) {
            let (w, first_row) = (self.exports.head, rows.start);
            backend.run(&Op::Logits { x: wanted, w, first_row, out: logits }, rows);
            backend.run(&Op::Choose { logits, softcap: None, first_row }, rows);
        }
    }

    fn is_all_kv(&self) -> bool {
        !self.layers.iter().any(|layer| matches!(layer, Layer::Recurrent { .. }))
    }

    fn committed(&self, backend: &mut dyn Backend) {
        for layer in &self.layers {
            if let &Layer::Recurrent { slots, rows } = layer {
                backend.run(&Op::StateCommit { src: rows, out: slots }, Pass::default().all());
            }
        }
    }
}

/// A name for a norm's weights, which the toy has not.
const NO_VECTOR: Vector = Vector { index: 0, len: HASH_WIDTH as u32 };

/// Stores the key of each row's hidden state.
pub(crate) fn store_op(x: Buf, layer: KvLayer) -> Op {
    let value = ValueSource::Projection;
    let kv = Some(KvWrite { layer, k_norm: NO_VECTOR, value, norm_value: false });
    Op::QkNormRopeStore { qkv: x, n_heads: 1, q_norm: NO_VECTOR, rope: Rope { index: 0 }, eps: 0.0, kv }
}

fn attend(backend: &mut dyn Backend, pass: &Pass, x: Buf, layer: KvLayer, owns: bool) {
    if owns {
        backend.run(&store_op(x, layer), pass.all());
    }
    backend.run(&Op::Attend { q: x, layer, n_heads: 1, scale: 1.0, sees: Sees::Past, out: x }, pass.all());
}

/// Rows step the state of their slot one after the other; each leaves the state after it, from which the commit takes one.
fn recur(backend: &mut dyn Backend, pass: &Pass, x: Buf, slots: Buf, states: Buf) {
    let mix = |x, h| Op::AddNorm { x, h, w: NO_VECTOR, scale: 1.0, next: None, eps: 0.0 };
    for row in pass.all().pieces(1) {
        backend.run(&Op::ReadSlots { src: slots, out: states, column: 0 }, row);
        backend.run(&mix(states, x), row);
        backend.run(&Op::WriteSlots { src: states, out: slots }, row);
    }
    backend.run(&mix(x, states), pass.all());
}
