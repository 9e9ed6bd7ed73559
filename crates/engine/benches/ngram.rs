//! What a look-up of the n-gram drafter costs at the end of a long history: where everything matches and where nothing does.
//!
//! `cargo bench -p paceline --bench ngram`. The bound that it is measured against: 20 us at 100,000 tokens. Time is that of the whole
//! draft phase of a round, with the drafts handed to the backend, and of taking in what was emitted it is not.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use paceline::{Request, Sizes, TokenId};
use paceline_testkit::{ToyDrafter, ToyLayer, ToyModel, toy_engine};

const ROUNDS: usize = 2000;

fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

fn main() {
    println!("history  prompt    draft us/round  accepted  drafted");
    for history in [1_000, 10_000, 100_000] {
        for repeats in [true, false] {
            measure(history, repeats);
        }
    }
}

fn measure(history: usize, repeats: bool) {
    // One layer with a short window, so that the toy itself costs little however long its prompt is.
    let layers = vec![ToyLayer::Owns { window: Some(4) }];
    let (vocab_size, habits) = if repeats { (97, 255) } else { (1 << 16, 0) };
    let model = ToyModel { layers, vocab_size, habits, ..ToyModel::default() };
    let context = history + ROUNDS * 6;
    let sizes = Sizes { max_drafts: 5, ..Sizes::single(context) };
    let mut engine = toy_engine(&model, sizes, &ToyDrafter::Ngram, &[]);
    let prompt: Vec<TokenId> = if repeats {
        model.prompt(97, 1).into_iter().cycle().take(history).collect()
    } else {
        model.prompt(history, 1)
    };
    engine.set_clock(now);
    let completion = engine.generate(Request::new(prompt, ROUNDS)).expect("it fits");
    let draft = completion.finished.and_then(|finished| finished.draft).expect("it is drafted for");
    let n_rounds = ROUNDS as u64 - 1 - draft.accepted;
    let per_round = engine.times().draft.as_secs_f64() * 1e6 / n_rounds as f64;
    let kind = if repeats { "repeats" } else { "random" };
    println!("{history:>7}  {kind:<8}  {per_round:>14.2}  {:>8}  {:>7}", draft.accepted, draft.drafted);
}
