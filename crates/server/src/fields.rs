//! The fields of a request's body, taken one by one, each with its type and range.
//!
//! A field that is `null` counts as left out. What nobody takes is unknown: it is accepted, and said once in the log.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use paceline::{NumberError, parse_number};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::error::ApiError;

/// Largest integer of a field that has no limit of its own.
pub(crate) const MOST: u64 = 1 << 32;

/// An object of a body.
#[derive(Debug)]
pub(crate) struct Fields {
    /// Where the object stands: empty, or its name with a dot.
    path: String,
    object: Map<String, Value>,
    /// Names, with those of the objects around them here, of numbers that have become 0 by being read.
    vanished: Vec<String>,
    /// What was asked for, so that a test can compare it with the published description.
    #[cfg(test)]
    pub(crate) asked: Vec<String>,
}

impl Fields {
    /// Parses a body.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let wrong = |error| ApiError::bad_request(format!("the body is not JSON: {error}"));
        match serde_json::from_slice(body).map_err(wrong)? {
            Value::Object(object) => {
                let mut fields = Self::new(String::new(), object);
                // Only then is the body read once more, for the texts of its numbers.
                if fields.object.values().any(may_have_vanished) {
                    find_vanished(body, "", &mut fields.vanished).map_err(wrong)?;
                }
                Ok(fields)
            }
            other => {
                Err(ApiError::bad_request(format!("the body is {}; expected an object", describe(&other))))
            }
        }
    }

    fn new(path: String, object: Map<String, Value>) -> Self {
        Self {
            path,
            object,
            vanished: Vec::new(),
            #[cfg(test)]
            asked: Vec::new(),
        }
    }

    /// An error about a field.
    pub(crate) fn error(&self, name: &str, problem: impl AsRef<str>) -> ApiError {
        ApiError::field(Cow::Owned(format!("{}{name}", self.path)), problem)
    }

    fn wrong(&self, name: &str, found: &Value, expected: &str) -> ApiError {
        self.error(name, format!("is {}; expected {expected}", describe(found)))
    }

    /// Any value.
    pub(crate) fn value(&mut self, name: &str) -> Option<Value> {
        #[cfg(test)]
        self.asked.push(name.to_owned());
        // The order of what is left does not matter.
        self.object.swap_remove(name).filter(|value| !value.is_null())
    }

    /// Any value but a number that would become 0.
    pub(crate) fn value_held(&mut self, name: &str) -> Result<Option<Value>, ApiError> {
        let value = self.value(name);
        match self.has_vanished(name) {
            true => Err(self.error(name, NumberError::Vanishes.to_string())),
            false => Ok(value),
        }
    }

    /// A text.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(name, &other, "a string")),
        }
    }

    /// True or false.
    pub(crate) fn flag(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(self.wrong(name, &other, "true or false")),
        }
    }

    /// A number that f32 can hold. Its range is the engine's business.
    pub(crate) fn number(&mut self, name: &str) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.value_held(name)? else { return Ok(None) };
        match to_f32(&value) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(name, &value, "a number")),
        }
    }

    /// Whether a number is not 0 and yet was read as 0. One of an object has the object's name before its own, with a dot.
    pub(crate) fn has_vanished(&self, name: &str) -> bool {
        self.vanished.iter().any(|vanished| vanished == name)
    }

    /// A whole number in a range.
    pub(crate) fn integer(
        &mut self,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.value_held(name)? else { return Ok(None) };
        match whole(&value).filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let expected = match (*range.start(), *range.end()) {
                    (least, most) if most == MOST => format!("a whole number of at least {least}"),
                    (least, most) => format!("a whole number from {least} to {most}"),
                };
                Err(self.wrong(name, &value, &expected))
            }
        }
    }

    /// A count, which fits in memory's terms.
    pub(crate) fn count(
        &mut self,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<usize>, ApiError> {
        // At most MOST, which fits on the machines that models run on.
        Ok(self.integer(name, range)?.map(|count| usize::try_from(count).unwrap_or(usize::MAX)))
    }

    /// An object.
    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Fields>, ApiError> {
        let Some(object) = self.map(name)? else { return Ok(None) };
        let inside = |vanished: &String| Some(vanished.strip_prefix(name)?.strip_prefix('.')?.to_owned());
        let vanished = self.vanished.iter().filter_map(inside).collect();
        Ok(Some(Fields { vanished, ..Fields::new(format!("{}{name}.", self.path), object) }))
    }

    /// An object with keys of the client's own.
    pub(crate) fn map(&mut self, name: &str) -> Result<Option<Map<String, Value>>, ApiError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(other) => Err(self.wrong(name, &other, "an object")),
        }
    }

    /// Refuses a field that would change the answer and is not supported; values for which leaving it out is the same are
    /// fine.
    pub(crate) fn unsupported(&mut self, name: &str, harmless: &[&str]) -> Result<(), ApiError> {
        let Some(value) = self.value(name) else { return Ok(()) };
        let empty = match &value {
            Value::Bool(flag) => !flag,
            Value::String(text) => text.is_empty() || harmless.contains(&text.as_str()),
            Value::Array(items) => {
                items.iter().all(|item| item.as_str().is_some_and(|item| harmless.contains(&item)))
            }
            Value::Object(object) => match object.get("type") {
                Some(kind) => kind.as_str().is_some_and(|kind| harmless.contains(&kind)),
                None => object.is_empty(),
            },
            Value::Null | Value::Number(_) => false,
        };
        if empty { Ok(()) } else { Err(self.error(name, "is not supported by this server; leave it out")) }
    }

    /// Names of the fields that nobody took.
    pub(crate) fn unknown(&self) -> impl Iterator<Item = String> + '_ {
        self.object.keys().map(|name| format!("{}{name}", self.path))
    }
}

