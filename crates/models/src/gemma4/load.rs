//! From a folder to a [`Gemma4`]: what it is, its buffers, its K/V groups.

use paceline_backend::{Backend, BackendError, Buf, KvLayer, TokenId};
use paceline_checkpoint::{RawConfig, Tensors};

use super::config::{Gemma4Config, LayerConfig, LayerKind};
use super::weights::Loader;
use super::{Gemma4, MoeStream, Stream};
use crate::error::ModelError;
use crate::loader::WeightLoader;
use crate::registry::LoadOptions;
use crate::taps::Taps;
use crate::target::{Description, ExportLayer, Exports, LentKv, Parameters};

/// What the config says, without a look at the weights.
pub(crate) fn describe(raw: &RawConfig) -> Result<Description, ModelError> {
    Ok(description(&Gemma4Config::parse(raw)?))
}

/// Loads weights, buffers and K/V groups into the backend.
pub(crate) fn load(
    raw: &RawConfig,
    tensors: Tensors,
    backend: &mut dyn Backend,
    options: &mut LoadOptions<'_>,
) -> Result<Gemma4, ModelError> {
    let mut config = Gemma4Config::parse(raw)?;
    let stored_vocab = config.vocab_size;
    config.vocab_size = options.vocab_size.unwrap_or(stored_vocab);
    let limits = &options.limits;
    let (specs, places) = config.kv_layout();
    let mut kv_groups = Vec::with_capacity(specs.len());
    for (spec, &n_blocks) in specs.iter().zip(&limits.kv_blocks) {
        kv_groups.push(backend.kv_group(*spec, n_blocks)?);
    }
    let loader = Loader {
        config: &config,
        stored_vocab,
        from: WeightLoader {
            tensors: tensors.into_text()?,
            backend: &mut *backend,
            inexact: options.inexact,
        },
        progress: options.progress,
    };
    let weights = loader.load(&kv_groups)?;
    let all = stream(&config, backend, limits.max_rows)?;
    let wanted = stream(&config, backend, limits.max_wanted)?;
    let projected =
        all.per_layer.map(|buf| backend.buffer(limits.max_rows, buf.width as usize)).transpose()?;
    let taps =
        Taps::new(options.tap_layers, (config.layers.len(), config.hidden_size), limits.max_rows, backend)?;
    let export = |kind| {
        let layer = config.export_layer(kind)?;
        let (group, place) = places[layer];
        let kv = KvLayer { group: kv_groups[group], layer: place as u32 };
        Some(ExportLayer { kv, shape: lent(&config, kind)? })
    };
    let exports = Exports {
        architecture: config.model_type.clone(),
        embedding: weights.embedding,
        embedding_scale: config.embedding_scale(),
        head: weights.head,
        softcap: config.softcap,
        hidden_size: config.hidden_size,
        vocab_size: config.vocab_size,
        mask_token: Some(MASK_TOKEN),
        sliding: export(LayerKind::Sliding),
        full: export(LayerKind::Full),
        hidden_post_norm: wanted.u,
        hidden_pre_norm: wanted.x,
        taps: taps.as_ref().map(Taps::buf),
    };
    Ok(Gemma4 {
        description: description(&config),
        exports,
        kv_groups,
        refused: config.placeholders.iter().copied().map(TokenId).collect(),
        logits: backend.buffer(limits.logit_rows, config.vocab_size)?,
        logit_rows: limits.logit_rows,
        all,
        wanted,
        projected,
        taps,
        weights,
        config,
    })
}

/// Buffers for `rows` rows.
fn stream(config: &Gemma4Config, backend: &mut dyn Backend, rows: usize) -> Result<Stream, BackendError> {
    let widest = |width: &dyn Fn(&LayerConfig) -> usize| config.layers.iter().map(width).max().unwrap_or(0);
    let (h, n_heads) = (config.hidden_size, config.n_heads);
    let mut buffer = |width: usize| -> Result<Buf, BackendError> { backend.buffer(rows, width) };
    let per_layer = match config.per_layer_width * config.layers.len() {
        0 => None,
        width => Some(buffer(width)?),
    };
    let moe = match config.moe {
        None => None,
        Some(moe) => Some(MoeStream {
            normed: buffer(h)?,
            prob: buffer(moe.n_experts)?,
            routes: buffer(2 * moe.top_k)?,
            sum: buffer(h)?,
        }),
    };
    Ok(Stream {
        x: buffer(h)?,
        u: buffer(h)?,
        per_layer,
        qkv: buffer(widest(&|layer| (n_heads + 2 * layer.kv_heads) * layer.head_dim))?,
        heads: buffer(widest(&|layer| n_heads * layer.head_dim))?,
        h: buffer(h)?,
        inner: buffer(widest(&|layer| layer.intermediate_size).max(config.per_layer_width))?,
        moe,
    })
}

