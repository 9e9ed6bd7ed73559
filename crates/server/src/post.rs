//! Carries what was generated from the engine's thread to the tasks of requests, with one wake-up a round for all of them.
//!
//! ```text
//! listeners of all outputs -> bag | round over: one wake-up | carrier, a task -> the queue of each request -> its task
//! ```
//! To wake a task from another thread is a system call, and on a busy machine the woken thread takes the processor of the engine's,
//! each time. So listeners only leave letters; the carrier runs where the tasks do, and wakes them without the system.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError};
use tokio::time::Instant;

/// Rounds that follow each other quicker than this are carried together: waking a thread and writing to sockets costs more than
/// making chunks, and nobody reads so fast. A model whose rounds take as long has every round carried at its end.
const GATHER: Duration = Duration::from_millis(1);

/// Letters on their way, of type `T`.
#[derive(Debug)]
pub(crate) struct Post<T> {
    bag: Mutex<Bag<T>>,
    leaves: Notify,
}

#[derive(Debug)]
struct Bag<T> {
    letters: Vec<(Arc<Route<T>>, T)>,
    /// Something in it does not wait.
    urgent: bool,
    left: Option<Instant>,
}

/// The way to one request.
#[derive(Debug)]
pub(crate) struct Route<T> {
    queue: Sender<T>,
    /// A letter found no room.
    overflow: Arc<AtomicBool>,
}

impl<T> Route<T> {
    /// A way for so many letters that nobody has taken yet, its end, and whether that was not enough.
    pub(crate) fn new(room: usize) -> (Arc<Self>, Receiver<T>, Arc<AtomicBool>) {
        let (queue, end) = channel(room);
        let overflow = Arc::new(AtomicBool::new(false));
        (Arc::new(Self { queue, overflow: Arc::clone(&overflow) }), end, overflow)
    }
}

impl<T> Default for Post<T> {
    fn default() -> Self {
        Self {
            bag: Mutex::new(Bag { letters: Vec::new(), urgent: false, left: None }),
            leaves: Notify::new(),
        }
    }
}

impl<T> Post<T> {
    fn bag(&self) -> MutexGuard<'_, Bag<T>> {
        self.bag.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a letter. One that is urgent goes when the round is over, others may wait for the next one.
    pub(crate) fn leave(&self, route: &Arc<Route<T>>, letter: T, urgent: bool) {
        let mut bag = self.bag();
        bag.letters.push((Arc::clone(route), letter));
        bag.urgent |= urgent;
    }

    /// All have left what the round brought them.
    pub(crate) fn round_over(&self, now: Instant) {
        let mut bag = self.bag();
        let due = bag.left.is_none_or(|left| now.duration_since(left) >= GATHER);
        if !bag.letters.is_empty() && (due || bag.urgent) {
            (bag.urgent, bag.left) = (false, Some(now));
            drop(bag);
            self.leaves.notify_one();
        }
    }

    /// No round will come any more.
    pub(crate) fn last_round_over(&self) {
        self.leaves.notify_one();
    }

    /// Carries letters as long as somebody polls it.
    pub(crate) async fn carry(&self) {
        let mut letters = Vec::new();
        loop {
            self.leaves.notified().await;
            std::mem::swap(&mut letters, &mut self.bag().letters);
            for (route, letter) in letters.drain(..) {
                // Whoever has gone needs no letter.
                if let Err(TrySendError::Full(_)) = route.queue.try_send(letter) {
                    route.overflow.store(true, Ordering::Relaxed);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Carries what leaves now.
    fn carry(post: &Post<u32>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            // Ready at once, or never: the carrier is polled first.
            tokio::select! {
                biased;
                () = post.carry() => {}
                () = std::future::ready(()) => {}
            }
        });
    }

    fn taken(end: &mut Receiver<u32>) -> Vec<u32> {
        std::iter::from_fn(|| end.try_recv().ok()).collect()
    }

    #[test]
    fn quick_rounds_leave_together_and_nothing_urgent_waits() {
        let post = Post::default();
        let (one, mut end_of_one, _) = Route::new(8);
        let (other, mut end_of_other, _) = Route::new(8);
        let start = Instant::now();
        post.leave(&one, 1, false);
        carry(&post);
        assert_eq!(taken(&mut end_of_one), [0; 0], "the round is not over");
        post.leave(&other, 2, false);
        post.round_over(start);
        carry(&post);
        assert_eq!((taken(&mut end_of_one), taken(&mut end_of_other)), (vec![1], vec![2]));
        post.leave(&one, 3, false);
        post.round_over(start + GATHER / 2);
        carry(&post);
        assert_eq!(taken(&mut end_of_one), [0; 0], "quick rounds wait");
        post.leave(&one, 4, false);
        post.round_over(start + GATHER);
        carry(&post);
        assert_eq!(taken(&mut end_of_one), [3, 4]);
        post.leave(&one, 5, false);
        post.leave(&other, 6, true);
        post.round_over(start + GATHER + GATHER / 2);
        carry(&post);
        assert_eq!((taken(&mut end_of_one), taken(&mut end_of_other)), (vec![5], vec![6]));
        // Nor is it held back by what comes behind it.
        post.leave(&one, 7, true);
        post.leave(&other, 8, false);
        post.round_over(start + GATHER + GATHER * 3 / 4);
        carry(&post);
        assert_eq!((taken(&mut end_of_one), taken(&mut end_of_other)), (vec![7], vec![8]));
        post.leave(&one, 9, false);
        post.last_round_over();
        carry(&post);
        assert_eq!(taken(&mut end_of_one), [9]);
    }

    #[test]
    fn a_full_way_is_said_to_be_and_holds_nobody() {
        let post = Post::default();
        let (full, mut end_of_full, overflow) = Route::new(1);
        let (gone, end_of_gone, _) = Route::new(1);
        let (free, mut end_of_free, free_overflow) = Route::new(8);
        drop(end_of_gone);
        for letter in 0..3 {
            [&full, &gone, &free].into_iter().for_each(|route| post.leave(route, letter, true));
        }
        post.round_over(Instant::now());
        carry(&post);
        assert_eq!((taken(&mut end_of_full), overflow.load(Ordering::Relaxed)), (vec![0], true));
        assert_eq!((taken(&mut end_of_free), free_overflow.load(Ordering::Relaxed)), (vec![0, 1, 2], false));
    }
}
