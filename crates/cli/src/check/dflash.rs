//! Recomputes what an oracle folder recorded of a DFlash drafter: rounds behind prompts of its target, and of some rounds every
//! value.

use std::collections::BTreeMap;
use std::path::Path;

use paceline::Isa;
use paceline_backend::{Backend, DraftFaults, Mark, Op, Pass, RowSet, Rows, TokenId};
use paceline_checkpoint::{Inexact, ModelFolder};
use paceline_models::{DFlash, DFlashConfig, DFlashRoom};
use serde::Deserialize;

use super::compare::{self, Comparison, LOGITS, VALUES};
use super::drafter::{ROUNDS, target_folder};
use super::findings::Findings;
use super::machine::{Drafting, Machine, Room, SLOT};
use super::oracle::{Oracle, Values};
use crate::failure::Failure;
use crate::text_file;

/// Most rounds of a prompt, and most drafts of a round, that are recomputed.
const MOST: usize = 1 << 10;

/// What is needed of `reference_rounds.json`.
#[derive(Debug, Deserialize)]
struct Recorded {
    /// Tokens of each text.
    tokens: usize,
    /// By prompt and drafts a round.
    rounds: BTreeMap<String, BTreeMap<String, Vec<Round>>>,
}

/// One round.
#[derive(Debug, Default, Deserialize)]
struct Round {
    committed: i64,
    bonus: i64,
    drafts: Vec<i64>,
    accepted: i64,
    emitted: Vec<i64>,
}

impl Round {
    /// As a list of ids, in which no two rounds look alike.
    fn ids(&self) -> Vec<i64> {
        let counts = [self.committed, self.bonus, self.accepted, self.drafts.len() as i64];
        [&counts[..], &self.drafts, &self.emitted].concat()
    }
}

/// Compares every recorded tensor and every recorded round of a DFlash drafter's folder.
pub(crate) fn check(
    folder: &ModelFolder,
    target: Option<&Path>,
    isa: Isa,
    threads: usize,
) -> Result<Vec<Comparison>, Failure> {
    let oracle = Oracle::open(folder.origin())?;
    let file = folder.origin().join(ROUNDS);
    let unusable = |what: String| Failure::bad_input(format!("{}: {what}", file.display()));
    let recorded: Recorded = serde_json::from_str(&text_file::read(&file)?)
        .map_err(|error| unusable(format!("not usable: {error}")))?;
    if !(1..=MOST).contains(&recorded.tokens) {
        return Err(unusable(format!("tokens is {}, expected 1 to {MOST}", recorded.tokens)));
    }
    let target = ModelFolder::open(&target_folder(folder.origin(), target)?)?;
    let description = paceline_models::describe(target.config())?;
    let config = DFlashConfig::parse(folder.config())?;
    let tap_layers = config.fit(folder.config(), &description)?;
    let target_oracle = Oracle::open(target.origin())?;
    let mut prompts = Vec::new();
    for name in recorded.rounds.keys() {
        prompts.push(target_oracle.prompt_ids(&format!("{name}.input_ids"), description.vocab_size)?);
    }
    let n_prompt = prompts.iter().map(Vec::len).max().unwrap_or(1);
    let n_tokens = n_prompt + recorded.tokens + config.block_size;
    let room = Room { isa, threads, n_prompt: n_prompt.max(config.block_size), n_tokens };
    let drafting = Drafting { tap_layers: &tap_layers, n_groups: config.kv_groups().len() };
    let (mut machine, network) = Machine::load(&target, room, drafting, |backend, target, limits| {
        let (raw, tensors) = (folder.config(), folder.tensors()?);
        let room = DFlashRoom {
            tapped_rows: limits.max_rows,
            block_rows: config.block_size,
            logit_rows: limits.logit_rows,
            kv_blocks: &limits.drafter_kv_blocks,
        };
        Ok(DFlash::bind(raw, tensors, backend, target.exports(), room, Inexact::Refuse)?)
    })?;
    machine.groups.extend(network.kv_groups().iter().map(|owned| owned.group));
    let mut check = Check { machine, network, findings: Findings::new(oracle) };
    for ((name, by_count), prompt) in recorded.rounds.iter().zip(&prompts) {
        for (count, rounds) in by_count {
            let k = count.parse().ok().filter(|k| (1..config.block_size).contains(k));
            let most = config.block_size - 1;
            let k = k.ok_or_else(|| unusable(format!("`{count}` drafts of {name}, expected 1 to {most}")))?;
            let found = check.text(prompt, &format!("{name}.k{k}."), k, recorded.tokens)?;
            let [found, recorded] =
                [&found, rounds].map(|rounds| rounds.iter().flat_map(Round::ids).collect());
            let (found, recorded): (Vec<i64>, Vec<i64>) = (found, recorded);
            check.findings.add(compare::ids(&format!("{name}.k{k}.rounds"), &found, &recorded));
        }
    }
    check.findings.finish(&[])
}

