//! Gemma 4 text models: E2B and E4B (per-layer inputs, shared K/V), dense (12B, 31B), mixture of experts (26B-A4B).
//!
//! The order of this folder is the order of a forward: `config`, `weights`, and here the forward itself, which follows
//! section 3 of the specification step by step. Layers that own K/V come first and run over all rows; layers that
//! borrow it run over the rows that somebody reads.

mod config;
mod load;
mod weights;

use paceline_backend::{Backend, Buf, Gate, KvGroup, KvWrite, Mark, Op, Pass, Rows, Sees, TokenId, Vector};

use config::Gemma4Config;
pub(crate) use config::{LayerConfig, LayerKind, TextReader};
pub(crate) use load::{describe, load};
use weights::{Layer, Moe, Weights};

use crate::taps::Taps;
use crate::target::{Description, Exports, Target};

/// Buffers of one set of rows. Widths are those of the widest layer; ops use the leading columns.
#[derive(Clone, Copy, Debug)]
struct Stream {
    /// Residual stream `[H]`.
    x: Buf,
    /// Normed input of the next product `[H]`.
    u: Buf,
    /// Per-layer inputs `[L * P]`.
    per_layer: Option<Buf>,
    /// `[q | k | v]`.
    qkv: Buf,
    /// Attention output `[heads * d]`.
    heads: Buf,
    /// Output of a block before its norm `[H]`.
    h: Buf,
    /// Inner values of the MLP and of the per-layer gate.
    inner: Buf,
    moe: Option<MoeStream>,
}

#[derive(Clone, Copy, Debug)]
struct MoeStream {
    /// Normed input of router and experts `[H]`.
    normed: Buf,
    /// Router probabilities `[E]`.
    prob: Buf,
    /// `(expert, weight)` pairs.
    routes: Buf,
    /// Sum of the experts `[H]`.
    sum: Buf,
}

/// A loaded Gemma 4 target.
pub(crate) struct Gemma4 {
    config: Gemma4Config,
    description: Description,
    exports: Exports,
    weights: Weights,
    kv_groups: Vec<KvGroup>,
    refused: Vec<TokenId>,
    /// Over all rows.
    all: Stream,
    /// Over the wanted rows.
    wanted: Stream,
    /// `[rows, L * P]` before the per-layer norm.
    projected: Option<Buf>,
    taps: Option<Taps>,
    logits: Buf,
    logit_rows: usize,
}

impl Target for Gemma4 {
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
        self.embed(backend, pass.all());
        let (mut rows, mut stream) = (pass.all(), &self.all);
        let narrow_at = Taps::narrow_at(self.taps.as_ref(), self.config.last_owner, pass);
        for (i, layer) in self.weights.layers.iter().enumerate() {
            self.project(backend, layer, rows, stream);
            if i == narrow_at {
                // All K/V of the pass is stored and all taps are taken: from here on a row matters only to who reads it.
                if pass.wanted().is_empty() {
                    return;
                }
                (rows, stream) = (pass.wanted_rows(), &self.wanted);
                self.gather_wanted(backend, rows);
            }
            backend.mark(Mark::Query(i), stream.qkv, rows);
            self.attend(backend, i, layer, rows, stream);
            self.feed_forward(backend, i, layer, rows, stream);
            backend.mark(Mark::Layer(i), stream.x, rows);
            if let Some(taps) = &self.taps {
                taps.take(backend, pass, i, stream.x);
            }
        }
        if narrow_at == self.weights.layers.len() {
            if pass.wanted().is_empty() {
                return;
            }
            (rows, stream) = (pass.wanted_rows(), &self.wanted);
            backend.run(&Op::GatherRows { src: self.all.x, out: stream.x }, rows);
            backend.run(&Op::GatherRows { src: self.all.u, out: stream.u }, rows);
        }
        backend.mark(Mark::HiddenPreNorm, stream.x, rows);
        backend.mark(Mark::HiddenPostNorm, stream.u, rows);
        self.choose(backend, rows);
    }
}

impl Gemma4 {
    /// Spec 3.1 and 3.2, and the first layer's input norm.
    fn embed(&self, backend: &mut dyn Backend, rows: Rows) {
        let (c, w, s) = (&self.config, &self.weights, &self.all);
        backend.run(&Op::Embed { table: w.embedding, scale: c.embedding_scale(), out: s.x, column: 0 }, rows);
        backend.mark(Mark::Embedding, s.x, rows);
        if let (Some(p), Some(projected), Some(out)) = (&w.per_layer, self.projected, s.per_layer) {
            backend.run(&Op::Linear { x: s.x, w: p.projection, out: projected }, rows);
            let op = Op::PerLayerInputs {
                table: p.table,
                table_scale: (p.width as f32).sqrt(),
                projected,
                projection_scale: (c.hidden_size as f32).sqrt().recip(),
                norm: p.norm,
                eps: c.eps,
                out,
            };
            backend.run(&op, rows);
            backend.mark(Mark::PerLayerInputs, out, rows);
        }
        let first = Some(w.layers[0].input_norm);
        backend.run(&Op::Norm { x: s.x, w: first, eps: c.eps, out: s.u }, rows);
    }

    /// Spec 3.4, steps 1 to 3: queries, and K/V where the layer owns it.
    fn project(&self, backend: &mut dyn Backend, layer: &Layer, rows: Rows, s: &Stream) {
        backend.run(&Op::Linear { x: s.u, w: layer.qkv, out: s.qkv }, rows);
        let op = Op::QkNormRopeStore {
            qkv: s.qkv,
            n_heads: self.config.n_heads as u32,
            q_norm: layer.q_norm,
            rope: layer.rope,
            eps: self.config.eps,
            kv: layer.k_norm.map(|k_norm| KvWrite {
                layer: layer.kv,
                k_norm,
                value: layer.value,
                norm_value: true,
            }),
        };
        backend.run(&op, rows);
    }

