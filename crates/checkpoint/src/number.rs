//! Numbers as they are written, of requests and of configs.

use thiserror::Error;

/// A text that stands for no f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NumberError {
    /// It is not one.
    #[error("is not a number")]
    NotANumber,
    /// It is so small that 0 would be read, which is another thing: temperature 0 is greedy, a low one is not.
    #[error(
        "is not 0, but nearer to it than any number that is held; expected 0 itself or a number farther from it"
    )]
    Vanishes,
}

/// The f32 nearest to a number that is written out.
///
/// # Errors
/// [`NumberError`].
pub fn parse_number(text: &str) -> Result<f32, NumberError> {
    let number: f32 = text.parse().map_err(|_| NumberError::NotANumber)?;
    let mantissa = text.split(['e', 'E']).next().unwrap_or(text);
    if number == 0.0 && mantissa.contains(|c| matches!(c, '1'..='9')) {
        return Err(NumberError::Vanishes);
    }
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_what_is_written_as_zero() {
        for zero in ["0", "-0", "0.0", "0e7", "0.000e-999", "-0.0E+2"] {
            assert_eq!(parse_number(zero), Ok(0.0), "{zero}");
        }
        for small in
            ["1e-400", "-1e-400", "1e-46", "7E-99999", "0.00000000000000000000000000000000000000000000000001"]
        {
            assert_eq!(parse_number(small), Err(NumberError::Vanishes), "{small}");
        }
        assert_eq!(parse_number("1e-45"), Ok(f32::from_bits(1)));
        assert_eq!(parse_number("0.7"), Ok(0.7));
        assert_eq!(parse_number("1e400"), Ok(f32::INFINITY));
        for other in ["", "warm", "1,5", "\"1\"", "e5"] {
            assert_eq!(parse_number(other), Err(NumberError::NotANumber), "{other}");
        }
    }
}
