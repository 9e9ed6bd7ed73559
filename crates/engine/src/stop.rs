//! Stop strings: cuts a text that arrives in pieces before the first stop string that completes.
//!
//! ```text
//! given out ............ | held: may be the beginning of a stop string
//! ```
//! What is held is the longest end of the text that some stop string begins with, so a stop string never begins in what was
//! given out, and no beginning of one leaks. Of two stop strings the one that is complete earlier wins, which does not
//! depend on how the text was cut into pieces.

/// The stop strings of one request and the text held back.
#[derive(Debug)]
pub(crate) struct StopFilter {
    stops: Vec<String>,
    held: String,
}

/// What a piece of text led to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    /// Text that may be shown.
    pub(crate) text: String,
    /// Index of the stop string that was completed; the text ends before it.
    pub(crate) stopped_by: Option<usize>,
}

impl StopFilter {
    pub(crate) fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new() }
    }

    /// Adds a piece.
    pub(crate) fn push(&mut self, piece: &str) -> Passed {
        self.held.push_str(piece);
        let found = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            self.held.find(stop.as_str()).map(|start| (start + stop.len(), start, index))
        });
        if let Some((_, start, index)) = found.min() {
            let text = self.held[..start].to_owned();
            self.held.clear();
            return Passed { text, stopped_by: Some(index) };
        }
        let keep = self.held.len() - self.longest_beginning();
        let rest = self.held.split_off(keep);
        Passed { text: std::mem::replace(&mut self.held, rest), stopped_by: None }
    }

    /// Ends the text and gives out what is held.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Length of the longest end of the held text that a stop string begins with.
    fn longest_beginning(&self) -> usize {
        let beginning = |stop: &String| {
            let mut lens = (1..stop.len().min(self.held.len() + 1)).rev();
            lens.find(|&len| stop.is_char_boundary(len) && self.held.ends_with(&stop[..len])).unwrap_or(0)
        };
        self.stops.iter().map(beginning).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut filter = StopFilter::new(stops.iter().map(|&stop| stop.into()).collect());
        let mut text = String::new();
        for piece in pieces {
            let passed = filter.push(piece);
            text.push_str(&passed.text);
            if passed.stopped_by.is_some() {
                return (text, passed.stopped_by);
            }
        }
        (text + &filter.finish(), None)
    }

    #[test]
    fn a_stop_string_is_cut_out_wherever_the_pieces_meet() {
        assert_eq!(run(&["END"], &["one E", "N", "D two"]), ("one ".into(), Some(0)));
        assert_eq!(run(&["END"], &["one EN", "E", "ND"]), ("one EN".into(), Some(0)));
        assert_eq!(run(&["END"], &["one EN"]), ("one EN".into(), None));
        assert_eq!(run(&["é!"], &["caf", "é", "!"]), ("caf".into(), Some(0)));
        assert_eq!(run(&[], &["a", "b"]), ("ab".into(), None));
    }

    #[test]
    fn the_earlier_complete_one_wins() {
        assert_eq!(run(&["xabc", "ab"], &["xabc"]), ("x".into(), Some(1)));
        assert_eq!(run(&["xabc", "ab"], &["x", "a", "b", "c"]), ("x".into(), Some(1)));
        assert_eq!(run(&["b", "ab"], &["a", "b"]), (String::new(), Some(1)));
    }

    /// The same by trying every end of the text.
    fn naive(stops: &[String], text: &str) -> (String, Option<usize>) {
        let ends = (0..=text.len()).filter(|&end| text.is_char_boundary(end));
        for end in ends {
            let found = stops.iter().enumerate().filter(|(_, stop)| text[..end].ends_with(stop.as_str()));
            if let Some((index, stop)) = found.min_by_key(|(index, stop)| (end - stop.len(), *index)) {
                return (text[..end - stop.len()].into(), Some(index));
            }
        }
        (text.into(), None)
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter_and_nothing_leaks(
            stops in prop::collection::vec("[abé]{1,4}", 0..4),
            pieces in prop::collection::vec("[abé]{0,5}", 0..12),
        ) {
            let expected = naive(&stops, &pieces.concat());
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&stops, &pieces), expected);
        }
    }
}
