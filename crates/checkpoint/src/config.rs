//! `config.json`, field by field.
//!
//! [`RawConfig`] is the file as it is; a [`Section`] is one of its objects. Each field is asked for by name and type,
//! and the answer is the value or an error that names file and field. There are three questions:
//!
//! | question | absent | null |
//! |---|---|---|
//! | `required_..` | error | error |
//! | `nullable_..` | error | `None` |
//! | `optional_..` | `None` | `None` |
//!
//! The published implementations' defaults contradict one another, so whoever needs a value asks with `required_..`.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::json::parse_object;
use crate::{Error, NumberError, parse_number};

/// Limits of anything that is a size: wide enough for every model, and small enough that the product of two fits.
pub const SIZES: RangeInclusive<usize> = 1..=1 << 24;

/// The parsed `config.json` (or `generation_config.json`, which has the same nature) of a checkpoint.
#[derive(Clone, Debug)]
pub struct RawConfig {
    file: Arc<Path>,
    fields: Map<String, Value>,
    /// Texts of the file's own numbers that are not 0 and were read as 0, by their names.
    vanished: BTreeMap<String, String>,
}

impl RawConfig {
    /// Parses the bytes of the config called `file` in messages.
    ///
    /// # Errors
    /// [`Error::Json`].
    pub fn parse(file: &Path, bytes: &[u8]) -> Result<RawConfig, Error> {
        let fields: Map<String, Value> = parse_object(file, bytes)?;
        let vanished = if fields.values().any(|value| value.is_f64() && value.as_f64() == Some(0.0)) {
            vanished_numbers(file, bytes)?
        } else {
            BTreeMap::new()
        };
        Ok(RawConfig { file: file.into(), fields, vanished })
    }

    /// The file's name in messages.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The whole file as a section.
    pub fn top(&self) -> Section<'_> {
        Section { vanished: Some(&self.vanished), ..Section::new(&self.file, String::new(), &self.fields) }
    }

    /// The fields of the text model: the object `text_config` where there is one, else the whole file.
    ///
    /// # Errors
    /// [`Error::WrongType`] when `text_config` is not an object.
    pub fn text(&self) -> Result<Section<'_>, Error> {
        Ok(self.top().optional_section("text_config")?.unwrap_or_else(|| self.top()))
    }

    /// `model_type`, which says what kind of model the file describes.
    ///
    /// # Errors
    /// [`Error::MissingField`], [`Error::WrongType`].
    pub fn model_type(&self) -> Result<&str, Error> {
        string(&self.fields, "model_type").ok_or_else(|| self.top().explain("model_type", "a string"))
    }

    /// Names under `architectures`; empty when there are none.
    ///
    /// # Errors
    /// [`Error::WrongType`].
    pub fn architectures(&self) -> Result<Vec<String>, Error> {
        Ok(self.top().optional_str_list("architectures")?.unwrap_or_default())
    }
}

/// One object of a config, with the names of the objects around it for messages.
#[derive(Clone, Debug)]
pub struct Section<'a> {
    file: &'a Path,
    /// Fields above this object, each with a full stop behind it.
    parents: String,
    fields: &'a Map<String, Value>,
    /// Those of the config, for its outermost object.
    vanished: Option<&'a BTreeMap<String, String>>,
}

impl<'a> Section<'a> {
    fn new(file: &'a Path, parents: String, fields: &'a Map<String, Value>) -> Self {
        Section { file, parents, fields, vanished: None }
    }

