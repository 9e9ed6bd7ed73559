//! Drafters that know the text, or do not, or misbehave.

use std::collections::HashMap;

use paceline::drafters::{DraftError, DraftSlot, Drafter};
use paceline_backend::{Backend, Sampling, SlotId, TokenId};

use crate::toy::{TEXT_END, ToyModel, ToyText, mix};

/// What a [`NastyDrafter`] proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nasty {
    /// What the target will choose.
    Right,
    /// Always something else.
    Wrong,
    /// Anything.
    Random,
    /// Right up to a random place, then wrong.
    RightThenWrong,
    /// End tokens.
    End,
    /// Three times as many right tokens as asked for.
    TooLong,
    /// One right token, then ids that the vocabulary does not have.
    OutOfVocabulary,
    /// Nothing, every second time; otherwise right.
    Sometimes,
    /// Right twice, then an error of the whole drafter.
    Failing,
    /// Right twice, then an error for one slot after the other.
    FailingSlots,
}

impl Nasty {
    /// All of them.
    pub const ALL: [Nasty; 10] = [
        Nasty::Right,
        Nasty::Wrong,
        Nasty::Random,
        Nasty::RightThenWrong,
        Nasty::End,
        Nasty::TooLong,
        Nasty::OutOfVocabulary,
        Nasty::Sometimes,
        Nasty::Failing,
        Nasty::FailingSlots,
    ];
}

/// A drafter of host tokens that knows the toy.
pub struct NastyDrafter {
    nasty: Nasty,
    model: ToyModel,
    sampling: Sampling,
    /// Drafts allowed in the coming rounds, over and over; empty for no limit.
    cycle: Vec<usize>,
    /// By slot: the plain text as far as it is known, and how much of it is emitted.
    texts: HashMap<SlotId, (ToyText, usize)>,
    rounds: u64,
}

impl NastyDrafter {
    /// A drafter for requests to this toy with this sampling. Round `i` has at most `cycle[i]` drafts.
    pub fn new(nasty: Nasty, model: &ToyModel, sampling: &Sampling, cycle: &[usize]) -> Self {
        let (model, sampling, cycle) = (model.clone(), sampling.clone(), cycle.to_vec());
        Self { nasty, model, sampling, cycle, texts: HashMap::new(), rounds: 0 }
    }

    /// The target's next `n` tokens, fewer at an overflow.
    fn right(&mut self, slot: SlotId, n: usize) -> Vec<TokenId> {
        let (text, known) = self.texts.get_mut(&slot).expect("only open slots are drafted for");
        while text.tokens().len() < *known + n && text.extend(&self.sampling, &[TEXT_END]).is_some() {}
        text.tokens()[*known..].iter().copied().take(n).collect()
    }

    fn propose(&mut self, slot: &mut DraftSlot) {
        let n = slot.wanted();
        let vocab = self.model.vocab_size;
        let draw = mix(self.rounds, u64::from(slot.slot().0));
        let other = |token: TokenId| TokenId((token.0 + 1) % vocab);
        let right = self.right(slot.slot(), 3 * n);
        let first = right.iter().copied().take(n);
        let tokens: Vec<TokenId> = match self.nasty {
            Nasty::Right | Nasty::Failing | Nasty::FailingSlots | Nasty::Sometimes => first.collect(),
            Nasty::Wrong => first.map(other).collect(),
            Nasty::Random => (0..n as u64).map(|i| TokenId(mix(draw, i) as u32 % vocab)).collect(),
            Nasty::RightThenWrong => {
                let n_right = draw as usize % (n + 1);
                first.enumerate().map(|(i, token)| if i < n_right { token } else { other(token) }).collect()
            }
            Nasty::End => vec![TEXT_END; n],
            Nasty::TooLong => right,
            Nasty::OutOfVocabulary => first
                .enumerate()
                .map(|(i, token)| if i == 0 { token } else { TokenId(u32::MAX - i as u32) })
                .collect(),
        };
        slot.propose(&tokens);
    }
}

impl Drafter for NastyDrafter {
    fn kind(&self) -> &'static str {
        "nasty"
    }

    fn suggested_drafts(&self) -> usize {
        3
    }

    fn open(&mut self, _backend: &mut dyn Backend, slot: SlotId, tokens: &[TokenId]) {
        let text = (ToyText::new(&self.model, tokens), tokens.len());
        assert!(self.texts.insert(slot, text).is_none(), "slot {} opened twice", slot.0);
    }

    fn close(&mut self, _backend: &mut dyn Backend, slot: SlotId) {
        assert!(self.texts.remove(&slot).is_some(), "slot {} closed but not open", slot.0);
    }

    fn draft(&mut self, _backend: &mut dyn Backend, slots: &mut [DraftSlot]) -> Result<(), DraftError> {
        self.rounds += 1;
        if self.nasty == Nasty::Failing && self.rounds > 2 {
            return Err(DraftError("it was planned to fail".into()));
        }
        if self.nasty == Nasty::Sometimes && self.rounds.is_multiple_of(2) {
            return Ok(());
        }
        let limit = match self.cycle.as_slice() {
            [] => usize::MAX,
            cycle => cycle[self.rounds as usize % cycle.len()],
        };
        for (index, slot) in slots.iter_mut().enumerate() {
            slot.lower(limit);
            if self.nasty == Nasty::FailingSlots && self.rounds > 2 && index == 0 {
                slot.fail(DraftError("it was planned to fail here".into()));
            } else if slot.wanted() > 0 {
                self.propose(slot);
            }
        }
        Ok(())
    }

    fn collected(&mut self, slot: SlotId, emitted: &[TokenId]) {
        let (_, known) = self.texts.get_mut(&slot).expect("only drafted slots are reported");
        *known += emitted.len();
    }
}
