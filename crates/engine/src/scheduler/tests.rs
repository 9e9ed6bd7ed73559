//! The scheduler without weights: whole lives of random requests, and each rule by example.

use std::cell::Cell;

use paceline_backend::KvGroup;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;
use crate::kv::KvCache;

#[derive(Clone, Copy, Debug)]
struct Job {
    /// Round before which it arrives.
    arrives: usize,
    prompt: usize,
    output: usize,
    drafts: usize,
}

#[derive(Debug, Default)]
struct Live {
    id: usize,
    len: usize,
    tokens: usize,
    kv: SequenceKv,
}

#[derive(Clone, Debug)]
struct World {
    jobs: Vec<Job>,
    n_slots: usize,
    prefill_rows: usize,
    window: usize,
    /// Blocks beyond what one sequence needs.
    spare: [usize; 2],
    /// Draft `i` of a round is accepted where bit `i` of the next entry is set up to there.
    accepts: Vec<u8>,
}

const MOST_TOKENS: usize = 400;

fn world() -> impl Strategy<Value = World> {
    let job = (0..60_usize, prop_oneof![1..30_usize, 1..200_usize], 1..200_usize, 0..8_usize)
        .prop_map(|(arrives, prompt, output, drafts)| Job { arrives, prompt, output, drafts });
    (
        prop::collection::vec(job, 1..12),
        1..5_usize,
        prop_oneof![Just(1), 2..200_usize],
        1..150_usize,
        [0..8_usize, 0..4_usize],
        prop::collection::vec(any::<u8>(), 1..40),
    )
        .prop_map(|(mut jobs, n_slots, prefill_rows, window, spare, accepts)| {
            jobs.sort_by_key(|job| job.arrives);
            World { jobs, n_slots, prefill_rows, window, spare, accepts }
        })
}

struct Simulation<'a> {
    world: &'a World,
    cache: KvCache,
    running: Vec<Live>,
    waiting: Vec<Live>,
    finished: Vec<usize>,
    preemptions: usize,
}

impl Simulation<'_> {
    fn plan(&self, with_drafts: bool) -> Plan {
        let running: Vec<_> = self.running.iter().map(|live| self.view(live, with_drafts)).collect();
        let waiting: Vec<_> = self.waiting.iter().map(|live| live.tokens).collect();
        let free_blocks: Vec<_> = self.cache.free().collect();
        plan(&State {
            running: &running,
            waiting: &waiting,
            free_slots: self.world.n_slots - self.running.len(),
            groups: self.cache.sizes(),
            free_blocks: &free_blocks,
            prefill_rows: self.world.prefill_rows,
        })
    }

    fn view<'b>(&self, live: &'b Live, with_drafts: bool) -> Running<'b> {
        let job = self.world.jobs[live.id];
        let pending = live.tokens - live.len;
        let left = job.prompt + job.output - live.tokens;
        let drafts = if pending == 1 && with_drafts { job.drafts.min(left - 1) } else { 0 };
        Running { len: live.len, pending, drafts, kv: &live.kv }
    }

    /// What must hold for every plan.
    fn check(&self, plan: &Plan) {
        assert!(!plan.is_empty(), "there is work, and a plan without rows");
        assert_eq!(plan.rows.len(), plan.keep + plan.admit);
        assert!(plan.admit <= self.waiting.len() && plan.keep + plan.admit <= self.world.n_slots);
        let mut prompt_rows = 0;
        for (index, rows) in plan.rows.iter().enumerate() {
            let live =
                if index < plan.keep { &self.running[index] } else { &self.waiting[index - plan.keep] };
            let view = self.view(live, true);
            assert!(rows.n_known <= view.pending && rows.n_drafts <= view.drafts);
            if index >= plan.keep || view.pending > 1 {
                prompt_rows += rows.n_known;
            } else {
                assert_eq!(rows.n_known, 1, "a decoding sequence is in every pass");
            }
        }
        assert!(prompt_rows <= self.world.prefill_rows);
        assert!(plan.rows[0].n_known > 0, "the oldest goes on");
        assert!(self.running.is_empty() || plan.keep > 0, "the oldest is never preempted");
        let plain = self.plan(false);
        assert_eq!(plan.keep, plain.keep, "drafts cost somebody a slot");
    }

    fn apply(&mut self, plan: &Plan, round: usize) {
        for mut live in self.running.split_off(plan.keep) {
            self.cache.release(&mut live.kv);
            live.len = 0;
            self.preemptions += 1;
            let at = self.waiting.partition_point(|other| other.id < live.id);
            self.waiting.insert(at, live);
        }
        self.running.extend(self.waiting.drain(..plan.admit));
        for (index, (live, rows)) in self.running.iter_mut().zip(&plan.rows).enumerate() {
            if rows.n_known == 0 {
                continue;
            }
            let end = live.len + rows.n_known + rows.n_drafts;
            assert!(self.cache.grow(&mut live.kv, end, |_, _, _| {}), "planned rows have blocks");
            let chooses = live.len + rows.n_known == live.tokens;
            let accepts = self.world.accepts[(round + index) % self.world.accepts.len()];
            let accepted = (accepts.trailing_ones() as usize).min(rows.n_drafts);
            live.len += rows.n_known + accepted;
            live.tokens += if chooses { accepted + 1 } else { 0 };
            self.cache.release_below(&mut live.kv, live.len);
        }
        self.running.sort_by_key(|live| live.id);
        let jobs = &self.world.jobs;
        let done = |live: &Live| live.tokens == jobs[live.id].prompt + jobs[live.id].output;
        for mut live in self.running.extract_if(.., |live| done(live)) {
            self.cache.release(&mut live.kv);
            self.finished.push(live.id);
        }
        self.cache.check_integrity(self.running.iter().chain(&self.waiting).map(|live| &live.kv)).unwrap();
    }
}

