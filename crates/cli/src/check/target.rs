//! Recomputes what an oracle folder recorded of a target.

use paceline::Isa;
use paceline_backend::{Backend, KvLayer, Mark, TokenId};
use paceline_checkpoint::ModelFolder;

use super::compare::{Comparison, LOGITS, VALUES};
use super::machine::{Drafting, Machine, Room, SLOT};
use super::oracle::{Oracle, Prompt, Values};
use crate::failure::Failure;

/// Compares every recorded tensor of a target's folder.
pub(crate) fn check(folder: &ModelFolder, isa: Isa, threads: usize) -> Result<Vec<Comparison>, Failure> {
    let oracle = Oracle::open(folder.origin())?;
    let prompts = oracle.prompts(paceline_models::describe(folder.config())?.vocab_size)?;
    let longest = |len: fn(&Prompt) -> usize| prompts.iter().map(len).max().unwrap_or(0);
    let n_prompt = longest(|prompt| prompt.ids.len());
    let n_tokens = longest(|prompt| prompt.ids.len() + prompt.n_greedy);
    let room = Room { isa, threads, n_prompt, n_tokens };
    let (mut machine, ()) = Machine::load(folder, room, Drafting::default(), |_, _, _| Ok(()))?;
    let mut comparisons = Vec::new();
    for prompt in &prompts {
        check_prompt(&mut machine, &oracle, prompt, &mut comparisons)?;
    }
    let covered = |name: &str| prompts.iter().any(|prompt| part_of(prompt, name).is_some());
    match oracle.names().find(|name| !covered(name)) {
        Some(name) => Err(oracle.unusable(format!("tensor `{name}` belongs to no prompt"))),
        None => Ok(comparisons),
    }
}

/// What a tensor is of the prompt it belongs to: `layer0` of `p1.layer0`.
fn part_of<'a>(prompt: &Prompt, name: &'a str) -> Option<&'a str> {
    name.strip_prefix(&prompt.name)?.strip_prefix('.')
}

/// Runs a prompt in one pass and compares what is recorded of it, then continues it token by token.
fn check_prompt(
    machine: &mut Machine,
    oracle: &Oracle,
    prompt: &Prompt,
    comparisons: &mut Vec<Comparison>,
) -> Result<(), Failure> {
    let n_prompt = prompt.ids.len();
    let tokens = prompt.ids.iter().map(|&id| TokenId(id)).collect();
    machine.open(tokens, n_prompt + prompt.n_greedy);
    let mut emitted = machine.pass(n_prompt)?.emitted;
    for name in oracle.names() {
        let Some(part) = part_of(prompt, name) else { continue };
        if matches!(part, "input_ids" | "greedy_ids" | "greedy_gap") {
            continue;
        }
        let shape = oracle.shape(name)?;
        let Some(values) = (Recomputed { machine, n_rows: n_prompt }).tensor(part, shape) else {
            return Err(
                oracle.unusable(format!("tensor `{name}` of shape {shape:?} is nothing that this model has"))
            );
        };
        comparisons.push(oracle.compare(name, values)?);
    }
    let mut gaps = vec![gap(machine)];
    while emitted.len() < prompt.n_greedy {
        emitted.extend(machine.pass(1)?.emitted);
        gaps.push(gap(machine));
    }
    machine.close();
    let ids = emitted.iter().map(|token| i64::from(token.0)).collect();
    comparisons.push(oracle.compare(&format!("{}.greedy_ids", prompt.name), Values::Ids(ids))?);
    let name = format!("{}.greedy_gap", prompt.name);
    if oracle.names().any(|recorded| recorded == name) {
        comparisons.push(oracle.compare(&name, Values::Floats(gaps, LOGITS))?);
    }
    Ok(())
}

/// Largest minus second logit of the last row.
fn gap(machine: &Machine) -> f32 {
    let vocab_size = machine.target.description().vocab_size;
    let rows = machine.backend.observer().rows(Mark::Logits, vocab_size);
    let (mut best, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
    for &logit in rows.iter().flat_map(|rows| rows.last().copied().unwrap_or_default()) {
        if logit > best {
            (best, second) = (logit, best);
        } else {
            second = second.max(logit);
        }
    }
    best - second
}

/// The values of a pass over a whole prompt.
pub(super) struct Recomputed<'a> {
    pub(super) machine: &'a Machine,
    pub(super) n_rows: usize,
}

