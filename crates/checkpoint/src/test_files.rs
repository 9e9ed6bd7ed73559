//! Small safetensors files for the tests of this crate.

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
