//! How host backends choose tokens: the rules of each row from the state of its slot.

use paceline_kernels::isa::Isa;
use paceline_kernels::pool::Team;
use paceline_kernels::select::{Choice, Chooser, Distribution, LogprobsWanted, RowRules, Seen};

use super::{Slot, SlotStates};
use crate::pass::Rows;
use crate::slot::{SlotId, TokenId};

/// Scratch memory for choosing.
#[derive(Debug, Default)]
pub struct Choosing {
    chooser: Chooser,
    choices: Vec<Choice>,
}

impl Choosing {
    /// Makes room for `max_rows` rows of `vocab` logits, beside what there is room for already.
    pub fn reserve(&mut self, max_rows: usize, vocab: usize) {
        self.chooser.reserve(max_rows, vocab);
        self.choices.reserve(max_rows);
    }

    fn run<'a>(
        &mut self,
        (isa, team): (Isa, &mut Team),
        logits: &mut [f32],
        n_rows: usize,
        rules: impl Fn(usize) -> RowRules<'a> + Sync,
    ) {
        self.choices.clear();
        self.choices.resize(n_rows, Choice::default());
        self.chooser.choose(isa, team, logits, rules, &mut self.choices);
    }
}

/// Tokens that have a logit in a row, where not all of the vocabulary have.
#[derive(Debug)]
pub struct Listed<'a, T> {
    /// The tokens with their logits.
    pub tokens: T,
    /// The logits.
    pub logits: &'a [f32],
}

fn token_of(choice: Choice) -> Option<TokenId> {
    (!choice.fault).then_some(TokenId(choice.token))
}

/// The likeliest of listed tokens, before any rule; `None` if a logit is not finite.
fn likeliest(mut tokens: impl Iterator<Item = (u32, f32)>) -> Option<TokenId> {
    let best = tokens.try_fold(None, |best: Option<(u32, f32)>, (token, z)| {
        let better = best.is_none_or(|(_, most)| z > most);
        z.is_finite().then_some(if better { Some((token, z)) } else { best })
    });
    best.flatten().map(|(token, _)| TokenId(token))
}

impl Slot {
    /// The rules for the token at `position` behind the drafts before it.
    fn rules(&self, position: usize) -> RowRules<'_> {
        let n_drafts = position.saturating_sub(self.known).min(self.drafts.len());
        let n_output = position.saturating_sub(self.init.n_prompt);
        let too_early = n_output < self.init.sampling.min_tokens;
        RowRules {
            softcap: None,
            sampling: &self.init.sampling,
            too_early: if too_early { &self.end_ids } else { &[] },
            seen: self.counts.as_ref().map(|committed| Seen { committed, drafts: &self.drafts[..n_drafts] }),
            position: position as u32,
            known: None,
            logprobs: None,
        }
    }

    /// The token of the prompt at `position`, where its log-probability is asked for.
    fn scored(&self, position: usize) -> Option<u32> {
        self.init.scored.contains(&position).then(|| self.tokens[position].0)
    }
}

impl SlotStates {
    /// [`crate::Op::Choose`]: `logits` are those of `rows`.
    pub fn choose(
        &mut self,
        choosing: &mut Choosing,
        isa: Isa,
        team: &mut Team,
        logits: &mut [f32],
        rows: Rows,
        softcap: Option<f32>,
    ) {
        let states = &*self;
        choosing.run((isa, team), logits, rows.len, |r| {
            let row = states.resolved(rows, r);
            let slot = states.slot(row.slot);
            let (known, logprobs) = (slot.scored(row.index + 1), slot.init.logprobs);
            RowRules { softcap, known, logprobs, ..slot.rules(row.index + 1) }
        });
        for (r, choice) in choosing.choices.iter().enumerate() {
            let wanted_row = rows.start + r;
            self.set_chosen(wanted_row, token_of(*choice));
            if self.slot(self.resolved(rows, r).slot).init.logprobs.is_some() {
                self.logprobs[wanted_row].clone_from(choosing.chooser.logprobs(r));
            }
        }
    }

    /// [`crate::Op::ChooseDraft`]: `logits` are those of `rows`. Drafts follow the rules of their slot, and its noise, so that they
    /// are what the target would choose if it had these logits.
    pub fn choose_drafts(
        &mut self,
        choosing: &mut Choosing,
        on: (Isa, &mut Team),
        logits: &mut [f32],
        rows: Rows,
        softcap: Option<f32>,
        step: usize,
    ) {
        let states = &*self;
        choosing.run(on, logits, rows.len, |r| RowRules {
            softcap,
            ..states.draft_rules(states.resolved(rows, r).slot, step)
        });
        for (r, choice) in choosing.choices.iter().enumerate() {
            let logprob = choosing.chooser.logprobs(r).logprob;
            self.put_draft(self.resolved(rows, r).slot, step, token_of(*choice), logprob);
        }
    }

