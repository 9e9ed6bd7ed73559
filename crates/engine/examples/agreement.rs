//! How often drafts agree at some temperatures, beside what the two distributions allow.
//!
//! ```text
//! cargo run --release -p paceline --example agreement [-- MODEL ASSISTANT]
//! ```
//! For every draft that a round got as far as, with total variation `d` between what the assistant drew from and what the target
//! draws from at that place: rejection sampling accepts it with probability `1 - d`, which no scheme can better; drafts drawn with the
//! target's noise agree with probability `(1 - d) / (1 + d)` at least. Both are averaged over the same places at which the real
//! drafts are counted, and chained into tokens a round. Assistants with clustered heads only.

use std::error::Error;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use paceline::drafters::{AssistantConventions, DraftBlock};
use paceline::{
    Activation, DraftOptions, DraftSource, Engine, Inexact, Isa, LoadOptions, ModelFolder, Request, Sizes,
    TokenId, load_parts,
};
use paceline_backend::{Backend, Buf, Mark, Observed, Observer, Op, Rows};

const DRAFTS: usize = 4;
const TOKENS: usize = 96;
const SEEDS: u64 = 12;
const PROMPTS: [&str; 4] =
    ["Once upon a time", "The little dog", "One day, a girl named Lily", "Tom had a red ball."];

/// Sums over the drafts of one place in their rounds that were got as far as.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    reached: u64,
    accepted: u64,
    /// Sum of `1 - d`.
    rejection: f64,
    /// Sum of `(1 - d) / (1 + d)`.
    bound: f64,
}

#[derive(Debug, Default)]
struct Tally {
    temperature: f32,
    places: [Place; DRAFTS],
}

/// Sees the logits of both models.
struct Watch {
    tally: Arc<Mutex<Tally>>,
    /// Token ids in the order of the assistant's clusters.
    order: Vec<usize>,
    cluster_size: usize,
    vocab_size: usize,
    /// By draft step: what the draft was drawn from.
    drafted: [Vec<f64>; DRAFTS],
}

impl Observer for Watch {
    fn ran(&mut self, backend: &mut dyn Backend, op: &Op, rows: Rows) {
        match *op {
            Op::ChooseClustered { clusters, logits, step, .. } => {
                let (chosen, values) = (backend.peek(clusters, rows.start), backend.peek(logits, rows.start));
                let mut row = vec![f32::NEG_INFINITY; self.vocab_size];
                for (&cluster, values) in chosen.iter().zip(values.chunks(self.cluster_size)) {
                    let ids = &self.order[cluster as usize * self.cluster_size..];
                    ids.iter().zip(values).for_each(|(&id, &z)| row[id] = z);
                }
                let temperature = self.tally.lock().expect("nobody panics with it").temperature;
                self.drafted[step as usize] = softmax(&row, temperature);
            }
            Op::Choose { logits, first_row, .. } => self.verify(backend, rows, logits, first_row),
            _ => {}
        }
    }

    fn marked(&mut self, _: &dyn Backend, _: Mark, _: Buf, _: Rows) {}
}

impl Watch {
    fn verify(&mut self, backend: &dyn Backend, rows: Rows, logits: Buf, first_row: usize) {
        let mut tally = self.tally.lock().expect("nobody panics with it");
        for index in 0..rows.len {
            let (slot, position) = backend.peek_row(rows, index);
            // Behind the last draft nothing was guessed.
            let Some(&draft) = backend.peek_tokens(slot).get(position + 1) else { return };
            let step = rows.start + index;
            let target = softmax(&backend.peek(logits, step - first_row), tally.temperature);
            let common: f64 = self.drafted[step].iter().zip(&target).map(|(q, p)| q.min(*p)).sum();
            let accepted = backend.peek_chosen(step) == Some(draft);
            let place = &mut tally.places[step];
            place.reached += 1;
            place.accepted += u64::from(accepted);
            place.rejection += common;
            place.bound += common / (2.0 - common);
            if !accepted {
                return;
            }
        }
    }
}

