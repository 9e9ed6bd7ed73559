//! Gemma 3 text models (spec section 5): as Gemma 4 without shared K/V, per-layer inputs, experts and layer scalars, with
//! norms that multiply by `1 + weight`, scaled scores, and values that are stored as projected.

use std::sync::Arc;

use paceline_backend::{
    Backend, Buf, Gate, KvGroup, KvGroupSpec, KvLayer, KvWrite, Mark, Matrix, MatrixLayout, Op, Pass, Rope,
    RopeSpec, Rows, Sees, Table, TableSource, TokenId, ValueSource, Vector,
};
use paceline_checkpoint::{RawConfig, SIZES, Section, Tensors};

use crate::error::ModelError;
use crate::loader::WeightLoader;
use crate::registry::LoadOptions;
use crate::taps::Taps;
use crate::target::{Description, Exports, Parameters, Target};

/// A Gemma 3 text model. Fields that published multimodal files leave out have the reference class's defaults, for this family only.
#[derive(Clone, Debug, PartialEq)]
struct Config {
    model_type: String,
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    n_heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// For each layer, whether it sees every key.
    is_full: Vec<bool>,
    sliding_window: usize,
    /// Factor of the scores.
    score_scale: f32,
    rope_sliding: RopeSpec,
    rope_full: RopeSpec,
    eps: f32,
    tied: bool,
    max_positions: usize,
    placeholders: Vec<u32>,
}

impl Config {
    fn parse(raw: &RawConfig) -> Result<Self, ModelError> {
        let (top, text) = (raw.top(), raw.text()?);
        let size = |field: &str, default: usize| -> Result<usize, ModelError> {
            Ok(text.optional_usize(field, SIZES)?.unwrap_or(default))
        };
        let head_dim = size("head_dim", 256)?;
        let (rope_sliding, rope_full) = ropes(&text, head_dim)?;
        let config = Config {
            model_type: raw.model_type()?.to_owned(),
            vocab_size: size("vocab_size", 262_208)?,
            hidden_size: text.required_usize("hidden_size", SIZES)?,
            intermediate_size: text.required_usize("intermediate_size", SIZES)?,
            n_heads: size("num_attention_heads", 8)?,
            kv_heads: size("num_key_value_heads", 4)?,
            head_dim,
            is_full: full_layers(&text)?,
            sliding_window: text.required_usize("sliding_window", 1..=1 << 20)?,
            score_scale: text
                .optional_f64("query_pre_attn_scalar", 1.0..=1e6)?
                .unwrap_or(256.0)
                .sqrt()
                .recip() as f32,
            rope_sliding,
            rope_full,
            eps: text.optional_f64("rms_norm_eps", 0.0..=1.0)?.unwrap_or(1e-6) as f32,
            tied: match top.optional_bool("tie_word_embeddings")? {
                Some(tied) => tied,
                None => text.optional_bool("tie_word_embeddings")?.unwrap_or(true),
            },
            max_positions: text.optional_usize("max_position_embeddings", 1..=1 << 20)?.unwrap_or(131_072),
            placeholders: top.optional_token_ids("image_token_index")?.unwrap_or_default(),
        };
        refuse_unsupported(&text)?;
        config.check(&text)?;
        Ok(config)
    }

    fn check(&self, text: &Section<'_>) -> Result<(), ModelError> {
        if !self.head_dim.is_multiple_of(8) || self.head_dim > 512 {
            return Err(text.unsupported("head_dim", "a multiple of 8 up to 512").into());
        }
        if !self.n_heads.is_multiple_of(self.kv_heads) {
            let expected = format!("a divisor of the {} attention heads", self.n_heads);
            return Err(text.unsupported("num_key_value_heads", expected).into());
        }
        Ok(())
    }

    /// Sliding layers, then full ones, where there are any.
    fn kv_layout(&self) -> (Vec<KvGroupSpec>, Vec<(usize, usize)>) {
        let (kv_heads, head_dim) = (self.kv_heads, self.head_dim);
        let n_full = self.is_full.iter().filter(|&&full| full).count();
        let n_sliding = self.is_full.len() - n_full;
        let group = |layers, window| KvGroupSpec { layers, kv_heads, head_dim, window };
        let mut groups = vec![group(n_sliding, Some(self.sliding_window)), group(n_full, None)];
        groups.retain(|group| group.layers > 0);
        let mut next = [0, 0];
        let places = self.is_full.iter().map(|&full| {
            let place = next[usize::from(full)];
            next[usize::from(full)] += 1;
            (usize::from(full && n_sliding > 0), place)
        });
        let places = places.collect();
        (groups, places)
    }

