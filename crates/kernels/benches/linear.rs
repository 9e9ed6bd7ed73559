//! Products against plain reading: what rows cost beside the weights that must be read anyway.
//!
//! ```text
//! cargo bench -p paceline-kernels --bench linear [-- --threads 2 --reps 30 --megabytes 1100 --json FILE]
//! ```
//! Each shape's weights are rotated over more memory than any cache holds; all variants take turns within one run, plain
//! reading by the same threads among them. Figures are medians over the shapes of ratios of medians; minima are shown
//! beside them. Results are compared with the reference before anything is timed.
mod arguments;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use paceline_kernels::isa::{Isa, Level, available_levels};
use paceline_kernels::linear::{Context, PackError, PackedMatrix, RowsMut, RowsRef, linear, reference};
use paceline_kernels::numerics::{Activation, round_bf16};
use paceline_kernels::pool::Team;

/// Outputs and inputs: the feed-forward matrices of an E2B and an E4B model.
const SHAPES: [(usize, usize); 4] = [(6144, 1536), (1536, 6144), (10240, 2560), (2560, 10240)];
/// Rows of plain decoding, of verification, and one more.
const FEW_ROWS: [usize; 5] = [1, 4, 8, 16, 32];
/// Rows of a prefill chunk.
const MANY_ROWS: usize = 512;

struct Options {
    threads: usize,
    reps: usize,
    megabytes: usize,
    json: Option<String>,
}

impl Options {
    fn parse() -> Options {
        let (mut threads, mut reps, mut megabytes) = (2, 30, 1100);
        let json = arguments::read(&mut [
            ("--threads", &mut threads),
            ("--reps", &mut reps),
            ("--megabytes", &mut megabytes),
        ]);
        Options { threads, reps, megabytes, json }
    }
}

/// Matrices of one shape, rotated so that each use reads from memory.
struct Weights {
    matrices: Vec<PackedMatrix>,
    next: usize,
}

impl Weights {
    fn new(team: &mut Team, (n, k): (usize, usize), megabytes: usize) -> Weights {
        let count = (megabytes << 20).div_ceil(n * k * 2);
        let matrix = |seed: usize| {
            let mut builder = PackedMatrix::builder(n, k).expect("memory for the weights");
            let read = |output: usize, row: &mut [u16]| {
                for (i, weight) in row.iter_mut().enumerate() {
                    *weight = value(seed + output * k + i);
                }
                Ok::<(), PackError>(())
            };
            builder.fill(team, read).expect("finite weights");
            builder.finish()
        };
        Weights { matrices: (0..count).map(matrix).collect(), next: 0 }
    }

    fn next(&mut self) -> &PackedMatrix {
        self.next = (self.next + 1) % self.matrices.len();
        &self.matrices[self.next]
    }
}

