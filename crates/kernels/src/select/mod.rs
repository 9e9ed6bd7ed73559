//! Choosing a token from the logits of each row.
//!
//! The vocabulary is cut into tiles of [`TILE`] ids. A tile's result does not depend on who computes it, and tiles join in
//! ascending order, so rows and tiles may be shared out among threads freely.

mod greedy;
mod top;

use crate::isa::Isa;
use crate::memory::Disjoint;
use crate::pool::Team;
use greedy::TileBest;
pub use top::Top;

/// Token ids of one vocabulary tile.
pub const TILE: usize = 4096;

/// What becomes of a row's raw logits before the largest is taken.
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
#[derive(Debug, Default)]
pub struct Chooser {
    tiles: Vec<TileBest>, // [rows, tiles of the vocabulary]
}

impl Chooser {
    /// Makes room for `max_rows` rows of `vocab` logits, beside what there is room for already.
    pub fn reserve(&mut self, max_rows: usize, vocab: usize) {
        let n_tiles = max_rows * vocab.div_ceil(TILE);
        self.tiles.resize(self.tiles.len().max(n_tiles), TileBest::default());
    }

    /// For each row of `logits: [choices.len(), vocab]`, the id of the largest logit, the lowest of equals. Applies the row's
    /// rules to the logits in place.
    ///
    /// # Panics
    /// If the sizes do not fit one another, or there are more rows than there is room for.
    pub fn greedy<'a>(
        &mut self,
        isa: Isa,
        team: &mut Team,
        logits: &mut [f32],
        rules: impl Fn(usize) -> LogitRules<'a> + Sync,
        choices: &mut [Choice],
    ) {
        let vocab = logits.len().checked_div(choices.len()).unwrap_or(0);
        assert_eq!(logits.len(), choices.len() * vocab, "one row of logits per choice");
        let tiles_per_row = vocab.div_ceil(TILE);
        let n_tiles = choices.len() * tiles_per_row;
        assert!(n_tiles <= self.tiles.len(), "more rows than the chooser has room for");
        let logits = Disjoint::new(logits);
        team.run_pieces(&mut self.tiles[..n_tiles], 1, |_, piece, best| {
            let (row, first) = (piece / tiles_per_row, piece % tiles_per_row * TILE);
            let len = TILE.min(vocab - first);
            // SAFETY: these logits belong to this piece only, and `run_pieces` runs each piece once.
            let logits = unsafe { logits.slice_mut(row * vocab + first, len) };
            best[0] = greedy::best_of_tile(isa, logits, first, rules(row));
        });
        for (choice, tiles) in choices.iter_mut().zip(self.tiles.chunks(tiles_per_row.max(1))) {
            *choice = greedy::join(tiles);
        }
    }
}

#[cfg(test)]
mod tests;
