//! Small files for the tests of this crate.

/// A file of the given header text and data.
pub(crate) fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

/// A file of named tensors with their type, shape and bytes, laid out in the given order.
pub(crate) fn file_of(tensors: &[(&str, &str, &[usize], &[u8])]) -> Vec<u8> {
    let mut data = Vec::new();
    let entries: Vec<String> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| {
            let begin = data.len();
            data.extend(*bytes);
            let end = data.len();
            format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#)
        })
        .collect();
    with_header(&format!("{{{}}}", entries.join(",")), &data)
}

/// Little-endian bytes of f32 values.
pub(crate) fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// A tokenizer in the form of the Gemma family: special tokens 0 to 3, all byte tokens from 4 on, then letters, the
/// space, a few merges and a character of three bytes.
pub(crate) fn toy_tokenizer() -> serde_json::Value {
    let special = ["<pad>", "<bos>", "<eos>", "<|turn>"];
    let bytes = (0..=255u8).map(|byte| format!("<0x{byte:02X}>"));
    let words = ["\u{2581}", "a", "b", "c", "ab", "\u{2581}ab", "\u{4f60}"];
    let tokens =
        special.iter().map(|t| (*t).to_owned()).chain(bytes).chain(words.iter().map(|t| (*t).to_owned()));
    let vocab: serde_json::Map<String, serde_json::Value> =
        tokens.enumerate().map(|(id, token)| (token, id.into())).collect();
    let added: Vec<serde_json::Value> = special
        .iter()
        .enumerate()
        .map(|(id, token)| {
            serde_json::json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        })
        .collect();
    serde_json::json!({
        "version": "1.0", "added_tokens": added, "truncation": null, "padding": null,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
            "invert": false},
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocab, "merges": [["a", "b"], ["\u{2581}", "ab"]]},
    })
}
