//! The MTP assistant of Gemma 4 (spec section 6): a small network without K/V of its own that reads its target's.
//!
//! ```text
//! [E_target[t] * s | h] -> pre-projection -> layers (queries only, the target's K/V) -> norm -> head -> draft
//!                                                                                        └-> post-projection -> next h
//! ```
//! All steps of a round have one position and one set of visible keys: the committed ones.

use paceline_backend::{
    Backend, Buf, ClusterHead, Gate, Mark, Matrix, MatrixLayout, Op, Pass, Rope, RowSource, Rows, Sees,
    Vector,
};
use paceline_checkpoint::{Inexact, RawConfig, SIZES, Tensors};

use crate::error::ModelError;
use crate::gemma4::{LayerConfig, LayerKind, TextReader};
use crate::loader::WeightLoader;
use crate::target::{Description, DrafterSize, ExportLayer, Exports, LentKv};

/// Config of an assistant.
#[derive(Clone, Debug, PartialEq)]
pub struct AssistantConfig {
    /// As the file names it.
    pub model_type: String,
    /// Width of the target's residual stream, B.
    pub backbone_hidden_size: usize,
    /// Entries of the vocabulary.
    pub vocab_size: usize,
    /// Its own width.
    pub hidden_size: usize,
    /// Width of its MLPs.
    pub intermediate_size: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Keys that its sliding layers see.
    pub sliding_window: usize,
    /// Its head is its embedding table.
    pub tied: bool,
    /// `(clusters, clusters that a step looks into)` of a centroid head.
    pub centroids: Option<(usize, usize)>,
    /// Drafts of a round that the checkpoint suggests by its `block_size`.
    pub block_drafts: Option<usize>,
    layers: Vec<LayerConfig>,
    ropes: [Option<paceline_backend::RopeSpec>; 2],
    eps: f32,
}

impl AssistantConfig {
    /// Reads `gemma4_assistant` and `gemma4_unified_assistant`.
    ///
    /// # Errors
    /// Fields that are missing, out of range or not supported in an assistant.
    pub fn parse(raw: &RawConfig) -> Result<Self, ModelError> {
        let (top, text) = (raw.top(), raw.text()?);
        let reader = TextReader { text: &text };
        let layers = reader.layers()?;
        // Missing, null, 0 and too many all mean: every layer borrows.
        let shared = text.optional_usize("num_kv_shared_layers", 0..=1 << 20)?.unwrap_or(0);
        if shared != 0 && shared < layers.len() {
            let expected = format!("{} (every layer of an assistant reads its target's K/V)", layers.len());
            return Err(text.unsupported("num_kv_shared_layers", expected).into());
        }
        for field in ["hidden_size_per_layer_input", "vocab_size_per_layer_input"] {
            if text.optional_usize(field, 0..=1 << 30)?.unwrap_or(0) != 0 {
                return Err(text.unsupported(field, "0 in an assistant").into());
            }
        }
        for field in ["enable_moe_block", "use_double_wide_mlp"] {
            if text.optional_bool(field)?.unwrap_or(false) {
                return Err(text.unsupported(field, "false in an assistant").into());
            }
        }
        if text.has("final_logit_softcapping") {
            return Err(text.unsupported("final_logit_softcapping", "null in an assistant").into());
        }
        reader.refuse_unsupported()?;
        let vocab_size = text.required_usize("vocab_size", SIZES)?;
        let centroids = match top.required_bool("use_ordered_embeddings")? {
            false => None,
            true => {
                let clusters = top.required_usize("num_centroids", 1..=vocab_size)?;
                if !vocab_size.is_multiple_of(clusters) {
                    return Err(top
                        .unsupported("num_centroids", format!("a divisor of vocab_size = {vocab_size}"))
                        .into());
                }
                Some((clusters, top.required_usize("centroid_intermediate_top_k", 1..=clusters)?))
            }
        };
        Ok(AssistantConfig {
            model_type: raw.model_type()?.to_owned(),
            backbone_hidden_size: top.required_usize("backbone_hidden_size", SIZES)?,
            vocab_size,
            hidden_size: text.required_usize("hidden_size", SIZES)?,
            intermediate_size: text.required_usize("intermediate_size", SIZES)?,
            n_heads: text.required_usize("num_attention_heads", SIZES)?,
            sliding_window: text.required_usize("sliding_window", 1..=1 << 20)?,
            tied: top.optional_bool("tie_word_embeddings")?.unwrap_or(true),
            centroids,
            block_drafts: top.optional_usize("block_size", 2..=1 << 10)?.map(|block| block - 1),
            ropes: [reader.rope(&layers, LayerKind::Sliding)?, reader.rope(&layers, LayerKind::Full)?],
            eps: text.required_f64("rms_norm_eps", 0.0..=1.0)? as f32,
            layers,
        })
    }

