//! What the engine knows of a target model.

use paceline_backend::{Backend, Buf, KvGroup, KvGroupSpec, KvLayer, Matrix, Pass, Table, TokenId};

/// Sizes that a model and its buffers are loaded for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rows of the largest pass.
    pub max_rows: usize,
    /// Rows of the largest pass at which something wants the hidden state: at most `max_rows`.
    pub max_wanted: usize,
    /// Rows for which logits are held at one time; more wanted rows are served in turns.
    pub logit_rows: usize,
    /// Live sequences.
    pub n_slots: usize,
    /// Blocks of each K/V group, in the order of [`Description::kv_groups`].
    pub kv_blocks: Vec<usize>,
    /// Blocks of each K/V group of its drafter, in the order that the drafter's config gives them.
    pub drafter_kv_blocks: Vec<usize>,
}

/// What a checkpoint is, from its config alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// `model_type` of the text model, such as `gemma4_text`.
    pub architecture: String,
    /// Layers.
    pub n_layers: usize,
    /// One line a kind of layer: how many, heads, head size, window, K/V sharing.
    pub layer_lines: Vec<String>,
    /// Entries of the vocabulary.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Largest number of positions.
    pub max_positions: usize,
    /// The token that stands for what is not known yet, where the family has one: a drafter that fills in masks and names none means
    /// this.
    pub mask_token: Option<u32>,
    /// Parameters by kind.
    pub parameters: Vec<Parameters>,
    /// K/V groups.
    pub kv_groups: Vec<KvGroupSpec>,
    /// What an assistant's sliding layers would read.
    pub sliding: Option<LentKv>,
    /// What its full layers would read.
    pub full: Option<LentKv>,
}

/// Shape of K/V that a drafter may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentKv {
    /// Shape of its group.
    pub spec: KvGroupSpec,
    /// Its V is the key projection (`attention_k_eq_v`).
    pub value_is_key: bool,
}

/// Parameters of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Such as `attention` or `per-layer table`.
    pub kind: &'static str,
    /// How many.
    pub count: u64,
    /// How many of them a decoded token reads.
    pub read_per_token: u64,
    /// Whether they stay in the mapped file instead of in packed memory.
    pub mapped: bool,
}

impl Description {
    /// All parameters.
    pub fn total_parameters(&self) -> u64 {
        self.parameters.iter().map(|part| part.count).sum()
    }

    /// Parameters that are held in packed memory.
    pub fn packed_parameters(&self) -> u64 {
        let packed = self.parameters.iter().filter(|part| !part.mapped);
        packed.map(|part| part.count).fold(0, u64::saturating_add)
    }

    /// Parameters that a decoded token reads.
    pub fn read_parameters(&self) -> u64 {
        self.parameters.iter().map(|part| part.read_per_token).sum()
    }
}

/// What a drafter takes beside its target, by its config alone. K/V is not in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrafterSize {
    /// Parameters that are held in packed memory.
    pub parameters: u64,
    /// Values of its buffers, and of those that the target keeps for it.
    pub buffer_values: u64,
}

/// A layer whose K/V a drafter may read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExportLayer {
    /// Where its K/V lives.
    pub kv: KvLayer,
    /// What it is like.
    pub shape: LentKv,
}

/// A K/V group that a drafter owns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OwnedGroup {
    /// The group.
    pub group: KvGroup,
    /// Its shape.
    pub spec: KvGroupSpec,
}

/// What a bound drafter may use of a target.
#[derive(Clone, Debug, PartialEq)]
pub struct Exports {
    /// Architecture, for messages.
    pub architecture: String,
    /// Token embeddings.
    pub embedding: Table,
    /// Factor of the embeddings before rounding: the square root of the hidden size.
    pub embedding_scale: f32,
    /// Output head.
    pub head: Matrix,
    /// Softcap of the target's logits.
    pub softcap: Option<f32>,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Entries of the vocabulary.
    pub vocab_size: usize,
    /// See [`Description::mask_token`].
    pub mask_token: Option<u32>,
    /// The last layer with a window that owns K/V.
    pub sliding: Option<ExportLayer>,
    /// The last layer without a window that owns K/V.
    pub full: Option<ExportLayer>,
    /// Final hidden states of the wanted rows, after the final norm.
    pub hidden_post_norm: Buf,
    /// Final hidden states of the wanted rows, before the final norm.
    pub hidden_pre_norm: Buf,
    /// The stream after the layers of [`crate::LoadOptions::tap_layers`], side by side, at the tapped rows; `None` without such layers, or
    /// if the target offers none.
    pub taps: Option<Buf>,
}

/// A loaded target. Its weights, buffers and K/V live in the backend that it was loaded on.
pub trait Target: Send {
    /// What it is.
    fn description(&self) -> &Description;

    /// Its K/V groups, in the order of the description.
    fn kv_groups(&self) -> &[KvGroup];

    /// What a drafter may use.
    fn exports(&self) -> &Exports;

    /// Tokens that may not stand in a prompt (placeholders of media that are not supported).
    fn refused_tokens(&self) -> &[TokenId];

    /// One forward over a pass: K/V of all rows, hidden states of the wanted rows, logits and the chosen token of every row at
    /// which the pass chooses. The caller has begun the pass and commits it.
    fn forward(&self, backend: &mut dyn Backend, pass: &Pass);

    /// Whether K/V is all that it knows of earlier rows, so that sequences which begin alike can share it. Not so with recurrent layers.
    fn is_all_kv(&self) -> bool {
        true
    }

    /// The pass is committed. A model with recurrent layers steps their state here, by [`paceline_backend::Op::StateCommit`]; one whose
    /// only state is K/V has nothing to do.
    fn committed(&self, _backend: &mut dyn Backend) {}
}
