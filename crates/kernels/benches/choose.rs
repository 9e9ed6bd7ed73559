//! Time to choose one token from a row of logits, by rule, level and kind of row.
//!
//! ```text
//! cargo bench -p paceline-kernels --bench choose [-- --vocab 262144 --threads 1 --reps 30 --json FILE]
//! ```
//! All cases take turns within one run. A *peaked* row has few likely tokens and a bulk some 20 below them, as trained models have;
//! a *flat* one has every token equally likely, within noise: nothing can be skipped. The limit beside them is one pass over the
//! logits that only finds the largest.
mod arguments;

use std::time::Instant;

use paceline_kernels::isa::{Isa, available_levels};
use paceline_kernels::pool::Team;
use paceline_kernels::select::{
    Choice, Chooser, Distribution, Filters, LogprobsWanted, Penalties, RowRules, Sampling, Seen, TokenCounts,
};

/// A value of -1 to 1.
fn value(i: usize) -> f32 {
    ((i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as f32 / 8_388_608.0 - 1.0
}

fn flat(vocab: usize) -> Vec<f32> {
    (0..vocab).map(|i| value(i) * 0.5).collect()
}

fn peaked(vocab: usize) -> Vec<f32> {
    let mut row: Vec<f32> =
        (0..vocab).map(|i| (value(i) + value(i * 3) + value(i * 7)) * 3.0 - 4.0).collect();
    for i in 0..vocab / 100 {
        row[(i * 97) % vocab] += 8.0 * value(i * 5).abs();
    }
    for (i, lift) in [20.0, 18.5, 18.0, 17.0, 16.0, 15.0, 14.5, 14.0].into_iter().enumerate() {
        row[(i + 1) * vocab / 10] = lift;
    }
    row
}

fn cases() -> Vec<(&'static str, Sampling, Option<LogprobsWanted>)> {
    let draw = |filters: Filters| Sampling { temperature: 1.0, filters, seed: 1, ..Sampling::default() };
    let all = Filters::default();
    let penalties = Penalties { repetition: 1.1, presence: 0.5, frequency: 0.1 };
    let logprobs = |top, of| Some(LogprobsWanted { top, of });
    let greedy = Sampling::default();
    vec![
        ("greedy", greedy.clone(), None),
        ("draw", draw(all), None),
        ("top-k 64", draw(Filters { top_k: 64, ..all }), None),
        ("top-k 64, top-p 0.95", draw(Filters { top_k: 64, top_p: 0.95, ..all }), None),
        ("min-p 0.05", draw(Filters { min_p: 0.05, ..all }), None),
        ("top-p 0.95", draw(Filters { top_p: 0.95, ..all }), None),
        ("typical-p 0.95", draw(Filters { typical_p: 0.95, ..all }), None),
        ("draw, penalties of 2,000 tokens", Sampling { penalties, ..draw(all) }, None),
        ("greedy, logprobs", greedy.clone(), logprobs(0, Distribution::Model)),
        ("greedy, logprobs, top 20", greedy.clone(), logprobs(20, Distribution::Model)),
        ("greedy, sampled logprobs", greedy.clone(), logprobs(0, Distribution::Sampled)),
    ]
}

struct Bench {
    isa: Isa,
    row: &'static str,
    case: &'static str,
    sampling: Sampling,
    logprobs: Option<LogprobsWanted>,
    milliseconds: Vec<f64>,
}

fn main() {
    let (mut vocab, mut threads, mut reps) = (262_144, 1, 30);
    let json =
        arguments::read(&mut [("--vocab", &mut vocab), ("--threads", &mut threads), ("--reps", &mut reps)]);
    let rows = [("peaked", peaked(vocab)), ("flat", flat(vocab))];
    let (mut team, mut chooser) = (Team::new(threads).expect("threads"), Chooser::default());
    chooser.reserve(1, vocab);
    let counts = TokenCounts::of_prompt((0..2000).map(|i| (i * 131 % vocab) as u32));
    let mut benches = Vec::new();
    for isa in available_levels() {
        for (row, _) in &rows {
            for (case, sampling, logprobs) in cases() {
                benches.push(Bench { isa, row, case, sampling, logprobs, milliseconds: Vec::new() });
            }
        }
    }
    let mut logits = vec![0.0; vocab];
    for rep in 0..reps {
        for bench in &mut benches {
            let row = &rows.iter().find(|(name, _)| *name == bench.row).expect("a row of this name").1;
            logits.copy_from_slice(row);
            let mut choice = [Choice::default()];
            let rules = |_| RowRules {
                softcap: Some(30.0),
                seen: Some(Seen { committed: &counts, drafts: &[] }),
                position: rep as u32,
                logprobs: bench.logprobs,
                ..RowRules::new(&bench.sampling)
            };
            let start = Instant::now();
            chooser.choose(bench.isa, &mut team, &mut logits, rules, &mut choice);
            bench.milliseconds.push(start.elapsed().as_secs_f64() * 1e3);
            assert!(!choice[0].fault);
        }
    }
    println!("{vocab} logits, softcap 30, {threads} thread(s), {reps} repetitions: minimum and median in ms");
    let mut figures = Vec::new();
    for bench in &mut benches {
        bench.milliseconds.sort_by(f64::total_cmp);
        let (min, median) = (bench.milliseconds[0], bench.milliseconds[reps / 2]);
        let (level, row, case) = (bench.isa.level().name(), bench.row, bench.case);
        println!("{level:7} {row:7} {case:32} {min:8.3} {median:8.3}");
        let case: Vec<&str> =
            case.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
        figures.push(format!("  \"choose.{}.{row}.ms.{level}\": {median:.4}", case.join("_")));
    }
    arguments::write(json, &format!("{{\n{}\n}}\n", figures.join(",\n")));
}
