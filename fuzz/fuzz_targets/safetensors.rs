//! A safetensors file, whole or as its header alone.
//!
//! ```text
//! "f" file ...                      the bytes of a file
//! "h" n, u24 little endian, JSON    a header with its length put before it and n bytes of zeros behind
//! ```
//! A header that is accepted keeps what it promises: every tensor has exactly the bytes that its shape needs.
#![no_main]

use std::path::Path;

use libfuzzer_sys::{Corpus, fuzz_target};
use paceline_checkpoint::{FileBytes, Tensors};

/// Elements of a tensor whose values are looked at.
const FEW: usize = 1 << 12;

fuzz_target!(|data: &[u8]| -> Corpus {
    let Some(file) = file(data) else { return Corpus::Reject };
    let path = Path::new("model.safetensors");
    let open = || Tensors::from_bytes(path, FileBytes::from(std::borrow::Cow::Owned(file.clone())));
    let Ok(mut tensors) = open() else { return Corpus::Keep };
    if let Ok(text) = open().and_then(Tensors::into_text) {
        assert!(text.names().count() <= tensors.names().count(), "names were made up");
    }
    let names: Vec<String> = tensors.names().map(str::to_owned).collect();
    for name in &names {
        let Some(tensor) = tensors.get(name).cloned() else {
            tensors.take_flat(name, 0).expect_err("a tensor of a type that is not known");
            continue;
        };
        let bytes = tensor.bytes().expect("it is stored").len();
        assert_eq!(bytes, tensor.n_bytes(), "{name}");
        let taken = tensors.take(name, tensor.shape()).expect("it is there, in this shape");
        if taken.n_elements() <= FEW {
            // Types that are not numbers of a model are refused.
            if let Ok(values) = taken.to_f32() {
                assert_eq!(values.len(), taken.n_elements(), "{name}");
                assert!(values.iter().all(|value| value.is_finite()), "{name}");
            }
            if let Ok(values) = taken.to_i64() {
                assert_eq!(values.len(), taken.n_elements(), "{name}");
            }
        }
    }
    tensors.finish().expect("every tensor was taken");
    Corpus::Keep
});

fn file(data: &[u8]) -> Option<Vec<u8>> {
    match data.split_first()? {
        (b'f', file) => Some(file.to_vec()),
        (b'h', rest) => {
            let (n, header) = rest.split_first_chunk::<3>()?;
            let n = u32::from_le_bytes([n[0], n[1], n[2], 0]) as usize;
            let mut file = (header.len() as u64).to_le_bytes().to_vec();
            file.extend_from_slice(header);
            file.resize(file.len() + n, 0);
            Some(file)
        }
        _ => None,
    }
}
