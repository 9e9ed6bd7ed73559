//! An engine that goes on only when a test lets it. So what a test finds in the middle of a request does not depend on how fast the
//! machine is, or on who is scheduled.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use crate::client::PATIENCE;

/// Stands in for an engine's clock, at which it looks several times in each round. At first it holds the engine.
pub(crate) struct Gate {
    /// How often the engine may still look.
    looks: Mutex<u64>,
    changed: Condvar,
}

/// More looks than an engine takes.
const ALWAYS: u64 = u64::MAX;

impl Gate {
    pub(crate) const fn closed() -> Self {
        Self { looks: Mutex::new(0), changed: Condvar::new() }
    }

    /// The engine's look at its clock, which stands still.
    pub(crate) fn look(&self) -> Duration {
        let looks = self.looks.lock().unwrap();
        let (mut looks, waited) =
            self.changed.wait_timeout_while(looks, PATIENCE, |looks| *looks == 0).unwrap();
        // The test has failed: it ends sooner without a gate.
        *looks = if waited.timed_out() { ALWAYS } else { *looks - 1 };
        self.changed.notify_all();
        Duration::ZERO
    }

    pub(crate) fn open(&self) {
        self.set(ALWAYS);
    }

    pub(crate) fn close(&self) {
        self.set(0);
    }

    /// Lets the engine look so often from now on.
    pub(crate) fn set(&self, looks: u64) {
        *self.looks.lock().unwrap() = looks;
        self.changed.notify_all();
    }
}

/// A gate, and the clock that an engine finds it behind.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    pub(crate) gate: &'static Gate,
    pub(crate) clock: fn() -> Duration,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Held")
    }
}

/// A gate of its own for each place in the code.
macro_rules! held {
    () => {{
        static GATE: $crate::gate::Gate = $crate::gate::Gate::closed();
        $crate::gate::Held { gate: &GATE, clock: || GATE.look() }
    }};
}
pub(crate) use held;
