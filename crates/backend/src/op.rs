//! The closed list of ops. Each is one coarse step of a model with a fixed numeric contract
//! (`paceline_kernels::numerics`); fusion happens by adding a coarser op, never by a second model.

use paceline_kernels::act::Gate;

use crate::handle::{Buf, ClusterHead, Experts, KvLayer, Matrix, Rope, Table, Vector};

/// Where an attention layer's V comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueSource {
    /// Its own columns of the projection, after K's.
    Projection,
    /// K's columns as projected, before K's norm and rotation (`attention_k_eq_v`).
    Key,
}

/// Which of the keys below its end a row attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sees {
    /// Those up to its own, and of a group with a window the newest `window` of them.
    Past,
    /// The whole block that it is in, and what stands before: of a group with a window, the `window - 1` keys before the block.
    Block,
}

/// K and V of a layer that owns them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvWrite {
    /// Where they go.
    pub layer: KvLayer,
    /// Weight of K's norm.
    pub k_norm: Vector,
    /// Where V comes from.
    pub value: ValueSource,
    /// V is normed without weight (Gemma 4); otherwise stored as projected.
    pub norm_value: bool,
}

/// One op. `x` and other inputs are read, `out` is written, both at the rows that [`crate::Backend::run`] is given, unless a
/// field says otherwise. Shapes are `[rows, width]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// `out[column ..] = round(table[token] * scale)`.
    Embed {
        /// Token embeddings.
        table: Table,
        /// Factor, rounded to the activation type by the backend.
        scale: f32,
        /// Destination.
        out: Buf,
        /// First column written.
        column: u32,
    },
    /// Per-layer inputs (gemma4 spec 3.2): `out = (norm(projected * projection_scale) + table[token] * table_scale) * 2^-0.5`, where
    /// the norm runs over pieces of `norm.len`.
    PerLayerInputs {
        /// Per-layer embeddings, `[V, layers * P]`.
        table: Table,
        /// `sqrt(P)`, rounded to the activation type by the backend.
        table_scale: f32,
        /// The projected embeddings, `[rows, layers * P]`.
        projected: Buf,
        /// `H^-0.5`.
        projection_scale: f32,
        /// Weight of the norm, `[P]`.
        norm: Vector,
        /// Epsilon of the norm.
        eps: f32,
        /// Destination, `[rows, layers * P]`.
        out: Buf,
    },
    /// `out = x . Wᵀ`.
    Linear {
        /// Input.
        x: Buf,
        /// Weights.
        w: Matrix,
        /// Output.
        out: Buf,
    },
    /// `out = function(x . Gᵀ) * (x . Uᵀ)` with a gated matrix.
    LinearGated {
        /// Input.
        x: Buf,
        /// Gate and up.
        w: Matrix,
        /// The gate's function.
        function: Gate,
        /// Output.
        out: Buf,
    },
    /// `out = gelu(x . Wᵀ) * by[by_column ..]`.
    LinearGatedBy {
        /// Input.
        x: Buf,
        /// Weights.
        w: Matrix,
        /// Factors.
        by: Buf,
        /// First column of the factors.
        by_column: u32,
        /// Output.
        out: Buf,
    },
    /// `out = norm(x) * w`.
    Norm {
        /// Input.
        x: Buf,
        /// Weight.
        w: Option<Vector>,
        /// Epsilon.
        eps: f32,
        /// Output.
        out: Buf,
    },
    /// `x = (x + norm(h) * w) * scale`, then, if there is a next norm, `out = norm(x) * next`.
    AddNorm {
        /// The residual stream, read and written.
        x: Buf,
        /// The branch.
        h: Buf,
        /// Weight of the branch's norm.
        w: Vector,
        /// Factor of the whole stream (`layer_scalar`; 1 elsewhere).
        scale: f32,
        /// Weight of the norm that follows, and where its result goes.
        next: Option<(Vector, Buf)>,
        /// Epsilon of both norms.
        eps: f32,
    },
    /// `x = x + h`, then `out = norm(x) * next`.
    Add {
        /// The residual stream, read and written.
        x: Buf,
        /// The branch.
        h: Buf,
        /// Weight of the norm that follows.
        next: Vector,
        /// Epsilon of the norm.
        eps: f32,
        /// Where its result goes.
        out: Buf,
    },
    /// `a = norm(a) * wa + norm(b) * wb`.
    NormSum {
        /// First input, and the result.
        a: Buf,
        /// Its weight.
        wa: Vector,
        /// Second input.
        b: Buf,
        /// Its weight.
        wb: Vector,
        /// Epsilon of both norms.
        eps: f32,
    },
    /// Norms and rotates the queries in the first `n_heads * head_dim` columns of `qkv` in place; with `kv`, norms and rotates K,
    /// takes V, and stores both for the row.
    QkNormRopeStore {
        /// `[q | k | v]`, `[q | k]` or `[q]`.
        qkv: Buf,
        /// Query heads.
        n_heads: u32,
        /// Weight of the query norm, `[head_dim]`.
        q_norm: Vector,
        /// Rotation.
        rope: Rope,
        /// Epsilon of the norms.
        eps: f32,
        /// K and V, for a layer that owns them.
        kv: Option<KvWrite>,
    },
    /// `out = softmax(q . Kᵀ * scale) . V` over the keys that each row sees.
    Attend {
        /// Queries in the first `n_heads * head_dim` columns.
        q: Buf,
        /// K/V to read.
        layer: KvLayer,
        /// Query heads.
        n_heads: u32,
        /// Factor of the scores.
        scale: f32,
        /// Which keys a row sees.
        sees: Sees,
        /// `[rows, n_heads * head_dim]`.
        out: Buf,
    },
    /// Norms and rotates K in the columns `column ..` of `kv` in place, takes V from behind it, and stores both for the row. What is not
    /// finite is the drafter's fault, not the slot's.
    KvNormRopeStore {
        /// `[.. | k | v | ..]`.
        kv: Buf,
        /// First column of K.
        column: u32,
        /// Where they go.
        layer: KvLayer,
        /// Weight of K's norm, `[head_dim]`.
        k_norm: Vector,
        /// Rotation.
        rope: Rope,
        /// Epsilon of the norm.
        eps: f32,
    },
    /// Chooses experts (gemma4 spec 3.7): `norm(x)` without weight, times `scale`, times `proj`; softmax; the `top_k` largest.
    Route {
        /// The residual stream.
        x: Buf,
        /// `router.scale * H^-0.5`, `[H]`.
        scale: Vector,
        /// Router matrix.
        proj: Matrix,
        /// Factor per expert.
        per_expert: Vector,
        /// Experts a row uses.
        top_k: u32,
        /// Epsilon of the norm.
        eps: f32,
        /// Scratch for the normed input, `[rows, H]`.
        normed: Buf,
        /// Probabilities of all experts, `[rows, experts]`.
        prob: Buf,
        /// `(expert, weight)` pairs in ranking order, `[rows, 2 * top_k]`.
        routes: Buf,
    },
    /// `out = Σ weight * down(gelu(gate(x)) * up(x))` over a row's experts in its own ranking order.
    Experts {
        /// Input.
        x: Buf,
        /// What [`Op::Route`] wrote.
        routes: Buf,
        /// The experts.
        experts: Experts,
        /// Output.
        out: Buf,
    },
    /// `out[i] = src[wanted[i]]`: run on wanted rows.
    GatherRows {
        /// Buffer over all rows.
        src: Buf,
        /// Buffer over the wanted rows.
        out: Buf,
    },
    /// `out[row][column ..] = x[the row among all rows]`: run on tapped rows.
    Tap {
        /// Buffer over all rows.
        x: Buf,
        /// Buffer over the tapped rows.
        out: Buf,
        /// First column written.
        column: u32,
    },
    /// `out[row - first_row] = x[row] . Wᵀ`.
    Logits {
        /// Final hidden states.
        x: Buf,
        /// Head.
        w: Matrix,
        /// Row that stands first in `out`.
        first_row: usize,
        /// Logits.
        out: Buf,
    },
    /// The target's own token for each row, as the slot's sampling says, kept for [`Op::Commit`]. Leaves the logits capped
    /// (`c * tanh(z / c)`) and changed by the rules of the row: -inf where suppressed, biased, penalised.
    Choose {
        /// What [`Op::Logits`] wrote.
        logits: Buf,
        /// The cap.
        softcap: Option<f32>,
        /// Row that stands first in `logits`.
        first_row: usize,
    },
    /// The drafter's token for each row, which becomes the draft of its slot at `len + 1 + step`: chosen as the target chooses, with the
    /// same noise.
    ChooseDraft {
        /// What [`Op::Logits`] wrote.
        logits: Buf,
        /// The cap, as for [`Op::Choose`].
        softcap: Option<f32>,
        /// Row that stands first in `logits`.
        first_row: usize,
        /// Draft step of these rows.
        step: u32,
    },
    /// [`Op::ChooseDraft`] for the masks of draft blocks: each row's draft is for its own place. Rows of a slot ascend.
    ChooseBlock {
        /// What [`Op::Logits`] wrote.
        logits: Buf,
        /// Row that stands first in `logits`.
        first_row: usize,
        /// The cap of the logits; it does not matter to a greedy choice.
        softcap: Option<f32>,
        /// The token of each logit, for a head of fewer tokens than the vocabulary.
        tokens: Option<Vector>,
    },
    /// Of a head in clusters: the `clusters.width` clusters with the largest scores (ties: the lower index), best first, and the logits of
    /// their tokens, `out = [cluster][token of the cluster]`.
    ClusterLogits {
        /// Input.
        x: Buf,
        /// A score for each cluster.
        scores: Buf,
        /// The head.
        head: ClusterHead,
        /// Indices of the chosen clusters.
        clusters: Buf,
        /// Logits of their tokens.
        out: Buf,
    },
    /// [`Op::ChooseDraft`] from what [`Op::ClusterLogits`] wrote: tokens of other clusters take no part.
    ChooseClustered {
        /// Chosen clusters.
        clusters: Buf,
        /// Logits of their tokens.
        logits: Buf,
        /// The head.
        head: ClusterHead,
        /// Draft step of these rows.
        step: u32,
    },
    /// Accepts, emits and moves every slot's `len` (design: a round's commit). Takes no rows.
    Commit,
    /// `out[slot] = src[the wanted row that the commit stopped at]`, for each slot that chose. Takes no rows.
    KeepCommitted {
        /// Buffer over the wanted rows.
        src: Buf,
        /// Buffer with one row per slot.
        out: Buf,
    },
    /// `out[slot] = src[the last row that the commit kept]`, for each slot of the pass: what a recurrent layer held after that row.
    /// `src` stands over all rows. Takes no rows.
    StateCommit {
        /// State after each row of the pass.
        src: Buf,
        /// Buffer with one row per slot.
        out: Buf,
    },
    /// `out[row][column ..] = src[slot of the row]`, zeros at the first token of a sequence, which has nothing before it.
    ReadSlots {
        /// Buffer with one row per slot.
        src: Buf,
        /// Destination.
        out: Buf,
        /// First column written.
        column: u32,
    },
    /// `out[slot of the row] = src[row]`.
    WriteSlots {
        /// Source rows.
        src: Buf,
        /// Buffer with one row per slot.
        out: Buf,
    },
}

