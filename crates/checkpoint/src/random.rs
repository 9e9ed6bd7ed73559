//! Made-up weights: what a model of some shape costs can be measured without its checkpoint.
//!
//! The value of an element depends on the seed, the tensor's name and the element's index only, never on the order
//! or the size of the reads, so loading with any number of threads gives one model. Values are made when they are
//! read; nothing is stored.

use half::bf16;

/// Half width of the uniform distribution of weights: its standard deviation is 0.02.
const HALF_WIDTH: f32 = 0.034_641_016;
/// The odd constant of the SplitMix64 sequence (2^64 over the golden ratio).
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The elements of one made-up tensor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RandomValues {
    key: u64,
    mean: f32,
}

impl RandomValues {
    /// Elements of the tensor `name` under `seed`: around 1 for norms and scales, around 0 otherwise.
    pub(crate) fn new(seed: u64, name: &str) -> RandomValues {
        let is_scale = name.contains("norm") || name.ends_with("scale") || name.ends_with("scalar");
        let key = name.bytes().fold(mix(seed), |key, byte| mix(key ^ u64::from(byte)));
        RandomValues { key, mean: if is_scale { 1.0 } else { 0.0 } }
    }

    /// Writes the elements `first..first + out.len()`.
    pub(crate) fn copy_bf16(&self, first: usize, out: &mut [bf16]) {
        // One word gives four elements, so a run starts inside a word.
        let head = out.len().min(first.next_multiple_of(4) - first);
        let (head, body) = out.split_at_mut(head);
        let word = self.word(first / 4);
        for (i, value) in head.iter_mut().enumerate() {
            *value = self.element(word, first % 4 + i);
        }
        for (i, quad) in body.chunks_mut(4).enumerate() {
            let word = self.word(first.div_ceil(4) + i);
            for (lane, value) in quad.iter_mut().enumerate() {
                *value = self.element(word, lane);
            }
        }
    }

    fn word(&self, index: usize) -> u64 {
        mix(self.key.wrapping_add((index as u64).wrapping_mul(GOLDEN)))
    }

    fn element(&self, word: u64, lane: usize) -> bf16 {
        let centred = f32::from((word >> (16 * lane)) as u16 as i16) + 0.5;
        bf16::from_f32(self.mean + centred * (HALF_WIDTH / 32768.0))
    }
}

/// The output function of SplitMix64: a bijection that spreads every input bit over the word.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(GOLDEN);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(seed: u64, name: &str, first: usize, n: usize) -> Vec<bf16> {
        let mut out = vec![bf16::ZERO; n];
        RandomValues::new(seed, name).copy_bf16(first, &mut out);
        out
    }

    #[test]
    fn any_read_gives_the_same_elements() {
        let all = values(1, "w", 0, 50);
        for first in 0..20 {
            for n in 0..30 {
                assert_eq!(values(1, "w", first, n), all[first..first + n], "{first} {n}");
            }
        }
    }

    #[test]
    fn seed_and_name_change_the_values() {
        let base = values(1, "layers.0.q", 0, 64);
        assert_ne!(base, values(2, "layers.0.q", 0, 64));
        assert_ne!(base, values(1, "layers.1.q", 0, 64));
        // Fixed for all time, since recorded runs name a seed; computed once by another implementation.
        let bits: Vec<u16> = values(7, "w", 0, 4).iter().map(|v| v.to_bits()).collect();
        assert_eq!(bits, [48114, 47832, 48380, 48298]);
    }

    #[test]
    fn scale_is_that_of_a_fresh_model() {
        let n = 100_000;
        let moments = |name: &str| {
            let values = values(3, name, 0, n);
            let mean = values.iter().map(|v| v.to_f64()).sum::<f64>() / n as f64;
            let variance = values.iter().map(|v| (v.to_f64() - mean).powi(2)).sum::<f64>() / n as f64;
            (mean, variance.sqrt())
        };
        let (mean, deviation) = moments("layers.0.mlp.up_proj.weight");
        assert!(mean.abs() < 1e-3 && (deviation - 0.02).abs() < 1e-3, "{mean} {deviation}");
        let (mean, deviation) = moments("layers.0.input_layernorm.weight");
        assert!((mean - 1.0).abs() < 1e-3 && (deviation - 0.02).abs() < 1e-3, "{mean} {deviation}");
    }
}
