//! A text that the client expects, as a drafter: the output is followed through it for as long as it keeps to it, and found again
//! behind a place where it did not.
//!
//! ```text
//! prediction   a b c d e f g h i j          output   a b c X e f | ?
//!                            ^ next                              proposes g h i ...
//! ```
//! After a difference the output is looked for: first near where it was lost, where an edit of the text goes on, then anywhere, by the
//! longest n-gram and its last occurrence.

use paceline_backend::{Backend, SlotId, TokenId};

use super::ngram::NgramIndex;
use super::{DraftError, DraftSlot, Drafter, NgramLengths};
use crate::request::Request;

/// Tokens of a prediction that are used; what lies beyond is left out.
const MOST_TOKENS: usize = 1 << 17;
/// Tokens behind the place where the output was lost among which it is looked for first.
const NEAR: usize = 64;

/// See the module documentation.
#[derive(Default)]
pub struct PredictionDrafter {
    suggested_drafts: usize,
    /// By slot; `None` where nothing is predicted.
    slots: Vec<Option<Follower>>,
}

impl PredictionDrafter {
    /// What [`Drafter::kind`] says.
    pub const KIND: &'static str = "prediction";
    /// Drafts of a round if the request does not say.
    pub const DEFAULT_DRAFTS: usize = 8;

    /// Proposes what is predicted, `suggested_drafts` a round unless a request says otherwise.
    pub fn new(suggested_drafts: usize) -> Self {
        Self { suggested_drafts, slots: Vec::new() }
    }
}

impl Drafter for PredictionDrafter {
    fn kind(&self) -> &'static str {
        Self::KIND
    }

    fn suggested_drafts(&self) -> usize {
        self.suggested_drafts
    }

    fn serves(&self, request: &Request) -> bool {
        !request.prediction.is_empty()
    }

    fn predicted(&mut self, slot: SlotId, prediction: &[TokenId], output: &[TokenId]) {
        let at = slot.0 as usize;
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        let mut follower = Follower::new(prediction);
        follower.take(output);
        self.slots[at] = Some(follower);
    }

    fn close(&mut self, _backend: &mut dyn Backend, slot: SlotId) {
        if let Some(place) = self.slots.get_mut(slot.0 as usize) {
            *place = None;
        }
    }

    fn draft(&mut self, _backend: &mut dyn Backend, slots: &mut [DraftSlot]) -> Result<(), DraftError> {
        for slot in slots {
            if let Some(Some(follower)) = self.slots.get(slot.slot().0 as usize) {
                let next = follower.next();
                slot.propose(&next[..next.len().min(slot.wanted())]);
            }
        }
        Ok(())
    }

    fn collected(&mut self, slot: SlotId, emitted: &[TokenId]) {
        if let Some(Some(follower)) = self.slots.get_mut(slot.0 as usize) {
            follower.take(emitted);
        }
    }
}

/// Follows one output through its prediction.
struct Follower {
    prediction: NgramIndex,
    lengths: NgramLengths,
    /// Place of the token that is expected next, or where the output was lost.
    at: usize,
    is_lost: bool,
    /// The newest tokens of the output, as many as an n-gram has at most.
    newest: Vec<TokenId>,
}

impl Follower {
    fn new(prediction: &[TokenId]) -> Self {
        let lengths = NgramLengths::default();
        let mut index = NgramIndex::new(lengths, MOST_TOKENS);
        index.extend(&prediction[..prediction.len().min(MOST_TOKENS)]);
        Self { prediction: index, lengths, at: 0, is_lost: false, newest: Vec::new() }
    }

    /// What is expected, as far as the prediction goes.
    fn next(&self) -> &[TokenId] {
        if self.is_lost { &[] } else { &self.prediction.tokens()[self.at..] }
    }

    fn take(&mut self, output: &[TokenId]) {
        for &token in output {
            if self.newest.len() == self.lengths.max() {
                self.newest.remove(0);
            }
            self.newest.push(token);
            if self.next().first() == Some(&token) {
                self.at += 1;
            } else {
                self.find();
            }
        }
    }

    /// Looks for the newest tokens.
    fn find(&mut self) {
        let n = self.lengths.min();
        let newest = self.newest.len().checked_sub(n).map(|start| &self.newest[start..]);
        let near = newest.and_then(|tokens| {
            // What was passed already is not gone back to.
            let from = self.at.saturating_sub(tokens.len() - 1);
            let places = &self.prediction.tokens()[from..];
            let places = &places[..places.len().min(NEAR)];
            let found = places.windows(tokens.len()).position(|window| window == tokens)?;
            Some(from + found + tokens.len())
        });
        match near.or_else(|| self.prediction.find_suffix_of(&self.newest)) {
            Some(place) => (self.at, self.is_lost) = (place, false),
            None => self.is_lost = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is expected after each output.
    #[track_caller]
    fn check(prediction: &[u32], cases: &[(&[u32], Option<u32>)]) {
        let ids = |tokens: &[u32]| tokens.iter().map(|&token| TokenId(token)).collect::<Vec<_>>();
        for (output, next) in cases {
            let mut follower = Follower::new(&ids(prediction));
            follower.take(&ids(output));
            assert_eq!(follower.next().first().map(|token| token.0), *next, "after {output:?}");
        }
    }

    #[test]
    fn an_output_is_followed_lost_and_found_again() {
        check(
            &[1, 2, 3, 4, 5, 6, 7, 8],
            &[
                (&[], Some(1)),
                (&[1], Some(2)),
                (&[1, 2, 3], Some(4)),
                (&[1, 2, 9], None),
                (&[1, 2, 9, 5], None),
                (&[1, 2, 9, 5, 6], Some(7)),
                (&[9, 3, 4], Some(5)),
                (&[1, 2, 3, 4, 5, 6, 7, 8], None),
                (&[1, 2, 3, 4, 5, 6, 7, 8, 9], None),
            ],
        );
        check(&[1], &[(&[], Some(1)), (&[1], None), (&[2, 1], None)]);
    }

    #[test]
    fn what_follows_the_place_where_it_was_lost_comes_first() {
        // `5 6` stands there twice; the text was lost before the first.
        check(
            &[1, 2, 3, 5, 6, 7, 3, 5, 6, 8],
            &[(&[1, 2, 9, 5, 6], Some(7)), (&[1, 2, 3, 5, 6, 0, 5, 6], Some(8))],
        );
        // From far away the longest goes, and then the last.
        let far: Vec<u32> = (100..300).chain([5, 6, 7, 0, 4, 5, 6, 8, 0, 5, 6, 9]).collect();
        check(&far, &[(&[5, 6], Some(9)), (&[4, 5, 6], Some(8))]);
    }

    /// As after a preemption.
    #[test]
    fn an_output_that_has_begun_is_followed_from_where_it_is() {
        let ids = |tokens: &[u32]| tokens.iter().map(|&token| TokenId(token)).collect::<Vec<_>>();
        let mut drafter = PredictionDrafter::new(4);
        drafter.predicted(SlotId(1), &ids(&[1, 2, 3, 4]), &ids(&[1, 2]));
        let next = drafter.slots[1].as_ref().map(|follower| follower.next().to_vec());
        assert_eq!(next, Some(ids(&[3, 4])));
    }
}
