//! Where the newest tokens of a text stood before.
//!
//! ```text
//! tokens     a b c d x y   b c d z   ...   b c d | ?
//!                                ^ the newest earlier `b c d`: what followed it is the guess
//! ```
//! For each length there is a table from an n-gram to the place behind its newest occurrence. An n-gram enters the tables when the
//! token behind it is known, so a look-up never finds the end of the text itself. Tables hold places only: an entry is
//! compared with the tokens it stands for, so a hash that two n-grams share costs time and never gives a wrong place.
//!
//! Memory is bounded: when the history is full, the older half is forgotten and the tables are made anew. That takes time once in
//! so many tokens; everything else is a fixed number of probes, however long the history is.

use paceline_backend::TokenId;

/// Smallest and largest number of tokens that have to agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NgramLengths {
    min: usize,
    max: usize,
}

impl NgramLengths {
    /// Largest length that is accepted: longer ones find nothing that these do not.
    pub const MOST: usize = 32;

    /// Lengths from `min` to `max`. `None` unless `1 <= min <= max <= MOST`.
    pub fn new(min: usize, max: usize) -> Option<Self> {
        (1 <= min && min <= max && max <= Self::MOST).then_some(Self { min, max })
    }

    /// The smallest.
    pub fn min(self) -> usize {
        self.min
    }

    /// The largest.
    pub fn max(self) -> usize {
        self.max
    }
}

impl Default for NgramLengths {
    fn default() -> Self {
        Self { min: 2, max: 5 }
    }
}

/// See the module.
#[derive(Debug)]
pub(in crate::drafters) struct NgramIndex {
    lengths: NgramLengths,
    /// Tokens at which the older half is forgotten.
    capacity: usize,
    tokens: Vec<TokenId>,
    /// One for each length, ascending.
    tables: Vec<Table>,
}

impl NgramIndex {
    /// An empty history that keeps at least the last half of `capacity` tokens.
    pub(in crate::drafters) fn new(lengths: NgramLengths, capacity: usize) -> Self {
        assert!(capacity >= 2 * lengths.max, "a history of {capacity} tokens");
        let tables = (lengths.min..=lengths.max).map(Table::new).collect();
        Self { lengths, capacity, tokens: Vec::new(), tables }
    }

    /// Values of 32 bits that a history of `n_tokens` takes at most, with its tables.
    pub(in crate::drafters) fn most_values(lengths: NgramLengths, capacity: usize, n_tokens: usize) -> usize {
        let n_tokens = n_tokens.min(capacity);
        let mut table = FIRST_SIZE;
        while is_too_full(n_tokens, table) {
            table *= 2;
        }
        // Lists grow by doubling too.
        n_tokens.next_power_of_two().max(FIRST_SIZE) + (lengths.max - lengths.min + 1) * table
    }

    /// Tokens that are remembered.
    pub(in crate::drafters) fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Adds tokens behind those known.
    pub(in crate::drafters) fn extend(&mut self, tokens: &[TokenId]) {
        // What would be forgotten at once needs no entry.
        let tokens = if tokens.len() > self.capacity {
            self.clear();
            &tokens[tokens.len() - self.capacity / 2..]
        } else {
            tokens
        };
        for &token in tokens {
            if self.tokens.len() == self.capacity {
                let newer = self.tokens.split_off(self.capacity / 2);
                self.clear();
                newer.into_iter().for_each(|token| self.push(token));
            }
            self.push(token);
        }
    }

    fn clear(&mut self) {
        self.tokens.clear();
        self.tables.iter_mut().for_each(Table::clear);
    }

    fn push(&mut self, token: TokenId) {
        let mut hash = Hash::default();
        for n in 1..=self.lengths.max.min(self.tokens.len()) {
            hash.add(self.tokens[self.tokens.len() - n]);
            if let Some(table) = n.checked_sub(self.lengths.min) {
                self.tables[table].put(hash, &self.tokens, self.tokens.len());
            }
        }
        self.tokens.push(token);
    }

    /// The place behind the newest earlier occurrence of the longest suffix of the text that has one.
    pub(in crate::drafters) fn find(&self) -> Option<usize> {
        self.find_suffix_of(&self.tokens)
    }

