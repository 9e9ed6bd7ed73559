//! The contract of the choice in plain code: sorts everything, skips nothing.

use super::super::{Choice, Distribution, Filters, LogprobsWanted, Noise, Sampling, TILE, TokenLogprobs};
use crate::math::{exp, ln, tanh};
use crate::numerics::LANES;

/// A row as a request sees it.
#[derive(Clone, Debug, Default)]
pub(super) struct Case {
    pub(super) logits: Vec<f32>,
    pub(super) softcap: Option<f32>,
    pub(super) sampling: Sampling,
    pub(super) too_early: Vec<u32>,
    pub(super) prompt: Vec<u32>,
    pub(super) output: Vec<u32>,
    pub(super) drafts: Vec<u32>,
    pub(super) position: u32,
    pub(super) known: Option<u32>,
    pub(super) logprobs: Option<LogprobsWanted>,
}

/// What comes of it.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    pub(super) choice: Choice,
    pub(super) logprobs: TokenLogprobs,
    /// Logits after the rules.
    pub(super) logits: Vec<f32>,
    /// Tokens that take part in the draw (greedy: all that may be chosen), most likely first.
    pub(super) kept: Vec<u32>,
}

/// Id, y, p.
type Token = (u32, f32, f32);

/// 16 lanes, then `t[i] += t[i + w]`.
fn lane_sum(x: &[f32]) -> f32 {
    let mut t = [0.0_f32; LANES];
    x.iter().enumerate().for_each(|(i, x)| t[i % LANES] += x);
    for w in [8, 4, 2, 1] {
        (0..w).for_each(|i| t[i] += t[i + w]);
    }
    t[0]
}

fn sum(x: impl Iterator<Item = f32>) -> f32 {
    x.fold(0.0, |sum, x| sum + x)
}

