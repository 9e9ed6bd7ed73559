//! Attention: equal bits at every level and with the reference, and rows that do not see one another.
mod common;

use std::collections::HashMap;
use std::ops::Range;

use common::{Random, Values, assert_same, levels, team};
use paceline_kernels::attend::reference::{self, Keys};
use paceline_kernels::attend::{AttendLayer, AttendRow, AttendScratch, KvLayout, KvPlace, KvStore, attend};
use paceline_kernels::isa::Isa;
use paceline_kernels::linear::{RowsMut, RowsRef};
use paceline_kernels::numerics::{Activation, KV_BLOCK, SPAN, SPLIT};
use paceline_kernels::pool::Team;

const ACTIVATIONS: [Activation; 2] = [Activation::Bf16, Activation::F32];

/// K and V of sequences, in a store and as they are.
struct Cache {
    store: KvStore,
    layer: usize,
    sequences: Vec<Sequence>,
}

struct Sequence {
    block_table: Vec<u32>,
    /// For each K/V head, each position's K and V.
    heads: Vec<Head>,
}

struct Head {
    dim: usize,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Keys for Head {
    fn get(&self, position: usize) -> (&[f32], &[f32]) {
        (&self.k[position * self.dim..][..self.dim], &self.v[position * self.dim..][..self.dim])
    }
}

impl Cache {
    /// Sequences of the given lengths in blocks that lie scattered over a store whose other keys hold garbage.
    fn new(layout: KvLayout, lengths: &[usize], values: Values, seed: u64) -> Cache {
        let mut random = Random(seed);
        let blocks: Vec<usize> = lengths.iter().map(|len| len.div_ceil(KV_BLOCK)).collect();
        let n_blocks = blocks.iter().sum::<usize>() + 3;
        let (layers, layer) = (2, 1);
        let mut store = KvStore::new(layout, layers, n_blocks).unwrap();
        let isa = Isa::best().0;
        let mut free: Vec<u32> = (0..n_blocks as u32).collect();
        let dim = layout.head_dim;
        for block in 0..n_blocks as u32 {
            for slot in 0..KV_BLOCK {
                for kv_head in 0..layout.kv_heads {
                    let garbage = vec![1e3 * random.unit(); dim];
                    let place = KvPlace { layer, block, kv_head, slot };
                    assert!(store.store(isa, place, &garbage, &garbage));
                }
            }
        }
        let sequences = lengths.iter().zip(blocks).map(|(&len, blocks)| {
            let block_table: Vec<u32> =
                (0..blocks).map(|_| free.swap_remove(random.below(free.len()))).collect();
            let mut draw = || values.rows(random.word(), len * dim);
            let heads: Vec<Head> = (0..layout.kv_heads).map(|_| Head { dim, k: draw(), v: draw() }).collect();
            for (kv_head, head) in heads.iter().enumerate() {
                for position in 0..len {
                    let block = block_table[position / KV_BLOCK];
                    let place = KvPlace { layer, block, kv_head, slot: position % KV_BLOCK };
                    let (k, v) = head.get(position);
                    assert!(store.store(isa, place, k, v));
                }
            }
            Sequence { block_table, heads }
        });
        let sequences = sequences.collect();
        Cache { store, layer, sequences }
    }