    /// [`crate::Op::ChooseBlock`]: `logits` are those of `rows`. Where a slot counts tokens each of its drafts depends on those before it,
    /// so rows are taken one by one; elsewhere all at once.
    pub fn choose_block(
        &mut self,
        choosing: &mut Choosing,
        isa: Isa,
        team: &mut Team,
        logits: &mut [f32],
        rows: Rows,
        softcap: Option<f32>,
    ) {
        let counts = |r| self.slot(self.resolved(rows, r).slot).counts.is_some();
        let width = logits.len() / rows.len.max(1);
        let n = if (0..rows.len).any(counts) { 1 } else { rows.len.max(1) };
        for (piece, logits) in rows.pieces(n).zip(logits.chunks_mut(n * width)) {
            let states = &*self;
            choosing.run((isa, team), logits, piece.len, |r| states.block_rules(piece, r, softcap));
            for (r, choice) in choosing.choices.iter().enumerate() {
                let (slot, step) = self.block_step(piece, r);
                let logprob = choosing.chooser.logprobs(r).logprob;
                self.put_draft(slot, step, token_of(*choice), logprob);
            }
        }
    }

    /// [`crate::Op::ChooseBlock`] for one row of `rows`, where not all tokens have a logit.
    pub fn choose_listed_block(
        &mut self,
        choosing: &mut Choosing,
        isa: Isa,
        listed: Listed<'_, impl Iterator<Item = (u32, f32)> + Clone>,
        rows: Rows,
        r: usize,
    ) {
        let rules = self.block_rules(rows, r, None);
        let token = token_of(choosing.chooser.choose_listed(isa, listed.tokens.clone(), &rules));
        let (slot, step) = self.block_step(rows, r);
        let logprob = self.listed_logprob(choosing, isa, &listed, slot, token);
        self.put_draft(slot, step, token, logprob);
    }

    /// The log-probability of a draft, if anybody asks.
    fn listed_logprob(
        &self,
        choosing: &mut Choosing,
        isa: Isa,
        listed: &Listed<'_, impl Iterator<Item = (u32, f32)> + Clone>,
        slot: SlotId,
        token: Option<TokenId>,
    ) -> f32 {
        let Some(token) = token.filter(|_| self.slot(slot).wants_confidence()) else { return 0.0 };
        let found = listed.tokens.clone().find(|(id, _)| *id == token.0);
        found.map_or(0.0, |(_, z)| choosing.chooser.listed_logprob(isa, listed.logits, z))
    }

    /// The slot of a mask row, and which of its drafts the row is for.
    fn block_step(&self, rows: Rows, r: usize) -> (SlotId, usize) {
        let row = self.resolved(rows, r);
        (row.slot, row.index - self.slot(row.slot).known)
    }

