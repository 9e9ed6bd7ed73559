use half::bf16;

use super::*;
use crate::test_files::{f32_bytes, file_of, with_header};
use crate::{DType, HeaderProblem, Inexact};

const FILE: &str = "toy/model.safetensors";

fn open(bytes: Vec<u8>) -> Result<Tensors, Error> {
    Tensors::from_bytes(Path::new(FILE), FileBytes::from(std::borrow::Cow::Owned(bytes)))
}

fn one(dtype: &str, shape: &[usize], bytes: &[u8]) -> Tensor {
    open(file_of(&[("w", dtype, shape, bytes)])).unwrap().take("w", shape).unwrap()
}

#[test]
fn a_broken_header_names_the_file() {
    let error = open(with_header("{}", &[0; 3])).unwrap_err();
    assert_eq!(error.to_string(), "toy/model.safetensors: data bytes 0..3 belong to no tensor");
    assert!(matches!(error, Error::BadHeader { problem: HeaderProblem::Hole { .. }, .. }));
}

#[test]
fn take_checks_name_and_shape() {
    let file = file_of(&[("a", "BF16", &[2, 3], &[0; 12]), ("order", "I64", &[2, 2], &[1; 32])]);
    let mut tensors = open(file).unwrap();
    assert_eq!(tensors.names().collect::<Vec<_>>(), ["a", "order"]);
    assert_eq!(tensors.get("a").unwrap().n_bytes(), 12);
    let error = tensors.take("b", &[7]).unwrap_err();
    assert_eq!(error.to_string(), "toy/model.safetensors: tensor `b` is missing, expected with shape [7]");
    assert_eq!(tensors.take_flat("order", 4).unwrap().to_i64().unwrap(), [0x0101010101010101; 4]);
    let error = tensors.take("a", &[3, 2]).unwrap_err();
    assert_eq!(error.to_string(), "toy/model.safetensors: tensor `a` has shape [2, 3], expected [3, 2]");
}

#[test]
fn what_nobody_took_is_refused_by_name() {
    let names: Vec<String> = (0..10).map(|i| format!("extra.{i}")).collect();
    let rows: Vec<(&str, &str, &[usize], &[u8])> =
        names.iter().map(|name| (&name[..], "U8", &[1][..], &[0][..])).collect();
    let mut tensors = open(file_of(&rows)).unwrap();
    tensors.discard("extra.0");
    tensors.discard("never.there");
    let message = tensors.finish().unwrap_err().to_string();
    let start =
        "toy/model.safetensors: 9 tensor(s) that this architecture does not know: `extra.1`, `extra.2`";
    assert!(message.starts_with(start) && message.ends_with("`extra.8` and 1 more"), "{message}");

    let mut tensors = open(file_of(&[("w", "U8", &[1], &[0])])).unwrap();
    tensors.take("w", &[1]).unwrap();
    tensors.finish().unwrap();
}

#[test]
fn an_unknown_type_matters_only_to_who_takes_it() {
    let file = file_of(&[("a", "F3_NEW", &[5], &[0; 2]), ("b", "F3_NEW", &[5], &[0; 2])]);
    let mut tensors = open(file).unwrap();
    tensors.discard("b");
    let error = tensors.take("a", &[5]).unwrap_err();
    assert!(matches!(error, Error::UnknownDType { .. }));
    assert!(error.to_string().contains("tensor `a` has the unknown type `F3_NEW`"), "{error}");
}

#[test]
fn text_names_are_plain_and_unique() {
    let file = file_of(&[
        ("model.language_model.norm.weight", "BF16", &[1], &[0; 2]),
        ("model.vision_tower.norm.weight", "F3_NEW", &[1], &[0; 2]),
        ("lm_head.weight", "BF16", &[1], &[0; 2]),
    ]);
    let mut tensors = open(file).unwrap().into_text().unwrap();
    assert_eq!(tensors.names().collect::<Vec<_>>(), ["lm_head.weight", "norm.weight"]);
    // Messages show the name that the file has.
    assert_eq!(tensors.take("norm.weight", &[1]).unwrap().name(), "model.language_model.norm.weight");

    let file =
        file_of(&[("model.norm.weight", "BF16", &[1], &[0; 2]), ("norm.weight", "BF16", &[1], &[0; 2])]);
    let error = open(file).unwrap().into_text().unwrap_err();
    let both = "tensors `model.norm.weight` and `norm.weight` both mean `norm.weight`";
    assert!(error.to_string().contains(both), "{error}");
}

#[test]
fn bf16_is_read_as_it_is() {
    let tensor = one("BF16", &[2, 2], &[0x80, 0x3f, 0x01, 0x00, 0x00, 0x80, 0x7f, 0x7f]);
    assert_eq!(tensor.bytes().unwrap()[..2], [0x80, 0x3f]);
    let mut out = [bf16::ZERO; 3];
    assert_eq!(tensor.copy_bf16(1, &mut out, Inexact::Refuse).unwrap(), 0);
    assert_eq!(out.map(bf16::to_bits), [0x0001, 0x8000, 0x7f7f]);
    assert_eq!(tensor.to_f32().unwrap(), [1.0, f32::from_bits(1 << 16), -0.0, 3.3895314e38]);
}