    /// What it takes beside its target where so many sequences are drafted for.
    pub fn size(&self, n_slots: usize) -> DrafterSize {
        let (b, h, v) = (self.backbone_hidden_size, self.hidden_size, self.vocab_size);
        let layer = |layer: &LayerConfig| {
            let attention = 2 * h * self.n_heads * layer.head_dim + layer.head_dim;
            attention + 3 * h * self.intermediate_size + 4 * h + 1
        };
        let layers: usize = self.layers.iter().map(layer).sum();
        let head = v * h + self.centroids.map_or(0, |(clusters, _)| clusters * h);
        let values: usize = self.buffer_widths().iter().chain(&self.head_widths()).sum();
        DrafterSize {
            parameters: (3 * b * h + layers + h + head) as u64,
            buffer_values: n_slots as u64 * (values + b) as u64,
        }
    }

    /// Widths of [`Buffers`], in their order.
    fn buffer_widths(&self) -> [usize; 8] {
        let (b, h) = (self.backbone_hidden_size, self.hidden_size);
        let heads = self.layers.iter().map(|layer| self.n_heads * layer.head_dim).max().unwrap_or(0);
        [2 * b, h, h, heads, heads, h, self.intermediate_size, b]
    }

    /// Widths of the head's buffers: scores of clusters, those that are looked into, logits.
    fn head_widths(&self) -> [usize; 3] {
        match self.centroids {
            None => [0, 0, self.vocab_size],
            Some((clusters, top)) => [clusters, top, top * (self.vocab_size / clusters)],
        }
    }

    /// Checks that the assistant fits a target, by both their configs.
    ///
    /// # Errors
    /// [`ModelError::IncompatibleDrafter`].
    pub fn fit(&self, raw: &RawConfig, target: &Description) -> Result<(), ModelError> {
        let Description { architecture, hidden_size, vocab_size, sliding, full, .. } = target;
        self.fit_lender(raw, architecture, [*hidden_size, *vocab_size], [*sliding, *full])
    }

    /// Where its layers read a target that it fits.
    fn bind(&self, raw: &RawConfig, target: &Exports) -> Result<Vec<ExportLayer>, ModelError> {
        let sizes = [target.hidden_size, target.vocab_size];
        let lent = [target.sliding, target.full].map(|layer| layer.map(|layer| layer.shape));
        self.fit_lender(raw, &target.architecture, sizes, lent)?;
        let source = |layer: &LayerConfig| match layer.kind {
            LayerKind::Sliding => target.sliding,
            LayerKind::Full => target.full,
        };
        Ok(self.layers.iter().map(|layer| source(layer).expect("it fits")).collect())
    }

    /// Checks it against what a target is and what it lends to sliding and full layers.
    fn fit_lender(
        &self,
        raw: &RawConfig,
        architecture: &str,
        [hidden_size, vocab_size]: [usize; 2],
        [sliding, full]: [Option<LentKv>; 2],
    ) -> Result<(), ModelError> {
        let mismatch = |what: &str, expected: String, found: String| {
            let (file, target) = (raw.file().to_path_buf(), architecture.to_owned());
            ModelError::IncompatibleDrafter { file, target, what: what.to_owned(), expected, found }
        };
        let sizes = [
            ("backbone_hidden_size", hidden_size, self.backbone_hidden_size),
            ("vocab_size", vocab_size, self.vocab_size),
        ];
        for (what, expected, found) in sizes {
            if expected != found {
                return Err(mismatch(what, expected.to_string(), found.to_string()));
            }
        }
        for layer in &self.layers {
            let (kind, lent) = match layer.kind {
                LayerKind::Sliding => ("sliding_attention", sliding),
                LayerKind::Full => ("full_attention", full),
            };
            let Some(LentKv { spec, value_is_key }) = lent else {
                let expected = format!("no {kind} layers, having no K/V of them for drafters");
                return Err(mismatch("layer_types", expected, format!("a {kind} layer")));
            };
            let shape = |kv_heads, head_dim| format!("{kv_heads} K/V heads of {head_dim} in {kind} layers");
            let (expected, found) =
                (shape(spec.kv_heads, spec.head_dim), shape(layer.kv_heads, layer.head_dim));
            if expected != found {
                return Err(mismatch("num_key_value_heads and head_dim", expected, found));
            }
            let window = (layer.kind == LayerKind::Sliding).then_some(self.sliding_window);
            if spec.window != window {
                let text = |window: Option<usize>| window.map_or("none".to_owned(), |keys| keys.to_string());
                return Err(mismatch("sliding_window", text(spec.window), text(window)));
            }
            if value_is_key != layer.value_is_key {
                let [expected, found] = [value_is_key, layer.value_is_key].map(|is| is.to_string());
                return Err(mismatch("attention_k_eq_v", expected, found));
            }
        }
        Ok(())
    }
}

