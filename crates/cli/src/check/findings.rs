//! What was compared of an oracle folder so far, so that nothing recorded is left out.

use super::compare::Comparison;
use super::oracle::{Oracle, Values};
use crate::failure::Failure;

/// Recorded tensors of a drafter's folder and their comparisons.
pub(super) struct Findings {
    pub(super) oracle: Oracle,
    comparisons: Vec<Comparison>,
}

impl Findings {
    pub(super) fn new(oracle: Oracle) -> Self {
        Self { oracle, comparisons: Vec::new() }
    }

    /// Nothing was compared yet.
    pub(super) fn is_empty(&self) -> bool {
        self.comparisons.is_empty()
    }

    /// Names of recorded tensors.
    pub(super) fn names(&self, prefix: &str) -> Vec<String> {
        self.oracle.names().filter(|name| name.starts_with(prefix)).map(str::to_owned).collect()
    }

    /// Compares recomputed values with the recorded ones.
    pub(super) fn compare(&mut self, name: &str, values: Values) -> Result<(), Failure> {
        self.comparisons.push(self.oracle.compare(name, values)?);
        Ok(())
    }

    /// Adds a comparison with something that is recorded elsewhere.
    pub(super) fn add(&mut self, comparison: Comparison) {
        self.comparisons.push(comparison);
    }

    /// A recorded tensor that there is no value for.
    pub(super) fn unknown(&self, name: &str) -> Failure {
        self.oracle.unusable(format!("tensor `{name}` is nothing that this drafter has"))
    }

    /// All comparisons, if nothing that is recorded was left out, `inputs` aside.
    pub(super) fn finish(self, inputs: &[&str]) -> Result<Vec<Comparison>, Failure> {
        let compared =
            |name: &str| inputs.contains(&name) || self.comparisons.iter().any(|done| done.name == name);
        match self.oracle.names().find(|name| !compared(name)) {
            Some(name) => Err(self.unknown(name)),
            None => Ok(self.comparisons),
        }
    }
}
