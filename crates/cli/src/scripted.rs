//! A drafter that drafts by a script: the plain text, with mistakes put in. It may stand before a real one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline::TokenId;
use paceline::drafters::{DraftError, DraftSlot, Drafter, SettledSlot};
use paceline_backend::{Backend, Pass, SlotId};
use paceline_models::OwnedGroup;

use crate::draws;

/// Who drafts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Plan {
    /// Nobody.
    Nobody,
    /// The drafter that was given.
    Given,
    /// The script alone. It is right up to a place that varies, and wrong there.
    Mistakes,
    /// The drafter that was given drafts, at its own cost, and then the script takes the place of what it drafted: each token is right with
    /// this probability, whatever came before it.
    Stated(f64),
}

/// What drafts in the coming rounds.
#[derive(Debug)]
struct Orders {
    plan: Plan,
    /// Drafts of a round at most, round by round and over and over; empty if nothing but the request says.
    limits: &'static [usize],
    rounds: usize,
    /// State of the numbers that are drawn for [`Plan::Stated`].
    draws: u64,
    /// Prompts with the plain text behind them.
    texts: Vec<Vec<TokenId>>,
    /// How many tokens of each are the prompt.
    n_prompts: Vec<usize>,
}

/// The other end of a [`ScriptedDrafter`].
#[derive(Clone, Debug)]
pub(crate) struct Prompter(Arc<Mutex<Orders>>);

impl Prompter {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Orders {
            plan: Plan::Nobody,
            limits: &[],
            rounds: 0,
            draws: 0,
            texts: Vec::new(),
            n_prompts: Vec::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Orders> {
        // Nothing between lock and unlock leaves it half written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is plainly decoded of each prompt: what the script is made of.
    pub(crate) fn set_script(&self, prompts: &[Vec<TokenId>], outputs: &[Vec<TokenId>]) {
        let mut orders = self.lock();
        orders.texts = prompts.iter().zip(outputs).map(|(a, b)| [&a[..], b].concat()).collect();
        orders.n_prompts = prompts.iter().map(Vec::len).collect();
    }

    /// Who drafts from now on, and how much at most in each round.
    pub(crate) fn set(&self, plan: Plan, limits: &'static [usize]) {
        let mut orders = self.lock();
        (orders.plan, orders.limits, orders.rounds) = (plan, limits, 0);
    }
}

impl Orders {
    /// Drafts after the first `known` tokens of a text: that text's own tokens, but for those at places that are wrong.
    fn script(&mut self, text: usize, known: usize, n: usize, vocab_size: u32) -> Vec<TokenId> {
        let draw = (text as u64 ^ ((known as u64) << 8)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let n_right = draw as usize % (n + 2);
        let Self { plan, draws, texts, .. } = self;
        let mut is_right = |i: usize| match *plan {
            Plan::Stated(right) => draws::next(draws) as f64 / 2_f64.powi(64) < right,
            _ => i != n_right,
        };
        let wrong = |token: TokenId| TokenId((token.0 + 1) % vocab_size);
        let rest = texts[text].get(known..).unwrap_or_default().iter().take(n).enumerate();
        rest.map(|(i, &token)| if is_right(i) { token } else { wrong(token) }).collect()
    }
}

/// See the module.
pub(crate) struct ScriptedDrafter {
    given: Option<Box<dyn Drafter>>,
    prompter: Prompter,
    vocab_size: u32,
    /// By slot: its text and how much of it is known.
    slots: Vec<Option<(usize, usize)>>,
}

impl ScriptedDrafter {
    pub(crate) fn new(given: Option<Box<dyn Drafter>>, prompter: Prompter, vocab_size: usize) -> Self {
        Self { given, prompter, vocab_size: vocab_size as u32, slots: Vec::new() }
    }

    fn draft_script(&self, orders: &mut Orders, slots: &mut [DraftSlot]) {
        for slot in slots {
            if let Some((text, known)) = self.slots[slot.slot().0 as usize] {
                slot.propose(&orders.script(text, known, slot.wanted(), self.vocab_size));
            }
        }
    }
}

impl Drafter for ScriptedDrafter {
    fn kind(&self) -> &'static str {
        self.given.as_ref().map_or("script", |given| given.kind())
    }

    fn sources(&self) -> Vec<&'static str> {
        self.given.as_ref().map_or(vec!["script"], |given| given.sources())
    }

    /// A script has no number of its own: requests say.
    fn suggested_drafts(&self) -> usize {
        self.given.as_ref().map_or(0, |given| given.suggested_drafts())
    }

    fn suggested_by_source(&self) -> Vec<usize> {
        self.given.as_ref().map_or(vec![0], |given| given.suggested_by_source())
    }

    fn block_drafts(&self) -> usize {
        self.given.as_ref().map_or(0, |given| given.block_drafts())
    }

    fn reads_taps(&self) -> bool {
        self.given.as_ref().is_some_and(|given| given.reads_taps())
    }

    fn tap_source(&self) -> Option<usize> {
        self.given.as_ref().and_then(|given| given.tap_source())
    }

    fn kv_groups(&self) -> &[OwnedGroup] {
        self.given.as_ref().map_or(&[], |given| given.kv_groups())
    }

