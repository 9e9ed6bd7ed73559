//! Products: every level equals the plain contract, bit for bit, whatever else is in the call.
mod common;

use std::fmt::Display;

use common::{Random, Values, assert_same, levels, team};
use paceline_kernels::act::Gate;
use paceline_kernels::isa::Isa;
use paceline_kernels::linear::{
    Context, Gated, GatedMatrix, OutputGroups, PackError, PackedMatrix, RowsMut, RowsRef, linear,
    linear_gated, linear_gated_by, linear_groups, reference,
};
use paceline_kernels::numerics::{Activation, bf16_to_f32, round_bf16};

fn pack(n: usize, k: usize, weights: &[u16]) -> PackedMatrix {
    let mut builder = PackedMatrix::builder(n, k).unwrap();
    for output in 0..n {
        builder.write_row(output, &weights[output * k..][..k]).unwrap();
    }
    builder.finish()
}

fn context(isa: Isa, threads: usize, rows: usize, k: usize) -> Context {
    let mut cx = Context::new(isa, team(threads)).unwrap();
    cx.reserve(rows, k).unwrap();
    cx
}

fn product(cx: &mut Context, x: &[f32], activation: Activation, w: &PackedMatrix) -> Vec<f32> {
    let rows = if w.k() == 0 { 3 } else { x.len() / w.k() };
    let mut out = vec![f32::NAN; rows * w.n()];
    let x = RowsRef { data: x, stride: w.k(), n_rows: rows };
    linear(cx, x, activation, w, RowsMut { data: &mut out, stride: w.n(), n_rows: rows });
    out
}

fn expected(x: &[f32], activation: Activation, n: usize, k: usize, weights: &[u16]) -> Vec<f32> {
    let outputs = |x: &[f32]| -> Vec<f32> {
        (0..n).map(|output| reference::product(x, activation, &weights[output * k..][..k])).collect()
    };
    x.chunks(k).flat_map(outputs).collect()
}

/// All levels, both activation types, some row counts: against the reference.
fn check(n: usize, k: usize, row_counts: &[usize], values: Values) {
    let seed = (n * 1000 + k) as u64;
    let most = row_counts.iter().copied().max().unwrap();
    let (x, weights) = (values.rows(seed + 1, most * k), values.weights(seed, n * k));
    check_numbers(n, k, row_counts, &x, &weights, format_args!("{values:?} seed {seed}"));
}

fn check_numbers(n: usize, k: usize, row_counts: &[usize], x: &[f32], weights: &[u16], what: impl Display) {
    let w = pack(n, k, weights);
    for activation in [Activation::Bf16, Activation::F32] {
        let expected = expected(x, activation, n, k, weights);
        for isa in levels() {
            for (case, &rows) in row_counts.iter().enumerate() {
                let threads = (case + n + k) % 4 + 1;
                let mut cx = context(isa, threads, rows, k);
                let found = product(&mut cx, &x[..rows * k], activation, &w);
                let what = format!(
                    "{what}, {activation:?} at {}: {rows} rows, n {n}, k {k}, {threads} threads",
                    isa.level()
                );
                assert_same(&found, &expected[..rows * n], n, what);
            }
        }
    }
}

#[test]
fn every_remainder_of_outputs() {
    for n in 1..=65 {
        check(n, 40, &[1, 5], Values::Normal);
    }
}

#[test]
fn every_remainder_of_inputs() {
    for k in 1..=97 {
        check(35, k, &[1, 5], Values::Normal);
    }
}

#[test]
fn one_to_64_rows() {
    let counts: Vec<usize> = (1..=64).collect();
    check(40, 70, &counts, Values::Normal);
}

#[test]
fn rows_at_block_borders() {
    check(300, 96, &[63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513], Values::Normal);
}

#[test]
fn long_rows_cross_k_slices() {
    check(70, 1000, &[1, 3, 8, 16, 31, 33, 64, 67], Values::Normal);
}

#[test]
fn hard_numbers() {
    for values in [Values::Wide, Values::Tiny, Values::Bits] {
        check(64, 352, &[1, 2, 4, 8, 16, 32, 35, 96], values);
    }
}

/// Subnormal inputs beside the smallest normal ones, times numbers so large that every product would count.
#[test]
fn subnormal_inputs_count_as_zero() {
    let (n, k, rows) = (40, 100, 20);
    let mut random = Random(7);
    let mut small = || random.word() as u32 & 0x80FF_FFFF;
    let small_x: Vec<f32> = (0..rows * k).map(|_| f32::from_bits(small())).collect();
    let small_weights: Vec<u16> = (0..n * k).map(|_| (small() >> 16) as u16).collect();
    let subnormal = small_weights.iter().filter(|&&bits| bits & 0x7F80 == 0 && bits & 0x7F != 0).count();
    assert!(subnormal > n * k / 4 && small_x.iter().filter(|x| x.is_subnormal()).count() > rows * k / 4);
    let large =
        |len| -> Vec<f32> { Values::Normal.rows(8, len).iter().map(|x| x * 2f32.powi(110)).collect() };
    let large_weights: Vec<u16> = large(n * k).into_iter().map(round_bf16).collect();
    check_numbers(n, k, &[1, 3, 8, 20], &small_x, &large_weights, "small activations");
    check_numbers(n, k, &[1, 3, 8, 20], &large(rows * k), &small_weights, "small weights");
}

