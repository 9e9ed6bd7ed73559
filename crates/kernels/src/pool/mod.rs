//! A fixed team of threads that shares out chunks of work and never waits for a thread that has not started.
//!
//! ```text
//! caller   publish the call, free = 0..n ──► take chunks from the front ──► wait until the workers' chunks are done
//! worker   spin ~20 us, then park ──────────► take chunks from the back ──► spin again
//! ```
//!
//! The caller waits for *chunks in flight*, never for threads: a worker that the scheduler has put aside costs nothing,
//! because the caller does the work itself. (A team that waits for each thread to check in costs tens to hundreds of
//! microseconds per call on a loaded two-core machine.) The caller takes from one end and the workers from the other,
//! so that a thread meets the same weights at each call and finds some of them in its own cache. Who does a chunk must
//! not matter to its result.
//!
//! # Why there is no data race
//! `free` holds the chunks that nobody has taken, as (first, end) in one word, and is the only thing that a worker reads
//! without having a chunk. A worker reads the call (function, data, number of chunks) only after a compare-and-swap has
//! given it a chunk.
//! 1. The swap succeeds only on the current value of `free`, and takes a chunk only if that value has one. So the chunk
//!    belongs to the call published by the last plain store to `free`, however long ago the worker read the word: that an
//!    equal value may have come from another call (the word has no epoch) does not matter.
//! 2. That store is a release, the swaps after it continue its release sequence, and a successful swap acquires. So
//!    the call's fields, written before the store, are visible to whoever took a chunk.
//! 3. The caller counts its own chunks; every worker that took a chunk adds to `done`, with release, after its last use of the
//!    call. The next call's fields are written only after the caller has read, with acquire, that `done` and its own are all n.
//!    So reading the fields happens before writing them.
//! 4. The closure and what it borrows live until [`Team::run`] returns, also by panic, which is after 3.
mod affinity;

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::memory::Disjoint;

/// How long a thread looks for work, or for the end of it, before it parks. Longer than the gaps between the ops of a
/// pass, shorter than what a loaded machine would miss.
const SPIN: Duration = Duration::from_micros(20);

/// Keeps what different threads write on different cache lines (two, as processors fetch them in pairs).
#[repr(align(128))]
struct Line<T>(T);

/// The closure of a call, without its type.
#[derive(Clone, Copy)]
struct Call {
    data: *const (),
    /// Runs the closure behind `data` for (thread, chunk).
    invoke: unsafe fn(*const (), usize, usize),
    chunks: u32,
}

struct Job {
    /// Chunks that nobody has taken: first in the high half, end in the low half.
    free: AtomicU64,
    call: UnsafeCell<Call>,
}

struct Shared {
    job: Line<Job>,
    /// Chunks of the current call that workers have finished. (The caller's are not in it: each of them would take the line away from
    /// whoever adds next.)
    done: Line<AtomicU32>,
    /// Workers that are parked or about to be.
    sleepers: Line<AtomicU32>,
    /// The same, worker by worker.
    sleeps: Box<[AtomicBool]>,
    /// The caller is parked or about to be; then `caller` says who it is.
    caller_sleeps: AtomicBool,
    caller: Mutex<Option<Thread>>,
    /// The first panic of a chunk of the current call.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
}

// SAFETY: everything but `call` is Sync by itself. `call` is written by the caller while no chunk is out, and read by a
// thread that holds a chunk only: the module text shows that these never overlap. Its pointers are to a closure that
// is Sync (`Team::run` asks for it).
unsafe impl Sync for Shared {}
// SAFETY: as for Sync; nothing in it is bound to a thread.
unsafe impl Send for Shared {}

/// Threads that compute together. Made once; dropped, it ends its threads.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    threads: usize,
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Team").field("threads", &self.threads).finish_non_exhaustive()
    }
}

/// A thread of a team could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start thread {thread} of {threads}: {source}; use fewer threads")]
pub struct SpawnError {
    /// Which one (0 is the caller's own).
    pub thread: usize,
    /// How many were asked for.
    pub threads: usize,
    source: std::io::Error,
}

/// How many threads a [`Team`] should have, at least 1: one for each core that this process may run on, as threads of one core
/// share its multipliers and caches, and no more than its share of processor time allows (as in a container).
///
/// To be asked on a thread that is not bound yet ([`Team::bind_caller`]).
pub fn cores() -> usize {
    let time = std::thread::available_parallelism().map_or(1, usize::from);
    affinity::cores().map_or(time, |cores| cores.min(time))
}

