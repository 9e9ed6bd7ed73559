//! The DFlash drafter (dflash spec): a small decoder that guesses a whole block of tokens in one pass.
//!
//! ```text
//! context   taps of committed rows -> fc -> norm -> K and V of every layer, kept at the rows' own positions
//! block     [anchor, mask, mask, ..] at positions len, len + 1, ..: layers over context and block -> norm -> the target's head
//! ```
//! Embeddings and head are the target's; the output at a mask is the guess for the token at that very place. Rows of the
//! block store their K/V beyond `len`, where the next context rows overwrite them.

mod config;

use std::sync::Arc;

use paceline_backend::{
    Backend, Buf, Gate, KvLayer, KvWrite, Mark, Matrix, MatrixLayout, Op, Pass, Rope, Sees, Table,
    TableSource, TokenId, ValueSource, Vector,
};
use paceline_checkpoint::{Inexact, RawConfig, Tensors};

pub use config::DFlashConfig;
use config::LayerConfig;

use crate::error::ModelError;
use crate::loader::{TensorRows, WeightLoader};
use crate::target::{Exports, OwnedGroup};

/// Tensors of later formats, by a part of their names, and what each belongs to.
const OTHER_TENSORS: [(&str, &str); 7] = [
    ("markov_head.", "DSpark"),
    ("confidence_head.", "DSpark"),
    ("attention_conv.", "DFlash 2"),
    ("candidate_selector.", "DFlash 2"),
    ("aux_hidden_norms.", "the layout of Laguna"),
    ("self_attn.g_proj.", "the layout of Laguna"),
    ("encoder.fc.", "the layout of Muse Glimmer"),
];

struct Layer {
    input_norm: Vector,
    qkv: Matrix,
    q_norm: Vector,
    k_norm: Vector,
    kv: KvLayer,
    sees: Sees,
    o: Matrix,
    post_attention_norm: Vector,
    gate_up: Matrix,
    down: Matrix,
}

/// The drafter's head: the target's, or its own over some tokens.
struct Head {
    w: Matrix,
    /// The token of each logit, where there are fewer than in the vocabulary.
    tokens: Option<Vector>,
    logits: Buf,
    logit_rows: usize,
}

/// From taps to K/V: buffers over the tapped rows of a target's pass.
struct Context {
    taps: Buf,
    fc: Matrix,
    /// `fc` of the taps, and that normed.
    fused: Buf,
    normed: Buf,
    norm: Vector,
    /// K and V projections of all layers, stacked: `[k0 | v0 | k1 | v1 | ..]`.
    kv_projection: Matrix,
    kv: Buf,
}

/// Buffers over the rows of blocks.
struct Stream {
    x: Buf,
    u: Buf,
    qkv: Buf,
    heads: Buf,
    h: Buf,
    inner: Buf,
    /// Over the masks.
    wanted: Buf,
}

/// Sizes that a drafter and its buffers are loaded for.
#[derive(Clone, Copy, Debug)]
pub struct DFlashRoom<'a> {
    /// Tapped rows of the target's largest pass.
    pub tapped_rows: usize,
    /// Rows of the blocks of all slots together.
    pub block_rows: usize,
    /// Rows for which logits are held at one time.
    pub logit_rows: usize,
    /// Blocks of each of its K/V groups.
    pub kv_blocks: &'a [usize],
}

/// A DFlash drafter, bound to the target that it was loaded for.
pub struct DFlash {
    config: DFlashConfig,
    mask: TokenId,
    groups: Vec<OwnedGroup>,
    embedding: Table,
    embedding_scale: f32,
    softcap: Option<f32>,
    rope: Rope,
    context: Context,
    layers: Vec<Layer>,
    final_norm: Vector,
    head: Head,
    stream: Stream,
}