    /// As [`NgramIndex::find`] for another text that is looked up here.
    pub(in crate::drafters) fn find_suffix_of(&self, text: &[TokenId]) -> Option<usize> {
        let mut hashes = [Hash::default(); NgramLengths::MOST];
        let most = self.lengths.max.min(text.len());
        let mut hash = Hash::default();
        for n in 1..=most {
            hash.add(text[text.len() - n]);
            hashes[n - 1] = hash;
        }
        let mut lengths = (self.lengths.min..=most).rev();
        lengths.find_map(|n| {
            let table = &self.tables[n - self.lengths.min];
            table.get(hashes[n - 1], &self.tokens, &text[text.len() - n..])
        })
    }
}

/// Hash of the last tokens of a text, newest first.
#[derive(Clone, Copy, Debug, Default)]
struct Hash(u64);

impl Hash {
    fn add(&mut self, token: TokenId) {
        // Multiplication moves entropy up and the shift brings it down again (as SplitMix64 does).
        let mixed = (self.0 ^ u64::from(token.0)).wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = mixed.wrapping_mul(0xBF58_476D_1CE4_E5B9);
        self.0 = mixed ^ (mixed >> 29);
    }
}

/// A place in a table that holds nothing.
const EMPTY: u32 = u32::MAX;
const FIRST_SIZE: usize = 64;

/// Whether a table of so many places has to grow.
fn is_too_full(n_taken: usize, n_places: usize) -> bool {
    4 * n_taken > 3 * n_places
}

/// From n-grams of one length to the place behind their newest occurrence: open addressing with linear probing.
#[derive(Debug)]
struct Table {
    n: usize,
    /// A power of two, at most three quarters full.
    places: Vec<u32>,
    n_taken: usize,
}

impl Table {
    fn new(n: usize) -> Self {
        Self { n, places: vec![EMPTY; FIRST_SIZE], n_taken: 0 }
    }

    fn clear(&mut self) {
        self.places.fill(EMPTY);
        self.n_taken = 0;
    }

    /// Index of the entry of an n-gram, or of the empty one where it would stand.
    fn probe(&self, hash: Hash, tokens: &[TokenId], gram: &[TokenId]) -> usize {
        let mask = self.places.len() - 1;
        let mut at = hash.0 as usize & mask;
        while self.places[at] != EMPTY && tokens[self.places[at] as usize - self.n..][..self.n] != *gram {
            at = (at + 1) & mask;
        }
        at
    }

    fn get(&self, hash: Hash, tokens: &[TokenId], gram: &[TokenId]) -> Option<usize> {
        let place = self.places[self.probe(hash, tokens, gram)];
        (place != EMPTY).then_some(place as usize)
    }

    /// Notes that the n-gram before `end` stands there.
    fn put(&mut self, hash: Hash, tokens: &[TokenId], end: usize) {
        let at = self.probe(hash, tokens, &tokens[end - self.n..end]);
        self.n_taken += usize::from(self.places[at] == EMPTY);
        self.places[at] = u32::try_from(end).expect("a history is shorter than its capacity");
        if is_too_full(self.n_taken, self.places.len()) {
            self.grow(tokens);
        }
    }

