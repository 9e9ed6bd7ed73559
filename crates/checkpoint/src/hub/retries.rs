//! How often and after which waits a request is repeated.

use std::time::Duration;

use super::{HubError, HubEvent};

/// Failures in a row that end a request.
const MAX_FAILURES: u32 = 5;
/// The same where a name cannot be looked up: without a network nobody wants to wait.
const MAX_LOOKUPS: u32 = 2;
/// The first wait; each further one is twice as long.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Longest wait that the hub may ask for; beyond it the user decides.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Failures of one request so far.
pub(super) struct Retries<'a> {
    sleep: &'a (dyn Fn(Duration) + Send + Sync),
    max_failures: u32,
    failures: u32,
}

impl<'a> Retries<'a> {
    pub(super) fn new(sleep: &'a (dyn Fn(Duration) + Send + Sync)) -> Retries<'a> {
        Retries { sleep, max_failures: MAX_FAILURES, failures: 0 }
    }

    /// No repetition at all.
    pub(super) fn none(sleep: &'a (dyn Fn(Duration) + Send + Sync)) -> Retries<'a> {
        Retries { sleep, max_failures: 1, failures: 0 }
    }

    /// Forgets the failures, since there was progress.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Waits before the next attempt, or gives back the error that ends all attempts.
    pub(super) fn wait(
        &mut self,
        error: HubError,
        events: &mut dyn FnMut(HubEvent<'_>),
    ) -> Result<(), HubError> {
        self.failures += 1;
        let most = if error.is_lookup() { self.max_failures.min(MAX_LOOKUPS) } else { self.max_failures };
        if self.failures >= most || !error.is_temporary() {
            return Err(error);
        }
        let wait = match error {
            HubError::RateLimited { retry_after: Some(wait), .. } if wait > MAX_WAIT => return Err(error),
            HubError::RateLimited { retry_after: Some(wait), .. } => wait,
            _ => FIRST_WAIT * 2u32.pow(self.failures - 1),
        };
        events(HubEvent::Retry { error: &error, wait });
        (self.sleep)(wait);
        Ok(())
    }

    /// Repeats `attempt` until it succeeds or fails for good.
    pub(super) fn repeat<T>(
        mut self,
        events: &mut dyn FnMut(HubEvent<'_>),
        mut attempt: impl FnMut() -> Result<T, HubError>,
    ) -> Result<T, HubError> {
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(error) => self.wait(error, events)?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn progress_makes_up_for_failures() {
        let waits = Mutex::new(Vec::new());
        let sleep = |wait: Duration| waits.lock().unwrap().push(wait.as_secs());
        let mut retries = Retries::new(&sleep);
        let fail = |retries: &mut Retries<'_>| {
            let error = HubError::Server { url: "http://hub".to_owned(), status: 500 };
            retries.wait(error, &mut |_| ()).is_ok()
        };
        assert!(fail(&mut retries) && fail(&mut retries));
        retries.reset();
        assert!((0..4).all(|_| fail(&mut retries)) && !fail(&mut retries));
        assert_eq!(*waits.lock().unwrap(), [1, 2, 1, 2, 4, 8]);
    }
}
