//! Names of the text model's tensors inside multimodal and converted checkpoints.

/// Prefixes of the text stack, the longest first; the first that fits is cut.
const PREFIXES: [&str; 4] = ["model.language_model.", "language_model.model.", "language_model.", "model."];

/// Parts of a multimodal model that text never touches, below the root or below `model.`.
const OTHER_STACKS: [&str; 6] = [
    "vision_tower",
    "audio_tower",
    "embed_vision",
    "embed_audio",
    "vision_embedder",
    "multi_modal_projector",
];

/// Clipping ranges of vision layers, by the last part of the name.
const CLIPPING: [&str; 4] = ["input_min", "input_max", "output_min", "output_max"];

/// The name of a stored tensor as the text model knows it, or `None` when it does not belong to text: vision, audio,
/// stored rotary tables and clipping ranges.
pub(crate) fn text_name(stored: &str) -> Option<&str> {
    let below_model = stored.strip_prefix("model.").unwrap_or(stored);
    let stack = below_model.split('.').next().unwrap_or_default();
    let last = stored.rsplit('.').next().unwrap_or_default();
    let is_rotary = stored.split('.').any(|part| part == "rotary_emb");
    if OTHER_STACKS.contains(&stack) || CLIPPING.contains(&last) || is_rotary {
        return None;
    }
    Some(PREFIXES.iter().find_map(|prefix| stored.strip_prefix(prefix)).unwrap_or(stored))
}

#[cfg(test)]
mod tests {
    use super::text_name;

    #[test]
    fn every_known_prefix_is_cut() {
        for (stored, text) in [
            ("model.language_model.layers.0.layer_scalar", "layers.0.layer_scalar"),
            ("language_model.model.embed_tokens.weight", "embed_tokens.weight"),
            ("language_model.embed_tokens.weight", "embed_tokens.weight"),
            ("language_model.lm_head.weight", "lm_head.weight"),
            ("model.norm.weight", "norm.weight"),
            ("lm_head.weight", "lm_head.weight"),
            ("layers.3.self_attn.q_proj.weight", "layers.3.self_attn.q_proj.weight"),
            ("masked_embedding.centroids.weight", "masked_embedding.centroids.weight"),
            ("model.layers.0.vision_tower_like.weight", "layers.0.vision_tower_like.weight"),
        ] {
            assert_eq!(text_name(stored), Some(text), "{stored}");
        }
    }

    #[test]
    fn what_text_never_touches_is_skipped() {
        for stored in [
            "model.vision_tower.encoder.layers.0.mlp.up_proj.linear.weight",
            "vision_tower.norm.weight",
            "model.audio_tower.x",
            "model.embed_vision.embedding_projection.weight",
            "embed_audio.x",
            "vision_embedder.x",
            "multi_modal_projector.mm_input_projection_weight",
            "model.layers.0.self_attn.rotary_emb.inv_freq",
            "model.layers.0.mlp.input_max",
        ] {
            assert_eq!(text_name(stored), None, "{stored}");
        }
    }
}