    fn description(&self) -> Description {
        let (v, h, d, n_layers) = (self.vocab_size, self.hidden_size, self.head_dim, self.is_full.len());
        let n_full = self.is_full.iter().filter(|&&full| full).count();
        let shape = format!(
            "attention, {} heads of {d}, {} K/V heads, MLP {}",
            self.n_heads, self.kv_heads, self.intermediate_size
        );
        let part = |kind, count: usize| {
            let count = count as u64;
            Parameters { kind, count, read_per_token: count, mapped: false }
        };
        let mut parameters = vec![
            part("embedding and head", v * h),
            part("attention", n_layers * 2 * h * d * (self.n_heads + self.kv_heads)),
            part("mlp", n_layers * 3 * h * self.intermediate_size),
            part("norms and scales", n_layers * (4 * h + 2 * d) + h),
        ];
        if !self.tied {
            parameters.push(Parameters {
                read_per_token: h as u64,
                mapped: true,
                ..part("separate embedding", v * h)
            });
        }
        Description {
            architecture: self.model_type.clone(),
            n_layers,
            layer_lines: vec![
                format!("{} x sliding ({}) {shape}", n_layers - n_full, self.sliding_window),
                format!("{n_full} x full {shape}"),
            ],
            vocab_size: v,
            hidden_size: h,
            max_positions: self.max_positions,
            mask_token: None,
            parameters,
            kv_groups: self.kv_layout().0,
            // No assistant reads the K/V of this family.
            sliding: None,
            full: None,
        }
    }
}

/// Which layers are full: by `layer_types`, or every n-th by `sliding_window_pattern`.
fn full_layers(text: &Section<'_>) -> Result<Vec<bool>, ModelError> {
    let n_layers = text.required_usize("num_hidden_layers", 1..=10_000)?;
    let Some(names) = text.optional_str_list("layer_types")? else {
        let pattern = text.optional_usize("sliding_window_pattern", SIZES)?.unwrap_or(6);
        return Ok((1..=n_layers).map(|i| i.is_multiple_of(pattern)).collect());
    };
    if names.len() != n_layers {
        return Err(text
            .unsupported("layer_types", format!("num_hidden_layers = {n_layers} entries"))
            .into());
    }
    let is_full = |name: &String| match name.as_str() {
        "full_attention" => Ok(true),
        "sliding_attention" => Ok(false),
        _ => Err(text.unsupported("layer_types", "sliding_attention or full_attention entries").into()),
    };
    names.iter().map(is_full).collect()
}

/// Rotations of sliding and full layers, from either form of the config.
fn ropes(text: &Section<'_>, head_dim: usize) -> Result<(RopeSpec, RopeSpec), ModelError> {
    let spec = |theta: f64, factor: f64| RopeSpec { head_dim, theta, rotated_pairs: head_dim / 2, factor };
    let factor = |rope: &Section<'_>| -> Result<f64, ModelError> {
        match rope.required_str("rope_type")? {
            "default" => Ok(1.0),
            "linear" => Ok(rope.required_f64("factor", 1e-6..=1e6)?),
            _ => Err(rope.unsupported("rope_type", "`default` or `linear`").into()),
        }
    };
    if let Some(parameters) = text.optional_section("rope_parameters")? {
        let read = |kind: &str| -> Result<RopeSpec, ModelError> {
            let rope = parameters.required_section(kind)?;
            Ok(spec(rope.required_f64("rope_theta", 1.0..=1e12)?, factor(&rope)?))
        };
        return Ok((read("sliding_attention")?, read("full_attention")?));
    }
    let theta = text.optional_f64("rope_theta", 1.0..=1e12)?.unwrap_or(1e6);
    let local = text.optional_f64("rope_local_base_freq", 1.0..=1e12)?.unwrap_or(1e4);
    let scaling = text.optional_section("rope_scaling")?.map(|rope| factor(&rope)).transpose()?;
    Ok((spec(local, 1.0), spec(theta, scaling.unwrap_or(1.0))))
}