/// Runs all jobs to their end and says how many preemptions there were.
fn simulate(world: &World) -> usize {
    let size = |index: u32, window| {
        let n_blocks = most_held(window, MOST_TOKENS, 1) + world.spare[index as usize];
        KvGroupSize { group: KvGroup { index }, window, n_blocks }
    };
    let cache = KvCache::new(vec![size(0, None), size(1, Some(world.window))]);
    let (running, waiting, finished) = (vec![], vec![], vec![]);
    let mut simulation = Simulation { world, cache, running, waiting, finished, preemptions: 0 };
    let mut arrived = 0;
    let mut round = 0;
    // Each round commits a row of the oldest sequence, which may have to read all its tokens again only after it was
    // not the oldest.
    let rounds_enough = 60 + world.jobs.len() * 2 * MOST_TOKENS;
    while simulation.finished.len() < world.jobs.len() {
        assert!(round < rounds_enough, "no end after {round} rounds");
        while world.jobs.get(arrived).is_some_and(|job| job.arrives <= round) {
            let tokens = world.jobs[arrived].prompt;
            simulation.waiting.push(Live { id: arrived, tokens, ..Live::default() });
            arrived += 1;
        }
        if !simulation.running.is_empty() || !simulation.waiting.is_empty() {
            let plan = simulation.plan(true);
            simulation.check(&plan);
            simulation.apply(&plan, round);
        }
        round += 1;
    }
    assert_eq!(
        simulation.cache.free().collect::<Vec<_>>(),
        simulation.cache.sizes().iter().map(|s| s.n_blocks).collect::<Vec<_>>()
    );
    simulation.preemptions
}

#[test]
fn every_request_comes_to_its_end() {
    let preemptions = Cell::new(0);
    let lives = |world| {
        preemptions.set(preemptions.get() + simulate(&world));
        Ok(())
    };
    TestRunner::new(ProptestConfig::with_cases(200)).run(&world(), lives).unwrap();
    assert!(preemptions.get() > 30, "memory was short only {} times", preemptions.get());
}

/// `(committed, pending, drafts)` of a running sequence.
fn running() -> impl Strategy<Value = (usize, usize, usize)> {
    let len =
        prop_oneof![0..400_usize, (0..6_usize).prop_map(|n| n * 64), (1..6_usize).prop_map(|n| n * 64 - 1)];
    (len, prop_oneof![3 => Just(1), 1 => 2..300_usize], 0..70_usize)
        .prop_map(|(len, pending, drafts)| (len, pending, if pending == 1 { drafts } else { 0 }))
}

proptest! {
    #[test]
    fn a_plan_of_any_state_finds_its_blocks(
        sequences in prop::collection::vec(running(), 1..6),
        waiting in prop::collection::vec(1..400_usize, 0..4),
        window in 1..150_usize,
        spare in [0..6_usize, 0..6_usize],
        prefill_rows in 1..300_usize,
    ) {
        let group = |index: u32, window| KvGroupSize { group: KvGroup { index }, window, n_blocks: 100 };
        let mut sizes = vec![group(0, None), group(1, Some(window))];
        let mut kv: Vec<_> = sequences.iter().map(|_| SequenceKv::default()).collect();
        let mut cache = KvCache::new(sizes.clone());
        for (kv, &(len, ..)) in kv.iter_mut().zip(&sequences) {
            let grown = cache.grow(kv, len, |_, _, _| {});
            prop_assert!(grown);
            cache.release_below(kv, len);
        }
        // A cache that has just so many blocks, and enough for the oldest alone.
        for (group, size) in sizes.iter_mut().enumerate() {
            let held: usize = kv.iter().map(|kv| kv.held(group)).sum();
            let oldest = kv[0].held(group) + kv[0].blocks_needed(group, sequences[0].0 + 1);
            size.n_blocks = (held + spare[group]).max(oldest);
        }
        let held = |group: usize| -> usize { kv.iter().map(|kv| kv.held(group)).sum() };
        let free_blocks: Vec<_> = sizes.iter().enumerate().map(|(i, size)| size.n_blocks - held(i)).collect();
        let running: Vec<_> = sequences
            .iter()
            .zip(&kv)
            .map(|(&(len, pending, drafts), kv)| Running { len, pending, drafts, kv })
            .collect();
        let state = State {
            running: &running,
            waiting: &waiting,
            free_slots: 3,
            groups: &sizes,
            free_blocks: &free_blocks,
            prefill_rows,
        };
        let plan = plan(&state);
        prop_assert!(plan.keep > 0 && plan.rows[0].n_known > 0, "the oldest goes on");
        for (group, &free) in free_blocks.iter().enumerate() {
            let given_back: usize = kv[plan.keep..].iter().map(|kv| kv.held(group)).sum();
            let kept = running[..plan.keep].iter().zip(&plan.rows);
            let grown = kept.map(|(sequence, rows)| {
                sequence.kv.blocks_needed(group, sequence.len + rows.n_known + rows.n_drafts)
            });
            let admitted = plan.rows[plan.keep..].iter().map(|rows| rows.n_known.div_ceil(KV_BLOCK));
            let taken: usize = grown.chain(admitted).sum();
            prop_assert!(taken <= free + given_back, "group {}: {} of {}", group, taken, free + given_back);
        }
    }
}

