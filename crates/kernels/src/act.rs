//! Activation functions of the MLP and of the logits.

use crate::isa::Isa;
use crate::math::{exp_of, tanh_of};
use crate::numerics::LANES;
use crate::vector::{Arith, Vector, per_level};

/// `out = gelu(gate) * up`, all of one length. The gate's form is the tanh approximation, written as
/// `z / (1 + e^(-2u))` with `u = sqrt(2 / pi) * (z + 0.044715 z^3)`: the same function without its cancellation for
/// negative `z`.
pub fn gelu_mul(isa: Isa, gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert!(gate.len() == up.len() && gate.len() == out.len(), "gelu_mul: gate, up and out differ in length");
    gelu_mul_rows(isa, gate, up, out);
}

/// `out = silu(gate) * up`, all of one length, with `silu(z) = z / (1 + e^(-z))`.
pub fn silu_mul(isa: Isa, gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert!(gate.len() == up.len() && gate.len() == out.len(), "silu_mul: gate, up and out differ in length");
    silu_mul_rows(isa, gate, up, out);
}

/// The function of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// [`gelu_mul`].
    Gelu,
    /// [`silu_mul`].
    Silu,
}

impl Gate {
    /// `out = function(gate) * up`.
    pub fn mul(self, isa: Isa, gate: &[f32], up: &[f32], out: &mut [f32]) {
        match self {
            Gate::Gelu => gelu_mul(isa, gate, up, out),
            Gate::Silu => silu_mul(isa, gate, up, out),
        }
    }
}

/// `x = cap * tanh(x / cap)` for every element.
pub fn softcap(isa: Isa, cap: f32, x: &mut [f32]) {
    softcap_rows(isa, cap, x);
}

per_level! {
    fn gelu_mul_rows(gate: &[f32], up: &[f32], out: &mut [f32]) = gelu_mul_of;
}
per_level! {
    fn silu_mul_rows(gate: &[f32], up: &[f32], out: &mut [f32]) = silu_mul_of;
}
per_level! {
    fn softcap_rows(cap: f32, x: &mut [f32]) = softcap_of;
}

#[inline(always)]
fn gelu<A: Arith>(a: A, z: A::F) -> A::F {
    let cube = a.mul(a.mul(a.splat(0.044_715), z), z);
    let u = a.mul(a.splat(0.797_884_6), a.fma(cube, z, z));
    a.div(z, a.add(a.splat(1.0), exp_of(a, a.mul(u, a.splat(-2.0)))))
}

#[inline(always)]
fn silu<A: Arith>(a: A, z: A::F) -> A::F {
    a.div(z, a.add(a.splat(1.0), exp_of(a, a.neg(z))))
}

#[inline(always)]
fn softcap_lanes<A: Arith>(a: A, cap: A::F, x: A::F) -> A::F {
    a.mul(cap, tanh_of(a, a.div(x, cap)))
}

/// `out = function(gate) * up`, sixteen elements at a time.
macro_rules! gated {
    ($name:ident, $function:ident) => {
        #[inline(always)]
        fn $name<V: Vector>(v: V, gate: &[f32], up: &[f32], out: &mut [f32]) {
            let (gates, gate_rest) = gate.as_chunks::<LANES>();
            let (ups, up_rest) = up.as_chunks::<LANES>();
            let (outs, out_rest) = out.as_chunks_mut::<LANES>();
            for ((g, u), o) in gates.iter().zip(ups).zip(outs) {
                v.store(v.mul($function(v, v.load(g)), v.load(u)), o);
            }
            let rest = v.mul($function(v, v.load_first(gate_rest)), v.load_first(up_rest));
            v.store_first(rest, out_rest);
        }
    };
}
gated!(gelu_mul_of, gelu);
gated!(silu_mul_of, silu);

#[inline(always)]
fn softcap_of<V: Vector>(v: V, cap: f32, x: &mut [f32]) {
    let cap = v.splat(cap);
    let (chunks, rest) = x.as_chunks_mut::<LANES>();
    for chunk in chunks {
        v.store(softcap_lanes(v, cap, v.load(chunk)), chunk);
    }
    v.store_first(softcap_lanes(v, cap, v.load_first(rest)), rest);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::{exp, tanh};
    use crate::testing::{Random, check_levels};

    fn gelu_reference(z: f32) -> f32 {
        let u = 0.797_884_6 * (0.044_715 * z * z).mul_add(z, z);
        z / (1.0 + exp(u * -2.0))
    }

    fn silu_reference(z: f32) -> f32 {
        z / (1.0 + exp(-z))
    }

    #[test]
    fn gated_forms_equal_the_plain_ones_at_every_length() {
        let mut random = Random::new(1);
        for n in (0..70).chain([256, 1536]) {
            let mut gate = random.fill(n, Random::wild);
            let up = random.fill(n, Random::wild);
            if n > 20 {
                gate[..4].copy_from_slice(&[f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -0.0]);
            }
            for (function, plain) in
                [(Gate::Gelu, gelu_reference as fn(f32) -> f32), (Gate::Silu, silu_reference)]
            {
                let expected: Vec<f32> = gate.iter().zip(&up).map(|(g, u)| plain(*g) * u).collect();
                let what = format!("{function:?} of {n}");
                check_levels(&expected, &what, |isa, out| function.mul(isa, &gate, &up, out));
            }
        }
    }

    #[test]
    fn gelu_is_the_tanh_form() {
        for i in -40_000..40_000 {
            let z = f64::from(i) / 4096.0;
            let truth =
                0.5 * z * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (z + 0.044715 * z.powi(3))).tanh());
            let error = (f64::from(gelu_reference(z as f32)) - truth).abs();
            assert!(error <= 2e-6 * truth.abs() + 1e-12, "gelu({z}) is off by {error:e} from {truth:e}");
        }
        assert_eq!(gelu_reference(f32::INFINITY), f32::INFINITY);
    }

    #[test]
    fn silu_is_z_times_the_logistic_function() {
        for i in -400_000..400_000 {
            let z = f64::from(i) / 4096.0;
            let truth = z / (1.0 + (-z).exp());
            let error = (f64::from(silu_reference(z as f32)) - truth).abs();
            assert!(error <= 1e-6 * truth.abs() + 1e-36, "silu({z}) is off by {error:e} from {truth:e}");
        }
        assert_eq!(silu_reference(f32::INFINITY), f32::INFINITY);
    }

    #[test]
    fn softcap_equals_the_plain_form_at_every_length() {
        let mut random = Random::new(2);
        for n in 0..50 {
            let x = random.fill(n, |r| r.wild() * 30.0);
            let expected: Vec<f32> = x.iter().map(|x| 30.0 * tanh(x / 30.0)).collect();
            check_levels(&expected, &format!("softcap of {n}"), |isa, out| {
                out.copy_from_slice(&x);
                softcap(isa, 30.0, out);
            });
        }
    }
}