    fn layout(&self) -> KvLayout {
        self.store.layout()
    }
}

/// A row of a call: its sequence and what it sees.
type Row = (usize, Range<u32>);

/// Query heads, and a scale that is no power of two.
#[derive(Clone, Copy)]
struct Heads {
    n_heads: usize,
    scale: f32,
}

fn run(cache: &Cache, heads: Heads, rows: &[Row], q: &[f32], isa: Isa, team: &mut Team) -> Vec<f32> {
    let layout = cache.layout();
    let width = heads.n_heads * layout.head_dim;
    let most = rows.iter().map(|row| row.1.end).max().unwrap_or(0);
    let mut scratch = AttendScratch::new(team.threads()).unwrap();
    scratch.reserve(layout, heads.n_heads, rows.len(), most as usize).unwrap();
    let layer =
        AttendLayer { store: &cache.store, layer: cache.layer, n_heads: heads.n_heads, scale: heads.scale };
    let rows: Vec<AttendRow<'_>> = rows
        .iter()
        .map(|(sequence, visible)| AttendRow {
            block_table: &cache.sequences[*sequence].block_table,
            visible: visible.clone(),
        })
        .collect();
    let mut out = vec![f32::NAN; rows.len() * width];
    let out_rows = RowsMut::dense(&mut out, width);
    attend(isa, team, &mut scratch, layer, &rows, RowsRef::dense(q, width), out_rows);
    out
}

fn expected(cache: &Cache, heads: Heads, rows: &[Row], q: &[f32]) -> Vec<f32> {
    let layout = cache.layout();
    let group = heads.n_heads / layout.kv_heads;
    let mut out = Vec::new();
    for (i, q) in q.chunks_exact(layout.head_dim).enumerate() {
        let (sequence, visible) = &rows[i / heads.n_heads];
        let keys = &cache.sequences[*sequence].heads[i % heads.n_heads / group];
        let visible = visible.start as usize..visible.end as usize;
        out.extend(reference::attend(q, keys, visible, heads.scale, layout.activation));
    }
    out
}

/// The call at every level, with several numbers of threads, against the reference.
fn check(cache: &Cache, heads: Heads, rows: &[Row], values: Values, what: &str) {
    let width = heads.n_heads * cache.layout().head_dim;
    let q = values.rows(rows.len() as u64 + 77, rows.len() * width);
    let expected = expected(cache, heads, rows, &q);
    for (case, isa) in levels().into_iter().enumerate() {
        for threads in [1, 2 + (case + rows.len()) % 3] {
            let found = run(cache, heads, rows, &q, isa, &mut team(threads));
            let what = format!(
                "{what}, {} rows, {:?} {values:?}, {} at {threads} threads",
                rows.len(),
                cache.layout(),
                isa.level()
            );
            assert_same(&found, &expected, cache.layout().head_dim, what);
        }
    }
}

fn layout(head_dim: usize, kv_heads: usize, activation: Activation) -> KvLayout {
    KvLayout { head_dim, kv_heads, activation }
}

#[test]
fn every_head_dim_equals_the_reference() {
    for activation in ACTIVATIONS {
        for head_dim in (8..=512).step_by(8) {
            let cache = Cache::new(layout(head_dim, 1, activation), &[70], Values::Normal, head_dim as u64);
            let rows = [(0, 3..69), (0, 3..70)];
            check(&cache, Heads { n_heads: 2, scale: 0.3 }, &rows, Values::Normal, "head dims");
        }
    }
}

#[test]
fn keys_around_every_border_equal_the_reference() {
    let borders = [0, 32, KV_BLOCK, SPLIT, 2 * SPLIT, SPAN, SPAN + SPLIT, 2 * SPAN];
    let places: Vec<u32> =
        borders.iter().flat_map(|b| [b.wrapping_sub(1), *b, b + 1]).map(|p| p as u32).collect();
    let len = 2 * SPAN + SPLIT;
    for activation in ACTIVATIONS {
        let cache = Cache::new(layout(16, 1, activation), &[len], Values::Normal, 5);
        let heads = Heads { n_heads: 1, scale: 0.7 };
        let starts = places.iter().filter(|p| **p < len as u32);
        let ranges: Vec<Row> = starts
            .flat_map(|start| places.iter().map(move |end| (0, *start..*end)))
            .filter(|row| row.1.start < row.1.end && row.1.end < len as u32)
            .collect();
        // Alone, and many side by side whose ranges have little in common.
        for row in ranges.iter().step_by(7) {
            check(&cache, heads, std::slice::from_ref(row), Values::Normal, "borders");
        }
        check(&cache, heads, &ranges, Values::Normal, "borders");
    }
}

#[test]
fn many_rows_of_several_sequences_equal_the_reference() {
    let mut random = Random(11);
    for (n, (kv_heads, n_heads)) in [(1, 1), (2, 2), (1, 4), (2, 6), (1, 20), (3, 3)].into_iter().enumerate()
    {
        let activation = ACTIVATIONS[n % 2];
        let lengths = [300, 40, 129, 600];
        let cache = Cache::new(layout(24, kv_heads, activation), &lengths, Values::Normal, n as u64);
        for n_rows in [1, 2, 3, 5, 8, 16, 17, 33] {
            // Runs of rows of one sequence: positions ascending, a full or a sliding window.
            let mut rows: Vec<Row> = Vec::new();
            while rows.len() < n_rows {
                let sequence = random.below(lengths.len());
                let window = [40, 1000][random.below(2)];
                let run = random.below(20) + 1;
                let first = random.below(lengths[sequence] - run) as u32;
                let seen =
                    (first..first + run as u32).map(|p| (sequence, (p + 1).saturating_sub(window)..p + 1));
                rows.extend(seen.take(n_rows - rows.len()));
            }
            check(&cache, Heads { n_heads, scale: 1.0 }, &rows, Values::Normal, "sequences");
        }
    }
}

#[test]
fn every_class_of_numbers_equals_the_reference() {
    for activation in ACTIVATIONS {
        for values in [Values::Wide, Values::Tiny] {
            for (kv_heads, n_heads) in [(1, 1), (2, 10)] {
                let cache = Cache::new(layout(40, kv_heads, activation), &[400], values, 3);
                let rows: Vec<Row> = (0..3).map(|i| (0, 30 * i..398 + i)).collect();
                for q in [values, Values::Normal, Values::Bits] {
                    check(&cache, Heads { n_heads, scale: 1.0 }, &rows, q, "numbers");
                }
            }
        }
    }
}

#[test]
fn a_row_of_many_equals_the_row_alone_whatever_its_neighbours_are() {
    let mut random = Random(21);
    for activation in ACTIVATIONS {
        let cache = Cache::new(layout(72, 2, activation), &[700, 90], Values::Normal, 8);
        let heads = Heads { n_heads: 4, scale: 0.5 };
        let width = heads.n_heads * 72;
        let rows: Vec<Row> =
            (0..33).map(|i| if i % 11 < 9 { (0, i..660 + i) } else { (1, 0..50 + i) }).collect();
        let q = Values::Normal.rows(9, rows.len() * width);
        for isa in levels() {
            let mut team = team(2);
            let all = run(&cache, heads, &rows, &q, isa, &mut team);
            let alone: HashMap<usize, Vec<f32>> = [0, 8, 9, 15, 16, 32]
                .map(|r| (r, run(&cache, heads, &rows[r..=r], &q[r * width..][..width], isa, &mut team)))
                .into();
            for (r, alone) in &alone {
                assert_same(
                    &all[r * width..][..width],
                    alone,
                    72,
                    format_args!("row {r} at {}", isa.level()),
                );
            }
            let kept = *alone.keys().nth(random.below(alone.len())).unwrap();
            let mut faulty = q.clone();
            for (r, q) in faulty.chunks_mut(width).enumerate().filter(|(r, _)| *r != kept) {
                q.fill(if r % 2 == 0 { f32::NAN } else { f32::INFINITY });
            }
            let found = run(&cache, heads, &rows, &faulty, isa, &mut team);
            let what = format!("row {kept} between faulty ones at {}", isa.level());
            assert_same(&found[kept * width..][..width], &alone[&kept], 72, what);
            let neighbour = if kept == 0 { 2 } else { 0 };
            assert!(found[neighbour * width..][..width].iter().all(|x| x.is_nan()), "a faulty row shows it");
        }
    }
}

/// Rows that differ in their queries alone.
fn same_keys(activation: Activation, isa: Isa, threads: usize, q: &[f32]) -> Vec<f32> {
    let cache = Cache::new(layout(24, 1, activation), &[300], Values::Normal, 2);
    let rows = vec![(0, 7..299); q.len() / 48];
    run(&cache, Heads { n_heads: 2, scale: 0.25 }, &rows, q, isa, &mut team(threads))
}

row_invariance! { attend_bf16: 48 => 48, |isa: Isa, threads: usize, q: &[f32]| {
    same_keys(Activation::Bf16, isa, threads, q)
}}

row_invariance! { attend_f32: 48 => 48, |isa: Isa, threads: usize, q: &[f32]| {
    same_keys(Activation::F32, isa, threads, q)
}}

/// The bits of one build, kept here: every build and every processor must agree. Other bits need a new version of the
/// contract.
#[test]
fn bits_do_not_depend_on_the_build() {
    for (activation, recorded) in
        [(Activation::Bf16, 0x6E04_4FB6_DB4E_62D9), (Activation::F32, 0xF828_8860_C781_C31E)]
    {
        let cache = Cache::new(layout(72, 2, activation), &[2500], Values::Normal, 1);
        let rows = [(0, 0..2500), (0, 2000..2311), (0, 5..700)];
        let heads = Heads { n_heads: 4, scale: 0.8 };
        let q = Values::Normal.rows(4, rows.len() * heads.n_heads * 72);
        for isa in levels() {
            let found = run(&cache, heads, &rows, &q, isa, &mut team(2));
            let hash = found.iter().fold(0xCBF2_9CE4_8422_2325_u64, |hash, x| {
                (hash ^ u64::from(x.to_bits())).wrapping_mul(0x100_0000_01B3)
            });
            assert_eq!(hash, recorded, "{activation:?} at {}: {hash:#018X}", isa.level());
        }
    }
}

#[test]
fn keys_that_no_row_sees_change_nothing() {
    for activation in ACTIVATIONS {
        let layout = layout(32, 1, activation);
        let mut cache = Cache::new(layout, &[500], Values::Normal, 4);
        let heads = Heads { n_heads: 3, scale: 1.0 };
        let rows: Vec<Row> = (0..5).map(|i| (0, 100..441 + i)).collect();
        let q = Values::Normal.rows(1, rows.len() * heads.n_heads * 32);
        let before = levels().into_iter().map(|isa| run(&cache, heads, &rows, &q, isa, &mut team(2)));
        let before: Vec<_> = before.collect();
        for position in (0..100).chain(445..500) {
            let garbage = Values::Bits.rows(position as u64, 32);
            let garbage: Vec<f32> = garbage.into_iter().map(|x| x.clamp(-3e38, 3e38)).collect();
            let block = cache.sequences[0].block_table[position / KV_BLOCK];
            let place = KvPlace { layer: cache.layer, block, kv_head: 0, slot: position % KV_BLOCK };
            assert!(cache.store.store(Isa::best().0, place, &garbage, &garbage));
        }
        for (isa, before) in levels().into_iter().zip(before) {
            let after = run(&cache, heads, &rows, &q, isa, &mut team(2));
            assert_same(&after, &before, 32, format_args!("other dead keys at {}", isa.level()));
        }
    }
}

#[test]
fn a_row_that_sees_nothing_gives_zeros() {
    let cache = Cache::new(layout(16, 1, Activation::Bf16), &[70], Values::Normal, 4);
    let heads = Heads { n_heads: 2, scale: 1.0 };
    check(&cache, heads, &[(0, 5..5)], Values::Normal, "nothing");
    check(&cache, heads, &[(0, 5..60), (0, 9..9), (0, 0..70)], Values::Normal, "nothing between");
}

#[test]
fn rows_may_stand_apart() {
    let cache = Cache::new(layout(24, 1, Activation::Bf16), &[100], Values::Normal, 4);
    let heads = Heads { n_heads: 2, scale: 1.0 };
    let rows = [(0, 0..90), (0, 0..91), (0, 0..92)];
    let (width, q_stride, out_stride) = (48, 48 + 30, 48 + 5);
    let q = Values::Normal.rows(2, 3 * q_stride);
    let dense: Vec<f32> = q.chunks(q_stride).flat_map(|row| &row[..width]).copied().collect();
    for isa in levels() {
        let expected = run(&cache, heads, &rows, &dense, isa, &mut team(1));
        let mut scratch = AttendScratch::new(1).unwrap();
        scratch.reserve(cache.layout(), 2, 3, 100).unwrap();
        let layer = AttendLayer { store: &cache.store, layer: cache.layer, n_heads: 2, scale: 1.0 };
        let table = &cache.sequences[0].block_table;
        let rows = rows.clone().map(|(_, visible)| AttendRow { block_table: table, visible });
        let mut out = vec![7.0; 3 * out_stride];
        let q = RowsRef { data: &q, stride: q_stride, n_rows: 3 };
        let to = RowsMut { data: &mut out, stride: out_stride, n_rows: 3 };
        attend(isa, &mut team(1), &mut scratch, layer, &rows, q, to);
        for (row, expected) in out.chunks(out_stride).zip(expected.chunks(width)) {
            assert_same(&row[..width], expected, width, "rows apart");
            assert!(row[width..].iter().all(|x| *x == 7.0), "what stands between rows is left alone");
        }
    }
}

#[test]
fn results_are_close_to_float64() {
    for (activation, tolerance) in [(Activation::F32, 3e-6), (Activation::Bf16, 1e-2)] {
        let cache = Cache::new(layout(64, 1, activation), &[900], Values::Normal, 6);
        let heads = Heads { n_heads: 2, scale: 0.4 };
        let rows = [(0, 0..900), (0, 333..899)];
        let q = Values::Normal.rows(3, 2 * 128);
        let found = run(&cache, heads, &rows, &q, levels()[0], &mut team(1));
        for (i, (q, found)) in q.chunks(64).zip(found.chunks(64)).enumerate() {
            let visible = rows[i / 2].1.clone().map(|p| p as usize);
            let keys = &cache.sequences[0].heads[0];
            let dot = |k: &[f32]| q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
            let scores: Vec<f64> =
                visible.clone().map(|p| dot(keys.get(p).0) * f64::from(heads.scale)).collect();
            let m = scores.iter().copied().fold(f64::MIN, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - m).exp()).sum();
            for (d, found) in found.iter().enumerate() {
                let values = visible.clone().map(|p| f64::from(keys.get(p).1[d]));
                let truth = scores.iter().zip(values).map(|(s, v)| (s - m).exp() * v).sum::<f64>() / sum;
                let error = (f64::from(*found) - truth).abs();
                assert!(error < tolerance, "{activation:?}: {found} is not {truth}");
            }
        }
    }
}

