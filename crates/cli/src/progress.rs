//! Progress of long work, on a terminal only.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar on stderr; nothing at all where stderr is no terminal.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A bar for `of` steps of `what`.
    pub(crate) fn new(what: &'static str, of: usize) -> Self {
        let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}");
        let bar = ProgressBar::new(of as u64).with_message(what);
        Self(bar.with_style(style.expect("the template is a constant that the tests build")))
    }

    /// `done` steps are done.
    pub(crate) fn set(&self, done: usize) {
        self.0.set_position(done as u64);
    }

    /// `done` steps are done; says whether those are all.
    pub(crate) fn reach(&self, done: usize) -> bool {
        self.set(done);
        self.0.length().is_none_or(|of| done as u64 >= of)
    }

    /// Takes the bar away.
    pub(crate) fn clear(&self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_can_be_made_and_cleared() {
        let progress = Progress::new("counting", 3);
        progress.set(1);
        assert!(!progress.reach(2) && progress.reach(3));
        progress.clear();
        assert!(progress.0.is_finished());
    }
}
