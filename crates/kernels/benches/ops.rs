//! What the ops beside products and attention cost for one row, by width.
//!
//! ```text
//! cargo bench -p paceline-kernels --bench ops [-- --reps 2000 --json FILE]
//! ```
//! Rows are in the L1 or L2 cache, as they are between two products. Times are the smallest of some repetitions, so that other
//! work on the machine shows little; one thread.
mod arguments;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use paceline_kernels::act::{gelu_mul, softcap};
use paceline_kernels::isa::{Isa, Level, available_levels};
use paceline_kernels::norm::{RmsNorm, add_norm_then, rms_norm};
use paceline_kernels::rope::{self, Rope, RopeSpec};
use paceline_kernels::router::{Routed, route};

/// Widths of the tiny model, of E2B and of the 31B model.
const WIDTHS: [usize; 3] = [256, 1536, 5376];
/// Calls in one measurement.
const CALLS: usize = 50;

struct Bench {
    reps: usize,
    /// Nanoseconds of a call, by name.
    figures: BTreeMap<String, f64>,
}

impl Bench {
    fn time(&mut self, name: &str, isa: Isa, mut call: impl FnMut()) {
        let mut least = f64::INFINITY;
        for _ in 0..self.reps {
            let start = Instant::now();
            for _ in 0..CALLS {
                call();
            }
            least = least.min(start.elapsed().as_secs_f64() * 1e9 / CALLS as f64);
        }
        println!("  {name:24} {:6} {least:9.1} ns", isa.level());
        self.figures.insert(format!("ops.{name}.ns.{}", isa.level()), least);
    }

    fn rows(&mut self, isa: Isa, width: usize) {
        let value = |i: usize| ((i * 37 % 101) as f32 - 50.0) * 0.1;
        let row: Vec<f32> = (0..width).map(value).collect();
        let weight: Vec<f32> = (0..width).map(|i| 1.0 + value(i) * 0.01).collect();
        let (mut x, mut out) = (row.clone(), vec![0.0; width]);
        let norm = RmsNorm { weight: Some(&weight), eps: 1e-6 };
        self.time(&format!("norm.{width}"), isa, || rms_norm(isa, black_box(&row), norm, &mut out));
        self.time(&format!("add_norm_then.{width}"), isa, || {
            // The scale keeps the stream from growing.
            add_norm_then(isa, &mut x, black_box(&row), norm, 0.5, norm, &mut out);
        });
        self.time(&format!("gelu_mul.{width}"), isa, || gelu_mul(isa, black_box(&row), &weight, &mut out));
        self.time(&format!("softcap.{width}"), isa, || softcap(isa, 30.0, black_box(&mut x)));
    }

    fn heads(&mut self, isa: Isa, head_dim: usize) {
        let rotated_pairs = head_dim / 2;
        let rope = Rope::new(RopeSpec { head_dim, theta: 1e4, rotated_pairs, factor: 1.0 });
        let (mut cos, mut sin) = (vec![0.0; rotated_pairs], vec![0.0; rotated_pairs]);
        let mut head: Vec<f32> = (0..head_dim).map(|i| i as f32).collect();
        self.time(&format!("rope_tables.{head_dim}"), isa, || {
            rope.tables(isa, black_box(1234), &mut cos, &mut sin);
        });
        self.time(&format!("rope.{head_dim}"), isa, || rope::apply(isa, black_box(&mut head), &cos, &sin));
    }

    fn router(&mut self, isa: Isa) {
        let scores: Vec<f32> = (0..128).map(|i| (i * 37 % 101) as f32 * 0.05).collect();
        let (scale, mut scratch, mut routed) = ([1.0; 128], scores.clone(), [Routed::default(); 8]);
        self.time("route.8_of_128", isa, || {
            scratch.copy_from_slice(&scores);
            route(isa, black_box(&mut scratch), &scale, &mut routed);
        });
    }
}

fn main() {
    let mut bench = Bench { reps: 400, figures: BTreeMap::new() };
    let json = arguments::read(&mut [("--reps", &mut bench.reps)]);
    // The scalar level is for testing; AMX adds nothing here.
    for isa in
        available_levels().into_iter().filter(|isa| [Level::Avx2, Level::Avx512].contains(&isa.level()))
    {
        for width in WIDTHS {
            bench.rows(isa, width);
        }
        for head_dim in [64, 256, 512] {
            bench.heads(isa, head_dim);
        }
        bench.router(isa);
    }
    let figures: Vec<String> =
        bench.figures.iter().map(|(name, value)| format!("  \"{name}\": {value:.1}")).collect();
    arguments::write(json, &format!("{{\n{}\n}}\n", figures.join(",\n")));
}
