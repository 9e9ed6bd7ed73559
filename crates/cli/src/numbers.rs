//! Numbers for people, and from them.

use std::num::{IntErrorKind, ParseIntError};
use std::str::FromStr;

/// Parses a whole number, 0 too.
pub(crate) fn whole<T: FromStr<Err = ParseIntError>>(word: &str) -> Result<T, String> {
    word.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow => "larger than any number that is held; expected a smaller one".to_owned(),
        _ => "expected a whole number of at least 0".to_owned(),
    })
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
    }

    #[test]
    fn numbers_read_well() {
        let grouped = [0, 999, 1000, 123_456, 6_302_952].map(grouped);
        assert_eq!(grouped, ["0", "999", "1,000", "123,456", "6,302,952"]);
        assert_eq!([12, 1_000, 12_621_000].map(bytes), ["12 B", "1.00 kB", "12.62 MB"]);
    }
}
