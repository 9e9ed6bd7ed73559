use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::test_files::toy_tokenizer;
use crate::{ModelFolder, RawConfig};

/// Ids of the toy tokenizer.
const BOS: u32 = 1;
const TURN: u32 = 3;
const SPACE: u32 = 260;
const A: u32 = 261;

fn parse(tokenizer: &Value, config: Value) -> Result<Tokenizer, Error> {
    let config = RawConfig::parse(Path::new("tokenizer_config.json"), config.to_string().as_bytes()).unwrap();
    let config = TokenizerConfig::read(&config).unwrap();
    Tokenizer::parse(Path::new("m/tokenizer.json"), tokenizer.to_string().as_bytes(), &config, None)
}

fn with_bos() -> Tokenizer {
    parse(&toy_tokenizer(), json!({"add_bos_token": true, "bos_token": "<bos>"})).unwrap()
}

#[test]
fn bos_stands_in_front_exactly_once() {
    let tokenizer = with_bos();
    assert_eq!(tokenizer.encode("").unwrap(), [BOS]);
    assert_eq!(tokenizer.encode("a ab").unwrap(), [BOS, A, 265]);
    assert_eq!(tokenizer.encode("<bos>a").unwrap(), [BOS, A]);
    assert_eq!(tokenizer.encode("<bos><|turn>a").unwrap(), [BOS, TURN, A]);
    // Only the front counts: what a user writes further on is what the user wrote.
    assert_eq!(tokenizer.encode("a<bos>").unwrap(), [BOS, A, BOS]);

    let without = parse(&toy_tokenizer(), json!({"add_bos_token": false, "bos_token": "<bos>"})).unwrap();
    assert_eq!(without.encode("a").unwrap(), [A]);
    assert_eq!(without.encode("<bos>a").unwrap(), [BOS, A]);
}

#[test]
fn a_token_id_of_two_texts_is_refused() {
    let mut tokenizer = toy_tokenizer();
    tokenizer["model"]["vocab"]["zz"] = json!(A);
    let error = parse(&tokenizer, json!({})).unwrap_err().to_string();
    assert!(error.contains("token 261 twice: `a` and `zz`"), "{error}");
}

#[test]
fn tokenizer_json_decides_where_its_config_does_not() {
    let mut adds = toy_tokenizer();
    adds["post_processor"] = json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [1], "tokens": ["<bos>"]}}});
    let config = json!({"bos_token": {"content": "<bos>"}});
    assert_eq!(parse(&adds, config.clone()).unwrap().encode("a").unwrap(), [BOS, A]);
    assert_eq!(parse(&toy_tokenizer(), config).unwrap().encode("a").unwrap(), [A]);
}

#[test]
fn texts_come_back() {
    let tokenizer = with_bos();
    for text in ["", "a", " ab  c ", "<|turn>a", "x \u{1F469}\u{200D}\u{1F680} 世界 你\r\n\0", "aé"] {
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(tokenizer.decode(&ids[1..], SpecialTokens::Show), text);
    }
    assert_eq!(tokenizer.decode(&[BOS, TURN, A, 2], SpecialTokens::Skip), "a");
    assert_eq!(tokenizer.decode(&[BOS, TURN, A, 2], SpecialTokens::Show), "<bos><|turn>a<eos>");
}