/// A finite number that f32 can hold.
pub(crate) fn to_f32(value: &Value) -> Option<f32> {
    value.as_f64().map(|number| number as f32).filter(|number| number.is_finite())
}

/// A whole number, also one that is written with a point.
pub(crate) fn whole(value: &Value) -> Option<u64> {
    match value.as_u64() {
        Some(number) => Some(number),
        None => value
            .as_f64()
            .filter(|number| number.fract() == 0.0 && (0.0..=MOST as f64).contains(number))
            .map(|number| number as u64),
    }
}

/// Whether a number would be 0 and was not written as the integer, or an object has such a number.
fn may_have_vanished(value: &Value) -> bool {
    match value {
        Value::Object(object) => object.values().any(may_have_vanished),
        value => value.is_f64() && value.as_f64().is_some_and(|number| number as f32 == 0.0),
    }
}

/// Names the numbers of an object, and of objects in it, that are not 0 and would be read as 0. `path` is the object's own name with
/// a dot.
fn find_vanished(object: &[u8], path: &str, found: &mut Vec<String>) -> serde_json::Result<()> {
    let texts: BTreeMap<String, &RawValue> = serde_json::from_slice(object)?;
    for (name, text) in texts {
        let text = text.get();
        if text.starts_with('{') {
            find_vanished(text.as_bytes(), &format!("{path}{name}."), found)?;
        } else if parse_number(text) == Err(NumberError::Vanishes) {
            found.push(format!("{path}{name}"));
        }
    }
    Ok(())
}

