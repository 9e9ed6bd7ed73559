//! The drafter of a proof: the one that was given, or the plain text with mistakes put in.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline::TokenId;
use paceline::drafters::{DraftError, DraftSlot, Drafter, SettledSlot};
use paceline_backend::{Backend, Pass, SlotId};
use paceline_models::OwnedGroup;

use super::cells::{CHANGING, Drafts, MAX_DRAFTS, Who};

/// What drafts in the coming run.
#[derive(Debug)]
struct Orders {
    who: Who,
    drafts: Drafts,
    rounds: usize,
    /// Prompts with the plain text behind them.
    texts: Vec<Vec<TokenId>>,
    /// How many tokens of each are the prompt.
    n_prompts: Vec<usize>,
}

/// The other end of a [`ProofDrafter`].
#[derive(Clone, Debug)]
pub(super) struct Foreman(Arc<Mutex<Orders>>);

impl Foreman {
    pub(super) fn new() -> Self {
        let (who, drafts) = (Who::Nobody, Drafts::Fixed(0));
        let orders = Orders { who, drafts, rounds: 0, texts: Vec::new(), n_prompts: Vec::new() };
        Self(Arc::new(Mutex::new(orders)))
    }

    fn lock(&self) -> MutexGuard<'_, Orders> {
        // Nothing between lock and unlock leaves it half written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is plainly decoded of each prompt: what the script is made of.
    pub(super) fn set_script(&self, prompts: &[Vec<TokenId>], outputs: &[Vec<TokenId>]) {
        let mut orders = self.lock();
        orders.texts = prompts.iter().zip(outputs).map(|(a, b)| [&a[..], b].concat()).collect();
        orders.n_prompts = prompts.iter().map(Vec::len).collect();
    }

    /// Who drafts from now on, and how much.
    pub(super) fn set(&self, who: Who, drafts: Drafts) {
        let mut orders = self.lock();
        (orders.who, orders.drafts, orders.rounds) = (who, drafts, 0);
    }
}

impl Orders {
    /// Of the drafts after the first `known` tokens of a text: that text's own tokens, up to a place that depends on both, and
    /// a wrong one.
    fn script(&self, text: usize, known: usize, n: usize, vocab_size: u32) -> Vec<TokenId> {
        let rest = self.texts[text].get(known..).unwrap_or_default();
        let draw = (text as u64 ^ ((known as u64) << 8)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let n_right = draw as usize % (n + 2);
        let wrong = |token: TokenId| TokenId((token.0 + 1) % vocab_size);
        let choose = |(i, &token): (usize, &TokenId)| if i == n_right { wrong(token) } else { token };
        rest.iter().take(n).enumerate().map(choose).collect()
    }
}

/// See the module.
pub(super) struct ProofDrafter {
    given: Option<Box<dyn Drafter>>,
    foreman: Foreman,
    vocab_size: u32,
    /// By slot: its text and how much of it is known.
    slots: Vec<Option<(usize, usize)>>,
}

impl ProofDrafter {
    pub(super) fn new(given: Option<Box<dyn Drafter>>, foreman: Foreman, vocab_size: usize) -> Self {
        Self { given, foreman, vocab_size: vocab_size as u32, slots: Vec::new() }
    }

    fn draft_script(&self, orders: &Orders, slots: &mut [DraftSlot]) {
        for slot in slots {
            if let Some((text, known)) = self.slots[slot.slot().0 as usize] {
                slot.propose(&orders.script(text, known, slot.wanted(), self.vocab_size));
            }
        }
    }
}

impl Drafter for ProofDrafter {
    fn kind(&self) -> &'static str {
        self.given.as_ref().map_or("script", |given| given.kind())
    }

    fn sources(&self) -> Vec<&'static str> {
        self.given.as_ref().map_or(vec!["script"], |given| given.sources())
    }

    fn suggested_drafts(&self) -> usize {
        MAX_DRAFTS
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
        let orders = self.foreman.lock();
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
        let foreman = self.foreman.clone();
        let mut orders = foreman.lock();
        orders.rounds += 1;
        if orders.drafts == Drafts::Changing {
            let limit = CHANGING[orders.rounds % CHANGING.len()];
            if limit == 0 {
                return Ok(());
            }
            slots.iter_mut().for_each(|slot| slot.lower(limit));
        }
        match (orders.who, &mut self.given) {
            (Who::Given, Some(given)) => given.draft(backend, slots),
            (Who::Script, _) => {
                self.draft_script(&orders, slots);
                Ok(())
            }
            (Who::Given, None) | (Who::Nobody, _) => Ok(()),
        }
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

    #[test]
    fn a_script_is_right_up_to_a_place_that_varies() {
        let foreman = Foreman::new();
        let ids = |ids: std::ops::Range<u32>| ids.map(TokenId).collect::<Vec<_>>();
        foreman.set_script(&[ids(0..3)], &[ids(3..60)]);
        let orders = foreman.lock();
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
}