    fn open(&mut self, backend: &mut dyn Backend, slot: SlotId, tokens: &[TokenId]) {
        let orders = self.prompter.lock();
        let texts = orders.texts.iter().zip(&orders.n_prompts);
        let text = texts.enumerate().find(|(_, (text, n_prompt))| text[..**n_prompt] == *tokens);
        let at = slot.0 as usize;
        if self.slots.len() <= at {
            self.slots.resize(at + 1, None);
        }
        self.slots[at] = text.map(|(text, _)| (text, tokens.len()));
        if let Some(given) = &mut self.given {
            given.open(backend, slot, tokens);
        }
    }

    fn resume(&mut self, slot: SlotId, len: usize) {
        if let Some(given) = &mut self.given {
            given.resume(slot, len);
        }
    }

    fn close(&mut self, backend: &mut dyn Backend, slot: SlotId) {
        if let Some(given) = &mut self.given {
            given.close(backend, slot);
        }
    }

    fn give_up(&mut self, backend: &mut dyn Backend, slot: SlotId, source: usize) -> bool {
        self.given.as_mut().is_some_and(|given| given.give_up(backend, slot, source))
    }

    fn draft(&mut self, backend: &mut dyn Backend, slots: &mut [DraftSlot]) -> Result<(), DraftError> {
        let prompter = self.prompter.clone();
        let mut orders = prompter.lock();
        orders.rounds += 1;
        if !orders.limits.is_empty() {
            let limit = orders.limits[orders.rounds % orders.limits.len()];
            if limit == 0 {
                return Ok(());
            }
            slots.iter_mut().for_each(|slot| slot.lower(limit));
        }
        if let (Plan::Given | Plan::Stated(_), Some(given)) = (orders.plan, &mut self.given) {
            given.draft(backend, slots)?;
        }
        if let Plan::Mistakes | Plan::Stated(_) = orders.plan {
            self.draft_script(&mut orders, slots);
        }
        Ok(())
    }

    fn settled(&mut self, backend: &mut dyn Backend, parts: &[SettledSlot]) {
        if let Some(given) = &mut self.given {
            given.settled(backend, parts);
        }
    }

    fn verified(&mut self, backend: &mut dyn Backend, pass: &Pass) {
        if let Some(given) = &mut self.given {
            given.verified(backend, pass);
        }
    }

    fn committed(&mut self, backend: &mut dyn Backend, pass: &Pass) {
        if let Some(given) = &mut self.given {
            given.committed(backend, pass);
        }
    }

    fn collected(&mut self, slot: SlotId, emitted: &[TokenId]) {
        if let Some(Some((_, known))) = self.slots.get_mut(slot.0 as usize) {
            *known += emitted.len();
        }
        if let Some(given) = &mut self.given {
            given.collected(slot, emitted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(plan: Plan) -> Prompter {
        let prompter = Prompter::new();
        let ids = |ids: std::ops::Range<u32>| ids.map(TokenId).collect::<Vec<_>>();
        prompter.set_script(&[ids(0..3)], &[ids(3..60)]);
        prompter.set(plan, &[]);
        prompter
    }

    #[test]
    fn a_script_is_right_up_to_a_place_that_varies() {
        let prompter = told(Plan::Mistakes);
        let mut orders = prompter.lock();
        let n_right = |known: usize| {
            let drafts = orders.script(0, known, 4, 100);
            let right = (known as u32..).map(TokenId);
            drafts.iter().zip(right).take_while(|(draft, right)| **draft == *right).count()
        };
        let counts: Vec<usize> = (3..50).map(n_right).collect();
        assert!((0..=4).all(|count| counts.contains(&count)), "{counts:?}");
        assert_eq!(orders.script(0, 58, 4, 100).len(), 2);
        assert_eq!(orders.script(0, 60, 4, 100), []);
    }

    #[test]
    fn a_stated_share_of_the_drafts_is_right_whatever_came_before() {
        for stated in [0.0, 0.3, 0.9, 1.0] {
            let prompter = told(Plan::Stated(stated));
            let mut orders = prompter.lock();
            // By place, and behind a draft that was right or wrong.
            let (mut places, mut behind) = ([(0, 0); 4], [(0, 0); 2]);
            for _ in 0..20_000 {
                let drafts = orders.script(0, 7, 4, 100);
                let is_right: Vec<bool> = drafts.iter().zip(7..).map(|(draft, i)| draft.0 == i).collect();
                for (place, &right) in places.iter_mut().zip(&is_right) {
                    *place = (place.0 + u32::from(right), place.1 + 1);
                }
                for pair in is_right.windows(2) {
                    let cell = &mut behind[usize::from(pair[0])];
                    *cell = (cell.0 + u32::from(pair[1]), cell.1 + 1);
                }
            }
            for (right, of) in places.into_iter().chain(behind).filter(|(_, of)| *of > 0) {
                let share = f64::from(right) / f64::from(of);
                // Five standard deviations of the least of these samples.
                let slack = 5.0 * (stated * (1.0 - stated) / f64::from(of)).sqrt();
                assert!((share - stated).abs() <= slack, "{share} of {of}, not {stated}");
            }
        }
    }
}
