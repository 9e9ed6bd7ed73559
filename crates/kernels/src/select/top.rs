//! The few largest of many scores.

/// Scratch of [`Top::largest`].
#[derive(Debug, Default)]
pub struct Top {
    keys: Vec<u64>,
}

impl Top {
    /// Writes the indices of the `out.len()` largest scores, the largest first, the lower index first of equals. NaN counts as the
    /// smallest.
    ///
    /// # Panics
    /// If there are fewer scores.
    pub fn largest(&mut self, scores: &[f32], out: &mut [u32]) {
        let n = out.len();
        assert!(n <= scores.len(), "the {n} largest of {}", scores.len());
        self.keys.clear();
        self.keys.extend(scores.iter().zip(0u32..).map(|(&score, index)| key(score, index)));
        if n < scores.len() {
            self.keys.select_nth_unstable(n);
        }
        self.keys[..n].sort_unstable();
        out.iter_mut().zip(&self.keys).for_each(|(out, &key)| *out = key as u32);
    }
}

/// Ascends as the score descends, then with the index. -0 counts as +0.
fn key(score: f32, index: u32) -> u64 {
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 0 { bits | 0x8000_0000 } else { !bits };
    let ascending = if score.is_nan() { 0 } else { ascending };
    u64::from(!ascending) << 32 | u64::from(index)
}

#[cfg(test)]
mod tests {
    use super::Top;

    fn largest(scores: &[f32], n: usize) -> Vec<u32> {
        let mut out = vec![0; n];
        Top::default().largest(scores, &mut out);
        out
    }

    #[test]
    fn order_is_by_score_then_index() {
        let scores = [1.0, f32::NAN, -0.0, 3.0, 0.0, 3.0, f32::NEG_INFINITY, -2.0, f32::INFINITY];
        assert_eq!(largest(&scores, 9), [8, 3, 5, 0, 2, 4, 7, 6, 1]);
        assert_eq!(largest(&scores, 3), [8, 3, 5]);
        assert!(largest(&scores, 0).is_empty());
    }

    #[test]
    fn equals_a_full_sort() {
        let scores: Vec<f32> =
            (0..500u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as f32 - 100.0).collect();
        let mut all: Vec<u32> = (0..500).collect();
        all.sort_by(|&a, &b| scores[b as usize].total_cmp(&scores[a as usize]).then(a.cmp(&b)));
        for n in [1, 2, 31, 32, 33, 499, 500] {
            assert_eq!(largest(&scores, n), all[..n]);
        }
    }
}
