//! The config of a DFlash drafter (dflash spec section 2), in the older published layout and the newer one.

use paceline_backend::{KvGroupSpec, RopeSpec};
use paceline_checkpoint::{RawConfig, SIZES, Section};

use super::DFlashRoom;
use crate::error::ModelError;
use crate::target::{Description, DrafterSize};

/// Widest block, and most taps, that a config may ask for.
const MOST: usize = 1 << 10;
/// Largest head dimension that the attention kernels take.
const MAX_HEAD_DIM: usize = 512;
/// Base of the rotation that the format has where a file names none.
const DEFAULT_THETA: f64 = 1e6;
/// Epsilon of the norms that the format has where a file names none.
const DEFAULT_EPS: f64 = 1e-6;
/// Fields of later formats that are told by the config, and what each belongs to.
const OTHER_LAYOUTS: [(&str, &str); 6] = [
    ("speculators_model_type", "the speculators layout"),
    ("markov_rank", "DSpark"),
    ("markov_head", "DSpark"),
    ("conv_kernel_size", "DFlash 2"),
    ("selector_rank", "DFlash 2"),
    ("gating", "the layout of Laguna"),
];

/// What one drafter layer sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LayerConfig {
    /// Keys that a row sees, its own included; `None` sees all.
    pub(super) window: Option<usize>,
    /// Rows of a block see those before them only; otherwise the whole block.
    pub(super) causal: bool,
}

/// A DFlash drafter in the layout of z-lab's checkpoints.
#[derive(Clone, Debug, PartialEq)]
pub struct DFlashConfig {
    /// Rows of the block that the drafter was trained on: an anchor and masks.
    pub block_size: usize,
    /// The token that stands for what is not known yet; `None` leaves it to the target, see [`Description::mask_token`].
    mask_token: Option<u32>,
    /// Entries of the target's vocabulary.
    pub vocab_size: usize,
    /// Entries of the drafter's own vocabulary, where it is smaller.
    pub draft_vocab_size: Option<usize>,
    /// Width of the residual stream, the target's too.
    pub hidden_size: usize,
    pub(super) intermediate_size: usize,
    pub(super) n_heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) rope: RopeSpec,
    pub(super) eps: f32,
    pub(super) softcap: Option<f32>,
    pub(super) layers: Vec<LayerConfig>,
    /// Target layers whose output is tapped; `None` leaves them to the format's formula.
    tap_layers: Option<Vec<usize>>,
    /// Layers of the target that it was trained for.
    n_target_layers: Option<usize>,
}

impl DFlashConfig {
    /// Drafts of a round at most: as many as the block has masks.
    pub fn most_drafts(&self) -> usize {
        self.block_size - 1
    }

    /// Whether a config is that of a DFlash drafter, in this layout or in another one. `model_type` says nothing: it is that of a target.
    ///
    /// # Errors
    /// `architectures` or `dflash_config` of another type.
    pub fn describes(raw: &RawConfig) -> Result<bool, ModelError> {
        let top = raw.top();
        let tagged =
            raw.architectures()?.iter().any(|name| name.contains("DFlash") || name.contains("DSpark"));
        Ok(tagged || top.optional_section("dflash_config")?.is_some() || top.has("speculators_model_type"))
    }

