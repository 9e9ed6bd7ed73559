//! What is run: how many drafts, how many texts at a time, chunks, threads, levels.

use std::fmt;

use paceline::Isa;

/// Drafts of a round at most.
pub(super) const MAX_DRAFTS: usize = 15;
/// Texts at a time at most.
pub(super) const MAX_BATCH: usize = 5;
/// Drafts of the rounds of [`Drafts::Changing`], over and over.
pub(super) const CHANGING: [usize; 5] = [0, 5, 0, 1, 8];

const DRAFTS: [Drafts; 9] = [
    Drafts::Fixed(0),
    Drafts::Fixed(1),
    Drafts::Fixed(2),
    Drafts::Fixed(3),
    Drafts::Fixed(5),
    Drafts::Fixed(7),
    Drafts::Fixed(15),
    Drafts::Changing,
    Drafts::Sure,
];
const BATCHES: [usize; 4] = [1, 2, 3, MAX_BATCH];
/// Threads that are tried besides those of all other runs.
const THREADS: [usize; 3] = [1, 2, 3];

/// Who drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// Nobody: plain decoding.
    Nobody,
    /// The plain text, with mistakes put in, so that drafts are accepted and rejected whatever the model is.
    Script,
    /// The drafter that was given.
    Given,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Who::Nobody => "-",
            Who::Script => "script",
            Who::Given => "given",
        })
    }
}

/// How many drafts a round has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drafts {
    Fixed(usize),
    /// Another number in each round, see [`CHANGING`].
    Changing,
    /// As many as the drafter is sure of, and of every third text all: only it can say.
    Sure,
}

impl fmt::Display for Drafts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Drafts::Fixed(n) => f.pad(&n.to_string()),
            Drafts::Changing => f.pad("change"),
            Drafts::Sure => f.pad("sure"),
        }
    }
}

/// One run of all texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) who: Who,
    pub(super) drafts: Drafts,
    /// Texts at a time.
    pub(super) batch: usize,
    /// Prompt rows of a pass.
    pub(super) chunk: usize,
}

/// Runs that share a loaded model.
#[derive(Clone, Debug)]
pub(super) struct Bench {
    pub(super) isa: Isa,
    pub(super) threads: usize,
    pub(super) cells: Vec<Cell>,
}

/// What a plan depends on.
#[derive(Clone, Debug)]
pub(super) struct Axes {
    /// The level that everything is compared with comes first.
    pub(super) levels: Vec<Isa>,
    pub(super) threads: usize,
    pub(super) chunks: Vec<usize>,
    /// A drafter is given.
    pub(super) given: bool,
    /// Drafts of a round that it can make at most.
    pub(super) most_given: usize,
    pub(super) thorough: bool,
}

/// Chunks of prompts: one row, around tiles and prompts, around the window, everything at once.
pub(super) fn chunks(window: Option<usize>, longest: usize) -> Vec<usize> {
    let mut chunks = vec![longest, 16, 7, 17, 18, 1, 64];
    chunks.extend(window.into_iter().flat_map(|w| [w + 1, w, w.saturating_sub(1)]));
    chunks.retain(|&chunk| (1..=longest).contains(&chunk));
    let mut seen = Vec::new();
    chunks.retain(|chunk| {
        !seen.contains(chunk) && {
            seen.push(*chunk);
            true
        }
    });
    chunks
}

/// All runs. At the first level with the usual threads every number of drafts meets every batch; elsewhere a part of that, or
/// all of it where it has to be thorough.
pub(super) fn plan(axes: &Axes) -> Vec<Bench> {
    let main = Bench { isa: axes.levels[0], threads: axes.threads, cells: main_cells(axes) };
    let levels = axes.levels[1..].iter().map(|&isa| (isa, axes.threads));
    let others = THREADS.iter().filter(|&&threads| threads != axes.threads);
    let others = levels.chain(others.map(|&threads| (axes.levels[0], threads))).enumerate();
    let others =
        others.map(|(index, (isa, threads))| Bench { isa, threads, cells: other_cells(axes, index) });
    std::iter::once(main).chain(others).collect()
}

/// What the given drafter is asked for in place of a number of drafts: as many as it can make, if no smaller number comes to that;
/// else nothing.
fn given_drafts(axes: &Axes, drafts: Drafts) -> Option<Drafts> {
    let Drafts::Fixed(n) = drafts else { return Some(drafts) };
    let most = axes.most_given;
    let comes_to_that = |other: &Drafts| matches!(*other, Drafts::Fixed(other) if (most..n).contains(&other));
    let again = n > most && DRAFTS.iter().any(comes_to_that);
    (!again).then_some(Drafts::Fixed(n.min(most)))
}

fn main_cells(axes: &Axes) -> Vec<Cell> {
    let drafters: &[Who] = if axes.given { &[Who::Given, Who::Script] } else { &[Who::Script] };
    let mut cells = Vec::new();
    for (pass, &who) in drafters.iter().enumerate() {
        for (i, drafts) in DRAFTS.into_iter().enumerate() {
            for (j, batch) in BATCHES.into_iter().enumerate() {
                let drafts = match who {
                    Who::Given => given_drafts(axes, drafts),
                    Who::Script | Who::Nobody => Some(drafts),
                };
                let Some(drafts) = drafts else { continue };
                // What the given drafter can not make, the script makes at every batch.
                let again = pass > 0 && !axes.thorough && given_drafts(axes, drafts) == Some(drafts);
                let said_by_nobody = drafts == Drafts::Sure && who != Who::Given;
                if said_by_nobody || (drafts == Drafts::Fixed(0) && pass > 0) || (again && (i + j) % 4 != 0) {
                    continue;
                }
                let n_chunks = if axes.thorough { axes.chunks.len() } else { 1 };
                for c in 0..n_chunks {
                    let chunk = axes.chunks[(i + 3 * j + c) % axes.chunks.len()];
                    cells.push(cell(who, drafts, batch, chunk));
                }
            }
        }
    }
    cells
}

