//! Weights of Gemma 4 (spec section 2), taken from a checkpoint by name and shape and handed to a backend.

use std::sync::Arc;

use paceline_backend::{
    ExpertSource, Experts, KvGroup, KvLayer, Matrix, MatrixLayout, Rope, Table, TableSource, ValueSource,
    Vector,
};

use super::config::{Gemma4Config, LayerConfig, LayerKind, MoeConfig};
use crate::error::ModelError;
use crate::loader::{TensorRows, WeightLoader};

/// Everything that a forward multiplies with.
pub(super) struct Weights {
    pub embedding: Table,
    pub head: Matrix,
    pub per_layer: Option<PerLayer>,
    pub layers: Vec<Layer>,
    pub final_norm: Vector,
}

/// Per-layer inputs of the whole model.
pub(super) struct PerLayer {
    pub width: usize,
    pub table: Table,
    pub projection: Matrix,
    pub norm: Vector,
}

/// One layer.
pub(super) struct Layer {
    pub input_norm: Vector,
    pub qkv: Matrix,
    pub q_norm: Vector,
    /// Set where the layer owns K/V.
    pub k_norm: Option<Vector>,
    pub value: ValueSource,
    pub rope: Rope,
    /// Where K/V is read, and written if owned.
    pub kv: KvLayer,
    pub o: Matrix,
    pub post_attention_norm: Vector,
    pub pre_feed_forward_norm: Vector,
    pub gate_up: Matrix,
    pub down: Matrix,
    pub post_feed_forward_norm: Vector,
    pub moe: Option<Moe>,
    pub per_layer: Option<PerLayerGate>,
    pub scalar: f32,
}

/// Router and experts of a layer.
pub(super) struct Moe {
    pub top_k: u32,
    pub router: Matrix,
    /// `router.scale * H^-0.5`.
    pub router_scale: Vector,
    pub per_expert_scale: Vector,
    pub pre_norm: Vector,
    pub post_mlp_norm: Vector,
    pub post_experts_norm: Vector,
    pub experts: Experts,
}

/// A layer's gate on its per-layer input.
pub(super) struct PerLayerGate {
    pub width: usize,
    pub gate: Matrix,
    pub projection: Matrix,
    pub post_norm: Vector,
}

/// Takes tensors and gives handles.
pub(super) struct Loader<'a> {
    pub config: &'a Gemma4Config,
    /// Tokens that the checkpoint's tables have; the config says how many the model shall have.
    pub stored_vocab: usize,
    pub from: WeightLoader<'a>,
    /// Called with the number of layers loaded.
    pub progress: &'a mut dyn FnMut(usize),
}