    /// Reads a config.
    ///
    /// # Errors
    /// Another layout, by its name; fields that are missing, out of range or not supported, or that contradict one another.
    pub fn parse(raw: &RawConfig) -> Result<Self, ModelError> {
        let top = raw.top();
        let nested = top.optional_section("dflash_config")?;
        let reader = Reader { top: &top, nested: nested.as_ref() };
        reader.refuse_other_layouts(raw)?;
        reader.refuse_unsupported()?;
        let size = |field| top.required_usize(field, SIZES);
        let (hidden_size, n_heads) = (size("hidden_size")?, size("num_attention_heads")?);
        let head_dim = top.optional_usize("head_dim", SIZES)?.unwrap_or(hidden_size / n_heads);
        let vocab_size = size("vocab_size")?;
        let config = DFlashConfig {
            block_size: reader.either("block_size").required_usize("block_size", 2..=MOST)?,
            mask_token: reader
                .either("mask_token_id")
                .optional_usize("mask_token_id", 0..=1 << 24)?
                .map(|id| id as u32),
            vocab_size,
            draft_vocab_size: top
                .optional_usize("draft_vocab_size", 1..=vocab_size)?
                .filter(|&draft| draft != vocab_size),
            hidden_size,
            intermediate_size: size("intermediate_size")?,
            n_heads,
            kv_heads: size("num_key_value_heads")?,
            head_dim,
            rope: reader.rope(head_dim)?,
            eps: top.optional_f64("rms_norm_eps", 0.0..=1.0)?.unwrap_or(DEFAULT_EPS) as f32,
            softcap: top.optional_f64("final_logit_softcapping", 1e-3..=1e6)?.map(|cap| cap as f32),
            layers: reader.layers()?,
            tap_layers: reader
                .either("target_layer_ids")
                .optional_usize_list("target_layer_ids", 0..=1 << 20)?,
            n_target_layers: reader
                .either("num_target_layers")
                .optional_usize("num_target_layers", 1..=1 << 20)?,
        };
        config.check(&reader)?;
        Ok(config)
    }

    fn check(&self, reader: &Reader<'_>) -> Result<(), ModelError> {
        if let Some(mask) = self.mask_token.filter(|&mask| mask as usize >= self.vocab_size) {
            let expected = format!("an id below vocab_size = {}", self.vocab_size);
            return Err(reader.inconsistent("mask_token_id", expected, mask));
        }
        if !self.head_dim.is_multiple_of(8) || !(8..=MAX_HEAD_DIM).contains(&self.head_dim) {
            let expected = format!("a multiple of 8 up to {MAX_HEAD_DIM}");
            return Err(reader.inconsistent("head_dim", expected, self.head_dim));
        }
        if !self.n_heads.is_multiple_of(self.kv_heads) {
            let expected = format!("a divisor of the {} attention heads", self.n_heads);
            return Err(reader.inconsistent("num_key_value_heads", expected, self.kv_heads));
        }
        match &self.tap_layers {
            Some(layers) if layers.is_empty() || layers.len() > MOST => {
                Err(reader.inconsistent("target_layer_ids", format!("1 to {MOST} layers"), layers.len()))
            }
            _ => Ok(()),
        }
    }

    /// What it takes beside its target, of whose layers it reads `n_taps`. A table or head of its own is not counted where the config
    /// does not tell of it.
    pub fn size(&self, n_taps: usize, room: &DFlashRoom<'_>) -> DrafterSize {
        let (h, d) = (self.hidden_size, self.head_dim);
        let layer =
            2 * h * d * (self.n_heads + self.kv_heads) + 3 * h * self.intermediate_size + 2 * h + 2 * d;
        let head = self.draft_vocab_size.map_or(0, |tokens| tokens * h);
        let [taps, context, block, logits]: [usize; 4] = [
            n_taps * h,
            self.context_widths().iter().sum(),
            self.stream_widths().iter().sum(),
            self.n_logits(),
        ];
        let of_rows = |rows: usize, width: usize| rows as u64 * width as u64;
        // The projections of context rows are packed once more, stacked.
        let context_projection = self.context_widths()[2] * h;
        DrafterSize {
            parameters: (n_taps * h * h + h + self.layers.len() * layer + h + head + context_projection)
                as u64,
            buffer_values: of_rows(room.tapped_rows, taps + context)
                + of_rows(room.block_rows, block)
                + of_rows(room.logit_rows, logits),
        }
    }

    /// Widths of the buffers over context rows: two of the stream, and K and V of all layers.
    pub(super) fn context_widths(&self) -> [usize; 3] {
        let kv = self.layers.len() * 2 * self.kv_heads * self.head_dim;
        [self.hidden_size, self.hidden_size, kv]
    }

    /// Widths of the buffers over block rows, in the order of [`super::Stream`].
    pub(super) fn stream_widths(&self) -> [usize; 7] {
        let (h, d) = (self.hidden_size, self.head_dim);
        let qkv = (self.n_heads + 2 * self.kv_heads) * d;
        [h, h, qkv, self.n_heads * d, h, self.intermediate_size, h]
    }

    /// Tokens that have a logit.
    pub(super) fn n_logits(&self) -> usize {
        self.draft_vocab_size.unwrap_or(self.vocab_size)
    }