/// The buffers that an op touches at its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpOperands {
    /// Buffers that it writes (some of which it also reads).
    pub written: [Option<Buf>; 2],
    /// K/V that it stores.
    pub stored: Option<KvLayer>,
}

impl Op {
    /// The op's name, for lists and messages.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::PerLayerInputs { .. } => "per_layer_inputs",
            Op::Linear { .. } => "linear",
            Op::LinearGated { .. } => "linear_gated",
            Op::LinearGatedBy { .. } => "linear_gated_by",
            Op::Norm { .. } => "norm",
            Op::AddNorm { .. } => "add_norm",
            Op::Add { .. } => "add",
            Op::NormSum { .. } => "norm_sum",
            Op::QkNormRopeStore { .. } => "qk_norm_rope_store",
            Op::Attend { .. } => "attend",
            Op::KvNormRopeStore { .. } => "kv_norm_rope_store",
            Op::Route { .. } => "route",
            Op::Experts { .. } => "experts",
            Op::GatherRows { .. } => "gather_rows",
            Op::Tap { .. } => "tap",
            Op::Logits { .. } => "logits",
            Op::Choose { .. } => "choose",
            Op::ChooseDraft { .. } => "choose_draft",
            Op::ChooseBlock { .. } => "choose_block",
            Op::ClusterLogits { .. } => "cluster_logits",
            Op::ChooseClustered { .. } => "choose_clustered",
            Op::Commit => "commit",
            Op::KeepCommitted { .. } => "keep_committed",
            Op::StateCommit { .. } => "state_commit",
            Op::ReadSlots { .. } => "read_slots",
            Op::WriteSlots { .. } => "write_slots",
        }
    }

    /// The op with its first row, where it has one, as `place` says.
    pub(crate) fn with_first_row(mut self, place: impl FnOnce(usize) -> usize) -> Self {
        if let Op::Logits { first_row, .. }
        | Op::Choose { first_row, .. }
        | Op::ChooseDraft { first_row, .. }
        | Op::ChooseBlock { first_row, .. } = &mut self
        {
            *first_row = place(*first_row);
        }
        self
    }

    /// What the op writes at the rows it is run on. Ops that write per-slot state only have no entry.
    pub fn operands(&self) -> OpOperands {
        let one = |out: Buf| OpOperands { written: [Some(out), None], stored: None };
        match *self {
            Op::Embed { out, .. }
            | Op::PerLayerInputs { out, .. }
            | Op::Linear { out, .. }
            | Op::LinearGated { out, .. }
            | Op::LinearGatedBy { out, .. }
            | Op::Norm { out, .. }
            | Op::NormSum { a: out, .. }
            | Op::Attend { out, .. }
            | Op::Experts { out, .. }
            | Op::GatherRows { out, .. }
            | Op::Tap { out, .. }
            | Op::Logits { out, .. }
            | Op::Choose { logits: out, .. }
            | Op::ReadSlots { out, .. } => one(out),
            Op::Add { x, out, .. } => OpOperands { written: [Some(x), Some(out)], stored: None },
            Op::KvNormRopeStore { kv, layer, .. } => {
                OpOperands { written: [Some(kv), None], stored: Some(layer) }
            }
            Op::AddNorm { x, next, .. } => {
                OpOperands { written: [Some(x), next.map(|(_, out)| out)], stored: None }
            }
            Op::QkNormRopeStore { qkv, kv, .. } => {
                OpOperands { written: [Some(qkv), None], stored: kv.map(|kv| kv.layer) }
            }
            Op::Route { prob, routes, .. } => {
                OpOperands { written: [Some(prob), Some(routes)], stored: None }
            }
            Op::ClusterLogits { clusters, out, .. } => {
                OpOperands { written: [Some(clusters), Some(out)], stored: None }
            }
            Op::ChooseDraft { .. }
            | Op::ChooseBlock { .. }
            | Op::ChooseClustered { .. }
            | Op::Commit
            | Op::KeepCommitted { .. }
            | Op::StateCommit { .. }
            | Op::WriteSlots { .. } => OpOperands::default(),
        }
    }
}

