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
//! Templates may open an answer in other words than they repeat it in, and then P is at the end of the last prompt, whatever the length of
//! its answer. So the whole blocks up to there are held beside the sequence's own, as one that shares them would hold them
//! ([`hold_prompt`]); [`crate::Sizes::keep_prompts`] makes room for that, and where blocks are short they go first.
//!
//! It is left until the next round. A sequence that is then alone takes it over; otherwise its blocks are free again, so nobody ever waits
//! or is preempted for the sake of a request that may never come.

use std::mem;

use paceline_backend::{KV_BLOCK, TokenId};

use crate::kv::{KvCache, SequenceKv};
use crate::sequence::Sequence;

/// Tokens at the end of a prompt that may open an answer in words that are not repeated.
const OPENING: usize = 16;

/// The blocks of a prompt without its end.
pub(crate) struct PromptKv {
    /// Its rows.
    len: usize,
    pub(crate) kv: SequenceKv,
}

/// Holds the blocks of a prompt, once it is read, for the sake of the next request. Nothing of them may have been given back yet.
pub(crate) fn hold_prompt(kv: &mut KvCache, sequence: &mut Sequence) {
    let len = sequence.n_prompt.saturating_sub(OPENING) / KV_BLOCK * KV_BLOCK;
    if sequence.keep && sequence.prompt_kv.is_none() && (1..=sequence.len).contains(&len) {
        sequence.prompt_kv = kv.share(&sequence.kv, len).map(|kv| PromptKv { len, kv });
    }
}

/// See the module documentation.
pub(crate) struct Kept {
    /// The tokens of the rows, at most as many as were committed.
    tokens: Vec<TokenId>,
    kv: SequenceKv,
    prompt: Option<PromptKv>,
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
        Self { tokens, kv: mem::take(&mut sequence.kv), prompt: sequence.prompt_kv.take(), drafted }
    }

    /// All block tables.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &SequenceKv> + Clone {
        [&self.kv].into_iter().chain(self.prompt.iter().map(|prompt| &prompt.kv))
    }

    /// Gives everything back.
    pub(crate) fn release(mut self, cache: &mut KvCache) {
        cache.release(&mut self.kv);
        self.prompt.iter_mut().for_each(|prompt| cache.release(&mut prompt.kv));
    }

    /// The blocks of as many of the first `same` tokens as can be had, and how many. The others are given back.
    pub(crate) fn take(self, same: usize, cache: &mut KvCache) -> (SequenceKv, usize) {
        let Kept { mut kv, prompt, .. } = self;
        let (mut rest, mut len) = (SequenceKv::default(), 0);
        match prompt {
            _ if same > 0 && cache.covers(&kv, same) => {
                len = same;
                rest = prompt.map_or(rest, |prompt| prompt.kv);
            }
            Some(prompt) if prompt.len <= same => {
                len = prompt.len;
                rest = mem::replace(&mut kv, prompt.kv);
            }
            prompt => {
                cache.release(&mut kv);
                rest = prompt.map_or(rest, |prompt| prompt.kv);
            }
        }
        cache.release(&mut rest);
        cache.release_below(&mut kv, len);
        (kv, len)
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
