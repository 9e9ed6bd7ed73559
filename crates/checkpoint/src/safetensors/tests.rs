use proptest::prelude::*;

use super::*;
use crate::test_files::{file_of, with_header};

fn problem(header: &str, data: &[u8]) -> HeaderProblem {
    parse_header(&with_header(header, data)).unwrap_err()
}

#[test]
fn a_good_header_gives_every_tensor() {
    let header = concat!(
        r#"{"__metadata__":{"format":"pt"},"#,
        r#""b":{"dtype":"F32","shape":[],"data_offsets":[4,8]},"#,
        r#""a":{"shape":[2,1],"data_offsets":[0,4],"dtype":"BF16"},"#,
        r#""empty":{"dtype":"I64","shape":[0,3],"data_offsets":[8,8]},"#,
        r#""odd":{"dtype":"F8_NEW","shape":[3],"data_offsets":[8,11]}}   "#
    );
    let entries = parse_header(&with_header(header, &[0; 11])).unwrap();
    let start = 8 + header.len();
    let found: Vec<_> =
        entries.iter().map(|e| (&e.name[..], e.dtype.clone(), &e.shape[..], e.range.start - start)).collect();
    assert_eq!(
        found,
        [
            ("b", Ok(DType::F32), &[][..], 4),
            ("a", Ok(DType::BF16), &[2, 1], 0),
            ("empty", Ok(DType::I64), &[0, 3], 8),
            ("odd", Err("F8_NEW".to_owned()), &[3], 8),
        ]
    );
}

#[test]
fn lengths_are_checked_before_anything_is_read() {
    assert_eq!(parse_header(&[]), Err(HeaderProblem::TooShort { len: 0 }));
    assert_eq!(parse_header(&[1; 7]), Err(HeaderProblem::TooShort { len: 7 }));
    let limit = MAX_HEADER_BYTES;
    assert_eq!(parse_header(&[0xff; 9]), Err(HeaderProblem::TooLong { len: u64::MAX, limit }));
    let mut file = 100u64.to_le_bytes().to_vec();
    file.extend(b"{}");
    assert_eq!(parse_header(&file), Err(HeaderProblem::BeyondFile { header: 100, file: 10 }));
}

