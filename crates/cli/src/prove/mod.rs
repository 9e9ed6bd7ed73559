//! `paceline prove`: on this machine, with this model and this drafter, does the text depend on how it is computed?
//!
//! Every text is decoded plainly once, alone, at one level. Then the same texts are run with drafts, together, in chunks, with
//! other threads and at other levels, and every value of every committed row is compared with the first run: the result of
//! each op, the K and V that it stored, the logits, the token. With `--ops` each op is also repeated row by row.

mod budget;
mod cells;
mod lab;
mod report;
mod texts;

use std::io::{self, Write};
use std::rc::Rc;
use std::time::Duration;

use paceline::{Activation, Inexact, Isa, Request, SamplingOptions, Sizes, TokenId};
use paceline_backend::{Backend, Comparison, CpuBackend, Level, OpSite, Place};
use paceline_checkpoint::ModelFolder;

use crate::draft::{DrafterArgs, Drafters};
use crate::failure::Failure;
use crate::loading::MachineArgs;
use crate::made_up::MadeUpArgs;
use crate::model;
use crate::numbers::{self, at_least_one};
use crate::sampling::SamplingArgs;
use crate::scripted::Prompter;
use budget::Budget;
use cells::{Axes, Bench, Cell, Drafts, Who};
use lab::{Job, Lab, Outcome, Watched};
use report::{Drafted, Table, Totals};
use texts::Extent;

/// Most prompt rows of a pass.
const MAX_CHUNK: usize = 512;
/// Prompts of more chunks than this are left out of a run unless everything is asked for.
const MAX_CHUNKS: usize = 256;

/// Proves on this machine that drafts, batches, chunks, threads and CPU levels do not change the text: exit code 0 proved, 1 not
///
/// Beside the given drafter, the plain text with mistakes put in is always tried as drafts.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: model::ModelArg,
    #[command(flatten)]
    draft: DrafterArgs,
    /// Also repeat each op row by row, and compare
    #[arg(long)]
    ops: bool,
    /// Tokens of each text
    #[arg(short, value_name = "N", default_value_t = 24, value_parser = at_least_one::<usize>, allow_hyphen_values = true)]
    n: usize,
    #[command(flatten)]
    machine: MachineArgs,
    /// Start no run after this time; what is left out is counted
    #[arg(long, value_name = "M", default_value_t = 4, value_parser = at_least_one::<usize>, allow_hyphen_values = true)]
    minutes: usize,
    /// Run the whole product of drafts, batches and chunks, and longer prompts
    #[arg(long)]
    thorough: bool,
    /// Add a prompt of this many tokens
    #[arg(long, value_name = "N", value_parser = at_least_one::<usize>, allow_hyphen_values = true)]
    prompt_tokens: Option<usize>,
    #[command(flatten)]
    made_up: MadeUpArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// Runs the subcommand.
pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let folder = args.made_up.open(args.model.model.as_deref())?;
    let drafters = args.draft.open(&args.made_up)?;
    let sampling = sampling(&args.sampling, &folder, args.n)?;
    let options = Options {
        isa: model::isa()?,
        threads: args.machine.threads.get(),
        activation: args.machine.activations.into(),
        inexact: args.machine.weights.inexact(),
        n: args.n,
        limit: Duration::from_secs((args.minutes as u64).saturating_mul(60)),
        extent: Extent { thorough: args.thorough, prompt_tokens: args.prompt_tokens },
        ops: args.ops,
        sampling,
    };
    let mut out = io::stdout().lock();
    let given = !drafters.is_empty();
    with_proof(
        &folder,
        &drafters,
        &options,
        |cpu| cpu,
        &mut out,
        |proof, lengths| {
            let first = proof.begin(lengths)?;
            proof.matrix(first)?;
            if options.ops {
                proof.ops()?;
            }
            proof.conclude(given)
        },
    )?;
    args.machine.weights.say_rounded(drafters.folders().chain([&folder]))
}

/// How tokens are chosen in all runs: by one seed.
fn sampling(args: &SamplingArgs, folder: &ModelFolder, n: usize) -> Result<SamplingOptions, Failure> {
    let mut sampling = args.options(&folder.generation()?);
    if sampling.min_tokens > 0 {
        return Err(Failure::bad_input(
            "--min-tokens changes nothing here: proofs go on after tokens that end a text",
        ));
    }
    let mut asked = Request::new(Vec::new(), n);
    asked.sampling = sampling.clone();
    asked.check_settings().map_err(Failure::bad_input)?;
    args.note_idle(sampling.temperature);
    if sampling.temperature != 0.0 {
        sampling.seed.get_or_insert_with(paceline::draw_seed);
    }
    Ok(sampling)
}