impl DFlash {
    /// Loads a drafter for a target on the same backend, which was loaded with the taps of [`DFlashConfig::fit`]: the only way to one.
    ///
    /// # Errors
    /// Another layout, by its name; a config or tensors that are not a drafter's, or not one of this target.
    pub fn bind(
        raw: &RawConfig,
        tensors: Tensors,
        backend: &mut dyn Backend,
        target: &Exports,
        room: DFlashRoom<'_>,
        inexact: Inexact,
    ) -> Result<Self, ModelError> {
        let config = DFlashConfig::parse(raw)?;
        let tensors = tensors.into_text()?;
        refuse_other_tensors(raw, &tensors)?;
        let h = config.hidden_size;
        let taps = config.taps_of(raw, target)?;
        let mask = TokenId(config.mask(raw, target.mask_token)?);
        let (specs, places) = config.kv_layout();
        let mut groups = Vec::with_capacity(specs.len());
        for (&spec, &n_blocks) in specs.iter().zip(room.kv_blocks) {
            groups.push(OwnedGroup { group: backend.kv_group(spec, n_blocks)?, spec });
        }
        let rope = backend.rope(config.rope);
        let mut from = WeightLoader { tensors, backend, inexact };
        let fc = from.linear("fc.weight", h, taps.width as usize)?;
        let norm = from.vector("hidden_norm.weight", h)?;
        let mut layers = Vec::with_capacity(config.layers.len());
        let mut kv_parts = Vec::with_capacity(2 * config.layers.len());
        for (i, &(group, place)) in places.iter().enumerate() {
            let kv = KvLayer { group: groups[group].group, layer: place as u32 };
            layers.push(load_layer(&mut from, &config, i, kv, &mut kv_parts)?);
        }
        let kv_parts: Vec<&TensorRows> = kv_parts.iter().collect();
        let kv_projection = from.matrix(&kv_parts, MatrixLayout::Plain)?;
        let final_norm = from.vector("norm.weight", h)?;
        let (embedding, w, tokens) = embedding_and_head(&mut from, &config, target)?;
        from.tensors.finish()?;
        let mut context = |width| from.backend.buffer(room.tapped_rows, width);
        let [fused, normed, kv] = config.context_widths();
        let context = Context {
            taps,
            fc,
            fused: context(fused)?,
            normed: context(normed)?,
            norm,
            kv_projection,
            kv: context(kv)?,
        };
        let logit_rows = room.logit_rows;
        let head =
            Head { w, tokens, logits: from.backend.buffer(logit_rows, config.n_logits())?, logit_rows };
        let mut block = |width| from.backend.buffer(room.block_rows, width);
        let [x, u, qkv, heads, h, inner, wanted] = config.stream_widths();
        let stream = Stream {
            x: block(x)?,
            u: block(u)?,
            qkv: block(qkv)?,
            heads: block(heads)?,
            h: block(h)?,
            inner: block(inner)?,
            wanted: block(wanted)?,
        };
        Ok(Self {
            groups,
            embedding,
            embedding_scale: target.embedding_scale,
            softcap: config.softcap.or(target.softcap),
            rope,
            context,
            layers,
            final_norm,
            head,
            stream,
            mask,
            config,
        })
    }

    /// Its config.
    pub fn config(&self) -> &DFlashConfig {
        &self.config
    }

    /// The K/V that it owns.
    pub fn kv_groups(&self) -> &[OwnedGroup] {
        &self.groups
    }

    /// Where each of its layers keeps K/V.
    pub fn kv_layers(&self) -> Vec<KvLayer> {
        self.layers.iter().map(|layer| layer.kv).collect()
    }

    /// The token of a block's masks.
    pub fn mask(&self) -> TokenId {
        self.mask
    }

    /// Lets the rows of a block see one another as if the config declared one direction for all layers; `None`: as it says.
    pub fn declare_causal(&mut self, declared: Option<bool>) {
        for (layer, config) in self.layers.iter_mut().zip(&self.config.layers) {
            layer.sees = sees(declared.unwrap_or(config.causal));
        }
    }

    /// Makes the context K/V of the tapped rows of the target's pass, which is not committed yet. What it stores for drafts that are
    /// rejected lies beyond `len` afterwards.
    pub fn take_in(&self, backend: &mut dyn Backend, pass: &Pass) {
        let (c, rows, eps) = (&self.context, pass.tapped_rows(), self.config.eps);
        if rows.len == 0 {
            return;
        }
        backend.mark(Mark::Taps, c.taps, rows);
        backend.run(&Op::Linear { x: c.taps, w: c.fc, out: c.fused }, rows);
        backend.run(&Op::Norm { x: c.fused, w: Some(c.norm), eps, out: c.normed }, rows);
        backend.mark(Mark::Context, c.normed, rows);
        backend.run(&Op::Linear { x: c.normed, w: c.kv_projection, out: c.kv }, rows);
        let width = c.kv.width / self.layers.len() as u32;
        for (i, layer) in self.layers.iter().enumerate() {
            let store = Op::KvNormRopeStore {
                kv: c.kv,
                column: i as u32 * width,
                layer: layer.kv,
                k_norm: layer.k_norm,
                rope: self.rope,
                eps,
            };
            backend.run(&store, rows);
        }
    }

