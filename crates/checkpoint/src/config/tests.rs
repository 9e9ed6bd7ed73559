use proptest::prelude::*;

use super::*;

fn config(text: &str) -> RawConfig {
    parse(text).unwrap()
}

fn parse(text: &str) -> Result<RawConfig, Error> {
    RawConfig::parse(Path::new("m/config.json"), text.as_bytes())
}

#[test]
fn every_kind_of_value_is_read() {
    let config = config(
        r#"{"model_type": "toy", "architectures": ["A", "B"], "text_config": {
            "n": 3, "eps": 1e-06, "theta": 10000, "flag": false, "act": "gelu", "types": ["s", "f"],
            "taps": [1, 4], "ids": [1, 106], "id": 2, "none": null, "rope": {"full": {"theta": 1.5}}}}"#,
    );
    assert_eq!(config.model_type().unwrap(), "toy");
    assert_eq!(config.architectures().unwrap(), ["A", "B"]);
    let text = config.text().unwrap();
    assert_eq!(text.required_usize("n", SIZES).unwrap(), 3);
    assert_eq!(text.required_f64("eps", 0.0..=1.0).unwrap(), 1e-6);
    assert_eq!(text.required_f64("theta", 0.0..=1e9).unwrap(), 10000.0);
    assert!(!text.required_bool("flag").unwrap());
    assert_eq!(text.required_str("act").unwrap(), "gelu");
    assert_eq!(text.required_str_list("types").unwrap(), ["s", "f"]);
    assert_eq!(text.optional_usize_list("taps", 0..=9).unwrap().unwrap(), [1, 4]);
    assert_eq!(text.optional_token_ids("ids").unwrap().unwrap(), [1, 106]);
    assert_eq!(text.optional_token_ids("id").unwrap().unwrap(), [2]);
    assert_eq!(text.nullable_f64("none", 0.0..=1.0).unwrap(), None);
    assert_eq!(text.nullable_usize("none", SIZES).unwrap(), None);
    let rope = text.required_section("rope").unwrap();
    assert_eq!(rope.names().collect::<Vec<_>>(), ["full"]);
    let full = rope.required_section("full").unwrap();
    assert_eq!(full.path("theta"), "text_config.rope.full.theta");
    assert_eq!(full.required_f64("theta", 0.0..=9.0).unwrap(), 1.5);
    assert!(text.has("n") && !text.has("none") && !text.has("absent"));
}