/// What is asked for.
#[derive(Clone, Debug)]
struct Options {
    /// Highest level.
    isa: Isa,
    threads: usize,
    activation: Activation,
    inexact: Inexact,
    n: usize,
    limit: Duration,
    extent: Extent,
    ops: bool,
    sampling: SamplingOptions,
}

/// Prepares a proof of the backend that `wrap` makes, with prompts of some lengths, and does `work` on it.
fn with_proof<B: Backend + 'static, T>(
    folder: &ModelFolder,
    drafters: &Drafters,
    options: &Options,
    wrap: fn(CpuBackend) -> B,
    out: &mut dyn Write,
    work: impl FnOnce(&mut Proof<'_, B>, &[usize]) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let description = paceline_models::describe(folder.config())?;
    let window = description.kv_groups.iter().filter_map(|group| group.window).min();
    let (context, n) = (description.max_positions, options.n);
    if let Some(asked) = options.extent.prompt_tokens.filter(|asked| *asked > context.saturating_sub(n)) {
        return Err(Failure::bad_input(format!(
            "--prompt-tokens is {asked}, expected at most {}: the model has {context} positions, and -n is {n}",
            context.saturating_sub(n)
        )));
    }
    let lengths = texts::lengths(window, context, n, &options.extent);
    let Some(&longest) = lengths.last() else {
        return Err(Failure::bad_input(format!("-n {n} leaves no room for a prompt in {context} positions")));
    };
    let sizes = Sizes {
        context: longest + options.n,
        n_slots: cells::MAX_BATCH,
        prefill_rows: longest.min(MAX_CHUNK),
        max_drafts: cells::MAX_DRAFTS,
        ..Sizes::single(1)
    };
    let lab = Lab {
        folder,
        drafters,
        activation: options.activation,
        inexact: options.inexact,
        sampling: options.sampling.clone(),
        sizes,
        wrap,
        prompter: Prompter::new(),
    };
    let axes = Axes {
        levels: levels(options.isa),
        threads: options.threads,
        chunks: cells::chunks(window, sizes.prefill_rows),
        given: !drafters.is_empty(),
        most_given: drafters.options().map_or(Ok(0), |draft| draft.most_drafts())?,
        thorough: options.extent.thorough,
    };
    let title = title(folder, drafters, &description.architecture, &axes, &options.sampling);
    let mut proof = Proof {
        lab: &lab,
        table: Table::new(out, &title)?,
        benches: cells::plan(&axes),
        prompts: Rc::default(),
        n: options.n,
        window,
        thorough: options.extent.thorough,
        budget: Budget::new(options.limit),
        reference: Reference::default(),
        accepted: Vec::new(),
        totals: Totals::default(),
    };
    work(&mut proof, &lengths)
}

/// The level that everything is compared with, and those below it.
fn levels(best: Isa) -> Vec<Isa> {
    let below = Level::ALL.into_iter().rev().filter(|&level| level < best.level());
    std::iter::once(best).chain(below.filter_map(|level| Isa::new(level).ok())).collect()
}

fn title(
    folder: &ModelFolder,
    drafters: &Drafters,
    architecture: &str,
    axes: &Axes,
    sampling: &SamplingOptions,
) -> String {
    let choice = match sampling.seed {
        Some(seed) => format!("temperature {}, seed {seed}", sampling.temperature),
        None => "greedy".to_owned(),
    };
    let levels: Vec<_> = axes.levels.iter().map(|isa| isa.level().name()).collect();
    let (folder, drafter, levels) = (folder.origin().display(), drafters.names(), levels.join(", "));
    format!(
        "proving {folder} ({architecture}) with {drafter}; levels {levels}; {choice}; compared with plain decoding, one text at a time"
    )
}

/// What everything is compared with.
#[derive(Debug, Default)]
struct Reference {
    outcome: Outcome,
    n_texts: usize,
    n: usize,
}

/// Accepted drafts of a run, by which any other run with the same drafts is judged.
struct Accepted {
    who: Who,
    drafts: Drafts,
    n: usize,
    per_round: Vec<Vec<u32>>,
}

/// What is left to do on a bench: its cells, with the tokens of each that were run.
struct Todo {
    bench: Bench,
    cells: Vec<(Cell, usize)>,
}

/// Tokens of a job.
fn size(job: Job<'_>) -> usize {
    job.n_texts * job.n
}

