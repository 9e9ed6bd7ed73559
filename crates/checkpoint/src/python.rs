//! Values as Python writes them: chat templates are written for Python's engine, and what it prints is the prompt.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Deepest nesting that [`to_json`] writes. A parsed request is never deeper; a template could build more.
const MAX_DEPTH: usize = 200;

/// `repr` of a float: the shortest digits that read back, in Python's layout.
pub(crate) fn float_repr(x: f64) -> String {
    if x.is_nan() {
        return "nan".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    // Python turns to exponents from 1e16 up and below 1e-4, and writes at least two digits of them.
    if x != 0.0 && !(1e-4..1e16).contains(&x.abs()) {
        let text = format!("{x:e}");
        let (digits, exponent) = text.split_once('e').expect("this format has an exponent");
        let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |positive| ('-', positive));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let text = x.to_string();
    if text.contains('.') { text } else { text + ".0" }
}

/// How [`to_json`] lays out its text, the options of `json.dumps`.
struct JsonStyle {
    ensure_ascii: bool,
    sort_keys: bool,
    /// Spaces a level; `None` is all on one line.
    indent: Option<usize>,
    item_separator: String,
    key_separator: String,
}

/// The filter `tojson` as chat templates know it: `json.dumps` with `ensure_ascii=False`, keys in their order, and no
/// escaping for HTML.
pub(crate) fn to_json(
    state: &State,
    value: &Value,
    indent: Option<usize>,
    options: Kwargs,
) -> Result<String, Error> {
    let indent = indent.or(options.get("indent")?);
    let separators: Option<(String, String)> = match options.get::<Option<Value>>("separators")? {
        Some(pair) if !pair.is_none() => {
            Some((pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string()))
        }
        _ => None,
    };
    let default_item_separator = if indent.is_some() { "," } else { ", " };
    let (item_separator, key_separator) =
        separators.unwrap_or_else(|| (default_item_separator.to_owned(), ": ".to_owned()));
    let style = JsonStyle {
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent,
        item_separator,
        key_separator,
    };
    options.assert_all_used()?;
    let mut out = String::new();
    write_json(state, &style, value, 0, &mut out)?;
    Ok(out)
}

fn write_json(
    state: &State,
    style: &JsonStyle,
    value: &Value,
    depth: usize,
    out: &mut String,
) -> Result<(), Error> {
    state.consume_fuel(1)?;
    if depth > MAX_DEPTH {
        return Err(not_json("is nested too deeply"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => push_number(value, out)?,
        ValueKind::String => push_string(style, value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.map(|item| (None, item));
            write_items(state, style, ['[', ']'], items, depth, out)?;
        }
        ValueKind::Map => {
            let mut items = Vec::new();
            for key in value.try_iter()? {
                let item = value.get_item(&key)?;
                items.push((Some(json_key(&key)?), item));
            }
            if style.sort_keys {
                items.sort_by(|a, b| a.0.cmp(&b.0));
            }
            write_items(state, style, ['{', '}'], items.into_iter(), depth, out)?;
        }
        kind => return Err(not_json(&format!("is {kind}"))),
    }
    Ok(())
}

fn write_items(
    state: &State,
    style: &JsonStyle,
    [open, close]: [char; 2],
    items: impl Iterator<Item = (Option<String>, Value)>,
    depth: usize,
    out: &mut String,
) -> Result<(), Error> {
    let break_line = |out: &mut String, depth: usize| {
        if let Some(indent) = style.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    };
    out.push(open);
    let mut is_empty = true;
    for (key, item) in items {
        if !is_empty {
            out.push_str(&style.item_separator);
        }
        is_empty = false;
        // Indentation can be far larger than the values, so it is paid for ahead.
        state.consume_fuel((style.indent.unwrap_or(0).saturating_mul(depth + 1) / 64) as u64)?;
        break_line(out, depth + 1);
        if let Some(key) = key {
            push_string(style, &key, out);
            out.push_str(&style.key_separator);
        }
        write_json(state, style, &item, depth + 1, out)?;
    }
    if !is_empty {
        break_line(out, depth);
    }
    out.push(close);
    Ok(())
}

/// Keys of other types become what they would be as values.
fn json_key(key: &Value) -> Result<String, Error> {
    let mut text = String::new();
    match key.kind() {
        ValueKind::String => text.push_str(key.as_str().unwrap_or_default()),
        ValueKind::None => text.push_str("null"),
        ValueKind::Bool => text.push_str(if key.is_true() { "true" } else { "false" }),
        ValueKind::Number => push_number(key, &mut text)?,
        kind => return Err(not_json(&format!("has a key that is {kind}"))),
    }
    Ok(text)
}

fn push_number(value: &Value, out: &mut String) -> Result<(), Error> {
    if value.is_integer() {
        out.push_str(&value.to_string());
        return Ok(());
    }
    out.push_str(&match f64::try_from(value.clone())? {
        x if x.is_nan() => "NaN".to_owned(),
        x if x.is_infinite() => if x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
        x => float_repr(x),
    });
    Ok(())
}

fn push_string(style: &JsonStyle, text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (style.ensure_ascii && c > '~') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a string cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn not_json(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: a value {what}"))
}

#[cfg(test)]
mod tests {
    use super::float_repr;

    #[test]
    fn floats_read_as_in_python() {
        for (x, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (1e16, "1e+16"),
            (-2.5e300, "-2.5e+300"),
            (5e-324, "5e-324"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(float_repr(x), text);
        }
    }
}