#[test]
fn no_inputs_give_zeros() {
    for isa in levels() {
        let w = PackedMatrix::builder(5, 0).unwrap().finish();
        let out = product(&mut context(isa, 2, 3, 0), &[], Activation::Bf16, &w);
        assert!(out.iter().all(|y| y.to_bits() == 0));
    }
}

#[test]
fn gaps_between_rows_are_left_alone() {
    let (n, k, rows) = (33, 40, 6);
    let weights = Values::Normal.weights(1, n * k);
    let w = pack(n, k, &weights);
    let x = Values::Normal.rows(2, rows * (k + 3));
    for isa in levels() {
        let mut cx = context(isa, 2, rows, k);
        let mut out = vec![7.0; rows * (n + 2)];
        let rows_in = RowsRef { data: &x, stride: k + 3, n_rows: rows };
        linear(
            &mut cx,
            rows_in,
            Activation::Bf16,
            &w,
            RowsMut { data: &mut out, stride: n + 2, n_rows: rows },
        );
        for (row, out) in out.chunks(n + 2).enumerate() {
            let expected = expected(&x[row * (k + 3)..][..k], Activation::Bf16, n, k, &weights);
            assert_same(&out[..n], &expected, n, isa.level());
            assert_eq!(out[n..], [7.0, 7.0]);
        }
    }
}

#[test]
fn packed_rows_read_back() {
    let (n, k) = (70, 45);
    let weights = Values::Bits.weights(3, n * k);
    let by_row = pack(n, k, &weights);
    let mut builder = PackedMatrix::builder(n, k).unwrap();
    let read = |output: usize, row: &mut [u16]| {
        row.copy_from_slice(&weights[output * k..][..k]);
        Ok::<(), PackError>(())
    };
    builder.fill(&mut team(3), read).unwrap();
    let by_fill = builder.finish();
    let mut row = vec![0.0; k];
    for output in 0..n {
        let expected: Vec<f32> = weights[output * k..][..k].iter().map(|&w| bf16_to_f32(w)).collect();
        for w in [&by_row, &by_fill] {
            w.row(output, &mut row);
            assert_same(&row, &expected, k, output);
        }
    }
}

#[test]
fn weights_that_are_not_finite_are_refused() {
    let (n, k) = (40, 33);
    let mut builder = PackedMatrix::builder(n, k).unwrap();
    let mut row = vec![0x3F80; k];
    row[32] = 0xFF80;
    let message = builder.write_row(7, &row).unwrap_err().to_string();
    assert_eq!(message, "the weight of output 7, input 32 is not finite (bf16 bits 0xff80)");
    let read = |output: usize, row: &mut [u16]| {
        row.fill(if output == 39 || output == 3 { 0x7FC0 } else { 0 });
        Ok::<(), PackError>(())
    };
    let message = builder.fill(&mut team(2), read).unwrap_err().to_string();
    assert_eq!(message, "the weight of output 3, input 0 is not finite (bf16 bits 0x7fc0)");
    assert!(PackedMatrix::builder(usize::MAX / 2, usize::MAX / 2).is_err());
}

/// `function(gate) * up`, at the scalar level.
fn gated(function: Gate, gate: &[f32], up: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; gate.len()];
    function.mul(levels()[0], gate, up, &mut out);
    out
}

fn pack_gated(n: usize, k: usize, gate: &[u16], up: &[u16]) -> GatedMatrix {
    let mut builder = GatedMatrix::builder(n, k).unwrap();
    for output in 0..n {
        builder.write_row(Gated::Gate, output, &gate[output * k..][..k]).unwrap();
        builder.write_row(Gated::Up, output, &up[output * k..][..k]).unwrap();
    }
    builder.finish()
}

#[test]
fn gated_products_are_the_products_gated() {
    let k = 40;
    for n in [1, 31, 32, 33, 70, 300] {
        let (gate, up) = (Values::Normal.weights(1, n * k), Values::Normal.weights(2, n * k));
        let w = pack_gated(n, k, &gate, &up);
        for rows in [1, 2, 5, 17, 40, 257] {
            let x = Values::Normal.rows(3, rows * k);
            for activation in [Activation::Bf16, Activation::F32] {
                let [gate, up] = [&gate, &up].map(|part| expected(&x, activation, n, k, part));
                for (function, isa) in
                    levels().into_iter().flat_map(|isa| [(Gate::Gelu, isa), (Gate::Silu, isa)])
                {
                    let mut cx = context(isa, 2, rows, k);
                    let mut out = vec![f32::NAN; rows * n];
                    let (x, y) = (RowsRef::dense(&x, k), RowsMut::dense(&mut out, n));
                    linear_gated(&mut cx, x, activation, &w, function, y);
                    let what = format!("{function:?}, {activation:?} at {}: {rows} rows, n {n}", isa.level());
                    assert_same(&out, &gated(function, &gate, &up), n, what);
                }
            }
        }
    }
}