impl Recomputed<'_> {
    /// The tensor that is recorded as `part` with `shape`; `None` if the model has no such value.
    fn tensor(&self, part: &str, shape: &[usize]) -> Option<Values> {
        let last = shape.last().copied().unwrap_or(1);
        match part {
            "embed" => self.values(Mark::Embedding, last),
            "per_layer_inputs" => self.values(Mark::PerLayerInputs, shape.get(1..)?.iter().product()),
            "hidden_pre_norm" => self.values(Mark::HiddenPreNorm, last),
            "hidden_post_norm" => self.values(Mark::HiddenPostNorm, last),
            "logits_all" => Some(Values::Floats(self.rows(Mark::Logits, last)?.concat(), LOGITS)),
            "logits_last" => Some(Values::Floats(self.rows(Mark::Logits, last)?.pop()?.to_vec(), LOGITS)),
            _ => match part.strip_prefix("dbg.") {
                Some(part) => {
                    let (layer, what) = part.strip_prefix("layer")?.split_once('.')?;
                    self.inner(layer.parse().ok()?, what, shape)
                }
                None => match part.split_once('.') {
                    Some((kind, layer_type)) => self.exported(kind, layer_type, shape),
                    None => self.values(Mark::Layer(part.strip_prefix("layer")?.parse().ok()?), last),
                },
            },
        }
    }

    /// A value inside layer `layer`.
    fn inner(&self, layer: usize, what: &str, shape: &[usize]) -> Option<Values> {
        let last = shape.last().copied()?;
        match what {
            "q_rope" => {
                let [heads, _, head_dim] = *shape else { return None };
                let rows = self.rows(Mark::Query(layer), heads * head_dim)?;
                Some(Values::Floats(by_head(&rows, head_dim), VALUES))
            }
            "k" | "v" => self.kv(self.machine.backend.observer().attended(layer)?, what, shape),
            "heads_out" => self.values(Mark::HeadsOut(layer), last),
            "attn_out" => self.values(Mark::AttentionOut(layer), last),
            "mlp_out" => self.values(Mark::MlpOut(layer), last),
            "router_prob" => self.values(Mark::RouterProb(layer), last),
            "experts_out" => self.values(Mark::ExpertsOut(layer), last),
            // Rows are pairs of expert and weight.
            "router_weight" => {
                let routes = self.rows(Mark::Routes(layer), 2 * last)?.concat();
                Some(Values::Floats(routes.chunks_exact(2).map(|route| route[1]).collect(), VALUES))
            }
            "router_index" => {
                let routes = self.rows(Mark::Routes(layer), 2 * last)?.concat();
                Some(Values::Ids(routes.chunks_exact(2).map(|route| route[0] as i64).collect()))
            }
            _ => None,
        }
    }

    /// K or V that a drafter may borrow.
    pub(super) fn exported(&self, kind: &str, layer_type: &str, shape: &[usize]) -> Option<Values> {
        let exports = self.machine.target.exports();
        let layer = match layer_type {
            "sliding_attention" => exports.sliding,
            "full_attention" => exports.full,
            _ => None,
        };
        self.kv(layer?.kv, kind, shape)
    }

    fn kv(&self, layer: KvLayer, kind: &str, shape: &[usize]) -> Option<Values> {
        let head_dim = *shape.last()?;
        let at = |position| match kind {
            "k" => Some(self.machine.backend.peek_kv(layer, SLOT, position).0),
            "v" => Some(self.machine.backend.peek_kv(layer, SLOT, position).1),
            _ => None,
        };
        let rows = (0..self.n_rows).map(at).collect::<Option<Vec<_>>>()?;
        let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
        rows[0]
            .len()
            .is_multiple_of(head_dim.max(1))
            .then(|| Values::Floats(by_head(&rows, head_dim), VALUES))
    }

    fn rows(&self, mark: Mark, width: usize) -> Option<Vec<&[f32]>> {
        self.machine.backend.observer().rows(mark, width)
    }

    fn values(&self, mark: Mark, width: usize) -> Option<Values> {
        Some(Values::Floats(self.rows(mark, width)?.concat(), VALUES))
    }
}

/// From `[rows][heads * head_dim]` to `[heads, rows, head_dim]`.
fn by_head(rows: &[&[f32]], head_dim: usize) -> Vec<f32> {
    let heads = rows.first().map_or(0, |row| row.len() / head_dim.max(1));
    let pieces = (0..heads).flat_map(|head| rows.iter().map(move |row| &row[head * head_dim..][..head_dim]));
    pieces.flatten().copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_first_in_recorded_tensors() {
        let rows: [&[f32]; 2] = [&[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0]];
        assert_eq!(by_head(&rows, 2), [1.0, 2.0, 5.0, 6.0, 3.0, 4.0, 7.0, 8.0]);
        assert!(by_head(&[], 2).is_empty());
    }
}
