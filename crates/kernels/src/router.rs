//! Choice of experts for one row of a mixture-of-experts layer.
//!
//! Probabilities are a softmax over all experts: `m` = the largest score, `p = exp(s - m)`, `l` = the lane sum of p in the
//! order of [`crate::numerics`], `p / l`. The largest are taken, ties to the lower index, divided by their sum (added in
//! order of rank) and multiplied by each expert's own scale.

use crate::isa::Isa;
use crate::math::exp_of;
use crate::numerics::LANES;
use crate::vector::{Vector, per_level};

/// An expert that a row goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Routed {
    /// Index of the expert.
    pub expert: u32,
    /// Factor of its output.
    pub weight: f32,
}

/// Ranks the experts of a row and writes the best `out.len()`, best first.
///
/// `scores` is the row of router scores, one per expert; it holds their probabilities afterwards. Where a score is NaN, so is
/// every weight.
pub fn route(isa: Isa, scores: &mut [f32], per_expert_scale: &[f32], out: &mut [Routed]) {
    assert_eq!(scores.len(), per_expert_scale.len(), "route: one scale per expert");
    assert!(out.len() <= scores.len(), "route: {} of {} experts", out.len(), scores.len());
    softmax(isa, scores);
    let mut sum = 0.0;
    for rank in 0..out.len() {
        let (expert, p) = largest_left(scores, &out[..rank]);
        out[rank] = Routed { expert: expert as u32, weight: p };
        sum = if rank == 0 { p } else { sum + p };
    }
    for routed in out {
        routed.weight = routed.weight / sum * per_expert_scale[routed.expert as usize];
    }
}

/// Index and value of the largest probability that is not taken yet, the first of equals.
fn largest_left(probabilities: &[f32], taken: &[Routed]) -> (usize, f32) {
    let mut best: Option<(usize, f32)> = None;
    for (i, &p) in probabilities.iter().enumerate() {
        if best.is_none_or(|(_, q)| p > q) && !taken.iter().any(|routed| routed.expert as usize == i) {
            best = Some((i, p));
        }
    }
    best.expect("fewer experts are taken than there are")
}

per_level! {
    fn softmax(scores: &mut [f32]) = softmax_of;
}

#[inline(always)]
fn softmax_of<V: Vector>(v: V, scores: &mut [f32]) {
    let (chunks, rest) = scores.as_chunks_mut::<LANES>();
    let in_rest = v.lanes(0, rest.len());
    let lowest = v.splat(f32::NEG_INFINITY);
    let mut m = lowest;
    for chunk in &*chunks {
        m = v.max(m, v.load(chunk));
    }
    m = v.max(m, v.select(in_rest, v.load_first(rest), lowest));
    let m = v.splat(v.max_lane(m));

    let mut l = v.splat(0.0);
    for chunk in &mut *chunks {
        let p = exp_of(v, v.sub(v.load(chunk), m));
        l = v.add(l, p);
        v.store(p, chunk);
    }
    let p = v.select(in_rest, exp_of(v, v.sub(v.load_first(rest), m)), v.splat(0.0));
    l = v.add(l, p);
    let l = v.splat(v.sum(l));

    for chunk in chunks {
        v.store(v.div(v.load(chunk), l), chunk);
    }
    v.store_first(v.div(p, l), rest);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::available_levels;
    use crate::math::exp;
    use crate::testing::{Random, bits};

    /// The contract in plain code.
    fn reference(scores: &[f32], scale: &[f32], k: usize) -> Vec<Routed> {
        let m = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let p: Vec<f32> = scores.iter().map(|s| exp(s - m)).collect();
        let mut t = [0.0_f32; LANES];
        for (i, p) in p.iter().enumerate() {
            t[i % LANES] += p;
        }
        for w in [8, 4, 2, 1] {
            for i in 0..w {
                t[i] += t[i + w];
            }
        }
        let p: Vec<f32> = p.iter().map(|p| p / t[0]).collect();
        let mut order: Vec<usize> = (0..p.len()).collect();
        order.sort_by(|a, b| p[*b].partial_cmp(&p[*a]).unwrap_or(std::cmp::Ordering::Equal)); // stable
        let sum = order[1..k].iter().fold(p[order[0]], |sum, i| sum + p[*i]);
        order[..k].iter().map(|&i| Routed { expert: i as u32, weight: p[i] / sum * scale[i] }).collect()
    }

    fn check(scores: &[f32], scale: &[f32], k: usize) {
        let expected = reference(scores, scale, k);
        for isa in available_levels() {
            let mut found = vec![Routed::default(); k];
            route(isa, &mut scores.to_vec(), scale, &mut found);
            for (f, e) in found.iter().zip(&expected) {
                let equal = f.expert == e.expert && bits(f.weight) == bits(e.weight);
                assert!(equal, "{} of {} experts at {}: {f:?}, not {e:?}", k, scores.len(), isa.level());
            }
        }
    }

    #[test]
    fn routes_equal_the_plain_form() {
        let mut random = Random::new(8);
        for experts in [1, 2, 15, 16, 17, 40, 128, 129] {
            for k in [1, 2, 8, experts] {
                let scale = random.fill(experts, |r| 1.0 + r.uniform() * 0.5);
                let scores = random.fill(experts, |r| r.uniform() * 5.0);
                check(&scores, &scale, k.min(experts));
            }
        }
    }

    #[test]
    fn equal_scores_go_to_the_lower_index() {
        let scores = [1.0, 3.0, 3.0, -2.0, 3.0, 1.0];
        check(&scores, &[1.0; 6], 5);
        let mut found = [Routed::default(); 5];
        route(available_levels()[0], &mut scores.to_vec(), &[1.0; 6], &mut found);
        assert_eq!(found.map(|r| r.expert), [1, 2, 4, 0, 5]);
    }

    #[test]
    fn a_faulty_score_makes_every_weight_nan_and_experts_stay_distinct() {
        for bad in [f32::NAN, f32::INFINITY] {
            for at in [0, 7, 19] {
                let mut scores = [0.5; 20];
                scores[at] = bad;
                for isa in available_levels() {
                    let mut found = [Routed::default(); 4];
                    route(isa, &mut scores.clone(), &[1.0; 20], &mut found);
                    assert!(found.iter().all(|r| r.weight.is_nan()), "{bad} at {at}: {found:?}");
                    assert_eq!(found.map(|r| r.expert), [0, 1, 2, 3]);
                }
            }
        }
    }
}
