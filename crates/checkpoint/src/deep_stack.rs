//! A thread of one's own for work whose recursion a stranger decides.
//!
//! The template engine recurses over the syntax tree of a template and, when values are dropped, over their nesting.
//! Both are bounded by lengths and steps that are limited, but not by any usual stack. The memory of a thread's stack
//! is only reserved; what is never touched costs nothing.

use std::thread;

/// Runs `work` with at least `n_bytes` of stack. `Err` has the reason why it could not be done: no such thread, or a
/// panic in `work`.
pub(crate) fn with_stack<T: Send>(n_bytes: usize, work: impl FnOnce() -> T + Send) -> Result<T, String> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .stack_size(n_bytes)
            .spawn_scoped(scope, work)
            .map_err(|error| format!("no thread with {n_bytes} bytes of stack can be started: {error}"))?;
        thread.join().map_err(|_| "the template engine panicked".to_owned())
    })
}