    /// The K/V groups that the drafter owns: one for the layers of each window.
    pub fn kv_groups(&self) -> Vec<KvGroupSpec> {
        self.kv_layout().0
    }

    /// The groups, and for each layer its group and its place there.
    pub(super) fn kv_layout(&self) -> (Vec<KvGroupSpec>, Vec<(usize, usize)>) {
        let mut groups: Vec<KvGroupSpec> = Vec::new();
        let mut places = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            let group = groups.iter().position(|group| group.window == layer.window).unwrap_or_else(|| {
                let (kv_heads, head_dim) = (self.kv_heads, self.head_dim);
                groups.push(KvGroupSpec { layers: 0, kv_heads, head_dim, window: layer.window });
                groups.len() - 1
            });
            places.push((group, groups[group].layers));
            groups[group].layers += 1;
        }
        (groups, places)
    }

    /// Checks that the drafter is one of a target, from both configs alone, and gives the layers to tap.
    ///
    /// # Errors
    /// [`ModelError::IncompatibleDrafter`].
    pub fn fit(&self, raw: &RawConfig, target: &Description) -> Result<Vec<usize>, ModelError> {
        let n_layers = target.n_layers;
        let mismatch = |what: &str, expected: String, found: String| ModelError::IncompatibleDrafter {
            file: raw.file().to_path_buf(),
            target: target.architecture.clone(),
            what: what.to_owned(),
            expected,
            found,
        };
        for (what, expected, found) in [
            ("hidden_size", target.hidden_size, self.hidden_size),
            ("vocab_size", target.vocab_size, self.vocab_size),
            ("num_target_layers", n_layers, self.n_target_layers.unwrap_or(n_layers)),
        ] {
            if expected != found {
                return Err(mismatch(what, expected.to_string(), found.to_string()));
            }
        }
        let layers = match &self.tap_layers {
            Some(layers) => layers.clone(),
            None => default_taps(n_layers, self.layers.len()),
        };
        if let Some(layer) = layers.iter().find(|&&layer| layer >= n_layers) {
            return Err(mismatch("target_layer_ids", format!("layers below {n_layers}"), layer.to_string()));
        }
        self.mask(raw, target.mask_token)?;
        Ok(layers)
    }

    /// The token of masks: the config's, else the target's.
    pub(super) fn mask(&self, raw: &RawConfig, of_target: Option<u32>) -> Result<u32, ModelError> {
        let of_target = of_target.filter(|&mask| (mask as usize) < self.vocab_size);
        self.mask_token.or(of_target).ok_or_else(|| ModelError::Inconsistent {
            file: raw.file().to_path_buf(),
            what: "mask_token_id".to_owned(),
            expected: "a token id, because the target's family has no mask of its own".to_owned(),
            found: "none".to_owned(),
        })
    }
}

/// Taps of a file that names none: from layer 1 to the last but two, evenly, halves rounded to even; the middle layer for one.
fn default_taps(n_target_layers: usize, n_layers: usize) -> Vec<usize> {
    if n_layers == 1 {
        return vec![n_target_layers / 2];
    }
    let step = (n_target_layers as f64 - 4.0) / (n_layers as f64 - 1.0);
    (0..n_layers).map(|i| (1.0 + i as f64 * step).round_ties_even().max(0.0) as usize).collect()
}

struct Reader<'a> {
    top: &'a Section<'a>,
    nested: Option<&'a Section<'a>>,
}

impl<'a> Reader<'a> {
    /// Where a field stands: in `dflash_config` or beside it.
    fn either(&self, field: &str) -> &'a Section<'a> {
        self.nested.filter(|nested| nested.has(field)).unwrap_or(self.top)
    }

    fn nested_bool(&self, field: &str) -> Result<Option<bool>, ModelError> {
        Ok(self.nested.map(|nested| nested.optional_bool(field)).transpose()?.flatten())
    }

