//! One tensor of a checkpoint, and the conversions to the types that models compute with.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};

use crate::random::RandomValues;
use crate::{DType, Error, FileSlice};

/// What to do with f32 and f16 weights that bf16 cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inexact {
    /// Refuse them, naming the tensor: the model must not change silently.
    Refuse,
    /// Round them to the nearest bf16, ties to even. Whoever asks for it must tell the user.
    Round,
}

/// A tensor: its name, type and shape, and its values, which stay where they are until they are read.
///
/// Cloning is cheap. A tensor from a file keeps the mapping of that file alive.
#[derive(Clone, Debug)]
pub struct Tensor {
    name: String,
    file: Arc<Path>,
    dtype: DType,
    shape: Vec<usize>,
    values: Values,
}

#[derive(Clone, Debug)]
enum Values {
    Stored(FileSlice),
    Random(RandomValues),
}

impl Tensor {
    pub(crate) fn stored(
        name: String,
        file: Arc<Path>,
        dtype: DType,
        shape: Vec<usize>,
        bytes: FileSlice,
    ) -> Tensor {
        Tensor { name, file, dtype, shape, values: Values::Stored(bytes) }
    }

    pub(crate) fn random(name: &str, file: Arc<Path>, shape: &[usize], seed: u64) -> Result<Tensor, Error> {
        let n_bits = shape.iter().try_fold(DType::BF16.bits(), |product, &n| product.checked_mul(n));
        if n_bits.is_none() {
            let (file, tensor) = (file.to_path_buf(), name.to_owned());
            return Err(Error::TooLarge { file, tensor, shape: shape.to_vec() });
        }
        let values = Values::Random(RandomValues::new(seed, name));
        Ok(Tensor { name: name.to_owned(), file, dtype: DType::BF16, shape: shape.to_vec(), values })
    }

    /// Name in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// File that holds it.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Type of its stored elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Its dimensions, the slowest first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn n_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes that the elements take in a file.
    pub fn n_bytes(&self) -> usize {
        self.n_elements() * self.dtype.bits() / 8
    }

    /// The stored little-endian bytes, for whoever leaves them mapped; `None` for a made-up tensor, which has none.
    /// They are not checked: a value may be NaN.
    pub fn bytes(&self) -> Option<&FileSlice> {
        match &self.values {
            Values::Stored(bytes) => Some(bytes),
            Values::Random(_) => None,
        }
    }

    /// Says that the values will not be read again soon: the memory of a mapped file's pages goes back to the system. They can
    /// still be read, which fetches them from the file again.
    pub fn release(&self) {
        if let Values::Stored(bytes) = &self.values {
            bytes.release();
        }
    }

    /// Writes the elements `first..first + out.len()` of the flat tensor as bf16, and returns how many of them were
    /// rounded. Stored bf16 is copied; f32 and f16 are converted, which [`Inexact`] governs.
    ///
    /// # Errors
    /// [`Error::NonFinite`], [`Error::NotExactInBf16`], and [`Error::UnsupportedDType`] for any other type.
    ///
    /// # Panics
    /// When the elements are not all inside the tensor.
    pub fn copy_bf16(&self, first: usize, out: &mut [bf16], inexact: Inexact) -> Result<usize, Error> {
        assert!(first.checked_add(out.len()).is_some_and(|end| end <= self.n_elements()));
        let bytes = match &self.values {
            Values::Random(values) => {
                values.copy_bf16(first, out);
                return Ok(0);
            }
            Values::Stored(bytes) => bytes,
        };
        match self.dtype {
            DType::BF16 => self.copy_stored_bf16(bytes, first, out).map(|()| 0),
            DType::F16 => {
                let stored = elements::<2>(bytes, first, out.len()).map(|b| f16::from_le_bytes(b).to_f32());
                self.convert_bf16(stored, first, out, inexact)
            }
            DType::F32 => {
                let stored = elements::<4>(bytes, first, out.len()).map(f32::from_le_bytes);
                self.convert_bf16(stored, first, out, inexact)
            }
            _ => Err(self.unsupported("BF16, F16 or F32")),
        }
    }

