//! The program's clock, for what reads none by itself.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Time since the first call.
pub(crate) fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}
