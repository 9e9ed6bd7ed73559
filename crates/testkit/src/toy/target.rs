//! The toy as a target: a straight line of ops.

use paceline_backend::{
    Backend, BackendError, Buf, KvGroup, KvGroupSpec, KvLayer, KvWrite, Matrix, Op, Pass, Rope, Table,
    TokenId, ValueSource, Vector,
};
use paceline_models::{Description, ExportLayer, Exports, Limits, Target};

use super::model::{ToyLayer, ToyModel};

/// Values of a row: a 64-bit hash in four pieces of 16 bits, exact in f32.
pub(crate) const HASH_WIDTH: usize = 4;
/// The target's head. A head with another index gives the habit of the row's token, see [`ToyModel::habit`].
pub(crate) const TARGET_HEAD: u32 = 0;

/// [`ToyModel`] as ops.
pub struct ToyTarget {
    description: Description,
    /// K/V of each layer, own or shared.
    layers: Vec<(KvLayer, bool)>,
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
            parameters: Vec::new(),
            kv_groups: model.layers.iter().filter_map(group_spec).collect(),
        }
    }

    /// Makes its buffers and K/V groups.
    ///
    /// # Errors
    /// As [`Backend::buffer`] and [`Backend::kv_group`].
    pub fn load(model: &ToyModel, backend: &mut dyn Backend, limits: &Limits) -> Result<Self, BackendError> {
        let mut groups: Vec<KvGroup> = Vec::new();
        let mut layers: Vec<(KvLayer, bool)> = Vec::new();
        for layer in &model.layers {
            match (layer, group_spec(layer)) {
                (ToyLayer::Shares { layer: source }, _) => layers.push((layers[*source].0, false)),
                (_, Some(spec)) => {
                    let group = backend.kv_group(spec, limits.kv_blocks[groups.len()])?;
                    groups.push(group);
                    layers.push((KvLayer { group, layer: 0 }, true));
                }
                (ToyLayer::Owns { .. }, None) => unreachable!("a layer that owns K/V has a group"),
            }
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

fn group_spec(layer: &ToyLayer) -> Option<KvGroupSpec> {
    match *layer {
        ToyLayer::Owns { window } => {
            Some(KvGroupSpec { layers: 1, kv_heads: 1, head_dim: HASH_WIDTH, window })
        }
        ToyLayer::Shares { .. } => None,
    }
}

fn exports(model: &ToyModel, layers: &[(KvLayer, bool)], wanted: Buf) -> Exports {
    let last = |sliding: bool| {
        let owned = model.layers.iter().zip(layers).rev();
        owned
            .filter_map(|(layer, (kv, _))| group_spec(layer).map(|spec| ExportLayer { kv: *kv, spec }))
            .find(|export| export.spec.window.is_some() == sliding)
    };
    Exports {
        architecture: "toy".into(),
        embedding: Table { index: 0, width: HASH_WIDTH as u32 },
        embedding_scale: 1.0,
        head: Matrix { index: TARGET_HEAD, outputs: model.vocab_size, inputs: HASH_WIDTH as u32 },
        softcap: None,
        hidden_size: HASH_WIDTH,
        vocab_size: model.vocab_size as usize,
        sliding: last(true),
        full: last(false),
        hidden_post_norm: wanted,
        hidden_pre_norm: wanted,
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
        let no_vector = Vector { index: 0, len: 0 };
        let table = self.exports.embedding;
        backend.run(&Op::Embed { table, scale: 1.0, out: x, column: 0 }, pass.all());
        for &(layer, owns) in &self.layers {
            let kv = owns.then_some(KvWrite {
                layer,
                k_norm: no_vector,
                value: ValueSource::Projection,
                norm_value: false,
            });
            let rope = Rope { index: 0 };
            let store = Op::QkNormRopeStore { qkv: x, n_heads: 1, q_norm: no_vector, rope, eps: 0.0, kv };
            backend.run(&store, pass.all());
            backend.run(&Op::Attend { q: x, layer, n_heads: 1, scale: 1.0, out: x }, pass.all());
        }
        backend.run(&Op::GatherRows { src: x, out: wanted }, pass.wanted_rows());
        for rows in pass.wanted_rows().pieces(self.logit_rows) {
            let (w, first_row) = (self.exports.head, rows.start);
            backend.run(&Op::Logits { x: wanted, w, first_row, out: logits }, rows);
            backend.run(&Op::Choose { logits, softcap: None, first_row }, rows);
        }
    }
}
