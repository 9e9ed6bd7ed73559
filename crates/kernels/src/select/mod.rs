//! Choosing a token from the logits of each row.
//!
//! The vocabulary is cut into tiles of [`TILE`] ids. A tile's result does not depend on who computes it, and tiles join in
//! ascending order, so rows and tiles may be shared out among threads freely.

mod greedy;

use crate::isa::Isa;
use crate::memory::Disjoint;
use crate::pool::Team;
use greedy::TileBest;

/// Token ids of one vocabulary tile.
pub const TILE: usize = 4096;

/// What becomes of raw logits before the largest is taken; the same for every row.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogitRules<'a> {
    /// `c * tanh(z / c)` with this c, if the model has one.
    pub softcap: Option<f32>,
    /// Token ids that are never chosen: their logits become -inf after the softcap. Ids beyond the vocabulary say
    /// nothing.
    pub suppressed: &'a [u32],
}

/// The token of one row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The chosen id; 0 where `fault`.
    pub token: u32,
    /// The row has a NaN among its logits, or nothing above -inf: there is no choice.
    pub fault: bool,
}

/// Scratch memory for choosing, made at load.
#[derive(Debug)]
pub struct Chooser {
    vocab: usize,
    tiles: Vec<TileBest>, // [rows, tiles of the vocabulary]
}

impl Chooser {
    /// Room for up to `max_rows` rows of `vocab` logits.
    pub fn new(max_rows: usize, vocab: usize) -> Chooser {
        Chooser { vocab, tiles: vec![TileBest::default(); max_rows * vocab.div_ceil(TILE)] }
    }

    /// For each row, the id of the largest logit, the lowest of equals. Applies `rules` to the logits in place:
    /// `logits: [choices.len(), vocab]` holds their results afterwards.
    ///
    /// # Panics
    /// If the sizes do not fit one another, or there are more rows than [`Chooser::new`] was told of.
    pub fn greedy(
        &mut self,
        isa: Isa,
        team: &mut Team,
        logits: &mut [f32],
        rules: LogitRules<'_>,
        choices: &mut [Choice],
    ) {
        assert_eq!(logits.len(), choices.len() * self.vocab, "one row of logits per choice");
        let tiles_per_row = self.vocab.div_ceil(TILE);
        let n_tiles = choices.len() * tiles_per_row;
        assert!(n_tiles <= self.tiles.len(), "more rows than the chooser has room for");
        let logits = Disjoint::new(logits);
        team.run_pieces(&mut self.tiles[..n_tiles], 1, |_, piece, best| {
            let (row, first) = (piece / tiles_per_row, piece % tiles_per_row * TILE);
            let len = TILE.min(self.vocab - first);
            // SAFETY: these logits belong to this piece only, and `run_pieces` runs each piece once.
            let logits = unsafe { logits.slice_mut(row * self.vocab + first, len) };
            best[0] = greedy::best_of_tile(isa, logits, first, rules);
        });
        for (choice, tiles) in choices.iter_mut().zip(self.tiles.chunks(tiles_per_row.max(1))) {
            *choice = greedy::join(tiles);
        }
    }
}

#[cfg(test)]
mod tests;