    /// Drafts for the masks of the pass, which has a block for each slot. The caller has begun the pass.
    pub fn draft(&self, backend: &mut dyn Backend, pass: &Pass) {
        let (s, rows, eps) = (&self.stream, pass.all(), self.config.eps);
        let (table, scale) = (self.embedding, self.embedding_scale);
        backend.run(&Op::Embed { table, scale, out: s.x, column: 0 }, rows);
        backend.mark(Mark::Embedding, s.x, rows);
        let first = Some(self.layers[0].input_norm);
        backend.run(&Op::Norm { x: s.x, w: first, eps, out: s.u }, rows);
        for (i, layer) in self.layers.iter().enumerate() {
            let next = self.layers.get(i + 1).map_or(self.final_norm, |layer| layer.input_norm);
            self.layer(backend, pass, layer, next);
            backend.mark(Mark::Layer(i), s.x, rows);
        }
        backend.mark(Mark::HiddenPostNorm, s.u, rows);
        self.choose(backend, pass);
    }

    fn layer(&self, backend: &mut dyn Backend, pass: &Pass, layer: &Layer, next: Vector) {
        let (c, s, rows) = (&self.config, &self.stream, pass.all());
        let (eps, n_heads, scale) = (c.eps, c.n_heads as u32, (c.head_dim as f32).sqrt().recip());
        backend.run(&Op::Linear { x: s.u, w: layer.qkv, out: s.qkv }, rows);
        let kv = KvWrite {
            layer: layer.kv,
            k_norm: layer.k_norm,
            value: ValueSource::Projection,
            norm_value: false,
        };
        let (q_norm, rope, kv) = (layer.q_norm, self.rope, Some(kv));
        backend.run(&Op::QkNormRopeStore { qkv: s.qkv, n_heads, q_norm, rope, eps, kv }, rows);
        let (sees, kv) = (layer.sees, layer.kv);
        backend.run(&Op::Attend { q: s.qkv, layer: kv, n_heads, scale, sees, out: s.heads }, rows);
        backend.run(&Op::Linear { x: s.heads, w: layer.o, out: s.h }, rows);
        let after = layer.post_attention_norm;
        backend.run(&Op::Add { x: s.x, h: s.h, next: after, eps, out: s.u }, rows);
        backend.run(&Op::LinearGated { x: s.u, w: layer.gate_up, function: Gate::Silu, out: s.inner }, rows);
        backend.run(&Op::Linear { x: s.inner, w: layer.down, out: s.h }, rows);
        backend.run(&Op::Add { x: s.x, h: s.h, next, eps, out: s.u }, rows);
    }

    /// The anchor's row is not looked at: what follows it is for the first mask to say.
    fn choose(&self, backend: &mut dyn Backend, pass: &Pass) {
        let (s, head, softcap) = (&self.stream, &self.head, self.softcap);
        backend.run(&Op::GatherRows { src: s.u, out: s.wanted }, pass.wanted_rows());
        for rows in pass.wanted_rows().pieces(head.logit_rows) {
            let (logits, first_row) = (head.logits, rows.start);
            backend.run(&Op::Logits { x: s.wanted, w: head.w, first_row, out: logits }, rows);
            backend.mark(Mark::Logits, logits, rows);
            backend.run(&Op::ChooseBlock { logits, first_row, softcap, tokens: head.tokens }, rows);
        }
    }
}

impl DFlashConfig {
    /// The target's taps, which have to be as wide as this drafter reads them.
    fn taps_of(&self, raw: &RawConfig, target: &Exports) -> Result<Buf, ModelError> {
        target.taps.ok_or_else(|| ModelError::IncompatibleDrafter {
            file: raw.file().to_path_buf(),
            target: target.architecture.clone(),
            what: "hidden states of inner layers, which a DFlash drafter reads".to_owned(),
            expected: "a drafter without taps".to_owned(),
            found: "target_layer_ids".to_owned(),
        })
    }
}

fn sees(causal: bool) -> Sees {
    if causal { Sees::Past } else { Sees::Block }
}

fn refuse_other_tensors(raw: &RawConfig, tensors: &Tensors) -> Result<(), ModelError> {
    let layout = |name: &str| OTHER_TENSORS.iter().find(|(part, _)| name.contains(part));
    match tensors.names().find_map(layout) {
        Some((_, layout)) => {
            Err(ModelError::UnsupportedDrafter { file: raw.file().to_path_buf(), layout: layout.to_string() })
        }
        None => Ok(()),
    }
}

