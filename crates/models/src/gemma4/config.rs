//! The text config of Gemma 4 (spec section 1): parsed once, nothing optional is left inside the model.

use paceline_backend::{KvGroupSpec, RopeSpec};
use paceline_checkpoint::{RawConfig, SIZES, Section};

use crate::error::ModelError;

/// Kind of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayerKind {
    /// Sees the newest `sliding_window` keys.
    Sliding,
    /// Sees every key.
    Full,
}

/// Shapes of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerConfig {
    /// Kind.
    pub(crate) kind: LayerKind,
    /// Values of a head.
    pub(crate) head_dim: usize,
    /// K/V heads.
    pub(crate) kv_heads: usize,
    /// The layer whose K/V it reads: itself if it owns K/V.
    pub(crate) kv_source: usize,
    /// Width of the MLP.
    pub(crate) intermediate_size: usize,
    /// V is the key projection (`attention_k_eq_v`).
    pub(crate) value_is_key: bool,
}

/// Mixture-of-experts block of every layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MoeConfig {
    /// Experts.
    pub(super) n_experts: usize,
    /// Experts of a row.
    pub(super) top_k: usize,
    /// Width of an expert.
    pub(super) intermediate_size: usize,
}

/// A Gemma 4 text model.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Gemma4Config {
    /// As the file names it.
    pub(super) model_type: String,
    /// Entries of the vocabulary.
    pub(super) vocab_size: usize,
    /// Width of the residual stream, H.
    pub(super) hidden_size: usize,
    /// Query heads.
    pub(super) n_heads: usize,
    /// Layers in order.
    pub(super) layers: Vec<LayerConfig>,
    /// The last layer that owns K/V.
    pub(super) last_owner: usize,
    /// Keys that a sliding layer sees.
    pub(super) sliding_window: usize,
    /// Width of a per-layer input, P; 0 without.
    pub(super) per_layer_width: usize,
    /// Rows of the per-layer table.
    pub(super) per_layer_vocab: usize,
    /// Experts.
    pub(super) moe: Option<MoeConfig>,
    /// Cap of the logits.
    pub(super) softcap: Option<f32>,
    /// Rotation of sliding layers.
    pub(super) rope_sliding: Option<RopeSpec>,
    /// Rotation of full layers.
    pub(super) rope_full: Option<RopeSpec>,
    /// Epsilon of the norms.
    pub(super) eps: f32,
    /// The head is the embedding.
    pub(super) tied: bool,
    /// Largest number of positions.
    pub(super) max_positions: usize,
    /// Placeholders of media (top-level fields), refused in prompts.
    pub(super) placeholders: Vec<u32>,
}

const TYPES: [(&str, LayerKind); 2] =
    [("sliding_attention", LayerKind::Sliding), ("full_attention", LayerKind::Full)];
/// Largest head dimension that the attention kernels take.
const MAX_HEAD_DIM: usize = 512;

impl Gemma4Config {
    /// Reads the text config of a target: `gemma4`, `gemma4_text`, `gemma4_unified`, `gemma4_unified_text`.
    ///
    /// # Errors
    /// Fields that are missing, out of range, not supported, or that contradict one another.
    pub(super) fn parse(raw: &RawConfig) -> Result<Self, ModelError> {
        let (top, text) = (raw.top(), raw.text()?);
        let reader = TextReader { text: &text };
        let layers = reader.layers()?;
        let n_shared = text.required_usize("num_kv_shared_layers", 0..=layers.len())?;
        if n_shared == layers.len() {
            let what = "num_kv_shared_layers".to_owned();
            return Err(reader.inconsistent(
                what,
                "at least one layer that owns K/V",
                format!("all {n_shared} shared"),
            ));
        }
        let layers = reader.share_kv(layers, n_shared)?;
        let rope = |kind| reader.rope(&layers, kind);
        let per_layer_width = reader.per_layer_width()?;
        let config = Gemma4Config {
            model_type: raw.model_type()?.to_owned(),
            vocab_size: text.required_usize("vocab_size", SIZES)?,
            hidden_size: text.required_usize("hidden_size", SIZES)?,
            n_heads: text.required_usize("num_attention_heads", SIZES)?,
            last_owner: layers.len() - n_shared - 1,
            sliding_window: text.required_usize("sliding_window", 1..=1 << 20)?,
            per_layer_width,
            per_layer_vocab: match per_layer_width {
                0 => 0,
                _ => text.required_usize("vocab_size_per_layer_input", SIZES)?,
            },
            moe: reader.moe()?,
            softcap: text.nullable_f64("final_logit_softcapping", 1e-3..=1e6)?.map(|cap| cap as f32),
            rope_sliding: rope(LayerKind::Sliding)?,
            rope_full: rope(LayerKind::Full)?,
            eps: text.required_f64("rms_norm_eps", 0.0..=1.0)? as f32,
            tied: match top.optional_bool("tie_word_embeddings")? {
                Some(tied) => tied,
                None => text.optional_bool("tie_word_embeddings")?.unwrap_or(true),
            },
            max_positions: text.required_usize("max_position_embeddings", 1..=1 << 20)?,
            placeholders: placeholders(&top)?,
            layers,
        };
        reader.refuse_unsupported()?;
        config.check(&reader)?;
        Ok(config)
    }