/// A proof on its way.
struct Proof<'a, B> {
    lab: &'a Lab<'a, B>,
    table: Table<'a>,
    benches: Vec<Bench>,
    /// Ascending by length.
    prompts: Rc<[Vec<TokenId>]>,
    /// Tokens of each text where there is time.
    n: usize,
    window: Option<usize>,
    thorough: bool,
    budget: Budget,
    reference: Reference,
    accepted: Vec<Accepted>,
    totals: Totals,
}

impl<B: Backend + 'static> Proof<'_, B> {
    /// Loads the first bench, makes the prompts and decodes them plainly.
    fn begin(&mut self, lengths: &[usize]) -> Result<Watched, Failure> {
        self.budget.plan(self.benches.iter().map(|bench| bench.cells.len()).sum());
        let (mut on, refused) = self.lab.watched(self.benches[0].isa, self.benches[0].threads)?;
        let tokenizer = self.lab.folder.tokenizer()?;
        let vocab_size = on.engine.description().vocab_size;
        self.prompts = texts::prompts(lengths, tokenizer.as_ref(), vocab_size, &refused)?.into();
        self.probe(&mut on)?;
        self.refer(&mut on)?;
        Ok(on)
    }

    /// Runs all benches, of which the first is loaded, and what was cut short again for as long as there is time left.
    fn matrix(&mut self, first: Watched) -> Result<(), Failure> {
        let mut loaded = Some(first);
        let not_run = |bench: &Bench| Todo {
            bench: bench.clone(),
            cells: bench.cells.iter().map(|&cell| (cell, 0)).collect(),
        };
        let mut todo: Vec<Todo> = self.benches.iter().map(not_run).collect();
        loop {
            self.budget.plan(todo.iter().map(|todo| todo.cells.len()).sum());
            let mut progress = false;
            let mut short = Vec::new();
            for Todo { bench, mut cells } in todo {
                if !self.budget.is_spent() {
                    let mut on = match loaded.take() {
                        Some(on) => on,
                        None => {
                            let (mut on, _) = self.lab.watched(bench.isa, bench.threads)?;
                            self.probe(&mut on)?;
                            on
                        }
                    };
                    for (cell, done) in &mut cells {
                        let before = *done;
                        *done = self.cell(&bench, &mut on, *cell, before)?;
                        progress |= *done > before;
                    }
                    cells.retain(|&(cell, done)| done < size(self.whole(cell, &self.prompts)));
                }
                if !cells.is_empty() {
                    short.push(Todo { bench, cells });
                }
            }
            todo = short;
            if todo.is_empty() || !progress || self.budget.is_spent() {
                self.totals.skipped +=
                    todo.iter().flat_map(|todo| &todo.cells).filter(|(_, done)| *done == 0).count();
                return Ok(());
            }
        }
    }

    /// Learns how fast a bench is.
    fn probe(&mut self, on: &mut Watched) -> Result<(), Failure> {
        self.budget.begin_bench();
        let job = Job { cell: PLAIN, prompts: &self.prompts, n_texts: 1, n: self.n.min(2) };
        self.budget.measure(job, || self.lab.run(on, job, None)).map(|_| ())
    }

    /// Decodes every text plainly.
    fn refer(&mut self, on: &mut Watched) -> Result<(), Failure> {
        let chunk = self.lab.sizes.prefill_rows;
        let whole = Job {
            cell: Cell { chunk, ..PLAIN },
            prompts: &self.prompts,
            n_texts: self.prompts.len(),
            n: self.n,
        };
        loop {
            let job = self.budget.fit_reference(whole);
            self.budget.begin_bench();
            let outcome = self.budget.measure(job, || self.lab.run(on, job, None))?;
            // The first runs of a model are its slowest: now it is known better how much there is time for.
            let again = self.budget.fit_reference(whole);
            if size(again) <= 2 * size(job) {
                self.lab.prompter.set_script(&self.prompts, &outcome.outputs);
                self.reference = Reference { outcome, n_texts: job.n_texts, n: job.n };
                return Ok(());
            }
        }
    }