/// `<mask>` in the vocabulary of every Gemma 4.
const MASK_TOKEN: u32 = 4;

/// The K/V that layers of a kind in a drafter may read.
fn lent(config: &Gemma4Config, kind: LayerKind) -> Option<LentKv> {
    let (specs, places) = config.kv_layout();
    let layer = config.export_layer(kind)?;
    Some(LentKv { spec: specs[places[layer].0], value_is_key: config.layers[layer].value_is_key })
}

fn description(config: &Gemma4Config) -> Description {
    Description {
        architecture: config.model_type.clone(),
        n_layers: config.layers.len(),
        layer_lines: layer_lines(config),
        vocab_size: config.vocab_size,
        hidden_size: config.hidden_size,
        max_positions: config.max_positions,
        mask_token: Some(MASK_TOKEN),
        parameters: parameters(config),
        kv_groups: config.kv_layout().0,
        sliding: lent(config, LayerKind::Sliding),
        full: lent(config, LayerKind::Full),
    }
}

/// Equal layers on one line.
fn layer_lines(config: &Gemma4Config) -> Vec<String> {
    let mut lines: Vec<(String, usize)> = Vec::new();
    for (i, layer) in config.layers.iter().enumerate() {
        let kind = match layer.kind {
            LayerKind::Sliding => format!("sliding ({})", config.sliding_window),
            LayerKind::Full => "full".to_owned(),
        };
        let kv = match layer.kv_source {
            source if source != i => format!("K/V of layer {source}"),
            _ if layer.value_is_key => format!("{} K/V heads, V from K", layer.kv_heads),
            _ => format!("{} K/V heads", layer.kv_heads),
        };
        let line = format!(
            "{kind} attention, {} heads of {}, {kv}, MLP {}",
            config.n_heads, layer.head_dim, layer.intermediate_size
        );
        match lines.iter_mut().find(|(known, _)| *known == line) {
            Some((_, count)) => *count += 1,
            None => lines.push((line, 1)),
        }
    }
    lines.into_iter().map(|(line, count)| format!("{count} x {line}")).collect()
}

fn parameters(config: &Gemma4Config) -> Vec<Parameters> {
    let (v, h, p) = (config.vocab_size, config.hidden_size, config.per_layer_width);
    let n_layers = config.layers.len();
    let mut parts = Vec::new();
    let mut part = |kind, count: usize, read: usize, mapped| {
        if count > 0 {
            parts.push(Parameters { kind, count: count as u64, read_per_token: read as u64, mapped });
        }
    };
    part("embedding and head", v * h, v * h, false);
    if !config.tied {
        part("separate embedding", v * h, h, true);
    }
    part("per-layer table", config.per_layer_vocab * n_layers * p, n_layers * p, true);
    let mut attention = 0;
    let mut mlp = 0;
    let mut norms = h;
    for (i, layer) in config.layers.iter().enumerate() {
        let kv_projections = match (layer.kv_source == i, layer.value_is_key) {
            (false, _) => 0,
            (true, true) => 1,
            (true, false) => 2,
        };
        attention += h * layer.head_dim * (2 * config.n_heads + kv_projections * layer.kv_heads);
        mlp += 3 * h * layer.intermediate_size;
        norms += 4 * h + layer.head_dim * (1 + usize::from(kv_projections > 0)) + 1;
    }
    part("attention", attention, attention, false);
    part("mlp", mlp, mlp, false);
    if let Some(moe) = config.moe {
        let expert = 3 * h * moe.intermediate_size;
        part("experts", n_layers * moe.n_experts * expert, n_layers * moe.top_k * expert, false);
        part("router", n_layers * moe.n_experts * h, n_layers * moe.n_experts * h, false);
        norms += n_layers * (4 * h + moe.n_experts);
    }
    if p > 0 {
        let gates = n_layers * p * h * 3;
        part("per-layer gates", gates, gates, false);
        norms += n_layers * h + p;
    }
    part("norms and scales", norms, norms, false);
    parts
}