    /// What the embedding is multiplied with, before it is rounded to the activation type (spec 3.1).
    pub(super) fn embedding_scale(&self) -> f32 {
        (self.hidden_size as f32).sqrt()
    }

    /// The K/V groups, and for each layer its group and its place there.
    pub(super) fn kv_layout(&self) -> (Vec<KvGroupSpec>, Vec<(usize, usize)>) {
        let mut groups: Vec<KvGroupSpec> = Vec::new();
        let mut places = Vec::with_capacity(self.layers.len());
        for (i, layer) in self.layers.iter().enumerate() {
            if layer.kv_source != i {
                places.push(places[layer.kv_source]);
                continue;
            }
            let window = (layer.kind == LayerKind::Sliding).then_some(self.sliding_window);
            let shape = KvGroupSpec { layers: 0, kv_heads: layer.kv_heads, head_dim: layer.head_dim, window };
            let group = groups.iter().position(|group| KvGroupSpec { layers: 0, ..*group } == shape);
            let group = group.unwrap_or_else(|| {
                groups.push(shape);
                groups.len() - 1
            });
            places.push((group, groups[group].layers));
            groups[group].layers += 1;
        }
        (groups, places)
    }

    /// The last layer of a kind that owns K/V: what an assistant reads.
    pub(super) fn export_layer(&self, kind: LayerKind) -> Option<usize> {
        (0..=self.last_owner).rev().find(|&i| self.layers[i].kind == kind)
    }

    fn check(&self, reader: &TextReader<'_>) -> Result<(), ModelError> {
        for (i, layer) in self.layers.iter().enumerate() {
            let rope = if layer.kind == LayerKind::Sliding { self.rope_sliding } else { self.rope_full };
            let expected = rope.map_or(0, |rope| rope.head_dim);
            if layer.head_dim != expected {
                let what = format!("head_dim of layer {i} (all layers of a type share one rotation)");
                return Err(reader.inconsistent(what, expected, layer.head_dim));
            }
            if layer.head_dim % 8 != 0 || layer.head_dim > MAX_HEAD_DIM {
                let expected = format!("a multiple of 8 up to {MAX_HEAD_DIM}");
                return Err(reader.inconsistent(format!("head_dim of layer {i}"), expected, layer.head_dim));
            }
            if !self.n_heads.is_multiple_of(layer.kv_heads) {
                let what = format!("num_key_value_heads of layer {i}");
                let expected = format!("a divisor of the {} attention heads", self.n_heads);
                return Err(reader.inconsistent(what, expected, layer.kv_heads));
            }
        }
        if self.layers.last().is_some_and(|layer| layer.kind != LayerKind::Full) {
            let what = "last entry of layer_types".to_owned();
            return Err(reader.inconsistent(what, "full_attention", "sliding_attention"));
        }
        Ok(())
    }
}

/// Ids that stand for media in the token stream; they are fields of the multimodal config.
fn placeholders(top: &Section<'_>) -> Result<Vec<u32>, ModelError> {
    let mut ids = Vec::new();
    for field in ["image_token_id", "audio_token_id", "video_token_id"] {
        ids.extend(top.optional_token_ids(field)?.into_iter().flatten());
    }
    Ok(ids)
}

