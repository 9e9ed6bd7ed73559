//! JSON files whose root is an object.

use std::path::Path;

use serde::de::DeserializeOwned;

use crate::Error;

/// Parses the bytes of `file`, whose root must be an object, which is what `T` reads.
pub(crate) fn parse_object<T: DeserializeOwned>(file: &Path, bytes: &[u8]) -> Result<T, Error> {
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    serde_json::from_slice(bytes).map_err(|error| {
        let mut message = error.to_string();
        if is_python_number(bytes, error.line(), error.column()) {
            message
                .push_str("; NaN and Infinity are not numbers of JSON, and no field of a config may be one");
        }
        Error::Json { file: file.to_path_buf(), message }
    })
}

/// Whether the place of an error is one of the numbers that Python writes and JSON does not have.
fn is_python_number(bytes: &[u8], line: usize, column: usize) -> bool {
    let Some(line) = bytes.split(|&b| b == b'\n').nth(line.saturating_sub(1)) else {
        return false;
    };
    let around = &line[column.saturating_sub(2).min(line.len())..(column + 8).min(line.len())];
    let has = |word: &[u8]| around.windows(word.len()).any(|window| window == word);
    has(b"NaN") || has(b"Infinity")
}