struct Check {
    machine: Machine,
    network: DFlash,
    findings: Findings,
}

impl Check {
    /// Generates `n_tokens` behind a prompt with up to `k` drafts a round, and compares the values of rounds whose names begin with
    /// `prefix`.
    fn text(
        &mut self,
        prompt: &[u32],
        prefix: &str,
        k: usize,
        n_tokens: usize,
    ) -> Result<Vec<Round>, Failure> {
        let tokens = prompt.iter().map(|&id| TokenId(id)).collect();
        self.machine.open(tokens, prompt.len() + n_tokens);
        let mut n_committed = prompt.len();
        let first = self.verify(prompt.len(), 0)?;
        let mut bonus = last(&first)?;
        let mut context = self.context(prompt.len())?;
        let (mut n_emitted, mut rounds) = (1, Vec::new());
        while n_emitted < n_tokens {
            let prefix = format!("{prefix}r{}.", rounds.len());
            let k = k.min(n_tokens - n_emitted - 1);
            let names = self.findings.names(&prefix);
            let mut round = Round { committed: n_committed as i64, bonus, ..Round::default() };
            if k > 0 {
                self.compare_context(&prefix, &names, n_committed, &context)?;
                round.drafts = self.block(&prefix, &names, k)?;
            }
            let emitted = self.verify(1, k)?;
            let chosen = |row| self.machine.backend.peek_chosen(row).map_or(-1, |token| i64::from(token.0));
            let chosen: Vec<i64> = (0..=k).map(chosen).collect();
            if names.iter().any(|name| name.ends_with(".verify_argmax")) {
                self.findings.compare(&format!("{prefix}verify_argmax"), Values::Ids(chosen))?;
            }
            bonus = last(&emitted)?;
            context = self.context(emitted.len())?;
            n_committed += emitted.len();
            n_emitted += emitted.len();
            round.accepted = emitted.len() as i64 - 1;
            round.emitted = emitted;
            rounds.push(round);
        }
        self.machine.close();
        Ok(rounds)
    }

    /// A pass of the target over known tokens and drafts, with its taps taken in; what it emits.
    fn verify(&mut self, n_known: usize, n_drafts: usize) -> Result<Vec<i64>, Failure> {
        self.machine.backend.observer_mut().clear();
        let mut pass = Pass::builder();
        pass.target(SLOT, n_known, n_drafts, true, true);
        let pass = pass.build();
        self.machine.backend.begin(&pass);
        self.machine.target.forward(&mut self.machine.backend, &pass);
        self.network.take_in(&mut self.machine.backend, &pass);
        self.machine.backend.run(&Op::Commit, Rows { set: RowSet::All, start: 0, len: 0 });
        let report = self.machine.backend.collect(SLOT);
        if report.fault || report.draft_faults != DraftFaults::default() {
            return Err(Failure::failed("a value that is not finite came up; are the weights damaged?"));
        }
        Ok(report.emitted.iter().map(|token| i64::from(token.0)).collect())
    }

    /// Taps and context of the first `n_rows` rows of the pass: those that were committed.
    fn context(&self, n_rows: usize) -> Result<[Vec<Vec<f32>>; 2], Failure> {
        let rows = |mark| self.machine.backend.observer().all_rows(mark).and_then(|rows| rows.get(..n_rows));
        match (rows(Mark::Taps), rows(Mark::Context)) {
            (Some(taps), Some(context)) => Ok([taps.to_vec(), context.to_vec()]),
            _ => Err(self.findings.oracle.unusable("the target's pass named no taps".to_owned())),
        }
    }

