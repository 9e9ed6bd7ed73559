use super::*;
use crate::isa::Isa;
use crate::numerics::LANES;
use crate::testing::{assert_same_bits, bits, check_levels, ulps};
use crate::vector::{Vector, per_level};

/// Every `step`-th bit pattern of f32, with the neighbours of the places where a function changes its form.
fn arguments(step: usize) -> impl Iterator<Item = f32> {
    let edges = [
        0.0,
        f32::MIN_POSITIVE,
        1e-30,
        std::f32::consts::FRAC_1_SQRT_2,
        1.0,
        std::f32::consts::LN_2 / 2.0,
        TANH_BORDER,
        4.55,
        9.1,
        -EXP_LOWEST,
        EXP_HIGHEST,
        f32::INFINITY,
    ];
    let near = |x: f32| (-300..300).map(move |d: i32| f32::from_bits(x.to_bits().saturating_add_signed(d)));
    let edges = edges.into_iter().flat_map(near).flat_map(|x| [x, -x]);
    (0..=u32::MAX).step_by(step).map(f32::from_bits).chain(edges)
}

fn largest_error(step: usize, f: fn(f32) -> f32, truth: fn(f64) -> f64) -> (f64, f32) {
    let mut worst = (0.0, 0.0);
    for x in arguments(step) {
        let (found, truth) = (f(x), truth(f64::from(x)));
        if truth.is_nan() || found.is_infinite() || (truth as f32).is_infinite() {
            assert_eq!(bits(found), bits(truth as f32), "at {x:e}");
            continue;
        }
        let error = ulps(found, truth);
        if error > worst.0 {
            worst = (error, x);
        }
    }
    worst
}

#[test]
fn functions_keep_their_stated_error() {
    let exp_truth = |x: f64| if x < f64::from(EXP_LOWEST) { 0.0 } else { x.exp() };
    type Case = (&'static str, f64, fn(f32) -> f32, fn(f64) -> f64);
    let cases: [Case; 4] = [
        ("exp", 1.0, exp, exp_truth),
        ("tanh", 1.5, tanh, f64::tanh),
        ("ln", 1.0, ln, f64::ln),
        ("log1p", 2.0, log1p, f64::ln_1p),
    ];
    for (name, bound, f, truth) in cases {
        let (error, x) = largest_error(1009, f, truth);
        println!("{name}: {error:.3} ulp at {x:e}");
        assert!(error <= bound, "{name}({x:e}) is off by {error} ulp");
    }
}

#[test]
fn exp_has_no_subnormal_results_and_stated_ends() {
    let next = |x: f32, by: i32| f32::from_bits(x.to_bits().wrapping_add_signed(by));
    assert!(exp(EXP_LOWEST).is_normal() && exp(EXP_HIGHEST).is_finite());
    assert_eq!(exp(next(EXP_LOWEST, 1)).to_bits(), 0);
    assert_eq!(exp(next(EXP_HIGHEST, 1)), f32::INFINITY);
    assert_eq!((exp(0.0), exp(-0.0), exp(f32::NEG_INFINITY)), (1.0, 1.0, 0.0));
    assert!(exp(f32::NAN).is_nan() && exp(f32::from_bits(0xFF80_0001)).is_nan());
    for d in 0..100_000 {
        assert!(exp(next(EXP_LOWEST, -d)).is_normal());
        let x = next(EXP_HIGHEST, -d);
        assert!(exp(x).is_finite() && exp(x) > 1e38, "{x:e}");
    }
}

#[test]
fn odd_and_saturated_tanh() {
    for x in arguments(100_003) {
        assert_eq!(bits(tanh(-x)), bits(-tanh(x)));
        assert!(x.is_nan() || tanh(x).abs() <= 1.0);
    }
    assert_eq!((tanh(f32::INFINITY), tanh(f32::NEG_INFINITY)), (1.0, -1.0));
    assert_eq!(tanh(-0.0).to_bits(), 0x8000_0000);
}

#[inline(always)]
fn each_of<V: Vector>(v: V, which: usize, x: &[f32; LANES], out: &mut [f32; LANES]) {
    let x = v.load(x);
    let y = match which {
        0 => exp_of(v, x),
        1 => tanh_of(v, x),
        2 => ln_of(v, x),
        3 => log1p_of(v, x),
        _ => exp_of_negative(v, x),
    };
    v.store(y, out);
}
per_level! {
    fn each(which: usize, x: &[f32; LANES], out: &mut [f32; LANES]) = each_of;
}

#[test]
fn vector_lanes_equal_the_plain_form() {
    let xs: Vec<f32> = arguments(10_007).collect();
    let (chunks, _) = xs.as_chunks::<LANES>();
    let negative: Vec<f32> =
        chunks.as_flattened().iter().map(|x| if x.is_nan() { *x } else { -x.abs() }).collect();
    for (which, f) in [exp, tanh, ln, log1p, exp].into_iter().enumerate() {
        let chunks = if which == 4 { negative.as_chunks::<LANES>().0 } else { chunks };
        let expected: Vec<f32> = chunks.as_flattened().iter().map(|x| f(*x)).collect();
        check_levels(&expected, &format!("function {which}"), |isa: Isa, out: &mut [f32]| {
            let (outs, _) = out.as_chunks_mut::<LANES>();
            for (x, o) in chunks.iter().zip(outs) {
                each(isa, which, x, o);
            }
        });
    }
}

#[test]
fn rotary_functions_in_f64() {
    let mut worst = 0.0_f64;
    for i in 0..400_000_u32 {
        let x = f64::from(f32::from_bits(i.wrapping_mul(10_007) % 0x4974_2400)); // up to 1e6
        let (s, c) = sin_cos(x);
        worst = worst.max((s - x.sin()).abs()).max((c - x.cos()).abs());
        let (sn, cn) = sin_cos(-x);
        assert_eq!((sn, cn), (-s, c), "at {x}");
    }
    assert!(worst < 2.0_f64.powi(-52), "sine or cosine off by {worst:e}");

    let mut worst = 0.0_f64;
    for base in [2.0, 10.0, 1e4, 1e6, 5e5, 1.1e8, 0.3] {
        for m in 0..512 {
            let exponent = -2.0 * f64::from(m) / 512.0;
            let truth = f64::powf(base, exponent);
            worst = worst.max((pow(base, exponent) / truth - 1.0).abs());
        }
    }
    assert!(worst < 2.0_f64.powi(-47), "pow off by {worst:e}");
    assert_eq!(pow(1e6, 0.0), 1.0);
}

#[test]
fn plain_functions_do_not_depend_on_the_build() {
    // Bits of one build, kept here: a development build, a release build and every processor must agree.
    let found: Vec<f32> =
        [0.3, -2.7, 11.0, 1e-5].iter().flat_map(|&x| [exp(x), tanh(x), ln(x), log1p(x)]).collect();
    let expected = RECORDED.map(f32::from_bits);
    assert_same_bits(&found, &expected, "recorded values");
}

const RECORDED: [u32; 16] = [
    0x3FAC_C82C,
    0x3E95_26EE,
    0xBF9A_1BC8,
    0x3E86_549D,
    0x3D89_A30B,
    0xBF7D_B2AA,
    0x7FC0_0000,
    0x7FC0_0000,
    0x4769_E224,
    0x3F80_0000,
    0x4019_771E,
    0x401F_08B6,
    0x3F80_0054,
    0x3727_C5AC,
    0xC138_34F1,
    0x3727_C575,
];