fn refuse_unsupported(text: &Section<'_>) -> Result<(), ModelError> {
    for field in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if text.has(field) {
            return Err(text.unsupported(field, "null").into());
        }
    }
    if text.optional_bool("attention_bias")?.unwrap_or(false) {
        return Err(text.unsupported("attention_bias", "false").into());
    }
    if text.optional_bool("use_bidirectional_attention")?.unwrap_or(false) {
        return Err(text.unsupported("use_bidirectional_attention", "false").into());
    }
    if !matches!(text.optional_str("hidden_activation")?, None | Some("gelu_pytorch_tanh")) {
        return Err(text.unsupported("hidden_activation", "`gelu_pytorch_tanh`").into());
    }
    Ok(())
}

struct Layer {
    input_norm: Vector,
    qkv: Matrix,
    q_norm: Vector,
    k_norm: Vector,
    rope: Rope,
    kv: KvLayer,
    o: Matrix,
    post_attention_norm: Vector,
    pre_feed_forward_norm: Vector,
    gate_up: Matrix,
    down: Matrix,
    post_feed_forward_norm: Vector,
}

/// Gemma 3's norms multiply by `1 + weight`.
fn norm(from: &mut WeightLoader<'_>, name: &str, len: usize) -> Result<Vector, ModelError> {
    let mut values = from.values(name, len)?;
    values.iter_mut().for_each(|value| *value += 1.0);
    Ok(from.backend.vector(&values))
}

impl Layer {
    fn load(
        from: &mut WeightLoader<'_>,
        c: &Config,
        i: usize,
        kv: KvLayer,
        rope: Rope,
    ) -> Result<Self, ModelError> {
        let (h, d, wide) = (c.hidden_size, c.head_dim, c.intermediate_size);
        let name = |part: &str| format!("layers.{i}.{part}");
        let q = from.rows(&name("self_attn.q_proj.weight"), &[c.n_heads * d, h])?;
        let k = from.rows(&name("self_attn.k_proj.weight"), &[c.kv_heads * d, h])?;
        let v = from.rows(&name("self_attn.v_proj.weight"), &[c.kv_heads * d, h])?;
        let gate = from.rows(&name("mlp.gate_proj.weight"), &[wide, h])?;
        let up = from.rows(&name("mlp.up_proj.weight"), &[wide, h])?;
        Ok(Layer {
            input_norm: norm(from, &name("input_layernorm.weight"), h)?,
            qkv: from.matrix(&[&q, &k, &v], MatrixLayout::Plain)?,
            q_norm: norm(from, &name("self_attn.q_norm.weight"), d)?,
            k_norm: norm(from, &name("self_attn.k_norm.weight"), d)?,
            rope,
            kv,
            o: from.linear(&name("self_attn.o_proj.weight"), h, c.n_heads * d)?,
            post_attention_norm: norm(from, &name("post_attention_layernorm.weight"), h)?,
            pre_feed_forward_norm: norm(from, &name("pre_feedforward_layernorm.weight"), h)?,
            gate_up: from.matrix(&[&gate, &up], MatrixLayout::Gated)?,
            down: from.linear(&name("mlp.down_proj.weight"), h, wide)?,
            post_feed_forward_norm: norm(from, &name("post_feedforward_layernorm.weight"), h)?,
        })
    }
}

/// Buffers of one set of rows.
#[derive(Clone, Copy)]
struct Stream {
    x: Buf,
    u: Buf,
    qkv: Buf,
    heads: Buf,
    h: Buf,
    inner: Buf,
}

impl Stream {
    fn new(c: &Config, backend: &mut dyn Backend, rows: usize) -> Result<Self, ModelError> {
        let mut buffer = |width: usize| backend.buffer(rows, width);
        Ok(Stream {
            x: buffer(c.hidden_size)?,
            u: buffer(c.hidden_size)?,
            qkv: buffer((c.n_heads + 2 * c.kv_heads) * c.head_dim)?,
            heads: buffer(c.n_heads * c.head_dim)?,
            h: buffer(c.hidden_size)?,
            inner: buffer(c.intermediate_size)?,
        })
    }
}

/// A loaded Gemma 3 target.
pub(crate) struct Gemma3 {
    config: Config,
    description: Description,
    exports: Exports,
    kv_groups: Vec<KvGroup>,
    refused: Vec<TokenId>,
    layers: Vec<Layer>,
    final_norm: Vector,
    all: Stream,
    wanted: Stream,
    taps: Option<Taps>,
    logits: Buf,
    logit_rows: usize,
}

