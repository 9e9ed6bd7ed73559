//! Recomputes what an oracle folder recorded of an assistant: the first round behind a prompt, step by step, under each
//! convention for its position.

use std::path::{Path, PathBuf};

use paceline::Isa;
use paceline_backend::{Backend, Mark, Op, Pass, RowSet, Rows, TokenId};
use paceline_checkpoint::{Inexact, ModelFolder};
use paceline_models::{Gemma4Assistant, Limits, Target};
use serde::Deserialize;

use super::compare::{Comparison, LOGITS, VALUES};
use super::findings::Findings;
use super::machine::{Drafting, Machine, Room, SLOT};
use super::oracle::{Oracle, Values};
use super::target::Recomputed;
use crate::failure::Failure;
use crate::text_file;

/// File that a drafter's oracle folder has and a target's has not.
pub(crate) const ROUNDS: &str = "reference_rounds.json";
/// Recorded steps of the round.
const STEPS: usize = 3;
/// Conventions that are recorded, with the drafter's position relative to the committed length.
const CONVENTIONS: [(&str, i32); 2] = [("bonus", 0), ("last_committed", -1)];

/// What is needed of `reference_rounds.json`.
#[derive(Debug, Deserialize)]
struct Rounds {
    target: String,
}

/// Compares every recorded tensor of an assistant's folder.
pub(crate) fn check(
    folder: &ModelFolder,
    target: Option<&Path>,
    isa: Isa,
    threads: usize,
) -> Result<Vec<Comparison>, Failure> {
    let oracle = Oracle::open(folder.origin())?;
    let target = ModelFolder::open(&target_folder(folder.origin(), target)?)?;
    let vocab_size = paceline_models::describe(target.config())?.vocab_size;
    let prompt = oracle.prompt_ids("prompt_ids", vocab_size)?;
    let n_prompt = prompt.len();
    let room = Room { isa, threads, n_prompt, n_tokens: n_prompt + 1 + STEPS };
    let bind = |backend: &mut dyn Backend, target: &dyn Target, _: &Limits| {
        let (config, tensors) = (folder.config(), folder.tensors()?);
        Ok(Gemma4Assistant::bind(config, tensors, backend, target.exports(), 1, Inexact::Refuse)?)
    };
    let (machine, network) = Machine::load(&target, room, Drafting::default(), bind)?;
    let order = match folder.tensors()?.get("masked_embedding.token_ordering") {
        Some(tensor) => tensor.to_i64()?,
        None => Vec::new(),
    };
    let mut check = Check { machine, network, order, findings: Findings::new(oracle), vocab_size };
    for (convention, position) in CONVENTIONS {
        check.round(&prompt, convention, position)?;
    }
    check.findings.finish(&["prompt_ids"])
}

/// The given folder, or the one beside the drafter's that its rounds name.
pub(super) fn target_folder(drafter: &Path, given: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(given) = given {
        return Ok(given.to_path_buf());
    }
    let file = drafter.join(ROUNDS);
    let wrong = |what: String| Failure::bad_input(format!("{}: {what}", file.display()));
    let rounds: Rounds = serde_json::from_str(&text_file::read(&file)?)
        .map_err(|error| wrong(format!("not usable: {error}")))?;
    let name = Path::new(&rounds.target);
    if name.file_name() != Some(name.as_os_str()) {
        return Err(wrong(format!("target `{}` is not the name of a folder beside it", rounds.target)));
    }
    // The folder may be given as `.`, which has no name to put another beside.
    let drafter = drafter.canonicalize().map_err(|error| wrong(error.to_string()))?;
    let Some(parent) = drafter.parent() else { return Err(wrong("its folder has no parent".to_owned())) };
    Ok(parent.join(name))
}

struct Check {
    machine: Machine,
    network: Gemma4Assistant,
    /// Token of each row of the clusters; empty with another kind of head.
    order: Vec<i64>,
    findings: Findings,
    vocab_size: usize,
}

impl Check {
    /// Runs the prompt through the target and one round of the drafter behind it.
    fn round(&mut self, prompt: &[u32], convention: &str, position: i32) -> Result<(), Failure> {
        let tokens = prompt.iter().map(|&id| TokenId(id)).collect();
        self.machine.open(tokens, prompt.len() + 1 + STEPS);
        let report = self.machine.pass(prompt.len())?;
        if self.findings.is_empty() {
            self.target(prompt.len(), &report.emitted)?;
        }
        let src = self.machine.target.exports().hidden_post_norm;
        let keep = Op::KeepCommitted { src, out: self.network.slot_hidden() };
        self.machine.backend.run(&keep, Rows { set: RowSet::All, start: 0, len: 0 });
        let mut drafts = Vec::new();
        for step in 0..STEPS {
            self.machine.backend.observer_mut().clear();
            let mut pass = Pass::builder();
            pass.borrowed(SLOT, step, position);
            let pass = pass.build();
            self.machine.backend.begin(&pass);
            self.network.step(&mut self.machine.backend, &pass, step);
            drafts.push(self.step(&format!("{convention}.step{step}."))?);
        }
        self.machine.close();
        self.findings.compare(&format!("{convention}.drafts"), Values::Ids(drafts))
    }