#[test]
fn without_text_config_the_top_level_is_the_text_model() {
    let config = config(r#"{"n": 1, "text_config": null}"#);
    assert_eq!(config.text().unwrap().required_usize("n", SIZES).unwrap(), 1);
    assert!(config.architectures().unwrap().is_empty());
}

#[test]
fn absent_required_fields_are_named_and_never_defaulted() {
    let config = config(r#"{"text_config": {"null": null}}"#);
    let text = config.text().unwrap();
    let absent = [
        text.required_usize("x", SIZES).unwrap_err(),
        text.required_f64("x", 0.0..=1.0).unwrap_err(),
        text.required_bool("x").unwrap_err(),
        text.required_str("x").unwrap_err(),
        text.required_str_list("x").unwrap_err(),
        text.required_section("x").unwrap_err(),
        text.nullable_usize("x", SIZES).unwrap_err(),
        text.nullable_f64("x", 0.0..=1.0).unwrap_err(),
    ];
    for error in absent {
        assert!(matches!(error, Error::MissingField { .. }), "{error}");
        assert!(error.to_string().starts_with("m/config.json: field `text_config.x` is missing"), "{error}");
    }
    let null = text.required_usize("null", SIZES).unwrap_err();
    let message = "m/config.json: field `text_config.null` is null, expected a whole number";
    assert_eq!(null.to_string(), message);
    assert_eq!(text.optional_usize("x", SIZES).unwrap(), None);
    assert_eq!(text.optional_f64("null", 0.0..=1.0).unwrap(), None);
    assert_eq!(text.optional_bool("x").unwrap(), None);
    assert_eq!(text.optional_str("x").unwrap(), None);
    assert_eq!(text.optional_str_list("x").unwrap(), None);
    assert_eq!(text.optional_usize_list("x", SIZES).unwrap(), None);
    assert_eq!(text.optional_token_ids("x").unwrap(), None);
    assert!(text.optional_section("x").unwrap().is_none());
}

#[test]
fn wrong_types_and_wild_numbers_are_refused() {
    let config = config(
        r#"{"text": "x", "float": 1.5, "negative": -4, "big": 1e30, "huge": 18446744073709551615, "zero": 0,
            "list": [1, "a"], "long": "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy"}"#,
    );
    let top = config.top();
    let size = |field: &str| top.required_usize(field, SIZES).unwrap_err().to_string();
    assert_eq!(size("text"), "m/config.json: field `text` is \"x\", expected a whole number");
    assert_eq!(size("float"), "m/config.json: field `float` is 1.5, expected a whole number");
    assert_eq!(size("list"), "m/config.json: field `list` is a list of 2, expected a whole number");
    assert_eq!(size("long"), "m/config.json: field `long` is a long string, expected a whole number");
    for field in ["negative", "huge", "zero"] {
        assert!(size(field).ends_with("expected a whole number from 1 to 16777216"), "{}", size(field));
    }
    let number = top.required_f64("big", f64::MIN_POSITIVE..=1.0).unwrap_err();
    let message =
        "m/config.json: field `big` is 1e+30, expected a number from 2.2250738585072014e-308 to 1e0";
    assert_eq!(number.to_string(), message);
    assert!(top.required_f64("negative", 0.0..=1.0).is_err());
    assert!(top.required_f64("text", 0.0..=1.0).is_err());
    assert!(top.required_bool("zero").is_err());
    assert!(top.required_str("zero").is_err());
    assert!(top.required_str_list("list").is_err());
    assert!(top.optional_usize_list("list", SIZES).is_err());
    assert!(top.optional_token_ids("text").is_err());
    assert!(top.required_section("list").is_err());
    let unsupported = top.unsupported("text", "`gelu_pytorch_tanh`").to_string();
    assert_eq!(unsupported, "m/config.json: field `text` is \"x\", expected `gelu_pytorch_tanh`");
}

#[test]
fn files_that_are_not_json_objects_are_refused() {
    for text in ["", "[1]", "3", "{", "{} {}", r#"{"a": 1e999}"#, &"[".repeat(100_000)] {
        assert!(matches!(parse(text), Err(Error::Json { .. })), "{:.20}", text);
    }
    for number in ["NaN", "Infinity", "-Infinity"] {
        let message = parse(&format!("{{\n \"eps\": {number}\n}}")).unwrap_err().to_string();
        assert!(message.contains("line 2") && message.contains("NaN and Infinity are not"), "{message}");
    }
    assert!(!parse("{\n \"eps\": x\n}").unwrap_err().to_string().contains("NaN"));
    assert!(matches!(config(r#"{"model_type": 3}"#).model_type(), Err(Error::WrongType { .. })));
    assert!(matches!(config("{}").model_type(), Err(Error::MissingField { .. })));
    assert!(config(r#"{"text_config": 3}"#).text().is_err());
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,80}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[a-c]", inner), 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_bytes_give_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = RawConfig::parse(Path::new("c"), &bytes);
    }

    #[test]
    fn any_value_gives_an_answer(value in any_json()) {
        let config = config(&serde_json::json!({"f": value, "text_config": value}).to_string());
        let top = config.top();
        if let Ok(n) = top.required_usize("f", 2..=9) {
            prop_assert!((2..=9).contains(&n));
        }
        if let Ok(x) = top.required_f64("f", -1.0..=1.0) {
            prop_assert!((-1.0..=1.0).contains(&x));
        }
        let _ = (top.nullable_usize("f", SIZES), top.nullable_f64("f", 0.0..=1.0), top.optional_bool("f"));
        let _ = (top.optional_str("f"), top.optional_str_list("f"), top.optional_usize_list("f", SIZES));
        let _ = (top.optional_token_ids("f"), top.optional_section("f"), config.text());
        let _ = crate::GenerationConfig::read(&config, Some(&config));
    }
}