/// A named value inside a model, for comparison with recorded tensors. Numbers are layer indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mark {
    /// Scaled embedding `[H]`.
    Embedding,
    /// Per-layer inputs `[L * P]`.
    PerLayerInputs,
    /// Queries after norm and rotation.
    Query(usize),
    /// Attention output before its projection.
    HeadsOut(usize),
    /// Attention output after its projection.
    AttentionOut(usize),
    /// MLP output before its norm.
    MlpOut(usize),
    /// Router probabilities `[E]`.
    RouterProb(usize),
    /// `(expert, weight)` pairs.
    Routes(usize),
    /// Sum of the experts.
    ExpertsOut(usize),
    /// Output of a layer.
    Layer(usize),
    /// The stream before the final norm.
    HiddenPreNorm,
    /// The stream after the final norm.
    HiddenPostNorm,
    /// Logits after the softcap.
    Logits,
    /// The stream after the tapped layers, side by side, at the tapped rows.
    Taps,
    /// What a drafter makes of them.
    Context,
    /// A drafter's input: the target's embedding and hidden state.
    DrafterInput,
    /// After the drafter's pre-projection.
    PreProjection,
    /// After the drafter's post-projection.
    PostProjection,
    /// Scores of a clustered head's centroids.
    CentroidScores,
    /// The clusters that were looked into, best first.
    TopClusters,
    /// Logits of their tokens.
    ClusterLogits,
}

impl Mark {
    /// The layer whose ops come between this mark and the next one; `None` outside of layers.
    pub fn next_ops_layer(self) -> Option<usize> {
        match self {
            Mark::Embedding | Mark::PerLayerInputs | Mark::PreProjection => Some(0),
            Mark::Query(i)
            | Mark::HeadsOut(i)
            | Mark::AttentionOut(i)
            | Mark::MlpOut(i)
            | Mark::RouterProb(i)
            | Mark::Routes(i)
            | Mark::ExpertsOut(i) => Some(i),
            Mark::Layer(i) => Some(i + 1),
            _ => None,
        }
    }
}