/// What the config says, without a look at the weights.
pub(crate) fn describe(raw: &RawConfig) -> Result<Description, ModelError> {
    Ok(Config::parse(raw)?.description())
}

/// Loads weights, buffers and K/V groups into the backend.
pub(crate) fn load(
    raw: &RawConfig,
    tensors: Tensors,
    backend: &mut dyn Backend,
    options: &mut LoadOptions<'_>,
) -> Result<Gemma3, ModelError> {
    let mut c = Config::parse(raw)?;
    let stored_vocab = c.vocab_size;
    c.vocab_size = options.vocab_size.unwrap_or(stored_vocab);
    let limits = &options.limits;
    let (specs, places) = c.kv_layout();
    let mut kv_groups = Vec::with_capacity(specs.len());
    for (spec, &n_blocks) in specs.iter().zip(&limits.kv_blocks) {
        kv_groups.push(backend.kv_group(*spec, n_blocks)?);
    }
    let ropes = [c.rope_sliding, c.rope_full].map(|spec| backend.rope(spec));
    let (all, wanted) =
        (Stream::new(&c, backend, limits.max_rows)?, Stream::new(&c, backend, limits.max_wanted)?);
    let logits = backend.buffer(limits.logit_rows, c.vocab_size)?;
    let taps = Taps::new(options.tap_layers, (c.is_full.len(), c.hidden_size), limits.max_rows, backend)?;
    let mut from = WeightLoader { tensors: tensors.into_text()?, backend, inexact: options.inexact };
    let (embedding, head) = embedding_and_head(&mut from, &c, stored_vocab)?;
    let mut layers = Vec::with_capacity(c.is_full.len());
    for (i, (&full, &(group, place))) in c.is_full.iter().zip(&places).enumerate() {
        let kv = KvLayer { group: kv_groups[group], layer: place as u32 };
        layers.push(Layer::load(&mut from, &c, i, kv, ropes[usize::from(full)])?);
        (options.progress)(i + 1);
    }
    let final_norm = norm(&mut from, "norm.weight", c.hidden_size)?;
    from.tensors.finish()?;
    let exports = Exports {
        architecture: c.model_type.clone(),
        embedding,
        embedding_scale: (c.hidden_size as f32).sqrt(),
        head,
        softcap: None,
        hidden_size: c.hidden_size,
        vocab_size: c.vocab_size,
        mask_token: None,
        sliding: None,
        full: None,
        hidden_post_norm: wanted.u,
        hidden_pre_norm: wanted.x,
        taps: taps.as_ref().map(Taps::buf),
    };
    Ok(Gemma3 {
        description: c.description(),
        exports,
        kv_groups,
        refused: c.placeholders.iter().copied().map(TokenId).collect(),
        layers,
        final_norm,
        all,
        wanted,
        taps,
        logits,
        logit_rows: limits.logit_rows,
        config: c,
    })
}

fn embedding_and_head(
    from: &mut WeightLoader<'_>,
    c: &Config,
    stored_vocab: usize,
) -> Result<(Table, Matrix), ModelError> {
    let shape = [stored_vocab, c.hidden_size];
    let embedding = from.rows("embed_tokens.weight", &shape)?.resized(c.vocab_size);
    let aliases: Vec<_> = c.placeholders.iter().map(|&id| (id, 0)).collect();
    if c.tied {
        from.tensors.discard("lm_head.weight");
        let head = from.matrix(&[&embedding], MatrixLayout::Plain)?;
        return Ok((from.backend.table(TableSource::Packed(head), &aliases)?, head));
    }
    let head = from.rows("lm_head.weight", &shape)?.resized(c.vocab_size);
    let head = from.matrix(&[&head], MatrixLayout::Plain)?;
    Ok((from.backend.table(TableSource::Mapped(Arc::new(embedding)), &aliases)?, head))
}

impl Target for Gemma3 {
    fn description(&self) -> &Description {
        &self.description
    }

    fn kv_groups(&self) -> &[KvGroup] {
        &self.kv_groups
    }

    fn exports(&self) -> &Exports {
        &self.exports
    }

    fn refused_tokens(&self) -> &[TokenId] {
        &self.refused
    }