    /// A cell as far as the reference goes.
    fn whole<'p>(&self, cell: Cell, prompts: &'p [Vec<TokenId>]) -> Job<'p> {
        let n_texts = self.meant_for(cell).min(self.reference.n_texts);
        Job { cell, prompts, n_texts, n: self.reference.n }
    }

    /// Runs one cell, of which so many tokens were run before, and compares it if there is time for more of it. Gives how many tokens
    /// were run at most.
    fn cell(&mut self, bench: &Bench, on: &mut Watched, cell: Cell, before: usize) -> Result<usize, Failure> {
        let prompts = Rc::clone(&self.prompts);
        let job = self.budget.fit(self.whole(cell, &prompts)).filter(|&job| size(job) > before);
        let Some(job) = job else {
            self.budget.ran(1);
            return Ok(before);
        };
        let outcome = self.budget.measure(job, || self.lab.run(on, job, None))?;
        self.budget.ran(1);
        let compared = self.reference.outcome.transcript.compare(&outcome.transcript);
        let wrong = self.first_wrong_text(&outcome);
        self.table.run(bench, cell, job.n, &outcome, &compared)?;
        if let Some((place, site)) = compared.difference {
            let message = self.explain(bench, on, job, place, site)?;
            return Err(Failure::failed(message));
        }
        if let Some(text) = wrong {
            return Err(Failure::failed(format!("text {text} differs, and no value of its rows does")));
        }
        self.repeats(bench, job, &outcome)?;
        self.count(cell, &outcome, &compared);
        self.totals.tokens_run += (size(job) - before) as u64;
        if before == 0 {
            self.totals.tokens_planned += (self.meant_for(cell) * self.n) as u64;
        }
        Ok(size(job))
    }

    fn first_wrong_text(&self, outcome: &Outcome) -> Option<usize> {
        let reference = &self.reference.outcome.outputs;
        outcome.outputs.iter().zip(reference).position(|(found, plain)| !plain.starts_with(found))
    }

    /// Drafts, too, do not depend on the company or on the level: those of a text are accepted alike in every run.
    fn repeats(&mut self, bench: &Bench, job: Job<'_>, outcome: &Outcome) -> Result<(), Failure> {
        let Cell { who, drafts, .. } = job.cell;
        if drafts == Drafts::Changing {
            return Ok(());
        }
        let found = &outcome.accepted_per_round;
        let earlier = self.accepted.iter_mut().find(|a| a.who == who && a.drafts == drafts && a.n == job.n);
        let Some(earlier) = earlier else {
            self.accepted.push(Accepted { who, drafts, n: job.n, per_round: found.clone() });
            return Ok(());
        };
        if let Some(text) = found.iter().zip(&earlier.per_round).position(|(a, b)| a != b) {
            let level = bench.isa.level();
            return Err(Failure::failed(format!(
                "the {who} drafter's drafts for text {text} are not those of an earlier run ({drafts} drafts, level {level}): accepted {:?}, before {:?}",
                found[text], earlier.per_round[text]
            )));
        }
        if found.len() > earlier.per_round.len() {
            earlier.per_round.clone_from(found);
        }
        Ok(())
    }

    fn count(&mut self, cell: Cell, outcome: &Outcome, compared: &Comparison) {
        let totals = &mut self.totals;
        totals.runs += 1;
        totals.rows += compared.rows;
        totals.logit_rows += compared.logit_rows;
        totals.results += compared.results;
        match cell.who {
            Who::Nobody => {}
            Who::Script => totals.script.add(Drafted::new(outcome.drafted, outcome.accepted)),
            Who::Given => {
                totals.given.add(Drafted::new(outcome.drafted, outcome.accepted));
                report::add_each(&mut totals.members, outcome.sources.iter().copied());
            }
        }
        if let Some(window) = self.window {
            let texts = 0..outcome.outputs.len();
            let beyond = texts.map(|text| outcome.transcript.n_rows(text).saturating_sub(window) as u64);
            totals.rows_beyond_window += beyond.sum::<u64>();
        }
    }

    /// The first prompts that a cell is meant for, were there time for them.
    fn meant_for(&self, cell: Cell) -> usize {
        let fits = |prompt: &&Vec<TokenId>| self.thorough || prompt.len() <= MAX_CHUNKS * cell.chunk;
        self.prompts.iter().take_while(fits).count()
    }

    /// Where a value first differs, with the values: both runs are done again to keep them.
    fn explain(
        &self,
        bench: &Bench,
        on: &mut Watched,
        job: Job<'_>,
        place: Place,
        site: OpSite,
    ) -> Result<String, Failure> {
        let Place { text, position, .. } = place;
        let found = self.lab.run(on, job, Some(place))?.values.unwrap_or_default();
        let first = &self.benches[0];
        let (mut plain, _) = self.lab.watched(first.isa, first.threads)?;
        let chunk = self.lab.sizes.prefill_rows;
        let again = Job {
            cell: Cell { chunk, ..PLAIN },
            n_texts: self.reference.n_texts,
            n: self.reference.n,
            ..job
        };
        let expected = self.lab.run(&mut plain, again, Some(place))?.values.unwrap_or_default();
        let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
        let whose = format!(
            "{site}, row at position {position} of text {text} ({} prompt tokens)",
            self.prompts[text].len()
        );
        let Some(column) = found.iter().zip(&expected).position(differs) else {
            return Ok(format!(
                "{whose} differed, and is the same when both runs are repeated: the fault comes and goes"
            ));
        };
        let (a, b) = (found[column], expected[column]);
        let (level, threads) = (bench.isa.level(), bench.threads);
        Ok(format!(
            "{whose}, column {column}: {a:e} ({:#010x}) at level {level} with {threads} threads, {b:e} ({:#010x}) in plain decoding",
            a.to_bits(),
            b.to_bits()
        ))
    }

    /// Repeats each op row by row, at every level.
    fn ops(&mut self) -> Result<(), Failure> {
        let levels = self.benches.iter().filter(|bench| bench.threads == self.benches[0].threads);
        let levels: Vec<Bench> = levels.cloned().collect();
        let prompts = Rc::clone(&self.prompts);
        self.budget.extend(levels.len());
        for bench in levels {
            let (who, drafts) = match self.lab.drafters.is_empty() {
                false => (Who::Given, Drafts::Sure),
                true => (Who::Script, Drafts::Fixed(3)),
            };
            let cell = Cell { who, drafts, batch: 3, chunk: 16 };
            let whole = Job { cell, prompts: &prompts, n_texts: self.reference.n_texts, n: self.reference.n };
            let Some(job) = self.budget.fit_slow(whole) else {
                self.totals.skipped += 1;
                self.budget.ran(1);
                continue;
            };
            let (mut engine, findings) = self.lab.checked(bench.isa, bench.threads)?;
            self.lab.texts(&mut engine, job, &mut |_| match findings.mismatch() {
                None => Ok(()),
                Some(mismatch) => Err(Failure::failed(format!("level {}: {mismatch}", bench.isa.level()))),
            })?;
            self.budget.ran(1);
            self.totals.tokens_planned += (prompts.len() * self.n) as u64;
            self.totals.tokens_run += size(job) as u64;
            self.table.ops(&bench, findings.compared())?;
            if findings.compared() == 0 {
                return Err(Failure::failed("not proved: no op had more than one row"));
            }
        }
        Ok(())
    }

    /// Says what was shown, if anything was.
    fn conclude(&mut self, given: bool) -> Result<(), Failure> {
        let totals = &self.totals;
        let members = self.lab.drafters.each_name();
        self.table.totals(totals, &members, self.budget.elapsed().as_secs())?;
        if totals.skipped > 0 {
            let runs = numbers::counted(totals.skipped as u64, "run");
            self.table.line(&format!("left out for lack of time: {runs}; see --minutes"))?;
        }
        if totals.tokens_run < totals.tokens_planned {
            let (cut, of) = (totals.tokens_planned - totals.tokens_run, totals.tokens_planned);
            let (cut, of) = (numbers::grouped(cut), numbers::grouped(of));
            self.table.line(&format!(
                "inside of the runs, {cut} of {of} tokens were left out for lack of time; see --minutes"
            ))?;
        }
        if self.window.is_some() && totals.rows_beyond_window == 0 {
            self.table
                .line("no text went beyond the first window: sliding attention was not proved there")?;
        }
        let (script, given_counts) = (totals.script, totals.given);
        for (n, what) in [(script.accepted, "accepted"), (script.rejected, "rejected")] {
            if n == 0 {
                return Err(not_tried(&format!("none of the script's drafts was {what}")));
            }
        }
        if given && given_counts.is_nothing() {
            return Err(not_tried("the given drafter drafted nothing"));
        }
        // Some drafters are always right or always wrong here, and the script was both.
        for (n, what) in [(given_counts.accepted, "accepted"), (given_counts.rejected, "rejected")] {
            if given && n == 0 {
                self.table.line(&format!("none of the given drafter's drafts was {what}"))?;
            }
        }
        Ok(())
    }
}

fn not_tried(what: &str) -> Failure {
    Failure::failed(format!(
        "not proved: {what}, so that was not tried; give more tokens with -n or more time with --minutes"
    ))
}

/// One text at a time, without drafts.
const PLAIN: Cell = Cell { who: Who::Nobody, drafts: Drafts::Fixed(0), batch: 1, chunk: MAX_CHUNK };

#[cfg(test)]
mod tests;