/// Sequences of `tokens` committed tokens each, in a cache of one full group with `n_blocks` blocks.
fn decoding(tokens: &[usize], n_blocks: usize) -> (KvCache, Vec<SequenceKv>) {
    let group = KvGroup { index: 0 };
    let mut cache = KvCache::new(vec![KvGroupSize { group, window: None, n_blocks }]);
    let grow = |&end: &usize| {
        let mut kv = SequenceKv::default();
        assert!(cache.grow(&mut kv, end, |_, _, _| {}));
        kv
    };
    let sequences = tokens.iter().map(grow).collect();
    (cache, sequences)
}

fn plan_of(cache: &KvCache, running: &[Running<'_>], waiting: &[usize], prefill_rows: usize) -> Plan {
    let free_blocks: Vec<_> = cache.free().collect();
    plan(&State {
        running,
        waiting,
        free_slots: 4,
        groups: cache.sizes(),
        free_blocks: &free_blocks,
        prefill_rows,
    })
}

#[test]
fn short_of_blocks_drafts_go_first_and_then_the_youngest() {
    // Two sequences at the end of a block: each needs a block to go on.
    for (n_blocks, keep, rows) in [(4, 2, vec![(1, 5), (1, 5)]), (3, 1, vec![(1, 5)])] {
        let (cache, kv) = decoding(&[64, 64], n_blocks);
        let view = |kv| Running { len: 64, pending: 1, drafts: 5, kv };
        let running: Vec<_> = kv.iter().map(view).collect();
        let plan = plan_of(&cache, &running, &[], 10);
        assert_eq!(plan.keep, keep, "{n_blocks} blocks");
        let found: Vec<_> = plan.rows.iter().map(|rows| (rows.n_known, rows.n_drafts)).collect();
        assert_eq!(found, rows, "{n_blocks} blocks");
    }
    // Both have their block, drafts would need another: the first gets it, the second has room for two more rows.
    let (cache, kv) = decoding(&[61, 61], 3);
    let running: Vec<_> = kv.iter().map(|kv| Running { len: 61, pending: 1, drafts: 5, kv }).collect();
    let plan = plan_of(&cache, &running, &[], 10);
    let found: Vec<_> = plan.rows.iter().map(|rows| (rows.n_known, rows.n_drafts)).collect();
    assert_eq!((plan.keep, found), (2, vec![(1, 5), (1, 2)]));
}

#[test]
fn prompts_share_the_budget_in_order_and_nobody_overtakes() {
    let (cache, kv) = decoding(&[64, 10], 100);
    let running = [
        Running { len: 64, pending: 1, drafts: 0, kv: &kv[0] },
        Running { len: 10, pending: 30, drafts: 0, kv: &kv[1] },
    ];
    let plan = plan_of(&cache, &running, &[50, 7], 40);
    let known: Vec<_> = plan.rows.iter().map(|rows| rows.n_known).collect();
    assert_eq!((plan.admit, known), (1, vec![1, 30, 10]));
    // A first in line that does not fit yet keeps the place before a smaller one.
    let plan = plan_of(&cache, &running[..1], &[64 * 99, 7], 40);
    assert_eq!(plan.admit, 0);
    let plan = plan_of(&cache, &running[..1], &[7, 64 * 99], 40);
    assert_eq!(plan.admit, 1);
}

#[test]
fn memory_for_one_makes_the_others_wait_or_be_preempted() {
    let job = |arrives, prompt| Job { arrives, prompt, output: 99, drafts: 3 };
    let world = World {
        jobs: vec![job(0, 20), job(0, 30), job(1, 290), job(2, 5)],
        n_slots: 4,
        prefill_rows: 64,
        window: 70,
        spare: [0, 0],
        accepts: vec![0, 3, 1],
    };
    assert!(simulate(&world) > 0, "memory was short and nobody was preempted");
}
