//! Attention against plain reading of the same amount of memory, prefill, and small calls.
//!
//! ```text
//! cargo bench -p paceline-kernels --bench attend [-- --threads 2 --reps 30 --megabytes 400 --json FILE]
//! ```
//! K and V are rotated over more memory than any cache holds (every layer of the store is used in turn); all variants take
//! turns within one run, plain reading by the same threads among them. Shares are ratios of medians.
mod arguments;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use paceline_kernels::attend::{AttendLayer, AttendRow, AttendScratch, KvLayout, KvPlace, KvStore, attend};
use paceline_kernels::isa::{Isa, Level, available_levels};
use paceline_kernels::linear::{RowsMut, RowsRef};
use paceline_kernels::memory::HugeBuf;
use paceline_kernels::numerics::{Activation, KV_BLOCK};
use paceline_kernels::pool::Team;

struct Options {
    threads: usize,
    reps: usize,
    megabytes: usize,
    json: Option<String>,
}

impl Options {
    fn parse() -> Options {
        let (mut threads, mut reps, mut megabytes) = (2, 30, 400);
        let json = arguments::read(&mut [
            ("--threads", &mut threads),
            ("--reps", &mut reps),
            ("--megabytes", &mut megabytes),
        ]);
        Options { threads, reps, megabytes, json }
    }
}

/// A kind of layer.
#[derive(Clone, Copy)]
struct Shape {
    head_dim: usize,
    kv_heads: usize,
    n_heads: usize,
}

impl Shape {
    fn layout(self) -> KvLayout {
        KvLayout { head_dim: self.head_dim, kv_heads: self.kv_heads, activation: Activation::Bf16 }
    }

    fn bytes(self, keys: usize) -> usize {
        self.layout().layer_block_bytes() * keys / KV_BLOCK
    }
}

/// Calls of one shape and number of keys.
struct Case {
    shape: Shape,
    keys: usize,
    store: KvStore,
    table: Vec<u32>,
    layer: usize,
    memory: HugeBuf<u64>,
    place: usize,
    q: Vec<f32>,
    out: Vec<f32>,
}

