//! The header of a safetensors file, checked before anything relies on it.
//!
//! ```text
//! | length n, u64 little endian | n bytes of JSON, padded with spaces | data ... |
//! ```
//! The JSON maps each name to `{"dtype", "shape", "data_offsets": [begin, end]}`, offsets counted from the start of
//! the data. What holds after [`parse_header`]: names are unique, every range lies in the file, ranges of known types
//! have exactly the bytes that type and shape need, and together they cover the data without overlap or hole.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::{DType, HeaderProblem};

/// Longest accepted header, in bytes. The limit of the format's own library.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Most tensors accepted in one file; the largest published checkpoints have fewer in all their shards.
pub const MAX_TENSORS: usize = 1 << 18;
/// Most dimensions accepted of a tensor.
pub const MAX_RANK: usize = 8;

/// One tensor of the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// The type, or its name when this version does not know it: an error only for whoever uses the tensor.
    pub(crate) dtype: Result<DType, String>,
    pub(crate) shape: Vec<usize>,
    /// Bytes of the tensor, counted from the start of the file.
    pub(crate) range: Range<usize>,
}

/// Reads and checks the header of `file`, the bytes of a whole safetensors file.
pub(crate) fn parse_header(file: &[u8]) -> Result<Vec<Entry>, HeaderProblem> {
    let Some((prefix, rest)) = file.split_first_chunk::<8>() else {
        return Err(HeaderProblem::TooShort { len: file.len() });
    };
    let header_len = u64::from_le_bytes(*prefix);
    if header_len > MAX_HEADER_BYTES {
        return Err(HeaderProblem::TooLong { len: header_len, limit: MAX_HEADER_BYTES });
    }
    // The limit above fits every usize.
    let Some((header, data)) = rest.split_at_checked(header_len as usize) else {
        return Err(HeaderProblem::BeyondFile { header: header_len, file: file.len() });
    };
    let data_start = file.len() - data.len();
    let mut entries = Vec::new();
    for (name, raw) in parse_json(header)? {
        entries.push(checked_entry(name, raw, data_start, data.len())?);
    }
    check_coverage(&entries, data_start..file.len())?;
    Ok(entries)
}

fn parse_json(header: &[u8]) -> Result<Vec<(String, RawEntry)>, HeaderProblem> {
    let syntax = |message: String| HeaderProblem::Syntax { message };
    if header.first() != Some(&b'{') {
        return Err(syntax("expected `{` as its first byte".to_owned()));
    }
    let mut problem = None;
    let mut json = serde_json::Deserializer::from_slice(header);
    let parsed = HeaderSeed(&mut problem).deserialize(&mut json).and_then(|entries| {
        json.end()?;
        Ok(entries)
    });
    parsed.map_err(|error| problem.unwrap_or_else(|| syntax(error.to_string())))
}

fn checked_entry(name: String, raw: RawEntry, start: usize, len: usize) -> Result<Entry, HeaderProblem> {
    let [begin, end] = raw.data_offsets;
    if begin > end || end > len as u64 {
        return Err(HeaderProblem::Offsets { tensor: name, begin, end, len });
    }
    // Both are at most `len`, a usize.
    let (begin, end) = (begin as usize, end as usize);
    let Some((shape, n_elements)) = checked_shape(&raw.shape.0) else {
        return Err(HeaderProblem::TooLarge { tensor: name, shape: raw.shape.0 });
    };
    let dtype = DType::from_name(&raw.dtype).ok_or(raw.dtype);
    if let Ok(dtype) = dtype {
        let Some(bits) = n_elements.checked_mul(dtype.bits()) else {
            return Err(HeaderProblem::TooLarge { tensor: name, shape: raw.shape.0 });
        };
        if bits % 8 != 0 {
            return Err(HeaderProblem::PartOfByte { tensor: name, dtype, shape });
        }
        let (found, expected) = (end - begin, bits / 8);
        if found != expected {
            return Err(HeaderProblem::Size { tensor: name, dtype, shape, found, expected });
        }
    }
    Ok(Entry { name, dtype, shape, range: start + begin..start + end })
}

/// The shape in machine words and its number of elements, unless one of them does not fit.
fn checked_shape(raw: &[u64]) -> Option<(Vec<usize>, usize)> {
    let shape: Vec<usize> = raw.iter().map(|&n| usize::try_from(n).ok()).collect::<Option<_>>()?;
    // A dimension of 0 must not hide that the product of the others does not fit.
    shape.iter().filter(|&&n| n != 0).try_fold(1usize, |product, &n| product.checked_mul(n))?;
    let n_elements = shape.iter().product();
    Some((shape, n_elements))
}

/// Checks that the ranges tile `data` exactly.
fn check_coverage(entries: &[Entry], data: Range<usize>) -> Result<(), HeaderProblem> {
    let mut by_position: Vec<&Entry> = entries.iter().collect();
    by_position.sort_by_key(|entry| (entry.range.start, entry.range.end));
    let hole = |begin: usize, end: usize| {
        Err(HeaderProblem::Hole { begin: begin - data.start, end: end - data.start })
    };
    let mut covered = data.start;
    let mut previous: Option<&Entry> = None;
    for entry in by_position {
        if entry.range.start > covered {
            return hole(covered, entry.range.start);
        }
        if let Some(previous) = previous
            && entry.range.start < covered
        {
            return Err(HeaderProblem::Overlap { first: previous.name.clone(), second: entry.name.clone() });
        }
        covered = entry.range.end;
        previous = Some(entry);
    }
    if covered < data.end { hole(covered, data.end) } else { Ok(()) }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    dtype: String,
    shape: RawShape,
    data_offsets: [u64; 2],
}

/// A shape whose rank is limited while it is read.
struct RawShape(Vec<u64>);

impl<'de> Deserialize<'de> for RawShape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawShape, D::Error> {
        deserializer.deserialize_seq(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = RawShape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX_RANK} dimensions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<RawShape, A::Error> {
        let mut shape = Vec::new();
        while let Some(n) = list.next_element()? {
            if shape.len() == MAX_RANK {
                return Err(de::Error::invalid_length(MAX_RANK + 1, &self));
            }
            shape.push(n);
        }
        Ok(RawShape(shape))
    }
}

/// Reads the whole header; leaves the typed problem in its field when the JSON is well formed but wrong.
struct HeaderSeed<'a>(&'a mut Option<HeaderProblem>);

impl<'de> DeserializeSeed<'de> for HeaderSeed<'_> {
    type Value = Vec<(String, RawEntry)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for HeaderSeed<'_> {
    type Value = Vec<(String, RawEntry)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut refuse = |problem: HeaderProblem| {
            let error = de::Error::custom(&problem);
            *self.0 = Some(problem);
            Err(error)
        };
        let mut seen = HashSet::new();
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if !seen.insert(name.clone()) {
                return refuse(HeaderProblem::Duplicate { tensor: name });
            }
            if name == "__metadata__" {
                map.next_value::<de::IgnoredAny>()?;
                continue;
            }
            if entries.len() == MAX_TENSORS {
                return refuse(HeaderProblem::TooManyTensors { limit: MAX_TENSORS });
            }
            let entry = map.next_value().map_err(|e| de::Error::custom(format!("tensor `{name}`: {e}")))?;
            entries.push((name, entry));
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests;
