//! Loads the model once for each level and number of threads, and runs texts on it.

use std::collections::{HashMap, VecDeque};

use paceline::{
    Activation, Completion, Engine, EngineParts, Inexact, Isa, LoadOptions, Request, RequestId,
    SamplingOptions, Sizes, TokenId,
};
use paceline_backend::{Backend, Checked, CpuBackend, Findings, Place, Transcript, Witness, WitnessStand};
use paceline_checkpoint::ModelFolder;

use super::cells::{CHANGING, Cell, Drafts, MAX_DRAFTS, Who};
use super::report::{self, Drafted};
use crate::draft::Drafters;
use crate::failure::Failure;
use crate::sampling::under_own_name;
use crate::scripted::{Plan, Prompter, ScriptedDrafter};

/// Steps after which the next text joins, where there is room.
const STAGGER: usize = 2;

/// What is proved, and how to load it.
pub(super) struct Lab<'a, B> {
    pub(super) folder: &'a ModelFolder,
    pub(super) drafters: &'a Drafters,
    pub(super) activation: Activation,
    pub(super) inexact: Inexact,
    pub(super) sampling: SamplingOptions,
    pub(super) sizes: Sizes,
    /// The backend to prove, from the one that computes.
    pub(super) wrap: fn(CpuBackend) -> B,
    pub(super) prompter: Prompter,
}

/// An engine that is watched.
pub(super) struct Watched {
    pub(super) engine: Engine,
    pub(super) stand: WitnessStand,
}

/// Texts to run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job<'a> {
    pub(super) cell: Cell,
    pub(super) prompts: &'a [Vec<TokenId>],
    /// The first so many of them.
    pub(super) n_texts: usize,
    /// Tokens of each.
    pub(super) n: usize,
}

/// What came of a job.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Tokens of each text.
    pub(super) outputs: Vec<Vec<TokenId>>,
    /// Accepted drafts of each round of each text.
    pub(super) accepted_per_round: Vec<Vec<u32>>,
    pub(super) drafted: u64,
    pub(super) accepted: u64,
    /// Drafts of each source: the drafter itself, or the members of a chain.
    pub(super) sources: Vec<Drafted>,
    pub(super) transcript: Transcript,
    /// Values at the place that was asked for.
    pub(super) values: Option<Vec<f32>>,
}

impl<B: Backend + 'static> Lab<'_, B> {
    fn parts(
        &self,
        isa: Isa,
        threads: usize,
        watch: impl FnOnce(B) -> Box<dyn Backend>,
    ) -> Result<EngineParts, Failure> {
        let options = LoadOptions {
            isa,
            threads,
            activation: self.activation,
            sizes: self.sizes,
            inexact: self.inexact,
            draft: self.drafters.options(),
            tokenizer: None,
            progress: &mut |_layers, _of| {},
        };
        let mut parts = paceline::load_parts(self.folder, options, |cpu| watch((self.wrap)(cpu)))?;
        let vocab_size = parts.target.description().vocab_size;
        let drafter = ScriptedDrafter::new(parts.drafter.take(), self.prompter.clone(), vocab_size);
        parts.drafter = Some(Box::new(drafter));
        Ok(parts)
    }

    /// Loads the model; every value of a committed row is written down. Also gives the tokens that no prompt may hold.
    pub(super) fn watched(&self, isa: Isa, threads: usize) -> Result<(Watched, Vec<TokenId>), Failure> {
        let stand = WitnessStand::default();
        let other = stand.clone();
        let parts = self.parts(isa, threads, |backend| Box::new(Witness::new(backend, other)))?;
        let refused = parts.target.refused_tokens().to_vec();
        Ok((Watched { engine: Engine::new(parts)?, stand }, refused))
    }

    /// Loads the model; every op is repeated row by row.
    pub(super) fn checked(&self, isa: Isa, threads: usize) -> Result<(Engine, Findings), Failure> {
        let findings = Findings::default();
        let other = findings.clone();
        let parts = self.parts(isa, threads, |backend| Box::new(Checked::new(backend, other)))?;
        Ok((Engine::new(parts)?, findings))
    }

