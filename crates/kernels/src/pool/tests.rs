use super::*;
use std::sync::atomic::AtomicUsize;

const CALLS: usize = if cfg!(miri) { 8 } else { 2000 };

#[test]
fn every_chunk_runs_once_and_results_are_seen() {
    for threads in 1..=4 {
        let mut team = Team::new(threads).unwrap();
        let mut totals = vec![0u64; 37];
        for call in 0..CALLS {
            let chunks = call % 38;
            team.run_pieces(&mut totals[..chunks], 1, |thread, index, piece| {
                assert!(thread < threads);
                piece[0] += index as u64 + 1;
            });
        }
        let calls_with = |index: usize| (0..CALLS).filter(|call| call % 38 > index).count() as u64;
        for (index, total) in totals.iter().enumerate() {
            assert_eq!(*total, calls_with(index) * (index as u64 + 1), "{threads} threads");
        }
    }
}

#[test]
fn pieces_cover_uneven_slices() {
    let mut team = Team::new(3).unwrap();
    for len in [0, 1, 7, 8, 9] {
        let mut data = vec![0usize; len];
        team.run_pieces(&mut data, 4, |_, index, piece| piece.fill(index + 1));
        let expected: Vec<usize> = (0..len).map(|i| i / 4 + 1).collect();
        assert_eq!(data, expected);
    }
}

/// Waits in one chunk until another thread is in the other one.
fn meet(arrived: &AtomicUsize) {
    arrived.fetch_add(1, Ordering::SeqCst);
    let start = Instant::now();
    while arrived.load(Ordering::SeqCst) < 2 {
        assert!(start.elapsed() < Duration::from_secs(300), "nobody takes the other chunk");
        std::thread::yield_now();
    }
}

#[test]
fn workers_take_part_and_wake_from_parking() {
    let mut team = Team::new(2).unwrap();
    // Both chunks wait for each other, so this ends only if two threads take one each; the pauses let the worker park.
    for call in 0..if cfg!(miri) { 3 } else { 20 } {
        if call % 4 == 3 {
            std::thread::sleep(SPIN * 50);
        }
        let arrived = AtomicUsize::new(0);
        team.run(2, |_, _| {
            meet(&arrived);
        });
    }
}

#[test]
fn the_caller_parks_until_a_long_chunk_is_done() {
    let mut team = Team::new(2).unwrap();
    let arrived = AtomicUsize::new(0);
    let finished = AtomicUsize::new(0);
    team.run(2, |thread, _| {
        meet(&arrived);
        if thread == 1 {
            std::thread::sleep(SPIN * 100);
        }
        finished.fetch_add(1, Ordering::SeqCst);
    });
    assert_eq!(finished.load(Ordering::SeqCst), 2);
}

#[test]
fn a_panic_reaches_the_caller_after_all_chunks() {
    let mut team = Team::new(2).unwrap();
    for bad in [0, 5, 9] {
        let finished = AtomicUsize::new(0);
        let result = catch_unwind(AssertUnwindSafe(|| {
            team.run(10, |_, chunk| {
                if chunk == bad {
                    // No message from the panic hook in the middle of the tests' output.
                    resume_unwind(Box::new("planted"));
                }
                finished.fetch_add(1, Ordering::SeqCst);
            });
        }));
        assert_eq!(*result.unwrap_err().downcast::<&str>().unwrap(), "planted");
        assert_eq!(finished.load(Ordering::SeqCst), 9);
        let again = AtomicUsize::new(0);
        team.run(3, |_, _| {
            again.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(again.load(Ordering::SeqCst), 3);
    }
}