/// A bf16 of magnitude 2^-8 to 1.
fn value(i: usize) -> u16 {
    let word = (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    word as u16 & 0x83FF | 0x3C00
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Variant {
    /// Plain reading, fetching ahead or not.
    Read(bool),
    Product(Level, usize),
}

/// Times in seconds.
#[derive(Default)]
struct Times(Vec<f64>);

impl Times {
    fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn median(&self) -> f64 {
        median(self.0.clone())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Reads all weights, in chunks like those of a product, with or without fetching ahead as products do.
fn read(team: &mut Team, w: &PackedMatrix, fetch_ahead: bool) {
    const LINE: usize = 32;
    let chunk = w.k().next_multiple_of(32) * 32 * 4;
    team.run(w.packed().len().div_ceil(chunk), |_, i| {
        let words = &w.packed()[i * chunk..];
        let mut sums = [0u16; 4 * LINE];
        for lines in words[..chunk.min(words.len())].chunks_exact(4 * LINE) {
            #[cfg(target_arch = "x86_64")]
            if fetch_ahead {
                use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
                for line in lines.chunks_exact(LINE) {
                    let line = line.as_ptr();
                    // SAFETY: a prefetch is a hint that never faults, wherever it points; SSE is part of x86-64.
                    unsafe {
                        _mm_prefetch::<_MM_HINT_T0>(line.wrapping_byte_add(2048).cast());
                        _mm_prefetch::<_MM_HINT_T1>(line.wrapping_byte_add(8192).cast());
                    }
                }
            }
            for (sum, word) in sums.iter_mut().zip(lines) {
                *sum ^= word;
            }
        }
        black_box(sums);
    });
}

struct Bench {
    contexts: BTreeMap<Level, Context>,
    readers: Team,
    x: Vec<f32>,
    out: Vec<f32>,
}

impl Bench {
    fn new(options: &Options) -> Bench {
        let (n, k) = SHAPES.iter().fold((0, 0), |(n, k), shape| (n.max(shape.0), k.max(shape.1)));
        let context = |isa: Isa| {
            let team = Team::new(options.threads).expect("threads");
            team.bind_caller();
            let mut context = Context::new(isa, team).expect("memory");
            context.reserve(MANY_ROWS, k).expect("memory");
            (isa.level(), context)
        };
        // The scalar level is for testing: FMA in software would take minutes here.
        let vector = available_levels().into_iter().filter(|isa| isa.level() > Level::Scalar);
        Bench {
            contexts: vector.map(context).collect(),
            readers: Team::new(options.threads).expect("threads"),
            x: (0..MANY_ROWS * k).map(|i| f32::from_bits(u32::from(value(i * 7 + 1)) << 16)).collect(),
            out: vec![0.0; MANY_ROWS * n],
        }
    }

    fn run(&mut self, variant: Variant, w: &PackedMatrix) -> f64 {
        let start = Instant::now();
        match variant {
            Variant::Read(fetch_ahead) => read(&mut self.readers, w, fetch_ahead),
            Variant::Product(level, rows) => {
                let x = RowsRef { data: &self.x, stride: w.k(), n_rows: rows };
                let out = RowsMut { data: &mut self.out, stride: w.n(), n_rows: rows };
                let context = self.contexts.get_mut(&level).expect("an available level");
                linear(context, x, Activation::Bf16, w, out);
            }
        }
        start.elapsed().as_secs_f64()
    }

    /// Some results of each variant, against the plain contract.
    fn check(&mut self, variants: &[Variant], w: &PackedMatrix) {
        let mut weights = vec![0.0; w.k()];
        for &variant in variants {
            let Variant::Product(level, rows) = variant else { continue };
            self.run(variant, w);
            for (row, output) in [(0, 0), (rows - 1, w.n() - 1), (rows / 2, w.n() / 3)] {
                w.row(output, &mut weights);
                let bits: Vec<u16> = weights.iter().map(|&w| round_bf16(w)).collect();
                let x = &self.x[row * w.k()..][..w.k()];
                let expected = reference::product(x, Activation::Bf16, &bits);
                let found = self.out[row * w.n() + output];
                assert_eq!(
                    found.to_bits(),
                    expected.to_bits(),
                    "{level}, {rows} rows: row {row}, output {output}"
                );
            }
        }
    }

    fn measure(&mut self, options: &Options, shape: (usize, usize)) -> BTreeMap<Variant, Times> {
        let mut weights = Weights::new(&mut self.readers, shape, options.megabytes);
        let levels: Vec<Level> = self.contexts.keys().copied().collect();
        let few = levels.iter().flat_map(|&level| FEW_ROWS.map(|rows| Variant::Product(level, rows)));
        let few: Vec<Variant> = [false, true].map(Variant::Read).into_iter().chain(few).collect();
        let many: Vec<Variant> = levels.iter().map(|&level| Variant::Product(level, MANY_ROWS)).collect();
        self.check(&[&few[..], &many].concat(), &weights.matrices[0]);
        let mut times: BTreeMap<Variant, Times> = BTreeMap::new();
        for (variants, reps) in [(&few, options.reps), (&many, options.reps / 6 + 1)] {
            for rep in 0..reps {
                for i in 0..variants.len() {
                    let variant = variants[(i + rep) % variants.len()];
                    let time = self.run(variant, weights.next());
                    times.entry(variant).or_default().0.push(time);
                }
            }
        }
        times
    }
}

/// Figures by name, each with one value per shape.
type Figures = BTreeMap<String, Vec<f64>>;

fn report((n, k): (usize, usize), times: &BTreeMap<Variant, Times>, figures: &mut Figures) {
    let bytes = (n * k * 2) as f64;
    // The better of the two is what the threads can read.
    let reads = [false, true].map(|fetch_ahead| &times[&Variant::Read(fetch_ahead)]);
    let read = if reads[0].median() < reads[1].median() { reads[0] } else { reads[1] };
    println!("\nn {n}, k {k}: {:.1} MB", bytes * 1e-6);
    println!(
        "  read          min {:6.0} us, median {:6.0} us, {:.1} GB/s",
        read.min() * 1e6,
        read.median() * 1e6,
        bytes * 1e-9 / read.median()
    );
    figures.entry("read.gb_per_s".to_owned()).or_default().push(bytes * 1e-9 / read.median());
    for (variant, time) in times {
        let Variant::Product(level, rows) = *variant else { continue };
        let one = &times[&Variant::Product(level, 1)];
        let (share, over_one) = (read.median() / time.median(), time.median() / one.median());
        let tera = (2 * n * k * rows) as f64 * 1e-12 / time.median();
        println!(
            "  {level:6} {rows:3} rows  min {:6.0} us, median {:6.0} us, {:3.0} % of read, {over_one:.2} x one row (minima {:.2}), {tera:.2} TFLOP/s",
            time.min() * 1e6,
            time.median() * 1e6,
            share * 100.0,
            time.min() / one.min(),
        );
        let (name, figure) = match rows {
            1 => (format!("linear.rows1_share_of_read.{level}"), share),
            MANY_ROWS => (format!("prefill{MANY_ROWS}.tflops.{level}"), tera),
            _ => (format!("linear.rows{rows}_over_rows1.{level}"), over_one),
        };
        figures.entry(name).or_default().push(figure);
    }
}

fn main() {
    let options = Options::parse();
    let mut bench = Bench::new(&options);
    let mut figures = Figures::new();
    for shape in SHAPES {
        let times = bench.measure(&options, shape);
        report(shape, &times, &mut figures);
    }
    println!("\nmedians over the shapes, {} threads:", options.threads);
    let figures: Vec<String> =
        figures.into_iter().map(|(name, values)| format!("  \"{name}\": {:.3}", median(values))).collect();
    let json = format!("{{\n{}\n}}\n", figures.join(",\n"));
    print!("{json}");
    arguments::write(options.json, &json);
}
