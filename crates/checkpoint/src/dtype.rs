//! Number types of stored tensors.

use std::fmt;

/// Type of the elements of a stored tensor, as safetensors names it.
///
/// All types of the format are known, so that sizes can be checked; which ones a model accepts is decided where
/// values are read (see [`crate::Tensor`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)] // The names are those of the format.
pub enum DType {
    Bool,
    F4,
    F6E2M3,
    F6E3M2,
    U8,
    I8,
    F8E5M2,
    F8E4M3,
    F8E8M0,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    C64,
    F64,
    I64,
    U64,
}

/// Every type with its name in the format and its bits an element.
const TABLE: [(DType, &str, usize); 20] = [
    (DType::Bool, "BOOL", 8),
    (DType::F4, "F4", 4),
    (DType::F6E2M3, "F6_E2M3", 6),
    (DType::F6E3M2, "F6_E3M2", 6),
    (DType::U8, "U8", 8),
    (DType::I8, "I8", 8),
    (DType::F8E5M2, "F8_E5M2", 8),
    (DType::F8E4M3, "F8_E4M3", 8),
    (DType::F8E8M0, "F8_E8M0", 8),
    (DType::I16, "I16", 16),
    (DType::U16, "U16", 16),
    (DType::F16, "F16", 16),
    (DType::BF16, "BF16", 16),
    (DType::I32, "I32", 32),
    (DType::U32, "U32", 32),
    (DType::F32, "F32", 32),
    (DType::C64, "C64", 64),
    (DType::F64, "F64", 64),
    (DType::I64, "I64", 64),
    (DType::U64, "U64", 64),
];

impl DType {
    /// The type that the format calls `name`.
    pub fn from_name(name: &str) -> Option<DType> {
        TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// Name in the format.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Bits of one element.
    pub fn bits(self) -> usize {
        self.row().2
    }

    fn row(self) -> &'static (DType, &'static str, usize) {
        &TABLE[self as usize]
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_in_the_order_of_the_enum() {
        for (i, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, i);
            assert_eq!(DType::from_name(row.1), Some(row.0));
        }
        assert_eq!(DType::from_name("bf16"), None);
    }
}
