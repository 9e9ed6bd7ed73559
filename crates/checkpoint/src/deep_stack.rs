//! A deep stack for work whose recursion a stranger decides: that of a thread of its own, or of a thread that says it has one.
//!
//! The template engine recurses over the syntax tree of a template and, when values are dropped, over their nesting.
//! Both are bounded by lengths and steps that are limited, but not by any usual stack. The memory of a thread's stack
//! is only reserved; what is never touched costs nothing.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

const PANICKED: &str = "the template engine panicked";

thread_local! {
    /// Bytes of stack that this thread has for such work.
    static ROOM: Cell<usize> = const { Cell::new(0) };
}

/// Says that the calling thread was started with so many bytes of stack beside those for its own work.
pub(crate) fn has_stack(n_bytes: usize) {
    ROOM.set(n_bytes);
}

/// Runs `work` with at least `n_bytes` of stack. `Err` has the reason why it could not be done: no such thread, or a
/// panic in `work`.
pub(crate) fn with_stack<T: Send>(n_bytes: usize, work: impl FnOnce() -> T + Send) -> Result<T, String> {
    if n_bytes <= ROOM.get() {
        // After a panic nothing is looked at that it could have left half done: both ends of the work are lost with it.
        return catch_unwind(AssertUnwindSafe(work)).map_err(|_| PANICKED.to_owned());
    }
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .stack_size(n_bytes)
            .spawn_scoped(scope, work)
            .map_err(|error| format!("no thread with {n_bytes} bytes of stack can be started: {error}"))?;
        thread.join().map_err(|_| PANICKED.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_has_the_stack_does_the_work_itself() {
        let here = || thread::current().id();
        let worker = |room: usize| {
            let builder = thread::Builder::new().stack_size((1 << 20) + room);
            let work = move || {
                has_stack(room);
                let fits = with_stack(room, here).unwrap() == here();
                let is_more = with_stack(room + 1, here).unwrap() != here();
                let panicked = with_stack::<()>(room, || panic!("on purpose"));
                (fits, is_more, panicked)
            };
            builder.spawn(work).unwrap().join().unwrap()
        };
        assert_eq!(worker(1 << 20), (true, true, Err(PANICKED.to_owned())));
        assert_ne!(with_stack(1 << 20, here).unwrap(), here(), "this thread has said nothing");
    }
}