/// Reads the parts of a text config that take more than one field.
pub(crate) struct TextReader<'a> {
    pub(crate) text: &'a Section<'a>,
}

impl TextReader<'_> {
    fn inconsistent(&self, what: String, expected: impl ToString, found: impl ToString) -> ModelError {
        ModelError::Inconsistent {
            file: self.text.file().to_path_buf(),
            what,
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// Layers as if each owned its K/V and none had a wider MLP (spec 1.2 and 1.3).
    pub(crate) fn layers(&self) -> Result<Vec<LayerConfig>, ModelError> {
        let text = self.text;
        let n_layers = text.required_usize("num_hidden_layers", 1..=10_000)?;
        let names = text.required_str_list("layer_types")?;
        if names.len() != n_layers {
            let expected = format!("num_hidden_layers = {n_layers} entries");
            return Err(self.inconsistent("layer_types".to_owned(), expected, names.len()));
        }
        let value_is_key = text.required_bool("attention_k_eq_v")?;
        let intermediate_size = text.required_usize("intermediate_size", SIZES)?;
        let mut layers = Vec::with_capacity(n_layers);
        for (i, name) in names.iter().enumerate() {
            let Some(&(_, kind)) = TYPES.iter().find(|(known, _)| known == name) else {
                let expected = "sliding_attention or full_attention";
                return Err(self.inconsistent(format!("entry {i} of layer_types"), expected, name));
            };
            let (head_dim, kv_heads) = self.heads(i, kind, value_is_key)?;
            layers.push(LayerConfig {
                kind,
                head_dim,
                kv_heads,
                kv_source: i,
                intermediate_size,
                value_is_key: value_is_key && kind == LayerKind::Full,
            });
        }
        Ok(layers)
    }

    /// Head dimension and K/V heads of a layer, from either form of the config.
    fn heads(&self, i: usize, kind: LayerKind, value_is_key: bool) -> Result<(usize, usize), ModelError> {
        let text = self.text;
        let head_dim = text.required_usize("head_dim", SIZES)?;
        let kv_heads = text.required_usize("num_key_value_heads", SIZES)?;
        if let Some(per_layer) = text.optional_section("per_layer_config")? {
            let Some(own) = per_layer.optional_section(&i.to_string())? else {
                return Ok((head_dim, kv_heads));
            };
            return Ok((
                own.optional_usize("head_dim", SIZES)?.unwrap_or(head_dim),
                own.optional_usize("num_key_value_heads", SIZES)?.unwrap_or(kv_heads),
            ));
        }
        if kind == LayerKind::Sliding {
            return Ok((head_dim, kv_heads));
        }
        let global_kv_heads = match value_is_key {
            true => text.optional_usize("num_global_key_value_heads", SIZES)?,
            false => None,
        };
        Ok((text.required_usize("global_head_dim", SIZES)?, global_kv_heads.unwrap_or(kv_heads)))
    }

    /// Points the last `n_shared` layers to their K/V sources and widens their MLPs (spec 1.4).
    fn share_kv(
        &self,
        mut layers: Vec<LayerConfig>,
        n_shared: usize,
    ) -> Result<Vec<LayerConfig>, ModelError> {
        let double_wide = self.text.required_bool("use_double_wide_mlp")?;
        let first_shared = layers.len() - n_shared;
        for i in first_shared..layers.len() {
            let kind = layers[i].kind;
            let Some(source) = (0..first_shared).rev().find(|&j| layers[j].kind == kind) else {
                let what = format!("num_kv_shared_layers = {n_shared}: layer {i}");
                let expected = format!("a layer of the same type below layer {first_shared} that owns K/V");
                return Err(self.inconsistent(what, expected, "none"));
            };
            let (own, shared) = (layers[i], layers[source]);
            if (own.head_dim, own.kv_heads) != (shared.head_dim, shared.kv_heads) {
                let what = format!("K/V heads and head_dim of layer {i}");
                let expected =
                    format!("those of its source layer {source}: {} x {}", shared.kv_heads, shared.head_dim);
                return Err(self.inconsistent(
                    what,
                    expected,
                    format!("{} x {}", own.kv_heads, own.head_dim),
                ));
            }
            layers[i].kv_source = source;
            if double_wide {
                layers[i].intermediate_size *= 2;
            }
        }
        Ok(layers)
    }

    /// Rotation of the layers of a kind; `None` if there are none.
    pub(crate) fn rope(
        &self,
        layers: &[LayerConfig],
        kind: LayerKind,
    ) -> Result<Option<RopeSpec>, ModelError> {
        let Some(layer) = layers.iter().find(|layer| layer.kind == kind) else { return Ok(None) };
        let (name, _) = TYPES[kind as usize];
        let rope = self.text.required_section("rope_parameters")?.required_section(name)?;
        let pairs = layer.head_dim / 2;
        let rotated_pairs = match rope.required_str("rope_type")? {
            "default" => pairs,
            "proportional" => {
                let factor = rope.required_f64("partial_rotary_factor", 0.0..=1.0)?;
                (factor * pairs as f64).floor() as usize
            }
            _ => return Err(rope.unsupported("rope_type", "`default` or `proportional`").into()),
        };
        Ok(Some(RopeSpec {
            head_dim: layer.head_dim,
            theta: rope.required_f64("rope_theta", 1.0..=1e12)?,
            rotated_pairs,
            factor: rope.optional_f64("factor", 1e-6..=1e6)?.unwrap_or(1.0),
        }))
    }

    /// The unified text class has neither per-layer inputs nor experts, and its files may leave the fields out.
    fn is_unified(&self) -> Result<bool, ModelError> {
        Ok(self.text.optional_str("model_type")?.is_some_and(|name| name.starts_with("gemma4_unified")))
    }

    fn per_layer_width(&self) -> Result<usize, ModelError> {
        const FIELD: &str = "hidden_size_per_layer_input";
        let width = match self.is_unified()? {
            true => self.text.optional_usize(FIELD, 0..=1 << 24)?,
            false => self.text.nullable_usize(FIELD, 0..=1 << 24)?,
        };
        Ok(width.unwrap_or(0))
    }

    fn moe(&self) -> Result<Option<MoeConfig>, ModelError> {
        const FIELD: &str = "enable_moe_block";
        let enabled = match self.is_unified()? {
            true => self.text.optional_bool(FIELD)?.unwrap_or(false),
            false => self.text.required_bool(FIELD)?,
        };
        if !enabled {
            return Ok(None);
        }
        let n_experts = self.text.required_usize("num_experts", 1..=1 << 16)?;
        Ok(Some(MoeConfig {
            n_experts,
            top_k: self.text.required_usize("top_k_experts", 1..=n_experts)?,
            intermediate_size: self.text.required_usize("moe_intermediate_size", SIZES)?,
        }))
    }

    pub(crate) fn refuse_unsupported(&self) -> Result<(), ModelError> {
        let text = self.text;
        if text.required_str("hidden_activation")? != "gelu_pytorch_tanh" {
            return Err(text.unsupported("hidden_activation", "`gelu_pytorch_tanh`").into());
        }
        if text.optional_bool("attention_bias")?.unwrap_or(false) {
            return Err(text.unsupported("attention_bias", "false").into());
        }
        if !matches!(text.optional_str("use_bidirectional_attention")?, None | Some("vision")) {
            return Err(text.unsupported("use_bidirectional_attention", "null or `vision`").into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use paceline_backend::Activation;

    use super::*;

    #[test]
    fn embeddings_of_published_sizes_have_the_factors_of_the_reference() {
        for (shape, factor) in [
            (include_str!("../../../../assets/shapes/gemma4-e2b.json"), 39.25),
            (include_str!("../../../../assets/shapes/gemma4-e4b.json"), 50.5),
            (include_str!("../../../../assets/shapes/gemma4-12b.json"), 62.0),
            (include_str!("../../../../assets/shapes/gemma4-26b-a4b.json"), 53.0),
            (include_str!("../../../../assets/shapes/gemma4-31b.json"), 73.5),
        ] {
            let raw = RawConfig::parse(Path::new("config.json"), shape.as_bytes()).unwrap();
            let scale = Gemma4Config::parse(&raw).unwrap().embedding_scale();
            assert_eq!(Activation::Bf16.round(scale), factor);
        }
    }
}