    /// Runs the texts of a job on a watched engine.
    pub(super) fn run(
        &self,
        on: &mut Watched,
        job: Job<'_>,
        want: Option<Place>,
    ) -> Result<Outcome, Failure> {
        on.stand.start(job.prompts);
        if let Some(place) = want {
            on.stand.want(place);
        }
        let mut outcome = self.texts(&mut on.engine, job, &mut |_| Ok(()))?;
        (outcome.transcript, outcome.values) = on.stand.finish();
        Ok(outcome)
    }

    /// Runs the texts of a job; `after_step` may end it.
    pub(super) fn texts(
        &self,
        engine: &mut Engine,
        job: Job<'_>,
        after_step: &mut dyn FnMut(&Engine) -> Result<(), Failure>,
    ) -> Result<Outcome, Failure> {
        let Job { cell, prompts, n_texts, n } = job;
        let plan = match cell.who {
            Who::Nobody => Plan::Nobody,
            Who::Script => Plan::Mistakes,
            Who::Given => Plan::Given,
        };
        let limits = if cell.drafts == Drafts::Changing { &CHANGING[..] } else { &[] };
        self.prompter.set(plan, limits);
        engine.set_prefill_rows(cell.chunk);
        let mut waiting: VecDeque<usize> = (0..n_texts).collect();
        let mut running: HashMap<RequestId, usize> = HashMap::new();
        let mut completions = vec![Completion::default(); n_texts];
        let mut events = Vec::new();
        let mut since_last = STAGGER;
        while !waiting.is_empty() || !running.is_empty() {
            since_last += 1;
            let room = running.len() < cell.batch && (since_last > STAGGER || running.is_empty());
            if let Some(text) = waiting.pop_front_if(|_| room) {
                let request = request(cell, &prompts[text], n, &self.sampling);
                let refused = |why| Failure::failed(under_own_name(why));
                running.insert(engine.submit(request).map_err(refused)?, text);
                since_last = 0;
            }
            engine.step(&mut events).map_err(Failure::failed)?;
            for (id, event) in events.drain(..) {
                let text = running[&id];
                let failed = |why| Failure::failed(format!("text {text}: {why}"));
                completions[text].add(event).map_err(failed)?;
                if completions[text].finished.is_some() {
                    running.remove(&id);
                }
            }
            after_step(engine)?;
        }
        outcome(cell, completions)
    }
}

fn request(cell: Cell, prompt: &[TokenId], n: usize, sampling: &SamplingOptions) -> Request {
    let mut request = Request::new(prompt.to_vec(), n);
    request.ignore_eos = true;
    request.sampling = sampling.clone();
    request.draft.enabled = cell.who != Who::Nobody;
    request.draft.tokens_per_round = match cell.drafts {
        Drafts::Fixed(k) => Some(k),
        Drafts::Changing | Drafts::Sure => Some(MAX_DRAFTS),
    };
    // Texts run together with and without a bar, which is not the same for all.
    let bars = [0.0, 0.2, 0.6];
    request.draft.confidence = (cell.drafts == Drafts::Sure).then(|| bars[prompt.len() % bars.len()]);
    request
}

fn outcome(cell: Cell, completions: Vec<Completion>) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::default();
    for completion in completions {
        outcome.outputs.push(completion.token_ids);
        let Some(draft) = completion.finished.and_then(|finished| finished.draft) else { continue };
        if let Some(reason) = draft.inactive_reason {
            return Err(Failure::failed(format!("drafting stopped ({} drafts): {reason}", cell.drafts)));
        }
        outcome.drafted += draft.drafted;
        outcome.accepted += draft.accepted;
        outcome.accepted_per_round.push(draft.accepted_per_round);
        let sources = draft.sources.iter().map(|source| Drafted::new(source.drafted, source.accepted));
        report::add_each(&mut outcome.sources, sources);
    }
    Ok(outcome)
}