/// A value in a message: short whatever it is.
pub(crate) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) if text.chars().count() <= 40 => format!("{text:?}"),
        Value::String(_) => "a long string".to_owned(),
        Value::Array(items) if items.is_empty() => "an empty list".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Fields {
        Fields::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn bodies_that_are_no_object_say_what_they_are() {
        let deep = "[".repeat(100_000);
        let nested = "{\"a\":".repeat(5_000);
        for (text, part) in [
            ("", "EOF"),
            ("{", "EOF"),
            ("[]", "an empty list"),
            ("7", "is 7"),
            ("\u{feff}{}", "not JSON"),
            (&deep, "recursion limit"),
            (&nested, "recursion limit"),
        ] {
            let error = Fields::parse(text.as_bytes()).unwrap_err();
            assert!(error.message.contains(part), "{}", error.message);
            assert_eq!(error.status.as_u16(), 400);
        }
        assert!(Fields::parse(b"\xff\xfe").is_err());
    }

    #[test]
    fn wrong_types_and_ranges_name_the_field() {
        let text = r#"{"a": "hot", "b": 1.5, "c": -3, "d": 7, "e": [], "f": 1e300, "g": null, "h": 3.0, "i": {"j": 1}}"#;
        let mut fields = fields(text);
        let named = |error: ApiError, name: &str, part: &str| {
            assert_eq!(error.param.as_deref(), Some(name));
            assert!(error.message.starts_with(name) && error.message.contains(part), "{}", error.message);
        };
        named(fields.number("a").unwrap_err(), "a", "\"hot\"");
        named(fields.integer("b", 0..=9).unwrap_err(), "b", "1.5; expected a whole number from 0 to 9");
        named(fields.integer("c", 1..=MOST).unwrap_err(), "c", "at least 1");
        named(fields.flag("d").unwrap_err(), "d", "true or false");
        named(fields.text("e").unwrap_err(), "e", "an empty list");
        named(fields.number("f").unwrap_err(), "f", "a number");
        assert_eq!(fields.text("g").unwrap(), None);
        assert_eq!(fields.integer("h", 0..=9).unwrap(), Some(3));
        let mut inner = fields.object("i").unwrap().unwrap();
        named(inner.text("j").unwrap_err(), "i.j", "is 1");
        assert_eq!(fields.unknown().count(), 0);
    }

    #[test]
    fn a_number_that_would_become_0_is_not_taken_for_it() {
        let mut fields = fields(r#"{"a": 1e-400, "b": -1e-50, "c": 0.0, "d": 0e-400, "e": 1e-40}"#);
        for name in ["a", "b"] {
            let error = fields.number(name).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(name));
            assert!(error.message.contains("expected 0 itself"), "{}", error.message);
        }
        assert_eq!((fields.number("c"), fields.number("d")), (Ok(Some(0.0)), Ok(Some(0.0))));
        assert_eq!(fields.number("e"), Ok(Some(1e-40)));
        let mut fields = self::fields(r#"{"n": 1e-400, "m": 0.0}"#);
        assert!(fields.integer("n", 0..=9).unwrap_err().message.contains("expected 0 itself"));
        assert_eq!(fields.integer("m", 0..=9), Ok(Some(0)));
    }

    #[test]
    fn numbers_inside_of_objects_do_not_vanish_either() {
        let mut fields = fields(r#"{"o": {"a": 1e-400, "b": 0.0, "p": {"c": 1e-50}}, "a": 0.0, "b": 1e-50}"#);
        assert!(fields.has_vanished("o.a") && !fields.has_vanished("o.b"));
        let mut inner = fields.object("o").unwrap().unwrap();
        assert_eq!(inner.number("a").unwrap_err().param.as_deref(), Some("o.a"));
        assert_eq!(inner.number("b"), Ok(Some(0.0)));
        let mut innermost = inner.object("p").unwrap().unwrap();
        assert_eq!(innermost.number("c").unwrap_err().param.as_deref(), Some("o.p.c"));
        assert_eq!(fields.number("a"), Ok(Some(0.0)));
        assert_eq!(fields.number("b").unwrap_err().param.as_deref(), Some("b"));
    }

    #[test]
    fn of_a_field_that_stands_twice_the_last_counts() {
        let mut fields = fields(r#"{"a": 1e-50, "b": {"c": 1}, "a": 2, "d": 3, "b": {"c": 4}, "d": 1e-50}"#);
        assert_eq!(fields.number("a"), Ok(Some(2.0)));
        assert_eq!(fields.object("b").unwrap().unwrap().number("c"), Ok(Some(4.0)));
        assert!(fields.number("d").is_err());
    }

    #[test]
    fn what_is_unsupported_is_refused_unless_it_says_nothing() {
        for text in [
            r#"{"x": null}"#,
            r#"{"x": []}"#,
            r#"{"x": false}"#,
            r#"{"x": {"type": "text"}}"#,
            r#"{"x": "none"}"#,
        ] {
            assert_eq!(fields(text).unsupported("x", &["text", "none"]), Ok(()), "{text}");
        }
        for text in [
            r#"{"x": [1]}"#,
            r#"{"x": true}"#,
            r#"{"x": {"type": "json_object"}}"#,
            r#"{"x": 0}"#,
            r#"{"x": "auto"}"#,
        ] {
            assert!(fields(text).unsupported("x", &["text", "none"]).is_err(), "{text}");
        }
    }
}
