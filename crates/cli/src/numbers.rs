//! Numbers for people, and from them.

use std::fmt::Display;
use std::num::{IntErrorKind, ParseIntError};
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde_json::value::RawValue;

/// Parses a whole number, 0 too.
pub(crate) fn whole<T: FromStr<Err = ParseIntError>>(word: &str) -> Result<T, String> {
    word.parse().map_err(|error| not_whole(&error, 0))
}

/// Parses a count that has to be at least 1.
pub(crate) fn at_least_one<T>(word: &str) -> Result<T, String>
where
    T: FromStr<Err = ParseIntError> + From<bool> + PartialOrd,
{
    match word.parse() {
        Ok(n) if n >= T::from(true) => Ok(n),
        Ok(_) => Err("expected at least 1".to_owned()),
        Err(error) => Err(not_whole(&error, 1)),
    }
}

fn not_whole(error: &ParseIntError, least: usize) -> String {
    match error.kind() {
        IntErrorKind::PosOverflow => "larger than any number that is held; expected a smaller one".to_owned(),
        _ => format!("expected a whole number of at least {least}"),
    }
}

/// A parser of whole numbers within a range.
pub(crate) fn within<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: FromStr + PartialOrd + Display + Clone,
{
    move |word| {
        let number = word.parse().ok().filter(|number| range.contains(number));
        let expected = || format!("expected a whole number from {} to {}", range.start(), range.end());
        number.ok_or_else(expected)
    }
}

/// The number that a JSON value is, by its text; null is none.
pub(crate) fn of_json<T>(
    value: &RawValue,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    match value.get() {
        "null" => Ok(None),
        text => parse(text).map(Some).map_err(|problem| format!("`{text}`: {problem}")),
    }
}

/// With commas between thousands.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// So many of what `name` is one of.
pub(crate) fn counted(n: impl Into<u64>, name: &str) -> String {
    match n.into() {
        1 => format!("1 {name}"),
        n => format!("{} {name}s", grouped(n)),
    }
}

/// Bytes in the largest decimal unit that leaves a whole part.
pub(crate) fn bytes(n: u64) -> String {
    let units = [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    match units.into_iter().find(|&(_, size)| n as f64 >= size) {
        Some((unit, size)) => format!("{:.2} {unit}", n as f64 / size),
        None => format!("{n} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_asked_for_in_words() {
        assert_eq!(["0", "18446744073709551615"].map(whole::<u64>), [Ok(0), Ok(u64::MAX)]);
        for (word, part) in [
            ("x", "of at least 0"),
            ("-1", "of at least 0"),
            ("", "whole"),
            ("18446744073709551616", "larger"),
        ] {
            let error = whole::<u64>(word).unwrap_err();
            assert!(error.contains(part), "{word:?}: {error}");
        }
        assert_eq!(at_least_one::<u64>("1"), Ok(1));
        for (word, part) in
            [("0", "at least 1"), ("x", "whole number of at least 1"), ("99999999999999999999", "larger")]
        {
            let error = at_least_one::<u64>(word).unwrap_err();
            assert!(error.contains(part), "{word:?}: {error}");
        }
    }

    #[test]
    fn a_range_is_said_whatever_is_wrong() {
        let parse = within(3..=9_u8);
        assert_eq!(["3", "9"].map(&parse), [Ok(3), Ok(9)]);
        for word in ["2", "10", "-3", "x", "3.0", "", "99999999999999999999"] {
            assert_eq!(parse(word), Err("expected a whole number from 3 to 9".to_owned()), "{word:?}");
        }
    }

    #[test]
    fn numbers_read_well() {
        let grouped = [0, 999, 1000, 123_456, 6_302_952].map(grouped);
        assert_eq!(grouped, ["0", "999", "1,000", "123,456", "6,302,952"]);
        assert_eq!(
            [0_u64, 1, 2000].map(|n| counted(n, "window")),
            ["0 windows", "1 window", "2,000 windows"]
        );
        assert_eq!([12, 1_000, 12_621_000].map(bytes), ["12 B", "1.00 kB", "12.62 MB"]);
    }
}
