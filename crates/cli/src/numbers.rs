//! Numbers for people.

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
    fn numbers_read_well() {
        let grouped = [0, 999, 1000, 123_456, 6_302_952].map(grouped);
        assert_eq!(grouped, ["0", "999", "1,000", "123,456", "6,302,952"]);
        assert_eq!([12, 1_000, 12_621_000].map(bytes), ["12 B", "1.00 kB", "12.62 MB"]);
    }
}