    fn grow(&mut self, tokens: &[TokenId]) {
        let old = std::mem::take(&mut self.places);
        self.places = vec![EMPTY; 2 * old.len()];
        for place in old.into_iter().filter(|&place| place != EMPTY) {
            let end = place as usize;
            let gram = &tokens[end - self.n..end];
            let mut hash = Hash::default();
            gram.iter().rev().for_each(|&token| hash.add(token));
            let at = self.probe(hash, tokens, gram);
            self.places[at] = place;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ids(tokens: &[u32]) -> Vec<TokenId> {
        tokens.iter().map(|&token| TokenId(token)).collect()
    }

    /// Longest suffix first, then newest, by looking everywhere.
    fn naive(tokens: &[TokenId], lengths: NgramLengths) -> Option<usize> {
        (lengths.min..=lengths.max.min(tokens.len())).rev().find_map(|n| {
            let gram = &tokens[tokens.len() - n..];
            (n..tokens.len()).rev().find(|&end| tokens[end - n..end] == *gram)
        })
    }

    #[test]
    fn lengths_that_make_no_sense_are_no_lengths() {
        for (min, max) in [(0, 3), (4, 3), (1, 33), (0, 0), (usize::MAX, usize::MAX)] {
            assert_eq!(NgramLengths::new(min, max), None, "{min} to {max}");
        }
        let one = NgramLengths::new(1, 32).unwrap();
        assert_eq!((one.min(), one.max()), (1, 32));
    }

    #[test]
    fn the_longest_comes_first_and_then_the_newest() {
        let lengths = NgramLengths::new(1, 3).unwrap();
        let mut index = NgramIndex::new(lengths, 100);
        let mut find = |tokens: &[u32]| {
            index.extend(&ids(tokens));
            index.find().map(|end| index.tokens()[end].0)
        };
        assert_eq!(find(&[1, 2, 3, 7]), None);
        // `3` alone is known.
        assert_eq!(find(&[9, 3]), Some(7));
        // `2 3` and `3` are; behind `3` the newest is 8, behind `2 3` it is 7.
        assert_eq!(find(&[8, 2, 3]), Some(7));
        // Twice the same: the newer one.
        assert_eq!(find(&[6, 2, 3]), Some(6));
        // A text may repeat itself from token to token.
        assert_eq!(find(&[5, 5, 5]), Some(5));
    }

    #[test]
    fn a_long_history_is_cut_and_the_newer_half_is_still_found() {
        let lengths = NgramLengths::new(2, 3).unwrap();
        let mut index = NgramIndex::new(lengths, 16);
        let all: Vec<u32> = (0..1000).collect();
        index.extend(&ids(&all));
        assert_eq!(index.tokens(), ids(&all[992..]), "what can not be kept is not even read");
        for token in 0..100 {
            index.extend(&ids(&[token]));
            assert!((8..=16).contains(&index.tokens().len()));
            let bytes: usize = index.tables.iter().map(|table| table.places.len()).sum();
            assert!(bytes <= 2 * FIRST_SIZE);
        }
        index.extend(&ids(&[95, 96]));
        assert_eq!(index.find().map(|end| index.tokens()[end].0), Some(97));
    }

    #[test]
    fn memory_has_a_bound_that_is_reached() {
        let lengths = NgramLengths::new(2, 5).unwrap();
        let values = |index: &NgramIndex| {
            index.tokens.capacity() + index.tables.iter().map(|table| table.places.len()).sum::<usize>()
        };
        let (mut index, capacity) = (NgramIndex::new(lengths, 1024), 1024);
        let mut reached = 0;
        for n in 1..=3000 {
            index.extend(&ids(&[n * 7 % 1009]));
            let most = NgramIndex::most_values(lengths, capacity, n as usize);
            assert!(values(&index) <= most, "{} values of {most} for {n} tokens", values(&index));
            reached += usize::from(values(&index) == most);
        }
        assert!(reached > 100, "it is reached {reached} times");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn finds_what_a_naive_search_finds(
            (min, max) in (1..5_usize).prop_flat_map(|min| (Just(min), min..8_usize)),
            vocabulary in 1..12_u32,
            seed in any::<u64>(),
            pieces in prop::collection::vec(1..40_usize, 1..40),
        ) {
            let lengths = NgramLengths::new(min, max).unwrap();
            let mut index = NgramIndex::new(lengths, 300);
            let mut state = seed;
            for piece in pieces {
                let mut token = || {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    TokenId((state >> 33) as u32 % vocabulary)
                };
                let tokens: Vec<_> = (0..piece).map(|_| token()).collect();
                index.extend(&tokens);
                prop_assert_eq!(index.find(), naive(index.tokens(), lengths));
                let other: Vec<_> = (0..piece).map(|_| token()).collect();
                let found = index.find_suffix_of(&other);
                let joined = |n: usize| index.tokens()[..index.tokens().len() - 1]
                    .windows(n).rposition(|window| other.ends_with(window)).map(|at| at + n);
                let expected = (min..=max.min(other.len()).min(index.tokens().len().saturating_sub(1)))
                    .rev().find_map(joined);
                prop_assert_eq!(found, expected);
            }
        }
    }
}