    fn forward(&self, backend: &mut dyn Backend, pass: &Pass) {
        let (c, scale) = (&self.config, self.exports.embedding_scale);
        let (mut rows, mut s) = (pass.all(), &self.all);
        backend.run(&Op::Embed { table: self.exports.embedding, scale, out: s.x, column: 0 }, rows);
        backend.mark(Mark::Embedding, s.x, rows);
        let first = Some(self.layers[0].input_norm);
        backend.run(&Op::Norm { x: s.x, w: first, eps: c.eps, out: s.u }, rows);
        let narrow_at = Taps::narrow_at(self.taps.as_ref(), self.layers.len() - 1, pass);
        for (i, layer) in self.layers.iter().enumerate() {
            self.project(backend, layer, rows, s);
            if i == narrow_at {
                // All K/V of the pass is stored and all taps are taken: from here on a row matters only to who reads it.
                if pass.wanted().is_empty() {
                    return;
                }
                (rows, s) = (pass.wanted_rows(), &self.wanted);
                backend.run(&Op::GatherRows { src: self.all.x, out: s.x }, rows);
                backend.run(&Op::GatherRows { src: self.all.qkv, out: s.qkv }, rows);
            }
            backend.mark(Mark::Query(i), s.qkv, rows);
            self.finish_layer(backend, i, layer, rows, s);
            backend.mark(Mark::Layer(i), s.x, rows);
            if let Some(taps) = &self.taps {
                taps.take(backend, pass, i, s.x);
            }
        }
        if narrow_at == self.layers.len() {
            if pass.wanted().is_empty() {
                return;
            }
            (rows, s) = (pass.wanted_rows(), &self.wanted);
            backend.run(&Op::GatherRows { src: self.all.x, out: s.x }, rows);
            backend.run(&Op::GatherRows { src: self.all.u, out: s.u }, rows);
        }
        backend.mark(Mark::HiddenPreNorm, s.x, rows);
        backend.mark(Mark::HiddenPostNorm, s.u, rows);
        for rows in rows.pieces(self.logit_rows) {
            let (logits, first_row) = (self.logits, rows.start);
            backend.run(&Op::Logits { x: s.u, w: self.exports.head, first_row, out: logits }, rows);
            backend.run(&Op::Choose { logits, softcap: None, first_row }, rows);
            backend.mark(Mark::Logits, logits, rows);
        }
    }
}

impl Gemma3 {
    fn project(&self, backend: &mut dyn Backend, layer: &Layer, rows: Rows, s: &Stream) {
        backend.run(&Op::Linear { x: s.u, w: layer.qkv, out: s.qkv }, rows);
        let kv = KvWrite {
            layer: layer.kv,
            k_norm: layer.k_norm,
            value: ValueSource::Projection,
            norm_value: false,
        };
        let op = Op::QkNormRopeStore {
            qkv: s.qkv,
            n_heads: self.config.n_heads as u32,
            q_norm: layer.q_norm,
            rope: layer.rope,
            eps: self.config.eps,
            kv: Some(kv),
        };
        backend.run(&op, rows);
    }

    fn finish_layer(&self, backend: &mut dyn Backend, i: usize, layer: &Layer, rows: Rows, s: &Stream) {
        let (n_heads, scale, eps) = (self.config.n_heads as u32, self.config.score_scale, self.config.eps);
        backend.run(
            &Op::Attend { q: s.qkv, layer: layer.kv, n_heads, scale, sees: Sees::Past, out: s.heads },
            rows,
        );
        backend.mark(Mark::HeadsOut(i), s.heads, rows);
        backend.run(&Op::Linear { x: s.heads, w: layer.o, out: s.h }, rows);
        backend.mark(Mark::AttentionOut(i), s.h, rows);
        let (w, next) = (layer.post_attention_norm, Some((layer.pre_feed_forward_norm, s.u)));
        backend.run(&Op::AddNorm { x: s.x, h: s.h, w, scale: 1.0, next, eps }, rows);
        backend.run(&Op::LinearGated { x: s.u, w: layer.gate_up, function: Gate::Gelu, out: s.inner }, rows);
        backend.run(&Op::Linear { x: s.inner, w: layer.down, out: s.h }, rows);
        backend.mark(Mark::MlpOut(i), s.h, rows);
        let next = self.layers.get(i + 1).map_or(self.final_norm, |layer| layer.input_norm);
        let (w, next) = (layer.post_feed_forward_norm, Some((next, s.u)));
        backend.run(&Op::AddNorm { x: s.x, h: s.h, w, scale: 1.0, next, eps }, rows);
    }
}