impl Loader<'_> {
    /// Loads everything and refuses tensors that nobody took.
    pub(super) fn load(mut self, kv_groups: &[KvGroup]) -> Result<Weights, ModelError> {
        let c = self.config;
        let (v, h) = (self.stored_vocab, c.hidden_size);
        let embedding = self.from.rows("embed_tokens.weight", &[v, h])?.resized(c.vocab_size);
        let (embedding, head) = self.embedding_and_head(embedding)?;
        let per_layer = self.per_layer()?;
        let ropes = [c.rope_sliding, c.rope_full].map(|spec| spec.map(|spec| self.from.backend.rope(spec)));
        let (_, places) = c.kv_layout();
        let mut layers = Vec::with_capacity(c.layers.len());
        for (i, (layer, &(group, place))) in c.layers.iter().zip(&places).enumerate() {
            let kv = KvLayer { group: kv_groups[group], layer: place as u32 };
            let rope = ropes[layer.kind as usize].expect("every kind that occurs has a rotation");
            layers.push(self.layer(i, layer, kv, rope)?);
            (self.progress)(i + 1);
        }
        let final_norm = self.from.vector("norm.weight", h)?;
        self.from.tensors.finish()?;
        Ok(Weights { embedding, head, per_layer, layers, final_norm })
    }

    fn embedding_and_head(&mut self, embedding: TensorRows) -> Result<(Table, Matrix), ModelError> {
        let c = self.config;
        // The reference embeds <pad> for a placeholder of media that are not there.
        let aliases: Vec<_> = c.placeholders.iter().map(|&id| (id, 0)).collect();
        if c.tied {
            self.from.tensors.discard("lm_head.weight");
            let head = self.from.matrix(&[&embedding], MatrixLayout::Plain)?;
            return Ok((self.from.backend.table(TableSource::Packed(head), &aliases)?, head));
        }
        let head = self.from.rows("lm_head.weight", &[self.stored_vocab, c.hidden_size])?;
        let head = head.resized(c.vocab_size);
        let head = self.from.matrix(&[&head], MatrixLayout::Plain)?;
        Ok((self.from.backend.table(TableSource::Mapped(Arc::new(embedding)), &aliases)?, head))
    }

    fn per_layer(&mut self) -> Result<Option<PerLayer>, ModelError> {
        let c = self.config;
        let (width, total) = (c.per_layer_width, c.layers.len() * c.per_layer_width);
        if width == 0 {
            return Ok(None);
        }
        let table = self.from.rows("embed_tokens_per_layer.weight", &[c.per_layer_vocab, total])?;
        let n_missing = c.vocab_size.saturating_sub(self.stored_vocab);
        let table = table.resized(c.per_layer_vocab + n_missing);
        let aliases: Vec<_> = c.placeholders.iter().map(|&id| (id, 0)).collect();
        Ok(Some(PerLayer {
            width,
            table: self.from.backend.table(TableSource::Mapped(Arc::new(table)), &aliases)?,
            projection: self.from.linear("per_layer_model_projection.weight", total, c.hidden_size)?,
            norm: self.from.vector("per_layer_projection_norm.weight", width)?,
        }))
    }

    fn layer(&mut self, i: usize, layer: &LayerConfig, kv: KvLayer, rope: Rope) -> Result<Layer, ModelError> {
        let c = self.config;
        let (h, d, wide) = (c.hidden_size, layer.head_dim, layer.intermediate_size);
        let name = |part: &str| format!("layers.{i}.{part}");
        let owns_kv = layer.kv_source == i;
        let k_norm = match owns_kv {
            true => Some(self.from.vector(&name("self_attn.k_norm.weight"), d)?),
            false => None,
        };
        let gate = self.from.rows(&name("mlp.gate_proj.weight"), &[wide, h])?;
        let up = self.from.rows(&name("mlp.up_proj.weight"), &[wide, h])?;
        Ok(Layer {
            input_norm: self.from.vector(&name("input_layernorm.weight"), h)?,
            qkv: self.qkv(i, layer, owns_kv)?,
            q_norm: self.from.vector(&name("self_attn.q_norm.weight"), d)?,
            k_norm,
            value: if layer.value_is_key { ValueSource::Key } else { ValueSource::Projection },
            rope,
            kv,
            o: self.from.linear(&name("self_attn.o_proj.weight"), h, c.n_heads * d)?,
            post_attention_norm: self.from.vector(&name("post_attention_layernorm.weight"), h)?,
            pre_feed_forward_norm: self.from.vector(&name("pre_feedforward_layernorm.weight"), h)?,
            gate_up: self.from.matrix(&[&gate, &up], MatrixLayout::Gated)?,
            down: self.from.linear(&name("mlp.down_proj.weight"), h, wide)?,
            post_feed_forward_norm: self.from.vector(&name("post_feedforward_layernorm.weight"), h)?,
            moe: c.moe.map(|moe| self.moe(i, moe)).transpose()?,
            per_layer: self.per_layer_gate(i)?,
            scalar: self.from.values(&name("layer_scalar"), 1)?[0],
        })
    }

    /// `[q | k | v]` as one product. K/V tensors of a layer that borrows are dead weight in published files.
    fn qkv(&mut self, i: usize, layer: &LayerConfig, owns_kv: bool) -> Result<Matrix, ModelError> {
        let (h, d) = (self.config.hidden_size, layer.head_dim);
        let name = |part: &str| format!("layers.{i}.self_attn.{part}");
        let mut parts = vec![self.from.rows(&name("q_proj.weight"), &[self.config.n_heads * d, h])?];
        if owns_kv {
            parts.push(self.from.rows(&name("k_proj.weight"), &[layer.kv_heads * d, h])?);
            if !layer.value_is_key {
                parts.push(self.from.rows(&name("v_proj.weight"), &[layer.kv_heads * d, h])?);
            }
        } else {
            for dead in ["k_proj.weight", "v_proj.weight", "k_norm.weight", "v_norm.weight"] {
                self.from.tensors.discard(&name(dead));
            }
        }
        self.from.matrix(&parts.iter().collect::<Vec<_>>(), MatrixLayout::Plain)
    }

    fn per_layer_gate(&mut self, i: usize) -> Result<Option<PerLayerGate>, ModelError> {
        let (h, width) = (self.config.hidden_size, self.config.per_layer_width);
        if width == 0 {
            return Ok(None);
        }
        let name = |part: &str| format!("layers.{i}.{part}");
        Ok(Some(PerLayerGate {
            width,
            gate: self.from.linear(&name("per_layer_input_gate.weight"), width, h)?,
            projection: self.from.linear(&name("per_layer_projection.weight"), h, width)?,
            post_norm: self.from.vector(&name("post_per_layer_input_norm.weight"), h)?,
        }))
    }

    fn moe(&mut self, i: usize, moe: MoeConfig) -> Result<Moe, ModelError> {
        let h = self.config.hidden_size;
        let name = |part: &str| format!("layers.{i}.{part}");
        let mut router_scale = self.from.values(&name("router.scale"), h)?;
        let factor = (h as f32).sqrt().recip();
        router_scale.iter_mut().for_each(|value| *value *= factor);
        Ok(Moe {
            top_k: moe.top_k as u32,
            router: self.from.linear(&name("router.proj.weight"), moe.n_experts, h)?,
            router_scale: self.from.backend.vector(&router_scale),
            per_expert_scale: self.from.vector(&name("router.per_expert_scale"), moe.n_experts)?,
            pre_norm: self.from.vector(&name("pre_feedforward_layernorm_2.weight"), h)?,
            post_mlp_norm: self.from.vector(&name("post_feedforward_layernorm_1.weight"), h)?,
            post_experts_norm: self.from.vector(&name("post_feedforward_layernorm_2.weight"), h)?,
            experts: self.experts(i, moe)?,
        })
    }

    /// Experts in any of the layouts of spec 2.1: stacked, one tensor each, or mlx's stacks.
    fn experts(&mut self, i: usize, moe: MoeConfig) -> Result<Experts, ModelError> {
        let (h, e, m) = (self.config.hidden_size, moe.n_experts, moe.intermediate_size);
        let name = |part: &str| format!("layers.{i}.experts.{part}");
        let mut parts = Vec::with_capacity(e);
        if self.from.tensors.contains(&name("gate_up_proj")) {
            let gate_up = self.from.rows(&name("gate_up_proj"), &[e, 2 * m, h])?;
            let down = self.from.rows(&name("down_proj"), &[e, h, m])?;
            for x in 0..e {
                parts.push((gate_up.part(2 * m * x, m), gate_up.part(2 * m * x + m, m), down.part(h * x, h)));
            }
        } else if self.from.tensors.contains(&name("switch_glu.gate_proj.weight")) {
            let gate = self.from.rows(&name("switch_glu.gate_proj.weight"), &[e, m, h])?;
            let up = self.from.rows(&name("switch_glu.up_proj.weight"), &[e, m, h])?;
            let down = self.from.rows(&name("switch_glu.down_proj.weight"), &[e, h, m])?;
            for x in 0..e {
                parts.push((gate.part(m * x, m), up.part(m * x, m), down.part(h * x, h)));
            }
        } else if self.from.tensors.contains(&name("0.gate_proj.weight")) {
            for x in 0..e {
                let gate = self.from.rows(&name(&format!("{x}.gate_proj.weight")), &[m, h])?;
                let up = self.from.rows(&name(&format!("{x}.up_proj.weight")), &[m, h])?;
                let down = self.from.rows(&name(&format!("{x}.down_proj.weight")), &[h, m])?;
                parts.push((gate, up, down));
            }
        } else {
            // Names the usual layout as missing.
            self.from.rows(&name("gate_up_proj"), &[e, 2 * m, h])?;
        }
        let sources: Vec<_> = parts.iter().map(|(gate, up, down)| ExpertSource { gate, up, down }).collect();
        let experts = self.from.backend.experts(&sources, moe.top_k)?;
        parts.iter().for_each(|(gate, up, down)| [gate, up, down].into_iter().for_each(TensorRows::release));
        Ok(experts)
    }
}

/// The kinds in the order of [`Gemma4Config::rope_sliding`] and [`Gemma4Config::rope_full`].
const _: () = assert!(LayerKind::Sliding as usize == 0 && LayerKind::Full as usize == 1);