struct Layer {
    input_norm: Vector,
    q: Matrix,
    q_norm: Vector,
    rope: Rope,
    source: ExportLayer,
    o: Matrix,
    post_attention_norm: Vector,
    pre_feed_forward_norm: Vector,
    gate_up: Matrix,
    down: Matrix,
    post_feed_forward_norm: Vector,
    scalar: f32,
}

enum Head {
    Dense { w: Matrix, logits: Buf },
    Clustered { centroids: Matrix, head: ClusterHead, scores: Buf, clusters: Buf, logits: Buf },
}

/// Activations of one draft step.
struct Buffers {
    /// `[E[t] * s | h]`, `[2 B]`.
    input: Buf,
    x: Buf,
    u: Buf,
    q: Buf,
    heads: Buf,
    h: Buf,
    inner: Buf,
    /// Post-projection `[B]`.
    hidden: Buf,
}

/// An assistant, bound to the target that it was loaded for.
pub struct Gemma4Assistant {
    config: AssistantConfig,
    target: Exports,
    pre_projection: Matrix,
    layers: Vec<Layer>,
    final_norm: Vector,
    post_projection: Matrix,
    head: Head,
    buffers: Buffers,
    /// `h` of each slot, `[slots, B]`.
    slot_hidden: Buf,
}

impl Gemma4Assistant {
    /// Loads an assistant for a target on the same backend: the only way to one, so an unbound assistant cannot exist. `n_slots` is
    /// also the largest number of rows of a step.
    ///
    /// # Errors
    /// A config or tensors that are not an assistant's, or not one of this target.
    pub fn bind(
        raw: &RawConfig,
        tensors: Tensors,
        backend: &mut dyn Backend,
        target: &Exports,
        n_slots: usize,
        inexact: Inexact,
    ) -> Result<Self, ModelError> {
        let config = AssistantConfig::parse(raw)?;
        let sources = config.bind(raw, target)?;
        let ropes = config.ropes.map(|spec| spec.map(|spec| backend.rope(spec)));
        let mut from = WeightLoader { tensors: tensors.into_text()?, backend, inexact };
        let mut layers = Vec::with_capacity(sources.len());
        for (i, &source) in sources.iter().enumerate() {
            let rope = ropes[config.layers[i].kind as usize].expect("every kind that occurs has a rotation");
            layers.push(load_layer(&mut from, &config, i, source, rope)?);
        }
        let (b, h) = (config.backbone_hidden_size, config.hidden_size);
        let pre_projection = from.linear("pre_projection.weight", h, 2 * b)?;
        let post_projection = from.linear("post_projection.weight", b, h)?;
        let final_norm = from.vector("norm.weight", h)?;
        let head = load_head(&mut from, &config, n_slots)?;
        from.tensors.finish()?;
        let mut buffer = |width: usize| from.backend.buffer(n_slots, width);
        let [input, x, u, q, heads, h, inner, hidden] = config.buffer_widths();
        let buffers = Buffers {
            input: buffer(input)?,
            x: buffer(x)?,
            u: buffer(u)?,
            q: buffer(q)?,
            heads: buffer(heads)?,
            h: buffer(h)?,
            inner: buffer(inner)?,
            hidden: buffer(hidden)?,
        };
        let slot_hidden = buffer(b)?;
        Ok(Self {
            target: target.clone(),
            pre_projection,
            layers,
            final_norm,
            post_projection,
            head,
            buffers,
            slot_hidden,
            config,
        })
    }

    /// Its config.
    pub fn config(&self) -> &AssistantConfig {
        &self.config
    }