#[test]
fn wider_types_must_be_exact_or_are_rounded_on_request() {
    let exact = one("F32", &[3], &f32_bytes(&[1.0, -0.0, 0.15625]));
    let mut out = [bf16::ZERO; 3];
    assert_eq!(exact.copy_bf16(0, &mut out, Inexact::Refuse).unwrap(), 0);
    assert_eq!(out.map(bf16::to_f32), [1.0, -0.0, 0.15625]);

    let inexact = one("F32", &[3], &f32_bytes(&[1.0, 0.1, 0.2]));
    let error = inexact.copy_bf16(1, &mut out[..2], Inexact::Refuse).unwrap_err();
    assert!(error.to_string().contains("tensor `w` holds 0.1 at element 1, which bf16 cannot"), "{error}");
    assert_eq!(inexact.copy_bf16(0, &mut out, Inexact::Round).unwrap(), 2);
    assert_eq!(out, [1.0, 0.1, 0.2].map(bf16::from_f32));

    // 1 + 2^-7 and 1 + 2^-8 in f16: the first one fits bf16.
    let half = one("F16", &[2], &[0x08, 0x3c, 0x04, 0x3c]);
    assert_eq!(half.copy_bf16(0, &mut out[..1], Inexact::Refuse).unwrap(), 0);
    assert_eq!(out[0].to_f32(), 1.0 + 1.0 / 128.0);
    assert!(half.copy_bf16(1, &mut out[..1], Inexact::Refuse).is_err());
    assert_eq!(half.to_f32().unwrap(), [1.0 + 1.0 / 128.0, 1.0 + 1.0 / 256.0]);

    // Rounds to infinity: no weight, whatever was asked for.
    let huge = one("F32", &[1], &f32_bytes(&[f32::MAX]));
    assert!(matches!(
        huge.copy_bf16(0, &mut out[..1], Inexact::Round),
        Err(Error::NotExactInBf16 { index: 0, .. })
    ));
}

#[test]
fn non_finite_weights_are_named() {
    let bf16_bytes = |values: &[f32]| -> Vec<u8> {
        values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect()
    };
    let f16_bytes = |values: &[f32]| -> Vec<u8> {
        values.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect()
    };
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let values = [1.0, 2.0, bad];
        for (dtype, bytes) in
            [("BF16", bf16_bytes(&values)), ("F16", f16_bytes(&values)), ("F32", f32_bytes(&values))]
        {
            let tensor = one(dtype, &[3], &bytes);
            let narrow = tensor.copy_bf16(1, &mut [bf16::ZERO; 2], Inexact::Round).unwrap_err();
            let wide = tensor.copy_f32(1, &mut [0.0; 2]).unwrap_err();
            for error in [narrow, wide] {
                assert!(matches!(error, Error::NonFinite { index: 2, .. }), "{dtype} {bad}: {error}");
                assert!(error.to_string().contains("toy/model.safetensors: tensor `w`"), "{error}");
            }
        }
    }
}

#[test]
fn other_types_are_refused_where_they_are_read() {
    let quantised = one("F8_E4M3", &[2], &[0; 2]);
    let error = quantised.copy_bf16(0, &mut [bf16::ZERO; 2], Inexact::Round).unwrap_err();
    assert!(error.to_string().contains("`w` has type F8_E4M3, expected BF16, F16 or F32"), "{error}");
    assert!(quantised.to_f32().is_err());
    assert!(one("BF16", &[1], &[0; 2]).to_i64().is_err());
    assert_eq!(one("I32", &[2], &[1, 0, 0, 0, 255, 255, 255, 255]).to_i64().unwrap(), [1, -1]);
}

#[test]
fn unaligned_data_is_read_all_the_same() {
    let mut header = String::from(r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#);
    for _ in 0..8 {
        header.push(' ');
        let mut tensors = open(with_header(&header, &f32_bytes(&[1.5, -2.0]))).unwrap();
        assert_eq!(tensors.take("w", &[2]).unwrap().to_f32().unwrap(), [1.5, -2.0]);
    }
}

#[test]
fn made_up_tensors_have_any_name_and_shape() {
    let mut tensors = Tensors::random(Path::new("toy/config.json"), 5).into_text().unwrap();
    assert!(tensors.contains("anything"));
    let tensor = tensors.take("layers.0.mlp.up_proj.weight", &[3, 4]).unwrap();
    assert_eq!((tensor.dtype(), tensor.shape(), tensor.n_bytes()), (DType::BF16, &[3, 4][..], 24));
    let again = tensors.take("layers.0.mlp.up_proj.weight", &[3, 4]).unwrap();
    assert_eq!(tensor.to_f32().unwrap(), again.to_f32().unwrap());
    let mut narrow = [bf16::ZERO; 12];
    tensor.copy_bf16(0, &mut narrow, Inexact::Refuse).unwrap();
    assert_eq!(narrow.map(bf16::to_f32)[..], tensor.to_f32().unwrap());
    assert!(tensor.bytes().is_none());
    let order = tensors.take_flat("masked_embedding.token_ordering", 4).unwrap();
    assert_eq!(order.to_i64().unwrap(), [0, 1, 2, 3]);
    let huge = tensors.take("w", &[1 << 24, 1 << 24, 1 << 24]);
    assert!(matches!(huge, Err(Error::TooLarge { .. })));
    tensors.finish().unwrap();
}
