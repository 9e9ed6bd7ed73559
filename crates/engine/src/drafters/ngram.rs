//! n-grams as a drafter: what followed the newest tokens when they stood in the prompt or the output before.
//!
//! No network and no checkpoint. Good where a text repeats parts of itself or of its prompt (summaries, edits of code, quotations);
//! elsewhere it finds nothing and proposes nothing, which costs a look-up.

mod index;

use paceline_backend::{Backend, SlotId, TokenId};

pub(super) use index::NgramIndex;
pub use index::NgramLengths;

use super::{DraftError, DraftSlot, Drafter};

/// Tokens of a sequence at which the older half is forgotten: some 5 MB with the usual lengths.
const HISTORY: usize = 1 << 17;

/// See the module documentation.
pub struct NgramDrafter {
    lengths: NgramLengths,
    suggested_drafts: usize,
    /// By slot: the tokens of the sequence in it.
    slots: Vec<Option<NgramIndex>>,
}

impl NgramDrafter {
    /// Drafts of a round if the request does not say.
    pub const DEFAULT_DRAFTS: usize = 5;

    /// Proposes what followed suffixes of these lengths, `suggested_drafts` a round unless a request says otherwise.
    pub fn new(lengths: NgramLengths, suggested_drafts: usize) -> Self {
        Self { lengths, suggested_drafts, slots: Vec::new() }
    }

    /// Values of 32 bits that a sequence of up to `context` tokens takes at most: what is bounded for any length.
    pub fn most_values(lengths: NgramLengths, context: usize) -> usize {
        NgramIndex::most_values(lengths, HISTORY, context)
    }
}

impl Drafter for NgramDrafter {
    fn kind(&self) -> &'static str {
        "ngram"
    }

    fn suggested_drafts(&self) -> usize {
        self.suggested_drafts
    }

    fn open(&mut self, _backend: &mut dyn Backend, slot: SlotId, tokens: &[TokenId]) {
        let at = slot.0 as usize;
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        let mut index = NgramIndex::new(self.lengths, HISTORY);
        index.extend(tokens);
        self.slots[at] = Some(index);
    }

    fn close(&mut self, _backend: &mut dyn Backend, slot: SlotId) {
        self.slots[slot.0 as usize] = None;
    }

    fn draft(&mut self, _backend: &mut dyn Backend, slots: &mut [DraftSlot]) -> Result<(), DraftError> {
        for slot in slots {
            let Some(Some(index)) = self.slots.get(slot.slot().0 as usize) else { continue };
            let Some(start) = index.find() else { continue };
            slot.propose(&continuation(index.tokens(), start, slot.wanted()));
        }
        Ok(())
    }

    fn collected(&mut self, slot: SlotId, emitted: &[TokenId]) {
        if let Some(Some(index)) = self.slots.get_mut(slot.0 as usize) {
            index.extend(emitted);
        }
    }
}

/// `n` tokens from `start` on. Behind the end of the text its last tokens come again, so a short period goes on.
fn continuation(tokens: &[TokenId], start: usize, n: usize) -> Vec<TokenId> {
    tokens[start..].iter().cycle().take(n).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_goes_on_behind_the_end() {
        let tokens: Vec<_> = [1, 2, 3, 4].map(TokenId).into();
        let ids = |start, n| continuation(&tokens, start, n).iter().map(|token| token.0).collect::<Vec<_>>();
        assert_eq!(ids(0, 3), [1, 2, 3]);
        assert_eq!(ids(2, 5), [3, 4, 3, 4, 3]);
    }
}
