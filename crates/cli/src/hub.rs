//! Models by their name on the hub.

use std::path::PathBuf;
use std::thread;

use indicatif::{ProgressBar, ProgressStyle};
use paceline_checkpoint::{Hub, HubError, HubEvent, HubId, HubSettings};

use crate::failure::{Failure, note};
use crate::numbers::{bytes, counted};

/// Fetches what the cache lacks of a model and returns its folder there.
pub(crate) fn fetch(id: &HubId) -> Result<PathBuf, Failure> {
    // The name could also have been meant as a folder.
    let fail = |error| failure(&format!("{id}: is no folder, so it was looked for on the hub: "), error);
    let hub = Hub::new(HubSettings::from_env().map_err(fail)?, thread::sleep);
    let mut download = Download::new(id);
    let folder = hub.fetch(id, &mut |event| download.show(&event));
    download.bar.finish_and_clear();
    folder.map_err(fail)
}

fn failure(prefix: &str, error: HubError) -> Failure {
    let message = format!("{prefix}{error}");
    match error {
        HubError::BadId { .. }
        | HubError::Environment { .. }
        | HubError::TokenNeeded { .. }
        | HubError::TokenRefused { .. }
        | HubError::NoAccess { .. }
        | HubError::NotFound { .. }
        | HubError::NotAModel { .. }
        | HubError::Offline { .. } => Failure::bad_input(message),
        _ => Failure::failed(message),
    }
}

/// A bar on stderr, where that is a terminal, and notes.
struct Download<'a> {
    id: &'a HubId,
    bar: ProgressBar,
    /// Bytes of the files that are complete.
    complete: u64,
}

impl<'a> Download<'a> {
    fn new(id: &'a HubId) -> Self {
        let style =
            ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
        let style = style.expect("the template is a constant that the tests build");
        Self { id, bar: ProgressBar::new(0).with_style(style), complete: 0 }
    }

    fn show(&mut self, event: &HubEvent<'_>) {
        match event {
            HubEvent::Plan { n_files, bytes: n } => {
                if self.bar.is_hidden() {
                    let files = counted(*n_files as u64, "file");
                    self.note(&format!("fetching {files} of {}, {}", self.id, bytes(*n)));
                }
                self.bar.inc_length(*n);
            }
            HubEvent::Progress { file, done, total } => {
                if self.bar.message() != *file {
                    self.bar.set_message((*file).to_owned());
                }
                self.bar.set_position(self.complete + done);
                if done == total {
                    self.complete += total;
                }
            }
            HubEvent::Waiting { file, lock } => {
                let lock = lock.display();
                self.note(&format!("another process fetches {file}; waiting until it lets go of {lock}"));
            }
            HubEvent::Retry { error, wait } => {
                self.note(&format!("{error}; trying again in {} s", wait.as_secs()));
            }
            HubEvent::FromCache { error, snapshot } => {
                let snapshot = snapshot.display();
                self.note(&format!(
                    "the hub gives no list of files, so {snapshot} is used as it is: {error}"
                ));
            }
            _ => {}
        }
    }

    fn note(&self, text: &str) {
        self.bar.suspend(|| note(text));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_bar_counts_all_files() {
        let id: HubId = "org/tiny".parse().unwrap();
        let mut download = Download::new(&id);
        download.show(&HubEvent::Plan { n_files: 2, bytes: 30 });
        download.show(&HubEvent::Progress { file: "a", done: 10, total: 10 });
        download.show(&HubEvent::Progress { file: "b", done: 5, total: 20 });
        assert_eq!((download.bar.position(), download.bar.length()), (15, Some(30)));
        assert_eq!(download.bar.message(), "b");
        // A file that starts again.
        download.show(&HubEvent::Progress { file: "b", done: 0, total: 20 });
        let error = HubError::Server { url: "http://hub".to_owned(), status: 500 };
        download.show(&HubEvent::Retry { error: &error, wait: Duration::from_secs(1) });
        assert_eq!(download.bar.position(), 10);
    }

    #[test]
    fn refusals_of_the_hub_are_bad_input_and_the_rest_is_not() {
        let not_found = HubError::NotFound { name: "a/b".to_owned(), what: "x".to_owned() };
        assert!(matches!(failure("", not_found), Failure::BadInput(_)));
        let server = HubError::Server { url: "http://hub".to_owned(), status: 500 };
        assert!(matches!(failure("", server), Failure::Failed(_)));
    }
}