#[test]
fn a_prompt_is_neither_cut_nor_filled_up() {
    let mut tokenizer = toy_tokenizer();
    tokenizer["truncation"] =
        json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    tokenizer["padding"] = json!({"strategy": {"Fixed": 8}, "direction": "Left", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"});
    let tokenizer = parse(&tokenizer, json!({})).unwrap();
    assert_eq!(tokenizer.encode("a c a").unwrap(), [A, SPACE, 263, SPACE, A]);
}

#[test]
fn tokens_have_names() {
    let tokenizer = with_bos();
    assert_eq!(tokenizer.n_tokens(), 267);
    assert_eq!(tokenizer.token_id("<|turn>"), Some(TURN));
    assert_eq!(tokenizer.token_id("nope"), None);
    assert_eq!(tokenizer.token(SPACE).as_deref(), Some("\u{2581}"));
    assert_eq!(tokenizer.token(267), None);
    assert!(tokenizer.is_special(TURN) && !tokenizer.is_special(A) && !tokenizer.is_special(999));
}

#[test]
fn another_models_vocabulary_is_refused() {
    let tokenizer = with_bos();
    for n_model_tokens in [263, 267, 268, 300] {
        tokenizer.check_vocabulary(n_model_tokens).unwrap();
    }
    for n_model_tokens in [0, 262, 320, 262_144] {
        let error = tokenizer.check_vocabulary(n_model_tokens).unwrap_err();
        let message = format!(
            "m/tokenizer.json: names 267 tokens, which cannot be those of a model with {n_model_tokens}"
        );
        assert!(error.to_string().starts_with(&message), "{error}");
    }
}

#[test]
fn files_that_are_no_usable_tokenizer_are_refused() {
    let message = |tokenizer: &Value, config: Value| {
        let message = parse(tokenizer, config).unwrap_err().to_string();
        assert!(message.starts_with("m/tokenizer.json: cannot be used as a tokenizer: "), "{message}");
        message
    };
    message(&json!({}), json!({}));
    message(&json!([]), json!({}));
    let bos = message(&toy_tokenizer(), json!({"bos_token": "<s>"}));
    assert!(bos.ends_with("it has no token `<s>`, the bos_token of tokenizer_config.json"), "{bos}");
    assert!(message(&toy_tokenizer(), json!({"add_bos_token": true})).contains("no file says which"));
    for decoder in [
        json!(null),
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        json!({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]}),
        json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"Regex": "x+"}, "content": " "}, {"type": "Fuse"}]}),
    ] {
        let mut tokenizer = toy_tokenizer();
        tokenizer["decoder"] = decoder;
        assert!(message(&tokenizer, json!({})).contains("decoder"));
    }
}

#[test]
fn a_folder_may_have_no_tokenizer() {
    let mut files = vec![("config.json", r#"{"bos_token_id": 1}"#.to_owned().into_bytes())];
    assert!(ModelFolder::from_files("toy", files.clone()).unwrap().tokenizer().unwrap().is_none());
    files.push(("tokenizer.json", toy_tokenizer().to_string().into_bytes()));
    files.push(("tokenizer_config.json", br#"{"add_bos_token": true}"#.to_vec()));
    let tokenizer = ModelFolder::from_files("toy", files).unwrap().tokenizer().unwrap().unwrap();
    assert_eq!(tokenizer.encode("a").unwrap(), [BOS, A]);
}

proptest! {
    #[test]
    fn any_text_comes_back(text in any::<String>()) {
        let tokenizer = with_bos();
        let ids = tokenizer.encode(&text).unwrap();
        let decoded = tokenizer.decode(&ids, SpecialTokens::Show);
        // The notation of a space is the one character that cannot be told apart.
        prop_assert_eq!(decoded, format!("<bos>{}", text.replace('\u{2581}', " ")));
    }

    #[test]
    fn damaged_files_give_an_answer(at in any::<prop::sample::Index>(), with in "[\\[\\]{}0-9a-z,:\"-]{0,3}") {
        let mut text = toy_tokenizer().to_string();
        let at = at.index(text.len());
        if text.is_char_boundary(at) && text.is_char_boundary(at + 1) {
            text.replace_range(at..=at, &with);
        }
        let config = TokenizerConfig::default();
        if let Ok(tokenizer) = Tokenizer::parse(Path::new("t"), text.as_bytes(), &config, None) {
            let _ = tokenizer.encode("ab c <bos> x");
            tokenizer.decode(&[0, 1, 5, 260, 9999], SpecialTokens::Skip);
        }
    }
}