    /// Writes the elements `first..first + out.len()` of the flat tensor as f32, which is exact for bf16, f16 and f32.
    ///
    /// # Errors
    /// [`Error::NonFinite`], and [`Error::UnsupportedDType`] for any other type.
    ///
    /// # Panics
    /// When the elements are not all inside the tensor.
    pub fn copy_f32(&self, first: usize, out: &mut [f32]) -> Result<(), Error> {
        assert!(first.checked_add(out.len()).is_some_and(|end| end <= self.n_elements()));
        match &self.values {
            Values::Random(values) => {
                let mut made = vec![bf16::ZERO; out.len()];
                values.copy_bf16(first, &mut made);
                fill(out, made.iter().map(|v| v.to_f32()));
            }
            Values::Stored(bytes) => match self.dtype {
                DType::BF16 => {
                    fill(out, elements::<2>(bytes, first, out.len()).map(|b| bf16::from_le_bytes(b).to_f32()))
                }
                DType::F16 => {
                    fill(out, elements::<2>(bytes, first, out.len()).map(|b| f16::from_le_bytes(b).to_f32()))
                }
                DType::F32 => fill(out, elements::<4>(bytes, first, out.len()).map(f32::from_le_bytes)),
                _ => return Err(self.unsupported("BF16, F16 or F32")),
            },
        }
        match out.iter().position(|value| !value.is_finite()) {
            Some(i) => Err(self.non_finite(first + i, out[i])),
            None => Ok(()),
        }
    }

    /// All elements as f32. For small tensors: norms, scales, recorded values.
    ///
    /// # Errors
    /// Those of [`Tensor::copy_f32`].
    pub fn to_f32(&self) -> Result<Vec<f32>, Error> {
        let mut out = vec![0.0; self.n_elements()];
        self.copy_f32(0, &mut out)?;
        Ok(out)
    }

    /// All elements as i64, from a tensor of i64 or i32. A made-up tensor counts 0, 1, 2, ..., which is a valid order
    /// of tokens.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for any other type.
    pub fn to_i64(&self) -> Result<Vec<i64>, Error> {
        let n = self.n_elements();
        match (&self.values, self.dtype) {
            (Values::Random(_), _) => Ok((0..n as i64).collect()),
            (Values::Stored(bytes), DType::I64) => {
                Ok(elements::<8>(bytes, 0, n).map(i64::from_le_bytes).collect())
            }
            (Values::Stored(bytes), DType::I32) => {
                Ok(elements::<4>(bytes, 0, n).map(|b| i32::from_le_bytes(b).into()).collect())
            }
            _ => Err(self.unsupported("I64 or I32")),
        }
    }

    /// Copies bf16 and then looks for non-finite values: two plain loops that the compiler vectorises.
    fn copy_stored_bf16(&self, bytes: &FileSlice, first: usize, out: &mut [bf16]) -> Result<(), Error> {
        let stored = elements::<2>(bytes, first, out.len());
        for (value, stored) in out.iter_mut().zip(stored) {
            *value = bf16::from_le_bytes(stored);
        }
        let is_special = |value: &bf16| value.to_bits() & 0x7F80 == 0x7F80;
        if !out.iter().fold(false, |any, value| any | is_special(value)) {
            return Ok(());
        }
        match out.iter().position(is_special) {
            Some(i) => Err(self.non_finite(first + i, out[i].to_f32())),
            None => Ok(()),
        }
    }

    fn convert_bf16(
        &self,
        stored: impl Iterator<Item = f32>,
        first: usize,
        out: &mut [bf16],
        inexact: Inexact,
    ) -> Result<usize, Error> {
        let mut n_rounded = 0;
        for (i, (value, wide)) in out.iter_mut().zip(stored).enumerate() {
            if !wide.is_finite() {
                return Err(self.non_finite(first + i, wide));
            }
            *value = bf16::from_f32(wide);
            if value.to_f32() != wide {
                // The largest f32 values round to infinity, which is no weight either.
                if inexact == Inexact::Refuse || value.is_infinite() {
                    return Err(self.not_exact(first + i, wide));
                }
                n_rounded += 1;
            }
        }
        Ok(n_rounded)
    }

    fn label(&self) -> (PathBuf, String) {
        (self.file.to_path_buf(), self.name.clone())
    }

    fn unsupported(&self, expected: &'static str) -> Error {
        let (file, tensor) = self.label();
        Error::UnsupportedDType { file, tensor, found: self.dtype, expected }
    }

    fn non_finite(&self, index: usize, value: f32) -> Error {
        let (file, tensor) = self.label();
        Error::NonFinite { file, tensor, index, value }
    }

    fn not_exact(&self, index: usize, value: f32) -> Error {
        let (file, tensor) = self.label();
        Error::NotExactInBf16 { file, tensor, index, value }
    }
}

/// `n` stored elements of `N` bytes each from element `first` on. Files need not align their data.
fn elements<const N: usize>(bytes: &[u8], first: usize, n: usize) -> impl Iterator<Item = [u8; N]> + '_ {
    bytes[first * N..(first + n) * N].as_chunks::<N>().0.iter().copied()
}

fn fill(out: &mut [f32], values: impl Iterator<Item = f32>) {
    for (slot, value) in out.iter_mut().zip(values) {
        *slot = value;
    }
}