    /// Compares the context rows that were appended before a round.
    fn compare_context(
        &mut self,
        prefix: &str,
        names: &[String],
        n_committed: usize,
        [taps, context]: &[Vec<Vec<f32>>; 2],
    ) -> Result<(), Failure> {
        let layers = self.network.kv_layers();
        for name in names {
            let part = &name[prefix.len()..];
            let values = match (part, layer_part(part)) {
                ("taps", _) => taps.concat(),
                ("ctx", _) => context.concat(),
                (_, Some((layer, which @ ("ctx_k" | "ctx_v")))) => {
                    let &layer = layers.get(layer).ok_or_else(|| self.findings.unknown(name))?;
                    let of = |position| self.machine.backend.peek_kv(layer, SLOT, position);
                    let rows = (n_committed - taps.len()..n_committed).map(of);
                    rows.flat_map(|(k, v)| if which == "ctx_k" { k } else { v }).collect()
                }
                _ => continue,
            };
            self.findings.compare(name, Values::Floats(values, VALUES))?;
        }
        Ok(())
    }

    /// One block as it is and, where they are recorded, as it would be if the config declared a direction; the drafts.
    fn block(&mut self, prefix: &str, names: &[String], k: usize) -> Result<Vec<i64>, Failure> {
        for (variant, causal) in [("causal.", true), ("bidirectional.", false)] {
            let prefix = format!("{prefix}{variant}");
            let names: Vec<_> = names.iter().filter(|name| name.starts_with(&prefix)).cloned().collect();
            if !names.is_empty() {
                self.network.declare_causal(Some(causal));
                self.draft(&prefix, &names, k)?;
            }
        }
        self.network.declare_causal(None);
        self.draft(prefix, names, k)
    }

    /// One pass of the drafter and its values whose names are `prefix` and a part that it has.
    fn draft(&mut self, prefix: &str, names: &[String], k: usize) -> Result<Vec<i64>, Failure> {
        self.machine.backend.observer_mut().clear();
        let mut pass = Pass::builder();
        pass.draft_block(SLOT, k, self.network.mask());
        let pass = pass.build();
        self.machine.backend.begin(&pass);
        self.network.draft(&mut self.machine.backend, &pass);
        let tokens = self.machine.backend.peek_tokens(SLOT);
        let (known, drafts) = tokens.split_at(tokens.len() - k);
        let id = |token: &TokenId| i64::from(token.0);
        let drafts: Vec<i64> = drafts.iter().map(id).collect();
        let mut block_ids = vec![i64::from(self.network.mask().0); 1 + k];
        block_ids[0] = known.last().map_or(-1, id);
        let position = |row| self.machine.backend.peek_row(pass.all(), row).1 as i64;
        let positions: Vec<i64> = (0..=k).map(position).collect();
        for name in names {
            let part = &name[prefix.len()..];
            let (mark, tolerance) = match (part, layer_part(part)) {
                ("drafts", _) => {
                    self.findings.compare(name, Values::Ids(drafts.clone()))?;
                    continue;
                }
                ("block_ids", _) => {
                    self.findings.compare(name, Values::Ids(block_ids.clone()))?;
                    continue;
                }
                ("positions", _) => {
                    self.findings.compare(name, Values::Ids(positions.clone()))?;
                    continue;
                }
                ("noise_embed", _) => (Mark::Embedding, VALUES),
                ("final", _) => (Mark::HiddenPostNorm, VALUES),
                ("logits", _) => (Mark::Logits, LOGITS),
                (_, Some((layer, "out"))) => (Mark::Layer(layer), VALUES),
                _ => continue,
            };
            let rows = self.machine.backend.observer().all_rows(mark);
            let values = rows.ok_or_else(|| self.findings.unknown(name))?.concat();
            self.findings.compare(name, Values::Floats(values, tolerance))?;
        }
        Ok(drafts)
    }
}

fn last(emitted: &[i64]) -> Result<i64, Failure> {
    emitted.last().copied().ok_or_else(|| Failure::failed("the target chose no token"))
}

/// `layer2.out` as 2 and `out`.
fn layer_part(part: &str) -> Option<(usize, &str)> {
    let (layer, what) = part.strip_prefix("layer")?.split_once('.')?;
    Some((layer.parse().ok()?, what))
}