/// Loads a layer and adds its K and V projections to those of the context.
fn load_layer(
    from: &mut WeightLoader<'_>,
    c: &DFlashConfig,
    i: usize,
    kv: KvLayer,
    kv_parts: &mut Vec<TensorRows>,
) -> Result<Layer, ModelError> {
    let (h, d, wide) = (c.hidden_size, c.head_dim, c.intermediate_size);
    let LayerConfig { causal, .. } = c.layers[i];
    let name = |part: &str| format!("layers.{i}.{part}");
    let q = from.rows(&name("self_attn.q_proj.weight"), &[c.n_heads * d, h])?;
    let k = from.rows(&name("self_attn.k_proj.weight"), &[c.kv_heads * d, h])?;
    let v = from.rows(&name("self_attn.v_proj.weight"), &[c.kv_heads * d, h])?;
    let gate = from.rows(&name("mlp.gate_proj.weight"), &[wide, h])?;
    let up = from.rows(&name("mlp.up_proj.weight"), &[wide, h])?;
    let layer = Layer {
        input_norm: from.vector(&name("input_layernorm.weight"), h)?,
        qkv: from.matrix(&[&q, &k, &v], MatrixLayout::Plain)?,
        q_norm: from.vector(&name("self_attn.q_norm.weight"), d)?,
        k_norm: from.vector(&name("self_attn.k_norm.weight"), d)?,
        kv,
        sees: sees(causal),
        o: from.linear(&name("self_attn.o_proj.weight"), h, c.n_heads * d)?,
        post_attention_norm: from.vector(&name("post_attention_layernorm.weight"), h)?,
        gate_up: from.matrix(&[&gate, &up], MatrixLayout::Gated)?,
        down: from.linear(&name("mlp.down_proj.weight"), h, wide)?,
    };
    kv_parts.extend([k, v]);
    Ok(layer)
}

/// The target's table and head, or those that the file carries; and the tokens of a head that has fewer than the vocabulary.
fn embedding_and_head(
    from: &mut WeightLoader<'_>,
    c: &DFlashConfig,
    target: &Exports,
) -> Result<(Table, Matrix, Option<Vector>), ModelError> {
    let carries = |from: &WeightLoader<'_>, tensor: &str| from.tensors.names().any(|name| name == tensor);
    let embedding = match carries(from, "embed_tokens.weight") {
        true => {
            let rows = from.rows("embed_tokens.weight", &[c.vocab_size, c.hidden_size])?;
            from.backend.table(TableSource::Mapped(Arc::new(rows)), &[])?
        }
        false => target.embedding,
    };
    let Some(n_tokens) = c.draft_vocab_size else {
        let head = match carries(from, "lm_head.weight") {
            true => from.linear("lm_head.weight", c.vocab_size, c.hidden_size)?,
            false => target.head,
        };
        return Ok((embedding, head, None));
    };
    let head = from.linear("lm_head.weight", n_tokens, c.hidden_size)?;
    // Which tokens of the vocabulary have a logit: `d2t` says it already.
    from.tensors.discard("t2d");
    let offsets = from.tensors.take_flat("d2t", n_tokens)?;
    let file = offsets.file().to_path_buf();
    let tokens = ascending(&offsets.to_i64()?, c.vocab_size).map_err(|found| ModelError::Inconsistent {
        file,
        what: "tensor `d2t`".to_owned(),
        expected: format!("offsets that lead to ascending ids below {}", c.vocab_size),
        found,
    })?;
    Ok((embedding, head, Some(from.backend.vector(&tokens))))
}

/// The tokens that offsets from their own places lead to, each above the one before and below `vocab_size`; else the first offset that
/// leads elsewhere, in words.
fn ascending(offsets: &[i64], vocab_size: usize) -> Result<Vec<f32>, String> {
    let mut least = 0;
    let token = |(at, &offset): (usize, &i64)| {
        let token = offset.checked_add(at as i64).and_then(|token| usize::try_from(token).ok());
        let token = token.filter(|token| (least..vocab_size).contains(token));
        least = token.map_or(least, |token| token + 1);
        token.map(|token| token as f32).ok_or_else(|| format!("{offset} at element {at}"))
    };
    offsets.iter().enumerate().map(token).collect()
}
