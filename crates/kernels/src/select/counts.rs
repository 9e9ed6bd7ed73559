//! How often each token occurs in a sequence: what penalties ask.

/// One token of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TokenCount {
    pub(super) token: u32,
    pub(super) in_prompt: bool,
    pub(super) n_output: u32,
}

/// The distinct tokens of a sequence with their counts. Room grows with the sequence, never with the vocabulary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// Ascending by token.
    entries: Vec<TokenCount>,
}

impl TokenCounts {
    /// Counts of a prompt without output.
    pub fn of_prompt(prompt: impl IntoIterator<Item = u32>) -> TokenCounts {
        let entries = prompt.into_iter().map(|token| TokenCount { token, in_prompt: true, n_output: 0 });
        let mut entries: Vec<TokenCount> = entries.collect();
        entries.sort_unstable_by_key(|entry| entry.token);
        entries.dedup_by_key(|entry| entry.token);
        TokenCounts { entries }
    }

    /// Counts one more token of the output.
    pub fn add_output(&mut self, token: u32) {
        match self.place(token) {
            Ok(place) => self.entries[place].n_output += 1,
            Err(place) => self.entries.insert(place, TokenCount { token, in_prompt: false, n_output: 1 }),
        }
    }

    /// Takes back one [`TokenCounts::add_output`].
    ///
    /// # Panics
    /// If the output does not have the token.
    pub fn remove_output(&mut self, token: u32) {
        let place = self.place(token).expect("only what was counted is taken back");
        let entry = &mut self.entries[place];
        entry.n_output = entry.n_output.checked_sub(1).expect("only what was counted is taken back");
        if entry.n_output == 0 && !entry.in_prompt {
            self.entries.remove(place);
        }
    }

    pub(super) fn entries(&self) -> &[TokenCount] {
        &self.entries
    }

    /// How often the output has `token`; `None` if the whole sequence has not.
    pub(super) fn n_output(&self, token: u32) -> Option<u32> {
        self.place(token).ok().map(|place| self.entries[place].n_output)
    }

    fn place(&self, token: u32) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&token, |entry| entry.token)
    }
}

/// What one row has before it: the committed tokens of its sequence, and the drafts between them and the row. (A row does not
/// copy the counts: a rejected draft was never in them.)
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Prompt, emitted tokens and anchor.
    pub committed: &'a TokenCounts,
    /// Drafts up to the row, its own token included.
    pub drafts: &'a [u32],
}

impl Seen<'_> {
    /// How often `token` stands in the output before the row; `None` if it stands nowhere, the prompt included.
    pub(super) fn n_output(self, token: u32) -> Option<u32> {
        let drafted = self.n_drafted(token);
        match self.committed.n_output(token) {
            Some(n) => Some(n + drafted),
            None if drafted > 0 => Some(drafted),
            None => None,
        }
    }

    fn n_drafted(self, token: u32) -> u32 {
        self.drafts.iter().filter(|draft| **draft == token).count() as u32
    }

    /// Calls `f(token, n_output)` once for each distinct token before the row.
    pub(super) fn for_each(self, mut f: impl FnMut(u32, u32)) {
        for entry in self.committed.entries() {
            f(entry.token, entry.n_output + self.n_drafted(entry.token));
        }
        for (i, &draft) in self.drafts.iter().enumerate() {
            if !self.drafts[..i].contains(&draft) && self.committed.n_output(draft).is_none() {
                f(draft, self.n_drafted(draft));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::testing::Random;

    /// By counting.
    fn recount(prompt: &[u32], output: &[u32]) -> BTreeMap<u32, u32> {
        let mut counts: BTreeMap<u32, u32> = prompt.iter().map(|token| (*token, 0)).collect();
        output.iter().for_each(|token| *counts.entry(*token).or_default() += 1);
        counts
    }

    #[test]
    fn counts_after_any_history_equal_a_recount() {
        let mut random = Random::new(5);
        for _ in 0..100 {
            let token = |random: &mut Random| random.below(12) as u32;
            let prompt: Vec<u32> = (0..random.below(20)).map(|_| token(&mut random)).collect();
            let mut counts = TokenCounts::of_prompt(prompt.iter().copied());
            let mut output = Vec::new();
            for _ in 0..60 {
                if random.below(3) == 0 && !output.is_empty() {
                    counts.remove_output(output.pop().unwrap());
                } else {
                    output.push(token(&mut random));
                    counts.add_output(*output.last().unwrap());
                }
                let drafts: Vec<u32> = (0..random.below(6)).map(|_| token(&mut random)).collect();
                let seen = Seen { committed: &counts, drafts: &drafts };
                let expected = recount(&prompt, &[&output[..], &drafts].concat());
                let mut found = BTreeMap::new();
                seen.for_each(|token, n| assert!(found.insert(token, n).is_none(), "{token} twice"));
                assert_eq!(found, expected);
                assert!((0..14).all(|token| seen.n_output(token) == expected.get(&token).copied()));
            }
            output.iter().for_each(|token| counts.remove_output(*token));
            assert_eq!(counts, TokenCounts::of_prompt(prompt));
        }
    }
}