/// Probabilities at a temperature; at 0 all of it is on the largest, the lowest id of equals.
fn softmax(logits: &[f32], temperature: f32) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if temperature == 0.0 {
        let best = logits.iter().position(|&z| z == largest);
        return (0..logits.len()).map(|id| f64::from(u8::from(Some(id) == best))).collect();
    }
    let weights: Vec<f64> = logits.iter().map(|&z| f64::from((z - largest) / temperature).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

/// Tokens of a round whose drafts are accepted with these probabilities, one after the other.
fn tokens_per_round(places: &[Place], of: impl Fn(&Place) -> f64) -> f64 {
    let mut chance = 1.0;
    1.0 + places
        .iter()
        .map(|place| {
            chance *= of(place) / place.reached.max(1) as f64;
            chance
        })
        .sum::<f64>()
}

fn main() -> Result<(), Box<dyn Error>> {
    let assets = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets"));
    let mut paths = std::env::args_os().skip(1).map(PathBuf::from);
    let model = ModelFolder::open(&paths.next().unwrap_or(assets.join("tiny-gemma4")))?;
    let assistant = ModelFolder::open(&paths.next().unwrap_or(assets.join("tiny-gemma4-assistant")))?;
    let tokenizer = model.tokenizer()?.ok_or("the model has no tokenizer")?;
    let vocab_size = paceline_models::describe(model.config())?.vocab_size;
    let tally = Arc::new(Mutex::new(Tally::default()));
    let order = assistant
        .tensors()?
        .into_text()?
        .take_flat("masked_embedding.token_ordering", vocab_size)?
        .to_i64()?;
    let n_clusters = assistant.config().top().required_usize("num_centroids", 1..=vocab_size)?;
    let watch = Watch {
        tally: Arc::clone(&tally),
        order: order.into_iter().map(usize::try_from).collect::<Result<_, _>>()?,
        cluster_size: vocab_size / n_clusters,
        vocab_size,
        drafted: Default::default(),
    };
    let options = LoadOptions {
        isa: Isa::best().0,
        threads: 2,
        activation: Activation::Bf16,
        sizes: Sizes::single(256),
        inexact: Inexact::Refuse,
        draft: Some(DraftOptions {
            sources: vec![DraftSource::Checkpoint(&assistant)],
            tokens_per_round: Some(DRAFTS),
            confidence: 0.0,
            assistant: AssistantConventions::default(),
            block: DraftBlock::default(),
        }),
        tokenizer: None,
        progress: &mut |_, _| {},
    };
    let mut engine = Engine::new(load_parts(&model, options, |cpu| Box::new(Observed::new(cpu, watch)))?)?;
    println!(
        "{DRAFTS} drafts a round; rejection sampling and the bound by the distributions of the same places"
    );
    println!("temperature  drafts reached  accepted  1-d    (1-d)/(1+d)  tokens/round  rejection  bound");
    for temperature in [0.0, 0.3, 0.7, 1.0] {
        *tally.lock().map_err(|_| "poisoned")? = Tally { temperature, ..Tally::default() };
        let (mut rounds, mut emitted) = (0, 0);
        for (prompt, seed) in PROMPTS.iter().flat_map(|prompt| (0..SEEDS).map(move |seed| (prompt, seed))) {
            let mut request =
                Request::new(tokenizer.encode(prompt)?.into_iter().map(TokenId).collect(), TOKENS);
            (request.sampling.temperature, request.sampling.seed, request.ignore_eos) =
                (temperature, Some(seed), true);
            let finished = engine.generate(request)?.finished.ok_or("it ended")?;
            let draft = finished.draft.ok_or("there is a drafter")?;
            (rounds, emitted) = (rounds + draft.rounds, emitted + draft.emitted);
        }
        let places = tally.lock().map_err(|_| "poisoned")?.places;
        let sum = |of: fn(&Place) -> f64| places.iter().map(of).sum::<f64>();
        let reached = sum(|place| place.reached as f64);
        println!(
            "{temperature:11}  {reached:14}  {:8.3}  {:.3}  {:11.3}  {:12.3}  {:9.3}  {:.3}",
            sum(|place| place.accepted as f64) / reached,
            sum(|place| place.rejection) / reached,
            sum(|place| place.bound) / reached,
            emitted as f64 / rounds as f64,
            tokens_per_round(&places, |place| place.rejection),
            tokens_per_round(&places, |place| place.bound),
        );
    }
    Ok(())
}