    fn inconsistent(&self, what: &str, expected: impl ToString, found: impl ToString) -> ModelError {
        ModelError::Inconsistent {
            file: self.top.file().to_path_buf(),
            what: what.to_owned(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    fn refuse_other_layouts(&self, raw: &RawConfig) -> Result<(), ModelError> {
        let field = OTHER_LAYOUTS.iter().find(|(field, _)| self.either(field).has(field));
        let tag = raw.architectures()?.iter().any(|name| name.contains("DSpark"));
        let sampling = self.either("sample_from_anchor").optional_bool("sample_from_anchor")?;
        let layout = match field {
            Some((_, layout)) => layout,
            None if tag || sampling == Some(true) => "DSpark",
            None => return Ok(()),
        };
        Err(ModelError::UnsupportedDrafter {
            file: self.top.file().to_path_buf(),
            layout: layout.to_string(),
        })
    }

    fn refuse_unsupported(&self) -> Result<(), ModelError> {
        for (field, wanted) in [
            ("attention_bias", false),
            ("attention_sink_bias", false),
            ("is_neox_style", true),
            ("rope_is_neox_style", true),
        ] {
            let section = self.either(field);
            if section.optional_bool(field)?.is_some_and(|found| found != wanted) {
                return Err(section.unsupported(field, wanted.to_string()).into());
            }
        }
        if !matches!(self.top.optional_str("hidden_act")?, None | Some("silu")) {
            return Err(self.top.unsupported("hidden_act", "`silu`").into());
        }
        Ok(())
    }

    /// One rotation for all layers, over the whole head.
    fn rope(&self, head_dim: usize) -> Result<RopeSpec, ModelError> {
        let parameters = self.top.optional_section("rope_parameters")?;
        let scaling = self.top.optional_section("rope_scaling")?;
        for section in [&parameters, &scaling].into_iter().flatten() {
            for field in ["rope_type", "type"] {
                if !matches!(section.optional_str(field)?, None | Some("default")) {
                    return Err(section.unsupported(field, "`default`").into());
                }
            }
        }
        let theta = |section: &Section<'_>| section.optional_f64("rope_theta", 1.0..=1e12);
        let nested = parameters.as_ref().map(theta).transpose()?.flatten();
        let theta = nested.or(theta(self.top)?).unwrap_or(DEFAULT_THETA);
        Ok(RopeSpec { head_dim, theta, rotated_pairs: head_dim / 2, factor: 1.0 })
    }

    /// Windows and directions: undeclared, a layer with a window is causal and one without is not.
    fn layers(&self) -> Result<Vec<LayerConfig>, ModelError> {
        let n_layers = self.top.required_usize("num_hidden_layers", 1..=MOST)?;
        let all_slide = self.nested_bool("use_swa")?.unwrap_or(false);
        let slides = match self.top.optional_str_list("layer_types")? {
            _ if all_slide => vec![true; n_layers],
            None => vec![false; n_layers],
            Some(names) => self.slides(&names, n_layers)?,
        };
        let declared = match self.top.optional_bool("is_causal")? {
            Some(causal) => Some(causal),
            None => self.nested_bool("causal")?.or(self.nested_bool("dflash_query_causal")?),
        };
        let declared = declared.or(all_slide.then_some(false));
        let window = if slides.contains(&true) { Some(self.window()?) } else { None };
        let layer = |slides: bool| LayerConfig {
            window: window.filter(|_| slides),
            causal: declared.unwrap_or(slides),
        };
        Ok(slides.into_iter().map(layer).collect())
    }

    fn slides(&self, names: &[String], n_layers: usize) -> Result<Vec<bool>, ModelError> {
        if names.len() != n_layers {
            let expected = format!("num_hidden_layers = {n_layers} entries");
            return Err(self.inconsistent("layer_types", expected, names.len()));
        }
        let slides = |name: &String| match name.as_str() {
            "sliding_attention" => Ok(true),
            "full_attention" => Ok(false),
            _ => Err(self.inconsistent("layer_types", "sliding_attention or full_attention", name)),
        };
        names.iter().map(slides).collect()
    }

    fn window(&self) -> Result<usize, ModelError> {
        const WINDOWS: std::ops::RangeInclusive<usize> = 1..=1 << 20;
        let own = self.nested.map(|nested| nested.optional_usize("swa_window_size", WINDOWS)).transpose()?;
        match own.flatten() {
            Some(window) => Ok(window),
            None => Ok(self.top.required_usize("sliding_window", WINDOWS)?),
        }
    }
}

#[cfg(test)]
mod tests;
