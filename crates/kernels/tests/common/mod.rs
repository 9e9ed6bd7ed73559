//! What the kernel tests share: levels, teams, repeatable numbers and the properties of a row-invariant op.
#![allow(dead_code, unreachable_pub)] // Each test program uses a part of it.

use paceline_kernels::isa::{Isa, available_levels};
use paceline_kernels::numerics::round_bf16;
use paceline_kernels::pool::Team;

/// Small, repeatable random numbers (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.word() % bound as u64) as usize
    }

    /// Between -1 and 1.
    pub fn unit(&mut self) -> f32 {
        (self.word() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Classes of numbers whose sums betray another order or another treatment of subnormals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Of one order of magnitude.
    Normal,
    /// Exponents from -40 to 40: cancellation and absorption.
    Wide,
    /// Such that products lie around the smallest normal number, many exactly on the grid below it.
    Tiny,
    /// Any finite bits.
    Bits,
}

impl Values {
    pub const ALL: [Values; 4] = [Values::Normal, Values::Wide, Values::Tiny, Values::Bits];

    pub fn draw(self, random: &mut Random) -> f32 {
        let x = random.unit();
        match self {
            Values::Normal => x,
            Values::Wide => x * 2f32.powi(random.below(81) as i32 - 40),
            Values::Tiny => {
                let few_bits = f32::from_bits(x.to_bits() & 0xFFF8_0000);
                let x = if random.below(2) == 0 { x } else { few_bits };
                x * 2f32.powi(-56 - random.below(14) as i32)
            }
            Values::Bits => loop {
                let x = f32::from_bits(random.word() as u32);
                if x.is_finite() {
                    break x;
                }
            },
        }
    }

    pub fn rows(self, seed: u64, len: usize) -> Vec<f32> {
        let mut random = Random(seed);
        (0..len).map(|_| self.draw(&mut random)).collect()
    }

    /// Finite bf16 bit patterns.
    pub fn weights(self, seed: u64, len: usize) -> Vec<u16> {
        let finite = |bits: u16| if bits & 0x7F80 == 0x7F80 { bits & 0x8000 | 0x7F7F } else { bits };
        self.rows(seed, len).into_iter().map(|x| finite(round_bf16(x))).collect()
    }
}

/// Every level of this machine. A test that finds only the scalar one has tested nothing, so that fails (on x86-64).
pub fn levels() -> Vec<Isa> {
    let levels = available_levels();
    assert!(levels.len() > 1 || !cfg!(target_arch = "x86_64"), "no level to compare with the scalar one");
    levels
}

pub fn team(threads: usize) -> Team {
    Team::new(threads).expect("threads")
}

/// Same bits, where all NaNs count as one.
pub fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

#[track_caller]
pub fn assert_same(found: &[f32], expected: &[f32], width: usize, what: impl std::fmt::Display) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        let (row, column) = (i / width, i % width);
        assert!(
            same(*a, *b),
            "{what}: row {row}, column {column}: {a:e} ({:08x}), expected {b:e} ({:08x})",
            a.to_bits(),
            b.to_bits()
        );
    }
}

/// `(level, threads, rows)` to results.
pub type Run<'a> = &'a dyn Fn(Isa, usize, &[f32]) -> Vec<f32>;

/// A row-wise op on dense rows: computes `width_out` values for each row of `width_in`.
pub struct RowOp<'a> {
    pub name: &'a str,
    pub width_in: usize,
    pub width_out: usize,
    pub run: Run<'a>,
}

/// The properties that make an op row-invariant, checked bit for bit at every level, with 1 to 4 threads: many rows equal
/// the rows alone, permuted rows give permuted results, rows full of NaN or infinity change no other, and a second
/// call gives the same.
pub fn check_row_invariance(op: &RowOp<'_>, values: Values, row_counts: &[usize]) {
    let most = row_counts.iter().copied().max().expect("some row count");
    let seed = 0xA5 + op.width_in as u64 * 31 + op.width_out as u64;
    let x = values.rows(seed, most * op.width_in);
    let row = |r: usize| &x[r * op.width_in..][..op.width_in];
    let scalar = levels()[0];
    let alone: Vec<f32> = (0..most).flat_map(|r| (op.run)(scalar, 1, row(r))).collect();
    for isa in levels() {
        for (case, &rows) in row_counts.iter().enumerate() {
            let threads = case % 4 + 1;
            let what = format!(
                "{} {values:?} seed {seed} at {}, {rows} rows, {threads} threads",
                op.name,
                isa.level()
            );
            let found = (op.run)(isa, threads, &x[..rows * op.width_in]);
            assert_same(&found, &alone[..rows * op.width_out], op.width_out, &what);
            check_order_and_neighbours(op, isa, threads, &x[..rows * op.width_in], &found, &what);
        }
    }
}

fn check_order_and_neighbours(
    op: &RowOp<'_>,
    isa: Isa,
    threads: usize,
    x: &[f32],
    found: &[f32],
    what: &str,
) {
    let rows = x.len() / op.width_in;
    let backwards: Vec<f32> = x.rchunks(op.width_in).flatten().copied().collect();
    let results = (op.run)(isa, threads, &backwards);
    let results: Vec<f32> = results.rchunks(op.width_out).flatten().copied().collect();
    assert_same(&results, found, op.width_out, format_args!("{what}, backwards"));

    let mut faulty = x.to_vec();
    let kept = rows / 2;
    for (r, row) in faulty.chunks_mut(op.width_in).enumerate().filter(|(r, _)| *r != kept) {
        row.fill(if r % 2 == 0 { f32::NAN } else { f32::INFINITY });
    }
    let results = (op.run)(isa, threads, &faulty);
    let of_row = kept * op.width_out..(kept + 1) * op.width_out;
    assert_same(
        &results[of_row.clone()],
        &found[of_row],
        op.width_out,
        format_args!("{what}, faulty neighbours"),
    );
}

/// Row counts around every border of the tiles: 1 and 4 and 8 rows of vectors, 16 and 32 of AMX, blocks of 256.
pub const ROWS_AT_BORDERS: [usize; 12] = [1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 33, 65];

/// One test that an op is row-invariant, for each class of numbers:
/// `row_invariance! { name: 100 => 70, |isa, threads, x| -> Vec<f32> { .. } }`.
#[macro_export]
macro_rules! row_invariance {
    ($name:ident: $width_in:expr => $width_out:expr, $run:expr) => {
        #[test]
        fn $name() {
            let run = $run;
            let name = stringify!($name);
            let op = $crate::common::RowOp { name, width_in: $width_in, width_out: $width_out, run: &run };
            for values in $crate::common::Values::ALL {
                $crate::common::check_row_invariance(&op, values, &$crate::common::ROWS_AT_BORDERS);
            }
        }
    };
}
