//! Mixtures of experts: every level equals one row at a time in plain code.
mod common;

use common::{Random, Values, assert_same, levels, team};
use paceline_kernels::act::gelu_mul;
use paceline_kernels::experts::{ExpertWeights, Routes, experts};
use paceline_kernels::isa::Isa;
use paceline_kernels::linear::{Context, Gated, GatedMatrix, PackedMatrix, RowsMut, RowsRef, reference};
use paceline_kernels::numerics::Activation;
use paceline_kernels::router::Routed;

/// Weights of some experts as they come from a file, and packed.
struct Model {
    width: usize,
    intermediate: usize,
    /// Gate, up and down of each expert, row by row.
    plain: Vec<[Vec<u16>; 3]>,
    gate_up: Vec<GatedMatrix>,
    down: Vec<PackedMatrix>,
}

impl Model {
    fn new(experts: usize, width: usize, intermediate: usize) -> Model {
        let size = width * intermediate;
        let plain = |expert: usize| [0, 1, 2].map(|i| Values::Normal.weights((expert * 3 + i) as u64, size));
        let plain: Vec<_> = (0..experts).map(plain).collect();
        let gate_up = plain.iter().map(|[gate, up, _]| {
            let mut builder = GatedMatrix::builder(intermediate, width).unwrap();
            for i in 0..intermediate {
                builder.write_row(Gated::Gate, i, &gate[i * width..][..width]).unwrap();
                builder.write_row(Gated::Up, i, &up[i * width..][..width]).unwrap();
            }
            builder.finish()
        });
        let down = plain.iter().map(|[_, _, down]| {
            let mut builder = PackedMatrix::builder(width, intermediate).unwrap();
            for i in 0..width {
                builder.write_row(i, &down[i * intermediate..][..intermediate]).unwrap();
            }
            builder.finish()
        });
        Model { width, intermediate, gate_up: gate_up.collect(), down: down.collect(), plain }
    }

    /// The contract, for one row.
    fn row(&self, x: &[f32], activation: Activation, routed: &[Routed]) -> Vec<f32> {
        let product = |x: &[f32], w: &[u16]| -> Vec<f32> {
            w.chunks(x.len()).map(|w| reference::product(x, activation, w)).collect()
        };
        let mut out = vec![0f32; self.width];
        for Routed { expert, weight } in routed {
            let [gate, up, down] = &self.plain[*expert as usize];
            let mut act = vec![0.0; self.intermediate];
            gelu_mul(levels()[0], &product(x, gate), &product(x, up), &mut act);
            for (out, y) in out.iter_mut().zip(product(&act, down)) {
                *out = weight.mul_add(y, *out);
            }
        }
        out
    }

    fn run(
        &self,
        isa: Isa,
        threads: usize,
        x: &[f32],
        activation: Activation,
        routes: Routes<'_>,
    ) -> Vec<f32> {
        let weights = ExpertWeights::new(&self.gate_up, &self.down);
        let rows = x.len() / self.width;
        let mut cx = Context::new(isa, team(threads)).unwrap();
        cx.reserve_experts(rows, routes.top_k, weights).unwrap();
        let mut out = vec![f32::NAN; x.len()];
        let (x, to) = (RowsRef::dense(x, self.width), RowsMut::dense(&mut out, self.width));
        experts(&mut cx, x, activation, routes, weights, to);
        out
    }
}

/// Rankings of different experts with weights of either sign; some experts get most rows.
fn routes(seed: u64, rows: usize, top_k: usize, experts: usize) -> Vec<Routed> {
    let mut random = Random(seed);
    let mut routed = Vec::new();
    for _ in 0..rows {
        let mut left: Vec<u32> = (0..experts as u32).collect();
        for _ in 0..top_k {
            let some = if random.below(2) == 0 { left.len().min(3) } else { left.len() };
            let expert = left.swap_remove(random.below(some));
            routed.push(Routed { expert, weight: random.unit() });
        }
    }
    routed
}

#[test]
fn experts_equal_rows_alone() {
    let model = Model::new(9, 45, 37);
    for (top_k, row_counts) in [(1, &[1, 3, 20][..]), (3, &[1, 2, 7, 64]), (9, &[5])] {
        for &rows in row_counts {
            let x = Values::Normal.rows(1, rows * model.width);
            let routed = routes(2, rows, top_k, 9);
            for activation in [Activation::Bf16, Activation::F32] {
                let row = |(x, routed)| model.row(x, activation, routed);
                let expected: Vec<f32> =
                    x.chunks(model.width).zip(routed.chunks(top_k)).flat_map(row).collect();
                for (i, isa) in levels().into_iter().enumerate() {
                    let found = model.run(isa, i % 4 + 1, &x, activation, Routes { routed: &routed, top_k });
                    let what = format!("{activation:?} at {}: {rows} rows, {top_k} each", isa.level());
                    assert_same(&found, &expected, model.width, what);
                }
            }
        }
    }
}

/// More rows than are sorted at once, and more rows of one expert than one product takes.
#[test]
fn many_rows_of_few_experts() {
    let model = Model::new(2, 33, 20);
    let rows = 600;
    let x = Values::Normal.rows(1, rows * model.width);
    let routed = routes(2, rows, 1, 2);
    let row = |(x, routed)| model.row(x, Activation::Bf16, routed);
    let expected: Vec<f32> = x.chunks(model.width).zip(routed.chunks(1)).flat_map(row).collect();
    for isa in levels() {
        let found = model.run(isa, 2, &x, Activation::Bf16, Routes { routed: &routed, top_k: 1 });
        assert_same(&found, &expected, model.width, isa.level());
    }
}

#[test]
fn a_row_full_of_nan_changes_no_other() {
    let model = Model::new(4, 40, 32);
    let rows = 21;
    let mut x = Values::Normal.rows(1, rows * model.width);
    let routed = routes(2, rows, 2, 4);
    let routes = Routes { routed: &routed, top_k: 2 };
    for isa in levels() {
        let clean = model.run(isa, 2, &x, Activation::Bf16, routes);
        let kept = x[..3 * model.width].to_vec();
        x[3 * model.width..].fill(f32::NAN);
        let found = model.run(isa, 2, &x, Activation::Bf16, routes);
        assert_same(&found[..kept.len()], &clean[..kept.len()], model.width, isa.level());
        x.copy_from_slice(&Values::Normal.rows(1, rows * model.width));
    }
}

#[test]
fn no_rows_and_no_experts() {
    let model = Model::new(2, 40, 32);
    for isa in levels() {
        let none = model.run(isa, 2, &[], Activation::Bf16, Routes { routed: &[], top_k: 2 });
        assert!(none.is_empty());
        let zeros = model.run(isa, 2, &[1.0; 80], Activation::Bf16, Routes { routed: &[], top_k: 0 });
        assert!(zeros.iter().all(|y| y.to_bits() == 0));
    }
}
