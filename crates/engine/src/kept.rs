//! K/V that a request leaves to the one behind it, as the turns of a conversation do.
//!
//! ```text
//! left    t[0] ........................ t[len-1]     committed by a request that has ended or was cancelled
//! next    t[0] .. t[P-1] | u[P] ........ u[n-1]      P: how far both are the same, and less than n
//!         taken over     | read
//! ```
//! Rows at P and behind are dead to the new sequence until it writes them, like those of rejected drafts. A row's bits do not depend on
//! who computed the rows before it, so its text is that of reading everything. Where a window has given back what a row at P would
//! see, or a drafter with K/V of its own did not follow to the end, everything is read.
//!
//! It is left until the next round. A sequence that is then alone takes it over; otherwise its blocks are free again, so nobody ever waits
//! or is preempted for the sake of a request that may never come.

use std::mem;

use paceline_backend::TokenId;

use crate::kv::SequenceKv;
use crate::sequence::Sequence;

/// See the module documentation.
pub(crate) struct Kept {
    /// The tokens of the rows, at most as many as were committed.
    tokens: Vec<TokenId>,
    pub(crate) kv: SequenceKv,
    /// Every source of its drafter followed to the end.
    drafted: bool,
}

impl Kept {
    /// Takes tokens and K/V out of a sequence that ends.
    pub(crate) fn of(sequence: &mut Sequence) -> Self {
        let drafting = sequence.drafting.as_ref().filter(|drafting| drafting.active());
        let drafted = drafting.is_some_and(|drafting| drafting.statistics.given_up().next().is_none());
        let mut tokens = mem::take(&mut sequence.tokens);
        // A text that a stop string ended may have fewer tokens than rows.
        tokens.truncate(sequence.len);
        Self { tokens, kv: mem::take(&mut sequence.kv), drafted }
    }

    /// Tokens that a waiting sequence need not read, if the K/V of all of them is there. `drafter_kv`: its drafter has K/V of its own.
    pub(crate) fn shared_with(&self, next: &Sequence, drafter_kv: bool) -> usize {
        let has_its_own = next.len > 0;
        let wants_all_rows = next.scores(next.n_prompt);
        if has_its_own || wants_all_rows || (drafter_kv && next.drafted() && !self.drafted) {
            return 0;
        }
        let same = self.tokens.iter().zip(&next.tokens).take_while(|(left, new)| left == new).count();
        same.min(next.tokens.len() - 1)
    }
}