fn other_cells(axes: &Axes, index: usize) -> Vec<Cell> {
    let n_batches = if axes.thorough { BATCHES.len() } else { 1 };
    let mut cells = Vec::new();
    for (i, drafts) in DRAFTS.into_iter().enumerate() {
        // A round with changing drafts has all small counts in it.
        let few = matches!(drafts, Drafts::Changing | Drafts::Sure | Drafts::Fixed(0 | 3 | 7));
        if (!axes.thorough && !few) || (drafts == Drafts::Sure && !axes.given) {
            continue;
        }
        for b in 0..n_batches {
            let batch = BATCHES[(i + index + b) % BATCHES.len()];
            let chunk = axes.chunks[(2 * i + index + b) % axes.chunks.len()];
            let given = axes.given && ((i + b) % 3 != 0 || drafts == Drafts::Sure);
            let (who, drafts) = match given_drafts(axes, drafts).filter(|_| given) {
                Some(drafts) => (Who::Given, drafts),
                None => (Who::Script, drafts),
            };
            cells.push(cell(who, drafts, batch, chunk));
        }
    }
    cells
}

fn cell(who: Who, drafts: Drafts, batch: usize, chunk: usize) -> Cell {
    let who = if drafts == Drafts::Fixed(0) { Who::Nobody } else { who };
    Cell { who, drafts, batch, chunk }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes(given: bool, thorough: bool) -> Axes {
        let isa = Isa::new(paceline_backend::Level::Scalar).unwrap();
        Axes {
            levels: vec![isa, isa],
            threads: 2,
            chunks: chunks(Some(16), 70),
            given,
            most_given: usize::MAX,
            thorough,
        }
    }

    #[test]
    fn every_number_of_drafts_meets_every_batch() {
        for (given, thorough) in [(false, false), (true, false), (true, true)] {
            let benches = plan(&axes(given, thorough));
            assert_eq!(benches.iter().map(|bench| bench.threads).collect::<Vec<_>>(), [2, 2, 1, 3]);
            for drafts in DRAFTS.into_iter().filter(|&drafts| given || drafts != Drafts::Sure) {
                for batch in BATCHES {
                    let is_there = |cell: &&Cell| cell.drafts == drafts && cell.batch == batch;
                    let cell = benches[0].cells.iter().find(is_there).expect("a cell of the product");
                    assert_eq!(cell.who == Who::Nobody, drafts == Drafts::Fixed(0));
                }
            }
            for bench in &benches {
                let has = |who| bench.cells.iter().any(|cell| cell.who == who);
                assert!(has(Who::Nobody) && has(Who::Script) && has(Who::Given) == given, "{bench:?}");
            }
            let chunks = |chunk| benches[0].cells.iter().any(|cell| cell.chunk == chunk);
            assert!([1, 7, 15, 16, 17, 18, 64, 70].into_iter().all(chunks));
        }
    }

    #[test]
    fn a_drafter_is_asked_for_no_more_than_it_can_make_and_for_no_number_twice() {
        let numbers = |most: usize, thorough: bool| {
            let axes = Axes { most_given: most, ..axes(true, thorough) };
            let benches = plan(&axes);
            for (i, bench) in benches.iter().enumerate() {
                for (j, cell) in bench.cells.iter().enumerate() {
                    assert!(!bench.cells[..j].contains(cell), "bench {i} runs {cell:?} twice");
                }
            }
            for batch in BATCHES {
                let is_there = |cell: &Cell| cell.drafts == Drafts::Fixed(15) && cell.batch == batch;
                assert!(benches[0].cells.iter().any(is_there), "nobody makes 15 drafts at batch {batch}");
            }
            let given = benches.iter().flat_map(|bench| &bench.cells).filter(|cell| cell.who == Who::Given);
            let fixed = given.filter_map(|cell| match cell.drafts {
                Drafts::Fixed(n) => Some(n),
                Drafts::Changing | Drafts::Sure => None,
            });
            let mut numbers: Vec<_> = fixed.collect();
            numbers.sort_unstable();
            numbers.dedup();
            numbers
        };
        for thorough in [false, true] {
            assert_eq!(numbers(usize::MAX, thorough), [1, 2, 3, 5, 7, 15]);
            assert_eq!(numbers(15, thorough), [1, 2, 3, 5, 7, 15]);
            assert_eq!(numbers(9, thorough), [1, 2, 3, 5, 7, 9]);
            assert_eq!(numbers(7, thorough), [1, 2, 3, 5, 7]);
            assert_eq!(numbers(4, thorough), [1, 2, 3, 4]);
            assert_eq!(numbers(1, thorough), [1]);
        }
    }

    #[test]
    fn chunks_are_those_that_cut_something() {
        assert_eq!(chunks(Some(16), 70), [70, 16, 7, 17, 18, 1, 64, 15]);
        assert_eq!(chunks(None, 1), [1]);
    }
}