#[test]
fn the_store_keeps_what_it_is_given() {
    for (activation, isa) in
        ACTIVATIONS.into_iter().flat_map(|a| levels().into_iter().map(move |isa| (a, isa)))
    {
        for head_dim in [8, 24, 32, 40, 256] {
            let layout = layout(head_dim, 2, activation);
            let mut store = KvStore::new(layout, 2, 3).unwrap();
            let mut places = Vec::new();
            for (layer, block) in [(0, 0), (0, 2), (1, 1)] {
                for kv_head in 0..2 {
                    places.extend((0..KV_BLOCK).map(|slot| KvPlace { layer, block, kv_head, slot }));
                }
            }
            let row = |i: usize, which: u64| Values::Wide.rows(2 * i as u64 + which, head_dim);
            for (i, place) in places.iter().enumerate() {
                assert!(store.store(isa, *place, &row(i, 0), &row(i, 1)));
            }
            let (mut k, mut v) = (vec![0.0; head_dim], vec![0.0; head_dim]);
            for (i, place) in places.iter().enumerate() {
                store.load(*place, &mut k, &mut v);
                let rounded = |x: Vec<f32>| x.into_iter().map(|x| activation.round(x)).collect::<Vec<_>>();
                assert_same(&k, &rounded(row(i, 0)), head_dim, format_args!("K at {place:?}"));
                assert_same(&v, &rounded(row(i, 1)), head_dim, format_args!("V at {place:?}"));
            }
        }
    }
}

