//! Ctrl-C while an answer comes stops the answer, not the program.

use std::process;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::failure::Failure;

const IDLE: u8 = 0;
const ANSWERING: u8 = 1;
const STOPPED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(IDLE);

/// The exit code of a program that was interrupted, as shells have it.
const INTERRUPTED: i32 = 130;

/// From now on an interrupt ends the program only while there is no answer.
pub(super) fn install() -> Result<(), Failure> {
    ctrlc::set_handler(|| {
        let answering = STATE.compare_exchange(ANSWERING, STOPPED, Ordering::SeqCst, Ordering::SeqCst);
        if answering == Err(IDLE) {
            process::exit(INTERRUPTED);
        }
    })
    .map_err(|error| Failure::failed(format!("interrupts cannot be caught: {error}")))
}

/// An answer is coming, until this is dropped.
pub(super) struct Answering(());

impl Answering {
    pub(super) fn begin() -> Self {
        STATE.store(ANSWERING, Ordering::SeqCst);
        Self(())
    }

    /// Whether the answer shall stop.
    pub(super) fn is_stopped(&self) -> bool {
        STATE.load(Ordering::SeqCst) == STOPPED
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        STATE.store(IDLE, Ordering::SeqCst);
    }
}
