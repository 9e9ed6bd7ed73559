use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::test_files::toy_tokenizer;
use crate::tokenizer_config::TokenizerConfig;

fn toy() -> Tokenizer {
    let bytes = toy_tokenizer().to_string();
    Tokenizer::parse(Path::new("t"), bytes.as_bytes(), &TokenizerConfig::default(), None).unwrap()
}

/// Ids of the byte tokens.
fn bytes(bytes: &[u8]) -> Vec<u32> {
    bytes.iter().map(|&byte| 4 + u32::from(byte)).collect()
}

/// The text that appears after each token, and at the end.
fn steps(special: SpecialTokens, ids: &[u32]) -> Vec<String> {
    let tokenizer = toy();
    let mut detokenizer = Detokenizer::new(special);
    let mut steps: Vec<String> = ids
        .iter()
        .map(|&id| {
            let mut out = String::new();
            detokenizer.push(&tokenizer, id, &mut out);
            out
        })
        .collect();
    let mut out = String::new();
    detokenizer.finish(&mut out);
    steps.push(out);
    steps
}

const A: u32 = 261;

#[test]
fn ordinary_tokens_appear_at_once() {
    assert_eq!(steps(SpecialTokens::Skip, &[A, 265, 266, 260]), ["a", " ab", "你", " ", ""]);
}

#[test]
fn half_a_character_never_appears() {
    let face = "🙂".as_bytes();
    let ids = [vec![A], bytes(face), vec![A]].concat();
    assert_eq!(steps(SpecialTokens::Skip, &ids), ["a", "", "", "", "", "🙂a", ""]);
    assert_eq!(steps(SpecialTokens::Skip, &bytes(face)), ["", "", "", "", "🙂"]);
    assert_eq!(steps(SpecialTokens::Skip, &bytes(&face[..3])).concat(), "\u{fffd}\u{fffd}\u{fffd}");
}

#[test]
fn a_later_byte_can_spoil_a_run() {
    let ids = [bytes("é".as_bytes()), bytes(&[0xff]), vec![A]].concat();
    assert_eq!(steps(SpecialTokens::Skip, &ids), ["", "", "", "\u{fffd}\u{fffd}\u{fffd}a", ""]);
}

#[test]
fn a_special_token_breaks_a_run_only_where_it_is_shown() {
    let two = bytes("é".as_bytes());
    let ids = [two[0], 3, two[1], A];
    assert_eq!(steps(SpecialTokens::Skip, &ids).concat(), "éa");
    assert_eq!(steps(SpecialTokens::Show, &ids).concat(), "\u{fffd}<|turn>\u{fffd}a");
}

proptest! {
    /// Equal to the library's own decoding of all tokens at once, whatever the tokens are.
    #[test]
    fn pieces_join_to_the_whole(
        ids in prop::collection::vec(prop_oneof![0u32..280, 4u32 + 0xc0..4 + 0xff, 4u32 + 0x80..4 + 0xbf], 0..40),
        show in any::<bool>(),
    ) {
        let bytes = toy_tokenizer().to_string();
        let library = tokenizers::Tokenizer::from_bytes(bytes.as_bytes()).unwrap();
        let special = if show { SpecialTokens::Show } else { SpecialTokens::Skip };
        prop_assert_eq!(steps(special, &ids).concat(), library.decode(&ids, !show).unwrap());
    }
}