/// A value of -1 to 1.
fn value(i: usize) -> f32 {
    ((i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as f32 / 8_388_608.0 - 1.0
}

impl Case {
    fn new(shape: Shape, keys: usize, max_rows: usize, megabytes: usize) -> Case {
        let layers = (megabytes << 20).div_ceil(shape.bytes(keys)).max(1);
        let blocks = keys.div_ceil(KV_BLOCK);
        let mut store = KvStore::new(shape.layout(), layers, blocks).expect("memory");
        let numbers: Vec<f32> = (0..4096 + shape.head_dim).map(value).collect();
        for i in 0..layers * shape.kv_heads * keys {
            let place = KvPlace {
                layer: i / (shape.kv_heads * keys),
                kv_head: i / keys % shape.kv_heads,
                block: (i % keys / KV_BLOCK) as u32,
                slot: i % KV_BLOCK,
            };
            let row = |salt: usize| &numbers[(i * 7 + salt) % 4096..][..shape.head_dim];
            assert!(store.store(Isa::best().0, place, row(0), row(5)));
        }
        let width = shape.n_heads * shape.head_dim;
        let mut memory = HugeBuf::zeroed((megabytes << 17).max(shape.bytes(keys) / 8)).expect("memory");
        memory.iter_mut().enumerate().for_each(|(i, word)| *word = i as u64);
        Case {
            shape,
            keys,
            store,
            // Neighbours in a sequence are seldom neighbours in memory.
            table: (0..blocks as u32).map(|i| i * 7 % blocks as u32).collect::<Vec<_>>(),
            layer: 0,
            memory,
            place: 0,
            q: (0..max_rows * width).map(|i| value(i) * 0.1).collect(),
            out: vec![0.0; max_rows * width],
        }
    }

    /// Reads as many bytes as the K and V of a call have.
    fn read(&mut self, team: &mut Team) -> f64 {
        let words = self.shape.bytes(self.keys) / 8;
        if self.place + words > self.memory.len() {
            self.place = 0;
        }
        let memory = &self.memory[self.place..self.place + words];
        self.place += words;
        let chunk = words.div_ceil(4 * team.threads()).next_multiple_of(64);
        let start = Instant::now();
        team.run(words.div_ceil(chunk), |_, i| {
            let mut sums = [0u64; 64];
            for lines in memory[i * chunk..((i + 1) * chunk).min(words)].as_chunks::<64>().0 {
                fetch_ahead(lines);
                for (sum, word) in sums.iter_mut().zip(lines) {
                    *sum ^= word;
                }
            }
            black_box(sums);
        });
        start.elapsed().as_secs_f64()
    }

    /// `n_rows` rows, the last of which sees all keys and each other one key less than the row after it.
    fn attend(&mut self, isa: Isa, team: &mut Team, scratch: &mut AttendScratch, n_rows: usize) -> f64 {
        self.layer = (self.layer + 1) % self.store.layers();
        let Shape { head_dim, n_heads, .. } = self.shape;
        let width = n_heads * head_dim;
        let first_end = self.keys - n_rows + 1;
        let rows: Vec<AttendRow<'_>> = (first_end..=self.keys)
            .map(|end| AttendRow { block_table: &self.table, visible: 0..end as u32 })
            .collect();
        let layer = AttendLayer { store: &self.store, layer: self.layer, n_heads, scale: 1.0 };
        let q = RowsRef::dense(&self.q[..n_rows * width], width);
        let out = RowsMut::dense(&mut self.out[..n_rows * width], width);
        let start = Instant::now();
        attend(isa, team, scratch, layer, &rows, q, out);
        start.elapsed().as_secs_f64()
    }
}

/// Asks for what stands 2 KB further, as the kernels do: without it, reading is the slower one.
fn fetch_ahead(lines: &[u64; 64]) {
    #[cfg(target_arch = "x86_64")]
    for line in lines.as_chunks::<8>().0 {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint that never faults; SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_byte_add(2048).cast()) };
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Variant {
    Read,
    Attend(Level, usize),
}

struct Bench {
    options: Options,
    team: Team,
    isas: Vec<Isa>,
    figures: BTreeMap<String, f64>,
}

impl Bench {
    /// Interleaved times of reading and of some numbers of rows at each level.
    fn measure(&mut self, case: &mut Case, row_counts: &[usize], reps: usize) -> BTreeMap<Variant, Vec<f64>> {
        let mut scratch = AttendScratch::new(self.options.threads).expect("memory");
        let most = row_counts.iter().copied().max().expect("some rows");
        scratch.reserve(case.shape.layout(), case.shape.n_heads, most, case.keys).expect("memory");
        let mut times: BTreeMap<Variant, Vec<f64>> = BTreeMap::new();
        for _ in 0..reps {
            times.entry(Variant::Read).or_default().push(case.read(&mut self.team));
            for &isa in &self.isas {
                for &rows in row_counts {
                    let time = case.attend(isa, &mut self.team, &mut scratch, rows);
                    times.entry(Variant::Attend(isa.level(), rows)).or_default().push(time);
                }
            }
        }
        times
    }

    /// Decode and verify against the bandwidth of the same threads.
    fn share_of_read(&mut self, keys: usize) {
        let shape = Shape { head_dim: 256, kv_heads: 4, n_heads: 4 };
        let mut case = Case::new(shape, keys, 16, self.options.megabytes);
        let times = self.measure(&mut case, &[1, 4, 8, 16], self.options.reps);
        let read = median(times[&Variant::Read].clone());
        let bytes = shape.bytes(keys) as f64;
        let best = times.iter().filter(|(variant, _)| matches!(variant, Variant::Attend(_, 1)));
        let best = best.map(|(_, times)| median(times.clone())).fold(f64::INFINITY, f64::min);
        self.figures.insert(format!("attend.share_of_read.{keys}"), read / best);
        println!("\n{keys} keys, {:.1} MB: read {:.1} GB/s", bytes * 1e-6, bytes * 1e-9 / read);
        for (variant, times) in times {
            let Variant::Attend(level, rows) = variant else { continue };
            let time = median(times);
            println!(
                "  {level:6} {rows:2} rows  {:7.0} us, {:3.0} % of read",
                time * 1e6,
                100.0 * read / time
            );
            let name = match rows {
                1 => format!("attend.share_of_read.{keys}.{level}"),
                _ => format!("attend.rows{rows}_share_of_read.{keys}.{level}"),
            };
            self.figures.insert(name, read / time);
        }
    }

    /// Rows of a prefill chunk.
    fn prefill(&mut self, shape: Shape, keys: usize) {
        let mut case = Case::new(shape, keys, 512, 0);
        let times = self.measure(&mut case, &[512], self.options.reps / 6 + 1);
        println!(
            "\nprefill, 512 rows of {} heads over {keys} keys, head dim {}",
            shape.n_heads, shape.head_dim
        );
        for (variant, times) in times {
            let Variant::Attend(level, rows) = variant else { continue };
            let time = median(times);
            let tera = 4e-12 * (keys * rows * shape.n_heads * shape.head_dim) as f64 / time;
            println!("  {level:6} {:9.0} us, {tera:.2} TFLOP/s", time * 1e6);
            self.figures.insert(format!("attend.prefill512.{keys}.{}.tflops.{level}", shape.head_dim), tera);
        }
    }

    /// One row over few keys, K and V in a cache.
    fn small(&mut self, shape: Shape, keys: usize) {
        let mut case = Case::new(shape, keys, 1, 0);
        let times = self.measure(&mut case, &[1], self.options.reps * 100);
        print!("\n1 row of {}/{} heads, dim {}, {keys} keys:", shape.n_heads, shape.kv_heads, shape.head_dim);
        for (variant, times) in times {
            let time = median(times);
            match variant {
                Variant::Read => print!(" read {:.2} us", time * 1e6),
                Variant::Attend(level, _) => {
                    print!(", {level} {:.2} us", time * 1e6);
                    self.figures
                        .insert(format!("attend.small.{}.{keys}.us.{level}", shape.head_dim), time * 1e6);
                }
            }
        }
        println!();
    }
}

fn main() {
    let options = Options::parse();
    let team = Team::new(options.threads).expect("threads");
    team.bind_caller();
    // The scalar level is for testing: FMA in software would take minutes here.
    let isas = available_levels().into_iter().filter(|isa| isa.level() > Level::Scalar).collect();
    let mut bench = Bench { options, team, isas, figures: BTreeMap::new() };
    for keys in [1024, 8192, 32_768] {
        bench.share_of_read(keys);
    }
    bench.prefill(Shape { head_dim: 256, kv_heads: 1, n_heads: 8 }, 2048);
    bench.prefill(Shape { head_dim: 512, kv_heads: 2, n_heads: 8 }, 8192);
    for keys in [128, 300] {
        bench.small(Shape { head_dim: 64, kv_heads: 2, n_heads: 4 }, keys);
        bench.small(Shape { head_dim: 128, kv_heads: 2, n_heads: 4 }, keys);
    }
    let figures: Vec<String> =
        bench.figures.iter().map(|(name, value)| format!("  \"{name}\": {value:.3}")).collect();
    let json = format!("{{\n{}\n}}\n", figures.join(",\n"));
    arguments::write(bench.options.json, &json);
}