    /// Where each slot's `h` is kept: the target's hidden state after its final norm, at the newest committed row, and in a round
    /// the post-projection of the last step.
    pub fn slot_hidden(&self) -> Buf {
        self.slot_hidden
    }

    /// One draft step (spec 6.2) for every row of the pass, which has one row a slot at this step. The caller has begun the pass.
    pub fn step(&self, backend: &mut dyn Backend, pass: &Pass, step: usize) {
        let (c, s, rows) = (&self.config, &self.buffers, pass.all());
        let (table, scale) = (self.target.embedding, self.target.embedding_scale);
        backend.run(&Op::Embed { table, scale, out: s.input, column: 0 }, rows);
        let column = c.backbone_hidden_size as u32;
        backend.run(&Op::ReadSlots { src: self.slot_hidden, out: s.input, column }, rows);
        backend.mark(Mark::DrafterInput, s.input, rows);
        backend.run(&Op::Linear { x: s.input, w: self.pre_projection, out: s.x }, rows);
        backend.mark(Mark::PreProjection, s.x, rows);
        let first = Some(self.layers[0].input_norm);
        backend.run(&Op::Norm { x: s.x, w: first, eps: c.eps, out: s.u }, rows);
        for (i, layer) in self.layers.iter().enumerate() {
            let next = self.layers.get(i + 1).map_or(self.final_norm, |layer| layer.input_norm);
            self.layer(backend, layer, rows, next);
            backend.mark(Mark::Layer(i), s.x, rows);
        }
        backend.mark(Mark::HiddenPostNorm, s.u, rows);
        backend.run(&Op::Linear { x: s.u, w: self.post_projection, out: s.hidden }, rows);
        backend.mark(Mark::PostProjection, s.hidden, rows);
        backend.run(&Op::WriteSlots { src: s.hidden, out: self.slot_hidden }, rows);
        self.choose(backend, rows, step as u32);
    }

    fn layer(&self, backend: &mut dyn Backend, layer: &Layer, rows: Rows, next: Vector) {
        let (s, eps, n_heads) = (&self.buffers, self.config.eps, self.config.n_heads as u32);
        backend.run(&Op::Linear { x: s.u, w: layer.q, out: s.q }, rows);
        let (q_norm, rope) = (layer.q_norm, layer.rope);
        backend.run(&Op::QkNormRopeStore { qkv: s.q, n_heads, q_norm, rope, eps, kv: None }, rows);
        let kv = layer.source.kv;
        backend.run(
            &Op::Attend { q: s.q, layer: kv, n_heads, scale: 1.0, sees: Sees::Past, out: s.heads },
            rows,
        );
        backend.run(&Op::Linear { x: s.heads, w: layer.o, out: s.h }, rows);
        let (w, after) = (layer.post_attention_norm, Some((layer.pre_feed_forward_norm, s.u)));
        backend.run(&Op::AddNorm { x: s.x, h: s.h, w, scale: 1.0, next: after, eps }, rows);
        backend.run(&Op::LinearGated { x: s.u, w: layer.gate_up, function: Gate::Gelu, out: s.inner }, rows);
        backend.run(&Op::Linear { x: s.inner, w: layer.down, out: s.h }, rows);
        let (w, after) = (layer.post_feed_forward_norm, Some((next, s.u)));
        backend.run(&Op::AddNorm { x: s.x, h: s.h, w, scale: layer.scalar, next: after, eps }, rows);
    }

    /// Spec 6.3. The clustered head never makes logits of the whole vocabulary.
    fn choose(&self, backend: &mut dyn Backend, rows: Rows, step: u32) {
        let x = self.buffers.u;
        match self.head {
            Head::Dense { w, logits } => {
                backend.run(&Op::Logits { x, w, first_row: rows.start, out: logits }, rows);
                backend.mark(Mark::Logits, logits, rows);
                backend.run(&Op::ChooseDraft { logits, softcap: None, first_row: 0, step }, rows);
            }
            Head::Clustered { centroids, head, scores, clusters, logits } => {
                backend.run(&Op::Linear { x, w: centroids, out: scores }, rows);
                backend.mark(Mark::CentroidScores, scores, rows);
                backend.run(&Op::ClusterLogits { x, scores, head, clusters, out: logits }, rows);
                backend.mark(Mark::TopClusters, clusters, rows);
                backend.mark(Mark::ClusterLogits, logits, rows);
                backend.run(&Op::ChooseClustered { clusters, logits, head, step }, rows);
            }
        }
    }
}

