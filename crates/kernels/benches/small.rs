//! What one small product costs, sharing it among threads included: a chain of products of one row, as a small model's pass
//! is, or of several, as its verify pass is.
//!
//! ```text
//! cargo bench -p paceline-kernels --bench small [-- THREADS ROWS]
//! ```
//! The chain runs over 1 MB of weights (they stay in the L2 cache) and over 8 MB (they do not). Times are microseconds per
//! product: minimum and median over repetitions of the chain.
use std::time::Instant;

use paceline_kernels::isa::{Level, available_levels};
use paceline_kernels::linear::{Context, PackedMatrix, RowsMut, RowsRef, linear};
use paceline_kernels::numerics::Activation;
use paceline_kernels::pool::Team;

const SHAPES: [(usize, usize); 4] = [(256, 256), (512, 256), (256, 512), (1024, 256)];
const REPS: usize = 2000;

fn chain(n: usize, k: usize, bytes: usize) -> Vec<PackedMatrix> {
    let matrix = |seed: usize| {
        let mut builder = PackedMatrix::builder(n, k).expect("memory for the weights");
        for output in 0..n {
            let row: Vec<u16> = (0..k).map(|i| 0x3C00 | ((seed + output * 7 + i) % 512) as u16).collect();
            builder.write_row(output, &row).expect("finite weights");
        }
        builder.finish()
    };
    (0..(bytes / (n * k * 2)).max(1)).map(matrix).collect()
}

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|word| word.parse().ok());
    let (threads, rows) = (numbers.next().unwrap_or(2), numbers.next().unwrap_or(1));
    for isa in available_levels().into_iter().filter(|isa| isa.level() > Level::Scalar) {
        for (n, k) in SHAPES {
            print!("{:10} n {n:4}, k {k}:", isa.level());
            for bytes in [1 << 20, 8 << 20] {
                let matrices = chain(n, k, bytes);
                for threads in [1, threads] {
                    let team = Team::new(threads).expect("threads");
                    team.bind_caller();
                    let mut context = Context::new(isa, team).expect("memory");
                    context.reserve(rows, k).expect("memory");
                    let x = vec![1.0; rows * k];
                    let mut out = vec![0.0; rows * n];
                    let mut times: Vec<f64> = Vec::new();
                    for _ in 0..REPS {
                        let start = Instant::now();
                        for w in &matrices {
                            let (x, out) = (RowsRef::dense(&x, k), RowsMut::dense(&mut out, n));
                            linear(&mut context, x, Activation::Bf16, w, out);
                        }
                        times.push(start.elapsed().as_secs_f64() * 1e6 / matrices.len() as f64);
                    }
                    times.sort_by(f64::total_cmp);
                    print!("  {} MB x{threads} {:5.2} {:5.2}", bytes >> 20, times[0], times[REPS / 2]);
                }
            }
            println!();
        }
    }
}