    /// Moves what the rest of the forward reads to the wanted rows.
    fn gather_wanted(&self, backend: &mut dyn Backend, rows: Rows) {
        let (from, to) = (&self.all, &self.wanted);
        backend.run(&Op::GatherRows { src: from.x, out: to.x }, rows);
        backend.run(&Op::GatherRows { src: from.qkv, out: to.qkv }, rows);
        if let (Some(src), Some(out)) = (from.per_layer, to.per_layer) {
            backend.run(&Op::GatherRows { src, out }, rows);
        }
    }

    /// Spec 3.4, steps 4 and 5, and the residual of 3.6. Scores are not scaled.
    fn attend(&self, backend: &mut dyn Backend, i: usize, layer: &Layer, rows: Rows, s: &Stream) {
        let n_heads = self.config.n_heads as u32;
        backend.run(
            &Op::Attend { q: s.qkv, layer: layer.kv, n_heads, scale: 1.0, sees: Sees::Past, out: s.heads },
            rows,
        );
        backend.mark(Mark::HeadsOut(i), s.heads, rows);
        backend.run(&Op::Linear { x: s.heads, w: layer.o, out: s.h }, rows);
        backend.mark(Mark::AttentionOut(i), s.h, rows);
        self.add(backend, rows, s, layer.post_attention_norm, 1.0, Some(layer.pre_feed_forward_norm));
    }

    /// Spec 3.6 from the MLP on: MLP, experts, per-layer input, layer scalar; ends with the next layer's input norm.
    fn feed_forward(&self, backend: &mut dyn Backend, i: usize, layer: &Layer, rows: Rows, s: &Stream) {
        backend.run(&Op::LinearGated { x: s.u, w: layer.gate_up, function: Gate::Gelu, out: s.inner }, rows);
        backend.run(&Op::Linear { x: s.inner, w: layer.down, out: s.h }, rows);
        backend.mark(Mark::MlpOut(i), s.h, rows);
        if let (Some(moe), Some(buffers)) = (&layer.moe, &s.moe) {
            self.experts(backend, i, moe, rows, s, buffers);
        }
        let next = Some(match self.weights.layers.get(i + 1) {
            Some(layer) => layer.input_norm,
            None => self.weights.final_norm,
        });
        let (Some(gate), Some(per_layer)) = (&layer.per_layer, s.per_layer) else {
            return self.add(backend, rows, s, layer.post_feed_forward_norm, layer.scalar, next);
        };
        self.add(backend, rows, s, layer.post_feed_forward_norm, 1.0, None);
        let by_column = (i * gate.width) as u32;
        let op = Op::LinearGatedBy { x: s.x, w: gate.gate, by: per_layer, by_column, out: s.inner };
        backend.run(&op, rows);
        backend.run(&Op::Linear { x: s.inner, w: gate.projection, out: s.h }, rows);
        self.add(backend, rows, s, gate.post_norm, layer.scalar, next);
    }

    /// Spec 3.6 and 3.7: leaves `norm_1(mlp) + norm_2(experts)` in `h`. The router sees the stream itself.
    fn experts(&self, b: &mut dyn Backend, i: usize, moe: &Moe, rows: Rows, s: &Stream, m: &MoeStream) {
        let eps = self.config.eps;
        let route = Op::Route {
            x: s.x,
            scale: moe.router_scale,
            proj: moe.router,
            per_expert: moe.per_expert_scale,
            top_k: moe.top_k,
            eps,
            normed: m.normed,
            prob: m.prob,
            routes: m.routes,
        };
        b.run(&route, rows);
        b.mark(Mark::RouterProb(i), m.prob, rows);
        b.mark(Mark::Routes(i), m.routes, rows);
        b.run(&Op::Norm { x: s.x, w: Some(moe.pre_norm), eps, out: m.normed }, rows);
        b.run(&Op::Experts { x: m.normed, routes: m.routes, experts: moe.experts, out: m.sum }, rows);
        b.mark(Mark::ExpertsOut(i), m.sum, rows);
        let (wa, wb) = (moe.post_mlp_norm, moe.post_experts_norm);
        b.run(&Op::NormSum { a: s.h, wa, b: m.sum, wb, eps }, rows);
    }

    /// `x = (x + norm(h)) * scale`, and `u = norm(x)` if a next norm is given.
    fn add(
        &self,
        backend: &mut dyn Backend,
        rows: Rows,
        s: &Stream,
        w: Vector,
        scale: f32,
        next: Option<Vector>,
    ) {
        let next = next.map(|norm| (norm, s.u));
        backend.run(&Op::AddNorm { x: s.x, h: s.h, w, scale, next, eps: self.config.eps }, rows);
    }

    /// Spec 3.8: logits of the wanted rows, in pieces that fit the buffer, and the target's choice at each.
    fn choose(&self, backend: &mut dyn Backend, wanted: Rows) {
        let (x, w, logits) = (self.exports.hidden_post_norm, self.exports.head, self.logits);
        for rows in wanted.pieces(self.logit_rows) {
            let first_row = rows.start;
            backend.run(&Op::Logits { x, w, first_row, out: logits }, rows);
            backend.run(&Op::Choose { logits, softcap: self.config.softcap, first_row }, rows);
            backend.mark(Mark::Logits, logits, rows);
        }
    }
}