    /// The file's name in messages.
    pub fn file(&self) -> &'a Path {
        self.file
    }

    /// `field` with its parents, as `text_config.hidden_size`.
    pub fn path(&self, field: &str) -> String {
        format!("{}{field}", self.parents)
    }

    /// Names of all fields, in the order of the file.
    pub fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.fields.keys().map(String::as_str)
    }

    /// Whether the field is there and not null.
    pub fn has(&self, field: &str) -> bool {
        self.value(field).is_some()
    }

    /// A whole number in `range`.
    ///
    /// # Errors
    /// [`Error::MissingField`], [`Error::WrongType`], [`Error::OutOfRange`].
    pub fn required_usize(&self, field: &str, range: RangeInclusive<usize>) -> Result<usize, Error> {
        self.optional_usize(field, range)?.ok_or_else(|| self.explain(field, WHOLE))
    }

    /// A whole number in `range`; null is `None`, absence is an error.
    ///
    /// # Errors
    /// Those of [`Section::required_usize`].
    pub fn nullable_usize(&self, field: &str, range: RangeInclusive<usize>) -> Result<Option<usize>, Error> {
        self.must_exist(field)?;
        self.optional_usize(field, range)
    }

    /// A whole number in `range`; null and absence are `None`.
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::OutOfRange`].
    pub fn optional_usize(&self, field: &str, range: RangeInclusive<usize>) -> Result<Option<usize>, Error> {
        self.value(field).map(|value| self.usize_of(field, value, &range)).transpose()
    }

    /// A finite number in `range`.
    ///
    /// # Errors
    /// [`Error::MissingField`], [`Error::WrongType`], [`Error::OutOfRange`].
    pub fn required_f64(&self, field: &str, range: RangeInclusive<f64>) -> Result<f64, Error> {
        self.optional_f64(field, range)?.ok_or_else(|| self.explain(field, "a number"))
    }

    /// A finite number in `range`; null is `None`, absence is an error.
    ///
    /// # Errors
    /// Those of [`Section::required_f64`].
    pub fn nullable_f64(&self, field: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, Error> {
        self.must_exist(field)?;
        self.optional_f64(field, range)
    }

    /// A finite number in `range`; null and absence are `None`.
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::OutOfRange`].
    pub fn optional_f64(&self, field: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, Error> {
        let Some(value) = self.value(field) else { return Ok(None) };
        let Some(number) = value.as_f64() else { return Err(self.explain(field, "a number")) };
        if !range.contains(&number) {
            let expected = format!("a number from {:e} to {:e}", range.start(), range.end());
            return Err(self.out_of_range(field, value, expected));
        }
        Ok(Some(number))
    }

    /// A number in `range` that f32 holds: one that is not 0 does not become 0. Null and absence are `None`.
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::OutOfRange`].
    pub fn optional_f32(&self, field: &str, range: RangeInclusive<f64>) -> Result<Option<f32>, Error> {
        let Some(number) = self.optional_f64(field, range)? else { return Ok(None) };
        let written = self.vanished.and_then(|vanished| vanished.get(field));
        if written.is_none() && (number == 0.0 || number as f32 != 0.0) {
            return Ok(Some(number as f32));
        }
        let (file, field) = self.label(field);
        let found = written.cloned().unwrap_or_else(|| format!("{number:e}"));
        let expected = "0 itself or a number farther from it".to_owned();
        Err(Error::OutOfRange { file, field, found, expected })
    }

    /// True or false.
    ///
    /// # Errors
    /// [`Error::MissingField`], [`Error::WrongType`].
    pub fn required_bool(&self, field: &str) -> Result<bool, Error> {
        self.optional_bool(field)?.ok_or_else(|| self.explain(field, BOOL))
    }

    /// True or false; null and absence are `None`.
    ///
    /// # Errors
    /// [`Error::WrongType`].
    pub fn optional_bool(&self, field: &str) -> Result<Option<bool>, Error> {
        self.converted(field, BOOL, Value::as_bool)
    }

    /// A string.
    ///
    /// # Errors
    /// [`Error::MissingField`], [`Error::WrongType`].
    pub fn required_str(&self, field: &str) -> Result<&'a str, Error> {
        self.optional_str(field)?.ok_or_else(|| self.explain(field, "a string"))
    }

    /// A string; null and absence are `None`.
    ///
    /// # Errors
    /// [`Error::WrongType`].
    pub fn optional_str(&self, field: &str) -> Result<Option<&'a str>, Error> {
        self.converted(field, "a string", Value::as_str)
    }

    /// A list of strings.
    ///
    /// # Errors
    /// [`Error::MissingField`], [`Error::WrongType`].
    pub fn required_str_list(&self, field: &str) -> Result<Vec<String>, Error> {
        self.optional_str_list(field)?.ok_or_else(|| self.explain(field, STR_LIST))
    }

    /// A list of strings; null and absence are `None`.
    ///
    /// # Errors
    /// [`Error::WrongType`].
    pub fn optional_str_list(&self, field: &str) -> Result<Option<Vec<String>>, Error> {
        self.converted(field, STR_LIST, |value| {
            value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
        })
    }

    /// A list of whole numbers, each in `range`; null and absence are `None`.
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::OutOfRange`].
    pub fn optional_usize_list(
        &self,
        field: &str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<Vec<usize>>, Error> {
        let items = self.converted(field, "a list of whole numbers", Value::as_array)?;
        items.map(|items| items.iter().map(|item| self.usize_of(field, item, &range)).collect()).transpose()
    }

    /// One token id or a list of them; null and absence are `None`.
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::OutOfRange`].
    pub fn optional_token_ids(&self, field: &str) -> Result<Option<Vec<u32>>, Error> {
        const IDS: RangeInclusive<usize> = 0..=u32::MAX as usize;
        let ids = match self.value(field) {
            Some(Value::Array(_)) => self.optional_usize_list(field, IDS)?,
            _ => self.optional_usize(field, IDS)?.map(|id| vec![id]),
        };
        Ok(ids.map(|ids| ids.into_iter().map(|id| id as u32).collect()))
    }

    /// An object.
    ///
    /// # Errors
    /// [`Error::MissingField`], [`Error::WrongType`].
    pub fn required_section(&self, field: &str) -> Result<Section<'a>, Error> {
        self.optional_section(field)?.ok_or_else(|| self.explain(field, "an object"))
    }

    /// An object; null and absence are `None`.
    ///
    /// # Errors
    /// [`Error::WrongType`].
    pub fn optional_section(&self, field: &str) -> Result<Option<Section<'a>>, Error> {
        let fields = self.converted(field, "an object", Value::as_object)?;
        let parents = format!("{}{field}.", self.parents);
        Ok(fields.map(|fields| Section::new(self.file, parents, fields)))
    }

    /// A list of objects; null and absence are `None`.
    ///
    /// # Errors
    /// [`Error::WrongType`].
    pub fn optional_section_list(&self, field: &str) -> Result<Option<Vec<Section<'a>>>, Error> {
        let section = |(i, item): (usize, &'a Value)| {
            let parents = format!("{}{field}[{i}].", self.parents);
            item.as_object().map(|fields| Section::new(self.file, parents, fields))
        };
        self.converted(field, "a list of objects", |value| {
            value.as_array()?.iter().enumerate().map(section).collect()
        })
    }

    /// The error for a field whose value is a valid one of its type, but not a supported one.
    pub fn unsupported(&self, field: &str, expected: impl Into<String>) -> Error {
        self.out_of_range(field, self.fields.get(field).unwrap_or(&Value::Null), expected.into())
    }

    /// The value, unless absent or null.
    fn value(&self, field: &str) -> Option<&'a Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    fn converted<T>(
        &self,
        field: &str,
        expected: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.value(field) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| self.explain(field, expected))
    }

    fn usize_of(&self, field: &str, value: &Value, range: &RangeInclusive<usize>) -> Result<usize, Error> {
        let is_whole = value.is_u64() || value.is_i64();
        if !is_whole {
            return Err(self.wrong_type(field, value, WHOLE));
        }
        let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
        number.filter(|number| range.contains(number)).ok_or_else(|| {
            let expected = format!("a whole number from {} to {}", range.start(), range.end());
            self.out_of_range(field, value, expected)
        })
    }

    fn must_exist(&self, field: &str) -> Result<(), Error> {
        if self.fields.contains_key(field) { Ok(()) } else { Err(self.explain(field, "a value or null")) }
    }

    /// The error of a field that is not what was asked for: absent, or of another type.
    fn explain(&self, field: &str, expected: &'static str) -> Error {
        match self.fields.get(field) {
            Some(value) => self.wrong_type(field, value, expected),
            None => Error::MissingField { file: self.file.to_path_buf(), field: self.path(field) },
        }
    }

    fn wrong_type(&self, field: &str, value: &Value, expected: &'static str) -> Error {
        let (file, field) = self.label(field);
        Error::WrongType { file, field, found: shortened(value), expected }
    }

    fn out_of_range(&self, field: &str, value: &Value, expected: String) -> Error {
        let (file, field) = self.label(field);
        Error::OutOfRange { file, field, found: shortened(value), expected }
    }

    fn label(&self, field: &str) -> (PathBuf, String) {
        (self.file.to_path_buf(), self.path(field))
    }
}

const WHOLE: &str = "a whole number";
const BOOL: &str = "true or false";
const STR_LIST: &str = "a list of strings";

fn string<'a>(fields: &'a Map<String, Value>, field: &str) -> Option<&'a str> {
    fields.get(field).and_then(Value::as_str)
}

/// Texts of the numbers of an object that are not 0 and are read as 0.
fn vanished_numbers(file: &Path, bytes: &[u8]) -> Result<BTreeMap<String, String>, Error> {
    let texts: BTreeMap<String, Box<RawValue>> = parse_object(file, bytes)?;
    let texts = texts.into_iter().map(|(name, text)| (name, text.get().to_owned()));
    Ok(texts.filter(|(_, text)| parse_number(text) == Err(NumberError::Vanishes)).collect())
}

/// A value as a message shows it: large ones by their kind only.
fn shortened(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) if text.chars().count() > 60 => "a long string".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