#[test]
fn text_that_is_no_header_is_refused() {
    for header in [
        "",
        " {}",
        "[]",
        "{",
        "{}x",
        r#"{"a":1}"#,
        r#"{"a":{"dtype":"BF16","shape":[1]}}"#,
        r#"{"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2,4]}}"#,
        r#"{"a":{"dtype":"BF16","shape":[-1],"data_offsets":[0,2]}}"#,
        r#"{"a":{"dtype":"BF16","shape":[1.5],"data_offsets":[0,2]}}"#,
        r#"{"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2],"data_offsets":[0,2]}}"#,
        r#"{"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2],"stride":[1]}}"#,
        r#"{"a":{"dtype":"BF16","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,2]}}"#,
        r#"{"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,18446744073709551616]}}"#,
    ] {
        assert!(matches!(problem(header, &[0; 2]), HeaderProblem::Syntax { .. }), "{header}");
    }
    let mut bytes = with_header(r#"{"??":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}"#, &[0]);
    bytes[10] = 0xff; // not UTF-8
    assert!(matches!(parse_header(&bytes), Err(HeaderProblem::Syntax { .. })));
}

#[test]
fn a_wrong_entry_is_named() {
    let message = problem(r#"{"norm":{"dtype":"BF16","shape":[-1],"data_offsets":[0,2]}}"#, &[]).to_string();
    assert!(message.contains("tensor `norm`"), "{message}");
}

#[test]
fn names_are_unique() {
    let header = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    assert_eq!(problem(header, &[0]), HeaderProblem::Duplicate { tensor: "a".to_owned() });
}

#[test]
fn offsets_lie_in_the_file_and_in_order() {
    for (begin, end) in [(0, 5), (4, 0), (9, 9), (0, u64::MAX)] {
        let header = format!(r#"{{"a":{{"dtype":"BF16","shape":[2],"data_offsets":[{begin},{end}]}}}}"#);
        let expected = HeaderProblem::Offsets { tensor: "a".to_owned(), begin, end, len: 4 };
        assert_eq!(problem(&header, &[0; 4]), expected);
    }
}

#[test]
fn size_follows_from_type_and_shape() {
    let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#;
    assert!(matches!(problem(header, &[0; 4]), HeaderProblem::Size { found: 4, expected: 8, .. }));
    let header = r#"{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}"#;
    assert!(matches!(problem(header, &[0; 1]), HeaderProblem::PartOfByte { .. }));
    for shape in ["[4294967296,4294967296]", "[4611686018427387904,8]", "[0,4294967296,4294967296]"] {
        let header = format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":[0,0]}}}}"#);
        assert!(matches!(problem(&header, &[]), HeaderProblem::TooLarge { .. }), "{shape}");
    }
    // Elements fit, their bits do not.
    let header = r#"{"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}}"#;
    assert!(matches!(problem(header, &[]), HeaderProblem::TooLarge { .. }));
}

#[test]
fn tensors_cover_the_data_exactly() {
    let two = |first: [usize; 2], second: [usize; 2]| {
        let entry = |name: &str, [begin, end]: [usize; 2]| {
            let n = end - begin;
            format!(r#""{name}":{{"dtype":"U8","shape":[{n}],"data_offsets":[{begin},{end}]}}"#)
        };
        format!("{{{},{}}}", entry("a", first), entry("b", second))
    };
    assert!(parse_header(&with_header(&two([2, 4], [0, 2]), &[0; 4])).is_ok());
    let overlap = HeaderProblem::Overlap { first: "a".to_owned(), second: "b".to_owned() };
    assert_eq!(problem(&two([0, 3], [2, 4]), &[0; 4]), overlap);
    assert_eq!(problem(&two([0, 4], [0, 4]), &[0; 4]), overlap);
    assert_eq!(problem(&two([0, 1], [2, 4]), &[0; 4]), HeaderProblem::Hole { begin: 1, end: 2 });
    assert_eq!(problem(&two([1, 2], [2, 4]), &[0; 4]), HeaderProblem::Hole { begin: 0, end: 1 });
    assert_eq!(problem(&two([0, 2], [2, 4]), &[0; 7]), HeaderProblem::Hole { begin: 4, end: 7 });
    assert_eq!(problem("{}", &[0; 7]), HeaderProblem::Hole { begin: 0, end: 7 });
}

#[test]
fn too_many_tensors_are_refused() {
    let mut header = String::from("{");
    for i in 0..=MAX_TENSORS {
        header.push_str(&format!(r#""{i:x}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}},"#));
    }
    header.pop();
    header.push('}');
    assert_eq!(problem(&header, &[]), HeaderProblem::TooManyTensors { limit: MAX_TENSORS });
}

/// A good file with a few tensors, to be damaged.
fn good_file() -> Vec<u8> {
    file_of(&[
        ("model.norm.weight", "BF16", &[4], &[0; 8]),
        ("model.layers.0.mlp.up_proj.weight", "F32", &[2, 3], &[0; 24]),
        ("token_ordering", "I64", &[2], &[0; 16]),
    ])
}

proptest! {
    #[test]
    fn any_bytes_give_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_header(&bytes);
    }

    #[test]
    fn any_text_gives_an_answer(text in r#"[\{\}\[\]":,0-9a-zA-Z_ -]{0,120}"#, data in 0usize..64) {
        let _ = parse_header(&with_header(&text, &vec![0; data]));
    }

    /// Whatever is damaged, an accepted header keeps what the module promises.
    #[test]
    fn damaged_files_keep_the_promise(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut file = good_file();
        for (at, byte) in edits {
            let at = at.index(file.len());
            file[at] = byte;
        }
        file.truncate(cut.index(file.len() * 2));
        let Ok(entries) = parse_header(&file) else { return Ok(()) };
        let covered: usize = entries.iter().map(|e| e.range.len()).sum();
        let header = u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
        prop_assert_eq!(covered, file.len() - 8 - header);
        for entry in entries {
            prop_assert!(file.get(entry.range.clone()).is_some());
            if let Ok(dtype) = entry.dtype {
                let elements: usize = entry.shape.iter().product();
                prop_assert_eq!(elements * dtype.bits() / 8, entry.range.len());
            }
        }
    }

    /// Well-formed headers of wild numbers.
    #[test]
    fn wild_numbers_give_an_answer(
        entries in prop::collection::vec((prop::sample::select(vec!["U8", "BF16", "F4", "X"]),
            prop::collection::vec(prop_oneof![0u64..4, any::<u64>()], 0..4), 0u64..12, 0u64..12), 0..5),
        data in 0usize..24,
    ) {
        let entries: Vec<String> = entries.iter().enumerate().map(|(i, (dtype, shape, begin, end))| {
            format!(r#""t{i}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#)
        }).collect();
        let _ = parse_header(&with_header(&format!("{{{}}}", entries.join(",")), &vec![0; data]));
    }
}