fn largest(x: &[f32]) -> f32 {
    x.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

fn sorted(mut tokens: Vec<Token>, before: impl Fn(&Token, &Token) -> std::cmp::Ordering) -> Vec<Token> {
    tokens.sort_by(|a, b| before(a, b).then(a.0.cmp(&b.0)));
    tokens
}

/// Up to the first sum of `weight` that reaches `target`.
fn prefix(tokens: Vec<Token>, target: f32, weight: impl Fn(&Token) -> f32) -> Vec<Token> {
    let mut sum = 0.0;
    let mut kept = Vec::new();
    for token in tokens {
        sum += weight(&token);
        kept.push(token);
        if sum >= target {
            break;
        }
    }
    kept
}

fn after_rules(case: &Case, capped: &[f32]) -> Vec<f32> {
    let mut z = capped.to_vec();
    let Sampling { suppressed, logit_bias, penalties, .. } = &case.sampling;
    for id in suppressed.iter().chain(&case.too_early) {
        z.get_mut(*id as usize).into_iter().for_each(|z| *z = f32::NEG_INFINITY);
    }
    for (id, bias) in logit_bias {
        z.get_mut(*id as usize).into_iter().for_each(|z| *z += bias);
    }
    let output = [&case.output[..], &case.drafts].concat();
    for (id, z) in z.iter_mut().enumerate() {
        let id = id as u32;
        let count = output.iter().filter(|token| **token == id).count();
        if count > 0 || case.prompt.contains(&id) {
            *z = if *z > 0.0 { *z / penalties.repetition } else { *z * penalties.repetition };
        }
        if count > 0 {
            *z -= penalties.presence;
            *z -= penalties.frequency * count as f32;
        }
    }
    z
}

fn mass_of_all(y: &[f32], m: f32) -> f32 {
    sum(y.chunks(TILE).map(|tile| lane_sum(&tile.iter().map(|y| exp(y - m)).collect::<Vec<_>>())))
}

/// The tokens that the filters keep, most likely first, and the mass of p of them.
fn filtered(case: &Case, z: &[f32], temperature: f32, filters: &Filters) -> Option<(Vec<Token>, f32, f32)> {
    let y: Vec<f32> = z.iter().map(|z| z / temperature).collect();
    let allowed = |id: usize| case.sampling.allowed.as_ref().is_none_or(|ids| ids.contains(&(id as u32)));
    let all: Vec<usize> = (0..y.len()).filter(|id| allowed(*id) && y[*id] > f32::NEG_INFINITY).collect();
    let m = largest(&all.iter().map(|id| y[*id]).collect::<Vec<_>>());
    if !m.is_finite() {
        return None;
    }
    let mut kept: Vec<Token> = all.iter().map(|id| (*id as u32, y[*id], exp(y[*id] - m))).collect();
    let by_y = |a: &Token, b: &Token| b.1.partial_cmp(&a.1).unwrap();
    let by_p = |a: &Token, b: &Token| b.2.partial_cmp(&a.2).unwrap();
    let mut listed = case.sampling.allowed.is_some();
    if filters.top_k > 0 {
        kept = sorted(kept, by_y);
        kept.truncate(filters.top_k);
        listed = true;
    }
    kept = sorted(kept, by_p);
    let mass = |kept: &[Token], listed: bool| {
        if listed { sum(kept.iter().map(|token| token.2)) } else { mass_of_all(&y, m) }
    };
    if filters.top_p < 1.0 {
        let target = filters.top_p * mass(&kept, listed);
        if !listed {
            kept.retain(|token| token.2 > 0.0);
        }
        kept = prefix(kept, target, |token| token.2);
        listed = true;
    }
    if filters.min_p > 0.0 {
        kept.retain(|token| token.2 >= filters.min_p);
        listed = true;
    }
    if filters.typical_p < 1.0 {
        let mass = mass(&kept, listed);
        if !listed {
            kept.retain(|token| token.2 > 0.0);
        }
        let terms = |id: usize| if exp(y[id] - m) > 0.0 { exp(y[id] - m) * (y[id] - m) } else { 0.0 };
        let moment = if listed {
            sum(kept.iter().map(|token| terms(token.0 as usize)))
        } else {
            let terms: Vec<f32> = (0..y.len()).map(terms).collect();
            sum(terms.chunks(TILE).map(lane_sum))
        };
        let entropy = ln(mass) - moment / mass;
        let distance = |token: &Token| ((ln(mass) - (token.1 - m)) - entropy).abs();
        kept = sorted(kept, |a, b| distance(a).partial_cmp(&distance(b)).unwrap());
        kept = sorted(prefix(kept, filters.typical_p, |token| token.2 / mass), by_p);
        listed = true;
    }
    let mass = mass(&kept, listed);
    Some((kept, m, mass))
}

pub(super) fn choose(case: &Case) -> Expected {
    let fault = Choice { token: 0, fault: true };
    let capped: Vec<f32> = case.logits.iter().map(|z| case.softcap.map_or(*z, |c| c * tanh(z / c))).collect();
    let mut expected = Expected {
        choice: fault,
        logprobs: TokenLogprobs::default(),
        logits: capped.clone(),
        kept: Vec::new(),
    };
    if capped.iter().any(|z| z.is_nan()) {
        return expected;
    }
    let wanted = case.logprobs;
    let of_model = wanted.filter(|wanted| wanted.of == Distribution::Model || case.known.is_some());
    let m = largest(&capped);
    if of_model.is_some() && !m.is_finite() {
        return expected;
    }
    let of_tile = |tile: &[f32]| -> f32 {
        let max = largest(tile);
        if max == f32::NEG_INFINITY { 0.0 } else { mass_of_all(tile, max) * exp(max - m) }
    };
    let ln_mass = ln(sum(capped.chunks(TILE).map(of_tile)));
    if let Some(LogprobsWanted { top, .. }) = of_model {
        let all = capped.iter().enumerate().filter(|(_, z)| **z > f32::NEG_INFINITY);
        let all =
            sorted(all.map(|(id, z)| (id as u32, *z, 0.0)).collect(), |a, b| b.1.partial_cmp(&a.1).unwrap());
        expected.logprobs.top = all.iter().take(top).map(|(id, z, _)| (*id, (z - m) - ln_mass)).collect();
    }
    if let Some(token) = case.known {
        if let Some(z) = capped.get(token as usize) {
            expected.choice = Choice { token, fault: false };
            expected.logprobs.logprob = (z - m) - ln_mass;
        }
        return expected;
    }
    let z = after_rules(case, &capped);
    expected.logits.clone_from(&z);
    let Sampling { temperature, filters, seed, choice, .. } = &case.sampling;
    let greedy = *temperature == 0.0;
    let (temperature, filters) = if greedy { (1.0, Filters::default()) } else { (*temperature, *filters) };
    let Some((kept, row_m, mass)) = filtered(case, &z, temperature, &filters) else {
        return expected;
    };
    let noise = Noise { seed: *seed, position: case.position, choice: *choice };
    let mut best: Option<(f32, u32)> = None;
    for &(token, y, _) in &sorted(kept.clone(), |_, _| std::cmp::Ordering::Equal) {
        let x = if greedy { y } else { y + noise.of(token) };
        if best.is_none_or(|(b, _)| x > b) {
            best = Some((x, token));
        }
    }
    let token = best.unwrap().1;
    expected.choice = Choice { token, fault: false };
    expected.kept = kept.iter().map(|token| token.0).collect();
    if of_model.is_some() {
        expected.logprobs.logprob = (capped[token as usize] - m) - ln_mass;
    } else if let Some(LogprobsWanted { top, .. }) = wanted {
        let log = |y: f32| (y - row_m) - ln(mass);
        expected.logprobs.logprob = log(z[token as usize] / temperature);
        expected.logprobs.top = kept.iter().take(top).map(|(id, y, _)| (*id, log(*y))).collect();
    }
    expected
}