#[test]
fn a_key_that_is_not_finite_is_stored_as_zeros() {
    let most = f32::MAX; // Infinite once it is rounded to bf16.
    for (activation, bad) in
        [(Activation::F32, f32::NAN), (Activation::Bf16, f32::NEG_INFINITY), (Activation::Bf16, most)]
    {
        // In whole lanes, and in what is left of a row behind them.
        for (isa, at, which) in levels().into_iter().flat_map(|isa| [(isa, 15, 0), (isa, 3, 1), (isa, 23, 0)])
        {
            let mut store = KvStore::new(layout(24, 1, activation), 1, 1).unwrap();
            let place = KvPlace { layer: 0, block: 0, kv_head: 0, slot: 33 };
            let mut rows = [[1.5; 24], [2.5; 24]];
            assert!(store.store(isa, place, &rows[0], &rows[1]));
            rows[which][at] = bad;
            assert!(!store.store(isa, place, &rows[0], &rows[1]));
            let (mut k, mut v) = ([1.0; 24], [1.0; 24]);
            store.load(place, &mut k, &mut v);
            assert_eq!((k, v), ([0.0; 24], [0.0; 24]));
        }
    }
    let mut store = KvStore::new(layout(16, 1, Activation::F32), 1, 1).unwrap();
    let place = KvPlace { layer: 0, block: 0, kv_head: 0, slot: 0 };
    levels().into_iter().for_each(|isa| assert!(store.store(isa, place, &[most; 16], &[most; 16])));
}

#[test]
fn absurd_stores_are_errors() {
    assert!(KvStore::new(layout(512, 64, Activation::F32), usize::MAX / 2, 7).is_err());
}