impl Team {
    /// A team of `threads` threads (at least 1), of which the caller of [`Team::run`] is one. Where this process may run
    /// on that many processors, each other thread is bound to its own, on another core while there are some: left to itself
    /// the scheduler often stacks two on one.
    pub fn new(threads: usize) -> Result<Team, SpawnError> {
        let threads = threads.max(1);
        let shared = Arc::new(Shared::new(threads - 1));
        let mut team =
            Team { shared: Arc::clone(&shared), workers: Vec::with_capacity(threads - 1), threads };
        for thread in 1..threads {
            let shared = Arc::clone(&shared);
            let worker = std::thread::Builder::new().name(format!("paceline-{thread}")).spawn(move || {
                affinity::bind(thread, threads);
                shared.serve(thread);
            });
            // On an error the team made so far is dropped, which ends its threads.
            team.workers.push(worker.map_err(|source| SpawnError { thread, threads, source })?);
        }
        Ok(team)
    }

    /// Number of threads, the caller included.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Binds the calling thread to the processor that the team leaves to its caller. For a thread that makes all
    /// calls and belongs to the caller of this function.
    pub fn bind_caller(&self) {
        affinity::bind(0, self.threads);
    }

    /// Calls `f(thread, chunk)` once for every chunk below `chunks`, on any threads in any order, and returns when all
    /// are done. `thread` is below [`Team::threads`], and no two calls with the same one run at once. A panic in a chunk
    /// is passed on when the chunks are done. (`&mut self`: a chunk cannot call its own team.)
    pub fn run<F: Fn(usize, usize) + Sync>(&mut self, chunks: usize, f: F) {
        if self.threads == 1 || chunks <= 1 {
            return (0..chunks).for_each(|chunk| f(0, chunk));
        }
        let chunks = u32::try_from(chunks).expect("fewer than 2^32 chunks");
        /// # Safety
        /// `data` must point to a live `F`.
        unsafe fn invoke<F: Fn(usize, usize) + Sync>(data: *const (), thread: usize, chunk: usize) {
            // SAFETY: the caller's promise.
            let f = unsafe { &*data.cast::<F>() };
            f(thread, chunk);
        }
        let call = Call { data: (&raw const f).cast(), invoke: invoke::<F>, chunks };
        self.publish(call);
        let own = self.shared.work_as_caller();
        self.shared.wait_for(chunks - own);
        let panic = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// As [`Team::run`] over pieces of `data` of `piece` elements (the last may be shorter): `f(thread, index, piece)`.
    pub fn run_pieces<T: Send, F>(&mut self, data: &mut [T], piece: usize, f: F)
    where
        F: Fn(usize, usize, &mut [T]) + Sync,
    {
        let total = data.len();
        let shared = Disjoint::new(data);
        self.run(total.div_ceil(piece.max(1)), |thread, index| {
            let from = index * piece;
            // SAFETY: piece `index` is this range and no other's; `run` calls `f` once for each index.
            let piece = unsafe { shared.slice_mut(from, piece.min(total - from)) };
            f(thread, index, piece);
        });
    }

    fn publish(&mut self, call: Call) {
        let shared = &*self.shared;
        // SAFETY: no chunk is out: the last call ended with all its chunks done, `&mut self` keeps other callers away,
        // and workers read `call` with a chunk in hand only.
        unsafe { *shared.job.0.call.get() = call };
        shared.done.0.store(0, Ordering::Relaxed);
        // All but the first chunk, which the caller keeps. Release for the call's fields. Sequentially consistent against `sleep_until_work`: either the worker sees
        // these chunks before it parks, or it is seen among the sleepers here.
        shared.job.0.free.store(1 << 32 | u64::from(call.chunks), Ordering::SeqCst);
        if shared.sleepers.0.load(Ordering::SeqCst) == 0 {
            return;
        }
        let helpers = call.chunks as usize - 1;
        let asleep = self.workers.iter().zip(&shared.sleeps);
        let asleep = asleep.filter(|(_, sleeps)| sleeps.load(Ordering::SeqCst));
        asleep.take(helpers).for_each(|(worker, _)| worker.thread().unpark());
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its chunks, so it cannot end by one.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn new(workers: usize) -> Shared {
        /// # Safety
        /// None: it does nothing.
        unsafe fn nothing(_: *const (), _: usize, _: usize) {}
        let call = Call { data: std::ptr::null(), invoke: nothing, chunks: 0 };
        Shared {
            job: Line(Job { free: AtomicU64::new(0), call: UnsafeCell::new(call) }),
            done: Line(AtomicU32::new(0)),
            sleepers: Line(AtomicU32::new(0)),
            sleeps: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            caller_sleeps: AtomicBool::new(false),
            caller: Mutex::new(None),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
        }
    }

    /// Runs the first chunk, which the caller of `Team::run` keeps, then takes and runs chunks until none is free. Returns how
    /// many it ran.
    fn work_as_caller(&self) -> u32 {
        let (mut next, mut own) = (Some(0), 0);
        while let Some(chunk) = next {
            // SAFETY: the caller holds this chunk, which it has not counted.
            unsafe { self.run_chunk(0, chunk) };
            own += 1;
            next = self.take_first();
        }
        own
    }

    /// Takes and runs chunks until none is free.
    fn work_as_worker(&self, thread: usize) {
        while let Some(chunk) = self.take_last() {
            // SAFETY: this thread holds the chunk until `finish_one`.
            unsafe { self.run_chunk(thread, chunk) };
            self.finish_one();
        }
    }

    /// # Safety
    /// The thread has taken the chunk and has not counted it as done.
    unsafe fn run_chunk(&self, thread: usize, chunk: u32) {
        // SAFETY: a chunk is out, so the call is not written (module text, 1 to 3).
        let call = unsafe { *self.job.0.call.get() };
        // SAFETY: `data` points to the closure of the call in progress, which `Team::run` keeps until every chunk,
        // this one too, is done. Unwind safety: the panic goes on to the caller of `run`, as if `f` had run there.
        let result = catch_unwind(AssertUnwindSafe(|| unsafe {
            (call.invoke)(call.data, thread, chunk as usize);
        }));
        if let Err(panic) = result {
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    }

    fn finish_one(&self) {
        // Release: all that this chunk wrote, and its last use of the call, come before. Sequentially consistent against
        // `wait_for`: either the caller sees this chunk done before it parks, or it is seen asleep here.
        self.done.0.fetch_add(1, Ordering::SeqCst);
        if self.caller_sleeps.load(Ordering::SeqCst) {
            // Perhaps too early, or late, when it wakes the caller out of some other parking: parking allows both.
            let caller = self.caller.lock().unwrap_or_else(PoisonError::into_inner);
            caller.iter().for_each(Thread::unpark);
        }
    }

    fn take_first(&self) -> Option<u32> {
        self.take(|first, end| (first, (first + 1, end)))
    }

    fn take_last(&self) -> Option<u32> {
        self.take(|first, end| (end - 1, (first, end - 1)))
    }

    fn take(&self, pick: impl Fn(u32, u32) -> (u32, (u32, u32))) -> Option<u32> {
        let free = &self.job.0.free;
        let mut word = free.load(Ordering::Relaxed);
        loop {
            let (first, end) = ((word >> 32) as u32, word as u32);
            if first >= end {
                return None;
            }
            let (chunk, (first, end)) = pick(first, end);
            let rest = u64::from(first) << 32 | u64::from(end);
            // Acquire on success: see the module text, 2.
            match free.compare_exchange_weak(word, rest, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(chunk),
                Err(now) => word = now,
            }
        }
    }

    fn has_work(&self, order: Ordering) -> bool {
        let word = self.job.0.free.load(order);
        (word >> 32) as u32 != word as u32
    }

    /// A worker's life.
    fn serve(&self, thread: usize) {
        loop {
            self.work_as_worker(thread);
            let stop = || self.stop.load(Ordering::Relaxed);
            if !spin_until(|| self.has_work(Ordering::Relaxed) || stop()) {
                self.sleep_until_work(&self.sleeps[thread - 1]);
            }
            if stop() {
                return;
            }
        }
    }

    fn sleep_until_work(&self, sleeps: &AtomicBool) {
        sleeps.store(true, Ordering::SeqCst);
        self.sleepers.0.fetch_add(1, Ordering::SeqCst);
        while !self.has_work(Ordering::SeqCst) && !self.stop.load(Ordering::SeqCst) {
            std::thread::park();
        }
        self.sleepers.0.fetch_sub(1, Ordering::SeqCst);
        sleeps.store(false, Ordering::SeqCst);
    }

    /// The caller's wait until workers have done `chunks` chunks.
    fn wait_for(&self, chunks: u32) {
        if spin_until(|| self.done.0.load(Ordering::Acquire) == chunks) {
            return;
        }
        *self.caller.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::thread::current());
        self.caller_sleeps.store(true, Ordering::SeqCst);
        while self.done.0.load(Ordering::SeqCst) != chunks {
            std::thread::park();
        }
        self.caller_sleeps.store(false, Ordering::SeqCst);
    }
}

/// Looks for up to [`SPIN`] whether `ready`; says whether it was.
fn spin_until(ready: impl Fn() -> bool) -> bool {
    let mut start = None;
    loop {
        for _ in 0..32 {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.get_or_insert_with(Instant::now).elapsed() > SPIN {
            return false;
        }
    }
}

#[cfg(test)]
mod tests;