    fn block_rules(&self, rows: Rows, r: usize, softcap: Option<f32>) -> RowRules<'_> {
        let (slot, step) = self.block_step(rows, r);
        // It changes no greedy choice, only how likely it is.
        let state = self.slot(slot);
        let softcap = softcap.filter(|_| state.init.sampling.temperature > 0.0 || state.wants_confidence());
        RowRules { softcap, ..self.draft_rules(slot, step) }
    }

    /// [`crate::Op::ChooseClustered`] for one row: `tokens` are those that have a logit.
    pub fn choose_listed_draft(
        &mut self,
        choosing: &mut Choosing,
        isa: Isa,
        listed: Listed<'_, impl Iterator<Item = (u32, f32)> + Clone>,
        slot: SlotId,
        step: usize,
    ) {
        let rules = self.draft_rules(slot, step);
        let token = token_of(choosing.chooser.choose_listed(isa, listed.tokens.clone(), &rules));
        // Rules may leave none of the few tokens: then any of them is a draft, which will be rejected. The drafter is not broken.
        let token = token.or_else(|| likeliest(listed.tokens.clone()));
        let logprob = self.listed_logprob(choosing, isa, &listed, slot, token);
        self.put_draft(slot, step, token, logprob);
    }

    fn draft_rules(&self, slot: SlotId, step: usize) -> RowRules<'_> {
        let slot = self.slot(slot);
        let logprobs = slot.wants_confidence().then_some(LogprobsWanted { top: 0, of: Distribution::Model });
        RowRules { logprobs, ..slot.rules(slot.known + step) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use paceline_kernels::select::{Penalties, Sampling, TokenCounts};

    use super::super::count;
    use super::*;
    use crate::pass::Pass;
    use crate::slot::{SlotInit, SlotReport};

    const SLOT: SlotId = SlotId(0);
    const VOCAB: u32 = 7;

    fn ids(tokens: &[u32]) -> Vec<TokenId> {
        tokens.iter().map(|&token| TokenId(token)).collect()
    }

    fn penalised() -> Arc<Sampling> {
        let penalties = Penalties { repetition: 1.1, presence: 0.2, frequency: 0.1 };
        Arc::new(Sampling { penalties, min_tokens: 3, ..Sampling::default() })
    }

    fn states(init: SlotInit) -> SlotStates {
        let mut states = SlotStates::new(1);
        states.open(SLOT, init, 0);
        states
    }

    #[test]
    fn a_listed_draft_is_a_fault_only_where_its_logits_are() {
        let sampling = Arc::new(Sampling { allowed: Some(vec![5]), ..Sampling::default() });
        let drafts = |listed: &[(u32, f32)]| {
            let logits: Vec<f32> = listed.iter().map(|(_, z)| *z).collect();
            let mut states =
                states(SlotInit { sampling: Arc::clone(&sampling), ..SlotInit::greedy(ids(&[2]), 9) });
            let listed = Listed { tokens: listed.iter().copied(), logits: &logits };
            states.choose_listed_draft(&mut Choosing::default(), Isa::best().0, listed, SLOT, 0);
            states.slot(SLOT).drafts.clone()
        };
        assert_eq!(drafts(&[(3, 9.0), (5, 1.0)]), [5]);
        assert_eq!(drafts(&[(2, -1.0), (3, 2.0), (4, 2.0)]), [3], "nothing allowed among them");
        assert_ne!(drafts(&[(2, -1.0), (3, f32::NAN)]), [2]);
        assert_ne!(drafts(&[(2, f32::NEG_INFINITY)]), [2]);
    }

    #[test]
    fn a_cap_on_the_logits_of_a_block_counts_where_likelihood_does() {
        let cap = |draft_confidence, temperature| {
            let sampling = Arc::new(Sampling { temperature, ..Sampling::default() });
            let mut states =
                states(SlotInit { draft_confidence, sampling, ..SlotInit::greedy(ids(&[2]), 9) });
            let mut pass = Pass::builder();
            pass.draft_block(SLOT, 2, TokenId(4));
            let pass = pass.build();
            states.begin(&pass);
            states.block_rules(pass.wanted_rows(), 0, Some(30.0)).softcap
        };
        assert_eq!([cap(0.0, 0.0), cap(0.5, 0.0), cap(0.0, 1.0)], [None, Some(30.0), Some(30.0)]);
    }

    /// A small generator: the same numbers at every run.
    fn random(state: &mut u64, below: usize) -> usize {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as usize % below
    }

    fn recount(prompt: &[TokenId], output: &[TokenId]) -> TokenCounts {
        let mut counts = TokenCounts::of_prompt(prompt.iter().map(|token| token.0));
        output.iter().for_each(|token| counts.add_output(token.0));
        counts
    }

    /// Rejected drafts leave no trace, accepted ones count once, and every row sees its own prefix.
    #[test]
    fn penalties_see_what_a_fresh_count_sees_whatever_was_rejected() {
        let mut seed = 3;
        for n_prompt in [1, 5] {
            let prompt = ids(&[2, 3, 2, 4, 5][..n_prompt]);
            let mut states =
                states(SlotInit { sampling: penalised(), ..SlotInit::greedy(prompt.clone(), 1000) });
            let mut n_known = n_prompt;
            for _ in 0..100 {
                let before = states.tokens(SLOT).to_vec();
                let drafts: Vec<_> = (0..random(&mut seed, 5))
                    .map(|_| TokenId(random(&mut seed, VOCAB as usize) as u32))
                    .collect();
                for (step, draft) in drafts.iter().enumerate() {
                    assert_seen(
                        states.draft_rules(SLOT, step),
                        &prompt,
                        &[&before, &drafts[..step]].concat(),
                    );
                    states.put_draft(SLOT, step, Some(*draft), 0.0);
                }
                let mut pass = Pass::builder();
                pass.target(SLOT, n_known, drafts.len(), true, false);
                states.begin(&pass.build());
                for i in 0..=drafts.len() {
                    let index = before.len() - 1 + i;
                    let prefix = [&before, &drafts[..i]].concat();
                    assert_seen(states.slot(SLOT).rules(index + 1), &prompt, &prefix);
                    let agrees = random(&mut seed, 3) > 0;
                    let token = drafts.get(i).filter(|_| agrees).copied();
                    states.set_chosen(
                        i,
                        Some(token.unwrap_or(TokenId(random(&mut seed, VOCAB as usize) as u32))),
                    );
                }
                states.commit();
                states.collect(SLOT);
                n_known = 1;
                let slot = states.slot(SLOT);
                assert_eq!(slot.counts, count(&slot.init, &slot.tokens));
            }
            let len = states.len(SLOT) - 20;
            states.truncate(SLOT, len);
            let tokens = states.tokens(SLOT).to_vec();
            assert_seen(states.draft_rules(SLOT, 0), &prompt, &tokens);
        }
    }

    #[track_caller]
    fn assert_seen(rules: RowRules<'_>, prompt: &[TokenId], prefix: &[TokenId]) {
        let seen = rules.seen.expect("there are penalties");
        let mut found = seen.committed.clone();
        seen.drafts.iter().for_each(|draft| found.add_output(*draft));
        assert_eq!(found, recount(prompt, &prefix[prompt.len()..]));
        assert_eq!(rules.position as usize, prefix.len());
    }

    #[test]
    fn end_tokens_are_too_early_up_to_the_minimum_in_every_row_of_a_round() {
        let end_tokens: Arc<[TokenId]> = [TokenId(1)].into();
        let mut states =
            states(SlotInit { sampling: penalised(), end_tokens, ..SlotInit::greedy(ids(&[2, 3]), 100) });
        states.put_drafts(SLOT, &ids(&[4, 4, 4, 4]));
        let too_early = |position| states.slot(SLOT).rules(position).too_early.to_vec();
        assert_eq!([2, 3, 4, 5, 6].map(|position| too_early(position).len()), [1, 1, 1, 0, 0]);
    }

    /// One pass with logits of which token `best` is the largest, by row.
    fn round(states: &mut SlotStates, pass: &Pass, best: &[u32]) -> SlotReport {
        states.begin(pass);
        let mut choosing = Choosing::default();
        choosing.reserve(best.len(), VOCAB as usize);
        let row =
            |best: u32| (0..VOCAB).map(move |token| if token == best { 2.0 } else { token as f32 * 0.1 });
        let mut logits: Vec<f32> = best.iter().flat_map(|&best| row(best)).collect();
        let mut team = Team::new(1).unwrap();
        let rows = pass.wanted_rows();
        states.choose(&mut choosing, Isa::best().0, &mut team, &mut logits, rows, None);
        states.commit();
        states.collect(SLOT)
    }

    #[test]
    fn log_probabilities_come_with_emitted_tokens_only_and_prompts_are_scored_once() {
        let logprobs = Some(LogprobsWanted { top: 2, of: Distribution::Model });
        let prompt = ids(&[2, 3, 4, 5]);
        let mut states = states(SlotInit { logprobs, scored: 2..4, ..SlotInit::greedy(prompt, 100) });
        let mut chunk = Pass::builder();
        chunk.scored(SLOT, 2, false, false);
        // After token 3 comes token 4 of the prompt, which these logits do not prefer; the row before is not asked for.
        let report = round(&mut states, &chunk.build(), &[6, 6]);
        let [four] = &report.prompt_logprobs[..] else { panic!("{report:?}") };
        assert_eq!(four.top.iter().map(|top| top.0).collect::<Vec<_>>(), [6, 5]);
        assert!(four.logprob < four.top[0].1 && report.logprobs.is_empty());

        let mut last = Pass::builder();
        last.scored(SLOT, 2, true, false);
        let report = round(&mut states, &last.build(), &[5, 6]);
        assert_eq!((report.prompt_logprobs.len(), &report.emitted[..]), (1, &ids(&[6])[..]));
        assert_eq!(report.prompt_logprobs[0].logprob, report.prompt_logprobs[0].top[0].1);
        assert_eq!(report.logprobs[0].top[0].0, 6);

        states.put_drafts(SLOT, &ids(&[1, 2, 3]));
        let mut verify = Pass::builder();
        verify.target(SLOT, 1, 3, true, false);
        let report = round(&mut states, &verify.build(), &[1, 5, 6, 6]);
        assert_eq!(report.emitted, ids(&[1, 5]));
        let chosen: Vec<u32> = report.logprobs.iter().map(|entry| entry.top[0].0).collect();
        assert_eq!((chosen, report.prompt_logprobs.len()), (vec![1, 5], 0));
        assert!(report.logprobs.iter().all(|entry| entry.logprob == entry.top[0].1 && entry.logprob < 0.0));
    }
}