    /// What a round starts from.
    fn target(&mut self, n_rows: usize, emitted: &[TokenId]) -> Result<(), Failure> {
        let names = self.findings.names("");
        for name in names {
            let shape = self.findings.oracle.shape(&name)?;
            let values = match &name[..] {
                "bonus" => Some(Values::Ids(emitted.iter().map(|token| i64::from(token.0)).collect())),
                "target_hidden_post_norm" => {
                    let rows =
                        self.machine.backend.observer().rows(Mark::HiddenPostNorm, shape.iter().product());
                    rows.and_then(|rows| Some(Values::Floats(rows.last()?.to_vec(), VALUES)))
                }
                _ => match name.strip_prefix("shared.").and_then(|name| name.split_once('.')) {
                    Some((kind, layer_type)) => {
                        Recomputed { machine: &self.machine, n_rows }.exported(kind, layer_type, shape)
                    }
                    None => continue,
                },
            };
            let values = values.ok_or_else(|| self.findings.unknown(&name))?;
            self.findings.compare(&name, values)?;
        }
        Ok(())
    }

    /// Compares the values of a draft step, whose names begin with `prefix`; the token that it drafts.
    fn step(&mut self, prefix: &str) -> Result<i64, Failure> {
        let names = self.findings.names(prefix);
        let logits = self
            .logits()
            .ok_or_else(|| self.findings.oracle.unusable("the drafter named no logits".to_owned()))?;
        let token = logits.best();
        for name in names {
            let width = self.findings.oracle.shape(&name)?.iter().product();
            let values = self.value(&name[prefix.len()..], width, &logits, token);
            let values = values.ok_or_else(|| self.findings.unknown(&name))?;
            self.findings.compare(&name, values)?;
        }
        Ok(token)
    }

    /// The value of the step that is recorded as `part`; `None` if the drafter has none of this name.
    fn value(&self, part: &str, width: usize, logits: &Logits, token: i64) -> Option<Values> {
        let mark = match part {
            "token" => return Some(Values::Ids(vec![token])),
            "logits" => return Some(Values::Floats(logits.of_all(self.vocab_size), LOGITS)),
            "selected_ids" => return Some(Values::Ids(logits.ids.clone())),
            "selected_logits" => return Some(Values::Floats(logits.values.clone(), LOGITS)),
            "top_centroids" => {
                let clusters = self.row(Mark::TopClusters, width)?;
                return Some(Values::Ids(clusters.iter().map(|&cluster| cluster as i64).collect()));
            }
            "input_concat" => Mark::DrafterInput,
            "pre_projection_out" => Mark::PreProjection,
            "final_norm_out" => Mark::HiddenPostNorm,
            "post_projection_out" => Mark::PostProjection,
            "centroid_scores" => Mark::CentroidScores,
            _ => Mark::Layer(part.strip_prefix("layer")?.parse().ok()?),
        };
        Some(Values::Floats(self.row(mark, width)?.to_vec(), VALUES))
    }

    /// The one row of a value of the step.
    fn row(&self, mark: Mark, width: usize) -> Option<&[f32]> {
        self.machine.backend.observer().rows(mark, width)?.first().copied()
    }

    /// The logits of the step, with the tokens that they belong to.
    fn logits(&self) -> Option<Logits> {
        if self.order.is_empty() {
            let values = self.row(Mark::Logits, self.vocab_size)?.to_vec();
            return Some(Logits { ids: (0..values.len() as i64).collect(), values });
        }
        let trace = self.machine.backend.observer();
        let (clusters, values) = (trace.whole_row(Mark::TopClusters)?, trace.whole_row(Mark::ClusterLogits)?);
        let size = values.len() / clusters.len().max(1);
        let tokens = |&cluster: &f32| self.order.get(cluster as usize * size..(cluster as usize + 1) * size);
        let ids = clusters.iter().map(tokens).collect::<Option<Vec<_>>>()?.concat();
        Some(Logits { ids, values: values.to_vec() })
    }
}

/// Logits of some tokens.
struct Logits {
    ids: Vec<i64>,
    values: Vec<f32>,
}

impl Logits {
    /// The token with the largest logit, of equal ones the lowest.
    fn best(&self) -> i64 {
        let pairs = self.values.iter().zip(&self.ids);
        let best = pairs.max_by(|(a, i), (b, j)| a.total_cmp(b).then(j.cmp(i)));
        best.map_or(-1, |(_, &id)| id)
    }

    /// As the reference writes them: tokens that were not looked at lie 1 below the lowest one that was.
    fn of_all(&self, vocab_size: usize) -> Vec<f32> {
        let lowest = self.values.iter().copied().fold(f32::INFINITY, f32::min);
        let mut all = vec![lowest - 1.0; vocab_size];
        for (&id, &value) in self.ids.iter().zip(&self.values) {
            if let Some(place) = usize::try_from(id).ok().and_then(|id| all.get_mut(id)) {
                *place = value;
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_of_clusters_become_those_of_all_tokens() {
        let logits = Logits { ids: vec![3, 1], values: vec![5.0, 2.0] };
        assert_eq!(logits.of_all(5), [1.0, 2.0, 1.0, 5.0, 1.0]);
        assert_eq!(logits.best(), 3);
    }

    #[test]
    fn equal_logits_give_the_lowest_token() {
        assert_eq!(Logits { ids: vec![7, 2, 9], values: vec![1.0, 1.0, 1.0] }.best(), 2);
    }
}
