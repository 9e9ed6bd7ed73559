//! Blocks against a naive model that keeps every key: random rounds with accepted and rejected rows, joins, leaves and
//! preemptions, in full and sliding groups and in layers that share their K/V.

use proptest::prelude::*;

use super::*;

/// The group of each layer; the last two layers own nothing.
const LAYERS: [usize; 4] = [0, 1, 0, 1];
const BLOCKS: [usize; 2] = [9, 7];

#[derive(Clone, Debug)]
enum Step {
    /// A sequence begins.
    Join,
    /// Its blocks are given back for good.
    Leave(usize),
    /// Its blocks are given back and its rows are written anew, some at a time.
    Preempt(usize),
    /// Another begins with the whole blocks of the first rows of one.
    Fork { at: usize, blocks: usize },
    /// A pass over `known` rows and `drafts` more, of which `accepted` are committed.
    Round { at: usize, known: usize, drafts: usize, accepted: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let round =
        (0..8_usize, 1..90_usize, 0..9_usize, 0..9_usize).prop_map(|(at, known, drafts, accepted)| {
            Step::Round { at, known, drafts, accepted: accepted.min(drafts) }
        });
    prop_oneof![
        2 => Just(Step::Join),
        1 => (0..8_usize).prop_map(Step::Leave),
        1 => (0..8_usize).prop_map(Step::Preempt),
        2 => (0..8_usize, 0..4_usize).prop_map(|(at, blocks)| Step::Fork { at, blocks }),
        12 => round,
    ]
}

/// A sequence with the block tables that a backend would hold.
#[derive(Default)]
struct Sequence {
    kv: SequenceKv,
    tables: [Vec<KvBlockId>; 2],
    /// Committed keys; after a preemption their number is what has to be written anew.
    keys: Vec<u64>,
    len: usize,
}

/// Keys in blocks, as a backend holds them.
struct Memory {
    window: usize,
    cache: KvCache,
    blocks: [Vec<[u64; KV_BLOCK]>; 2],
    next_key: u64,
}

impl Memory {
    fn new(window: usize) -> Self {
        let size = |group: usize, window| KvGroupSize {
            group: KvGroup { index: group as u32 },
            window,
            n_blocks: BLOCKS[group],
        };
        let cache = KvCache::new(vec![size(0, None), size(1, Some(window))]);
        Self { window, cache, blocks: BLOCKS.map(|n| vec![[0; KV_BLOCK]; n]), next_key: 1 }
    }

    fn fresh_key(&mut self) -> u64 {
        self.next_key += 1;
        self.next_key
    }

    fn place(&mut self, sequence: &Sequence, group: usize, position: usize) -> &mut u64 {
        let block = sequence.tables[group][position / KV_BLOCK];
        &mut self.blocks[group][block.0 as usize][position % KV_BLOCK]
    }

    /// One pass. Where blocks are short nothing may change.
    fn round(&mut self, sequence: &mut Sequence, known: usize, drafts: usize, accepted: usize) {
        // Rows that were committed before a preemption come back with the same keys; what is new gets fresh ones.
        let known = if sequence.len < sequence.keys.len() {
            known.min(sequence.keys.len() - sequence.len)
        } else {
            known
        };
        let replayed = sequence.len + known <= sequence.keys.len();
        let (drafts, accepted) = if replayed { (0, 0) } else { (drafts, accepted) };
        let end = sequence.len + known + drafts;
        let free: Vec<_> = self.cache.free().collect();
        let Sequence { kv, tables, .. } = &mut *sequence;
        let grown = self.cache.grow(kv, end, |group, first, blocks| {
            let table = &mut tables[group.index as usize];
            assert_eq!(first, table.len(), "entries come in order");
            table.extend_from_slice(blocks);
        });
        if !grown {
            assert_eq!(self.cache.free().collect::<Vec<_>>(), free, "a failed growth takes nothing");
            return;
        }
        let rows: Vec<u64> = (sequence.len..end)
            .map(|position| sequence.keys.get(position).copied().unwrap_or_else(|| self.fresh_key()))
            .collect();
        for group in 0..2 {
            for (offset, &key) in rows.iter().enumerate() {
                *self.place(sequence, group, sequence.len + offset) = key;
            }
        }
        let naive: Vec<u64> = sequence.keys[..sequence.len].iter().copied().chain(rows).collect();
        for position in sequence.len..end {
            self.check_visible(sequence, &naive, position);
        }
        sequence.len += known + accepted;
        if !replayed {
            sequence.keys = naive[..sequence.len].to_vec();
        }
        self.cache.release_below(&mut sequence.kv, sequence.len);
    }

    /// A sequence that begins like `of`, where its first rows are committed and still there.
    fn fork(&mut self, of: &Sequence, len: usize) -> Option<Sequence> {
        let first_seen = len.saturating_sub(self.window) / KV_BLOCK * KV_BLOCK;
        let given_back = of.len.saturating_sub(self.window) / KV_BLOCK * KV_BLOCK;
        if len > of.len {
            return None;
        }
        let Some(mut kv) = self.cache.share(&of.kv, len) else {
            assert!(of.len == 0 || given_back > first_seen, "{len} rows of {} could be shared", of.len);
            return None;
        };
        let mut tables: [Vec<KvBlockId>; 2] = Default::default();
        self.cache.put_held(&mut kv, |group, first, blocks| {
            assert_eq!(first, tables[group.index as usize].len(), "entries come in order");
            tables[group.index as usize].extend_from_slice(blocks);
        });
        Some(Sequence { kv, tables, keys: of.keys[..len].to_vec(), len })
    }