fn load_layer(
    from: &mut WeightLoader<'_>,
    config: &AssistantConfig,
    i: usize,
    source: ExportLayer,
    rope: Rope,
) -> Result<Layer, ModelError> {
    let (h, wide) = (config.hidden_size, config.intermediate_size);
    let (d, n_heads) = (config.layers[i].head_dim, config.n_heads);
    let name = |part: &str| format!("layers.{i}.{part}");
    for stray in ["k_proj.weight", "v_proj.weight", "k_norm.weight", "v_norm.weight"] {
        let stray = name(&format!("self_attn.{stray}"));
        if let Some(tensor) = from.tensors.get(&stray) {
            let (file, tensor) = (tensor.file().to_path_buf(), tensor.name().to_owned());
            return Err(ModelError::StrayTensor { file, tensor });
        }
    }
    let gate = from.rows(&name("mlp.gate_proj.weight"), &[wide, h])?;
    let up = from.rows(&name("mlp.up_proj.weight"), &[wide, h])?;
    Ok(Layer {
        input_norm: from.vector(&name("input_layernorm.weight"), h)?,
        q: from.linear(&name("self_attn.q_proj.weight"), n_heads * d, h)?,
        q_norm: from.vector(&name("self_attn.q_norm.weight"), d)?,
        rope,
        source,
        o: from.linear(&name("self_attn.o_proj.weight"), h, n_heads * d)?,
        post_attention_norm: from.vector(&name("post_attention_layernorm.weight"), h)?,
        pre_feed_forward_norm: from.vector(&name("pre_feedforward_layernorm.weight"), h)?,
        gate_up: from.matrix(&[&gate, &up], MatrixLayout::Gated)?,
        down: from.linear(&name("mlp.down_proj.weight"), h, wide)?,
        post_feed_forward_norm: from.vector(&name("post_feedforward_layernorm.weight"), h)?,
        scalar: from.values(&name("layer_scalar"), 1)?[0],
    })
}

fn load_head(
    from: &mut WeightLoader<'_>,
    config: &AssistantConfig,
    n_slots: usize,
) -> Result<Head, ModelError> {
    let (v, h) = (config.vocab_size, config.hidden_size);
    let embedding = from.rows("embed_tokens.weight", &[v, h])?;
    let head = if config.tied {
        from.tensors.discard("lm_head.weight");
        embedding
    } else {
        from.rows("lm_head.weight", &[v, h])?
    };
    let [scores, clusters, logits] = config.head_widths();
    let Some((n_clusters, _)) = config.centroids else {
        // Files of a dense head may carry the centroid tensors; nothing reads them.
        from.tensors.discard("masked_embedding.centroids.weight");
        from.tensors.discard("masked_embedding.token_ordering");
        let w = from.matrix(&[&head], MatrixLayout::Plain)?;
        return Ok(Head::Dense { w, logits: from.backend.buffer(n_slots, logits)? });
    };
    let centroids = from.linear("masked_embedding.centroids.weight", n_clusters, h)?;
    let order = from.tensors.take_flat("masked_embedding.token_ordering", v)?;
    let file = order.file().to_path_buf();
    let order = permutation(&order.to_i64()?).map_err(|found| ModelError::Inconsistent {
        file,
        what: "tensor `masked_embedding.token_ordering`".to_owned(),
        expected: format!("each of the {v} token ids once"),
        found,
    })?;
    let packed = from.backend.cluster_head(&head as &dyn RowSource, &order, n_clusters)?;
    head.release();
    Ok(Head::Clustered {
        centroids,
        head: packed,
        scores: from.backend.buffer(n_slots, scores)?,
        clusters: from.backend.buffer(n_slots, clusters)?,
        logits: from.backend.buffer(n_slots, logits)?,
    })
}

/// The ids as `u32`, if each number below their count occurs once; else the first that is out of place, in words.
fn permutation(order: &[i64]) -> Result<Vec<u32>, String> {
    let mut seen = vec![false; order.len()];
    let id = |(at, &id): (usize, &i64)| {
        let seen = usize::try_from(id).ok().and_then(|id| seen.get_mut(id));
        match seen.map(|seen| std::mem::replace(seen, true)) {
            Some(false) => Ok(id as u32),
            Some(true) => Err(format!("{id} again at element {at}")),
            None => Err(format!("{id} at element {at}")),
        }
    };
    order.iter().enumerate().map(id).collect()
}