#[test]
fn products_gated_by_other_rows() {
    let (n, k, gap) = (45, 40, 3);
    let weights = Values::Normal.weights(1, n * k);
    let w = pack(n, k, &weights);
    for rows in [1, 2, 18, 40] {
        let x = Values::Normal.rows(3, rows * k);
        let by = Values::Wide.rows(4, rows * (n + gap));
        let dense: Vec<f32> = by.chunks(n + gap).flat_map(|row| &row[..n]).copied().collect();
        let expected = gated(Gate::Gelu, &expected(&x, Activation::Bf16, n, k, &weights), &dense);
        for isa in levels() {
            let mut cx = context(isa, 3, rows, k);
            let mut out = vec![f32::NAN; rows * n];
            let by = RowsRef { data: &by, stride: n + gap, n_rows: rows };
            let x = RowsRef::dense(&x, k);
            linear_gated_by(&mut cx, x, Activation::Bf16, &w, by, RowsMut::dense(&mut out, n));
            assert_same(&out, &expected, n, format_args!("{} rows at {}", rows, isa.level()));
        }
    }
}

/// Groups that are taken several at a time, and groups that are larger than a chunk.
#[test]
fn chosen_groups_equal_the_whole_product() {
    for (size, k, n_groups) in [(40, 100, 23), (300, 256, 5)] {
        let groups = OutputGroups { size };
        let stride = groups.first_output(1);
        let weights = Values::Normal.weights(5, n_groups * stride * k);
        let w = pack(n_groups * stride, k, &weights);
        let x = Values::Normal.rows(6, k);
        for activation in [Activation::Bf16, Activation::F32] {
            let whole = expected(&x, activation, n_groups * stride, k, &weights);
            let all: Vec<u32> = (0..n_groups as u32).rev().collect();
            for (isa, n) in levels().into_iter().flat_map(|isa| [0, 1, 3, 4, n_groups].map(|n| (isa, n))) {
                let chosen = &all[..n];
                let mut out = vec![f32::NAN; n * size];
                linear_groups(&mut context(isa, 3, 1, k), &x, activation, &w, groups, chosen, &mut out);
                for (found, &group) in out.chunks(size).zip(chosen) {
                    let expected = &whole[groups.first_output(group as usize)..][..size];
                    let what = format_args!("group {group} of {n}, {activation:?} at {}", isa.level());
                    assert_same(found, expected, size, what);
                }
            }
        }
    }
}

#[test]
fn gated_rows_read_back() {
    let (n, k) = (37, 33);
    let (gate, up) = (Values::Bits.weights(1, n * k), Values::Bits.weights(2, n * k));
    let by_row = pack_gated(n, k, &gate, &up);
    let mut builder = GatedMatrix::builder(n, k).unwrap();
    let read = |which: Gated, output: usize, row: &mut [u16]| {
        let from = if which == Gated::Gate { &gate } else { &up };
        row.copy_from_slice(&from[output * k..][..k]);
        Ok::<(), PackError>(())
    };
    builder.fill(&mut team(2), read).unwrap();
    let by_fill = builder.finish();
    let mut row = vec![0.0; k];
    for (which, from) in [(Gated::Gate, &gate), (Gated::Up, &up)] {
        for output in 0..n {
            let expected: Vec<f32> = from[output * k..][..k].iter().map(|&w| bf16_to_f32(w)).collect();
            for w in [&by_row, &by_fill] {
                w.row(which, output, &mut row);
                assert_same(&row, &expected, k, format_args!("{which:?} {output}"));
            }
        }
    }
}

row_invariance! { linear_bf16: 70 => 45, |isa: Isa, threads: usize, x: &[f32]| {
    let w = pack(45, 70, &Values::Normal.weights(9, 45 * 70));
    product(&mut context(isa, threads, x.len() / 70, 70), x, Activation::Bf16, &w)
} }

row_invariance! { linear_f32: 70 => 45, |isa: Isa, threads: usize, x: &[f32]| {
    let w = pack(45, 70, &Values::Normal.weights(9, 45 * 70));
    product(&mut context(isa, threads, x.len() / 70, 70), x, Activation::F32, &w)
} }

row_invariance! { linear_gated_bf16: 70 => 45, |isa: Isa, threads: usize, x: &[f32]| {
    let w = pack_gated(45, 70, &Values::Normal.weights(8, 45 * 70), &Values::Normal.weights(9, 45 * 70));
    let mut out = vec![0.0; x.len() / 70 * 45];
    let mut cx = context(isa, threads, x.len() / 70, 70);
    let (x, y) = (RowsRef::dense(x, 70), RowsMut::dense(&mut out, 45));
    linear_gated(&mut cx, x, Activation::Bf16, &w, Gate::Gelu, y);
    out
} }