    /// A row sees the naive model's keys in every layer.
    fn check_visible(&mut self, sequence: &Sequence, naive: &[u64], position: usize) {
        for (layer, group) in LAYERS.into_iter().enumerate() {
            let first = if group == 1 { (position + 1).saturating_sub(self.window) } else { 0 };
            for (at, &key) in naive.iter().enumerate().take(position + 1).skip(first) {
                assert_eq!(*self.place(sequence, group, at), key, "layer {layer}, row {position}, key {at}");
            }
        }
    }

    /// All keys that a next row or a drafter may still look at are there, held by the sequence.
    fn check_kept(&mut self, sequence: &Sequence) {
        for group in 0..2 {
            let first = if group == 1 { sequence.len.saturating_sub(self.window) } else { 0 };
            for at in first..sequence.len {
                assert_eq!(*self.place(sequence, group, at), sequence.keys[at], "group {group}, key {at}");
            }
            let held = sequence.len.div_ceil(KV_BLOCK) - first / KV_BLOCK;
            assert!(sequence.kv.held(group) >= held, "group {group} holds less than what is visible");
        }
    }
}

fn run(window: usize, steps: &[Step]) {
    let mut memory = Memory::new(window);
    let mut live: Vec<Sequence> = Vec::new();
    for step in steps {
        match *step {
            Step::Join if live.len() < 5 => live.push(Sequence::default()),
            Step::Leave(at) if at < live.len() => {
                let mut sequence = live.remove(at);
                memory.cache.release(&mut sequence.kv);
            }
            Step::Preempt(at) if at < live.len() => {
                memory.cache.release(&mut live[at].kv);
                live[at].tables = Default::default();
                live[at].len = 0;
            }
            Step::Fork { at, blocks } if at < live.len() && live.len() < 5 => {
                live.extend(memory.fork(&live[at], blocks * KV_BLOCK));
            }
            Step::Round { at, known, drafts, accepted } if at < live.len() => {
                memory.round(&mut live[at], known, drafts, accepted);
            }
            _ => {}
        }
        live.iter().for_each(|sequence| memory.check_kept(sequence));
        memory.cache.check_integrity(live.iter().map(|sequence| &sequence.kv)).unwrap();
        for (group, free) in memory.cache.free().enumerate() {
            let held =
                live.iter().flat_map(|sequence| sequence.kv.tables.get(group)).flat_map(BlockTable::blocks);
            let held: std::collections::HashSet<_> = held.collect();
            assert_eq!(free + held.len(), BLOCKS[group], "blocks of group {group} are conserved");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn visible_keys_equal_a_naive_model(
        window in prop_oneof![Just(1), Just(63), Just(64), Just(65), Just(100), 1..200_usize],
        steps in prop::collection::vec(step(), 1..120),
    ) {
        run(window, &steps);
    }

    #[test]
    fn no_sequence_holds_more_than_the_bound(
        window in prop::option::of(1..200_usize),
        rows in 1..200_usize,
        n_passes in 1..40_usize,
    ) {
        let group = KvGroup { index: 0 };
        let mut cache = KvCache::new(vec![KvGroupSize { group, window, n_blocks: 1000 }]);
        let mut kv = SequenceKv::default();
        let mut most = 0;
        for pass in 1..=n_passes {
            let grown = cache.grow(&mut kv, pass * rows, |_, _, _| {});
            prop_assert!(grown);
            most = most.max(kv.held(0));
            prop_assert!(most <= most_held(window, pass * rows, rows));
            cache.release_below(&mut kv, pass * rows);
        }
    }
}

#[test]
fn a_window_gives_back_what_lies_wholly_below_it() {
    let group = KvGroup { index: 0 };
    let mut cache = KvCache::new(vec![KvGroupSize { group, window: Some(100), n_blocks: 10 }]);
    let mut kv = SequenceKv::default();
    assert!(cache.grow(&mut kv, 300, |_, first, blocks| assert_eq!((first, blocks.len()), (0, 5))));
    for (len, held) in [(163, 5), (164, 4), (227, 4), (228, 3), (300, 2)] {
        cache.release_below(&mut kv, len);
        assert_eq!(kv.held(0), held, "at {len}");
    }
    assert!(cache.grow(&mut kv, 321, |_, first, blocks| assert_eq!((first, blocks.len()), (5, 1))));
    cache.release(&mut kv);
    assert_eq!(cache.free().collect::<Vec<_>>(), [10]);
}

#[test]
fn a_block_held_twice_or_lost_is_found() {
    let group = KvGroup { index: 0 };
    let mut cache = KvCache::new(vec![KvGroupSize { group, window: None, n_blocks: 3 }]);
    let mut kv = SequenceKv::default();
    assert!(cache.grow(&mut kv, 100, |_, _, _| {}));
    cache.check_integrity([&kv].into_iter()).unwrap();
    assert!(cache.check_integrity([].into_iter()).unwrap_err().contains("held 0 times"));
    assert!(cache.check_integrity([&kv, &kv].into_iter()).unwrap_err().contains("held 2 times"));
    let other = cache.share(&kv, 64).unwrap();
    assert!(cache.shares() && cache.check_integrity([&kv].into_iter()).unwrap_err().contains("2 holders"));
    cache.check_integrity([&kv, &other].into_iter()).unwrap();
}
