//! How far a recomputed tensor is from a recorded one, and whether that is near enough.

use serde::Serialize;

/// How near a value has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Tolerance {
    /// Largest difference over the largest magnitude of the recorded tensor.
    Relative(f64),
    /// Largest difference.
    Absolute(f64),
}

/// Values of any tensor but logits: f32 against f32 in another order of operations.
pub(crate) const VALUES: Tolerance = Tolerance::Relative(1e-4);
/// Logits.
pub(crate) const LOGITS: Tolerance = Tolerance::Absolute(1e-3);

/// One compared tensor.
#[derive(Debug, Serialize)]
pub(crate) struct Comparison {
    /// Its recorded name.
    pub(crate) name: String,
    /// Values compared.
    pub(crate) values: usize,
    /// Largest difference; for ids, how many differ.
    pub(crate) max_error: f64,
    /// Largest magnitude of the recorded values.
    pub(crate) max_magnitude: f64,
    /// Largest difference that passes.
    pub(crate) allowed: f64,
    /// Whether it passes.
    pub(crate) passed: bool,
}

/// Compares floats. A value that is not a number never passes.
pub(crate) fn floats(name: &str, found: &[f32], recorded: &[f32], tolerance: Tolerance) -> Comparison {
    assert_eq!(found.len(), recorded.len(), "{name} was recomputed in its recorded shape");
    // `max` of floats would drop a NaN, which must stay.
    let larger = |a: f64, b: f64| if a.is_nan() || b <= a { a } else { b };
    let differences = found.iter().zip(recorded).map(|(&a, &b)| (f64::from(a) - f64::from(b)).abs());
    let max_error = differences.fold(0.0, larger);
    let max_magnitude = recorded.iter().map(|&value| f64::from(value).abs()).fold(0.0, larger);
    let allowed = match tolerance {
        Tolerance::Relative(part) => part * max_magnitude,
        Tolerance::Absolute(allowed) => allowed,
    };
    let passed = max_error <= allowed;
    Comparison { name: name.to_owned(), values: found.len(), max_error, max_magnitude, allowed, passed }
}

/// Compares ids: the error is the number of places that differ, a different length included.
pub(crate) fn ids(name: &str, found: &[i64], recorded: &[i64]) -> Comparison {
    let differing = found.iter().zip(recorded).filter(|(a, b)| a != b).count();
    let differing = differing + found.len().abs_diff(recorded.len());
    Comparison {
        name: name.to_owned(),
        values: recorded.len(),
        max_error: differing as f64,
        max_magnitude: recorded.iter().map(|id| id.unsigned_abs()).max().unwrap_or(0) as f64,
        allowed: 0.0,
        passed: differing == 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_difference_counts_against_the_tolerance() {
        let recorded = [1.0, -20.0, 3.0];
        let near = floats("a", &[1.0, -20.001, 3.0], &recorded, VALUES);
        assert!(
            near.passed && near.max_magnitude == 20.0 && (near.max_error - 1e-3).abs() < 1e-5,
            "{near:?}"
        );
        assert!(!floats("a", &[1.0, -20.01, 3.0], &recorded, VALUES).passed);
        assert!(!floats("a", &[1.0, -20.0, 3.01], &recorded, LOGITS).passed);
    }

    #[test]
    fn what_is_not_a_number_fails() {
        for bad in [f32::NAN, f32::INFINITY] {
            for at in 0..3 {
                let mut found = [1.0, 2.0, 3.0];
                found[at] = bad;
                assert!(!floats("a", &found, &[1.0, 2.0, 3.0], VALUES).passed, "{bad} at {at}");
            }
        }
    }

    #[test]
    fn ids_have_to_be_equal_in_number_too() {
        assert!(ids("a", &[1, 2], &[1, 2]).passed);
        assert_eq!(ids("a", &[1, 3], &[1, 2]).max_error, 1.0);
        assert!(!ids("a", &[1], &[1, 2]).passed);
    }
}
