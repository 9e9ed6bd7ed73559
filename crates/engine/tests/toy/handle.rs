//! The engine on its own thread: several clients, cancellation, the end of the engine.

use std::sync::mpsc;
use std::thread;
use std::vec::Drain;

use paceline::{Broken, EngineHandle, Event, Failed, Refused, Request};
use paceline_testkit::{Nasty, ToyModel, toy_engine};

use crate::harness::{nasty, sizes};

fn handle(model: &ToyModel) -> EngineHandle {
    let drafter = nasty(Nasty::RightThenWrong);
    EngineHandle::spawn(toy_engine(model, sizes(300, 2, 64, 4), &drafter, &[])).expect("a thread")
}

#[test]
fn clients_on_several_threads_get_their_own_text() {
    let model = ToyModel::default();
    let handle = handle(&model);
    thread::scope(|scope| {
        for client in 0..4 {
            let (handle, model) = (handle.clone(), &model);
            scope.spawn(move || {
                for round in 0..3 {
                    let prompt = model.prompt(5 + 20 * client, (client * 10 + round) as u64);
                    let expected = model.decode(&prompt, 40, &[]);
                    let completion = handle.submit(Request::new(prompt, 40)).unwrap().wait().unwrap();
                    assert_eq!(completion.token_ids, expected);
                }
            });
        }
    });
}

#[test]
fn a_round_is_over_when_all_have_heard_of_it() {
    let model = ToyModel::default();
    let engine = toy_engine(&model, sizes(300, 2, 64, 4), &nasty(Nasty::RightThenWrong), &[]);
    let (log, told) = mpsc::channel();
    let rounds = log.clone();
    let handle = EngineHandle::spawn_with(engine, move || rounds.send(None).unwrap()).expect("a thread");
    let tickets: Vec<_> = (0..2)
        .map(|client| {
            let log = log.clone();
            let listener = move |round: Drain<'_, Event>| log.send(Some((client, round.count()))).unwrap();
            handle.submit_to(Request::new(model.prompt(10, client), 40), listener).unwrap()
        })
        .collect();
    drop(log);
    // Both end by themselves; the log ends with the engine.
    while handle.status().running + handle.status().waiting > 0 || handle.status().rounds == 0 {
        thread::yield_now();
    }
    drop((tickets, handle));
    let told: Vec<_> = told.iter().collect();
    assert_eq!(told.last(), Some(&None), "the last round is over too");
    let mut together = 0;
    for round in told.split(Option::is_none) {
        let clients: Vec<_> = round.iter().flatten().map(|(client, _)| *client).collect();
        assert!(
            clients.is_sorted() && clients.len() <= 2 && clients != [0, 0] && clients != [1, 1],
            "{told:?}"
        );
        together += usize::from(clients == [0, 1]);
    }
    assert!(together > 0, "they never ran together: {told:?}");
}

#[test]
fn a_dropped_client_makes_room_for_the_next() {
    let model = ToyModel::default();
    let handle = handle(&model);
    let dropped: Vec<_> = (0..20)
        .map(|i| {
            let mut events = handle.submit(Request::new(model.prompt(10, i), 200)).unwrap();
            if i % 2 == 0 {
                assert!(matches!(events.next(), Some(Event::Token { .. } | Event::Prefill { .. })));
            }
            events.id()
        })
        .collect();
    assert!(dropped.is_sorted());
    let prompt = model.prompt(10, 99);
    let completion = handle.submit(Request::new(prompt.clone(), 30)).unwrap().wait().unwrap();
    assert_eq!(completion.token_ids, model.decode(&prompt, 30, &[]));
}

#[test]
fn a_stopped_engine_ends_every_stream() {
    let model = ToyModel::default();
    let handle = handle(&model);
    let events: Vec<_> =
        (0..4).map(|i| handle.submit(Request::new(model.prompt(10, i), 250)).unwrap()).collect();
    drop(handle);
    for events in events {
        let last = events.last().expect("at least one event");
        let stopped = Event::Failed(Failed::Stopped(Broken::ThreadEnded));
        assert!(last == stopped || matches!(last, Event::Finished(_)), "{last:?}");
    }
}

/// Says when it is dropped whether its thread panics.
struct Witness(mpsc::Sender<bool>);

impl Drop for Witness {
    fn drop(&mut self) {
        let _ = self.0.send(thread::panicking());
    }
}

#[test]
fn a_listener_may_hold_the_last_handle() {
    let model = ToyModel::default();
    let handle = handle(&model);
    let (begun, events) = mpsc::channel();
    let (goes_on, gate) = mpsc::channel::<()>();
    let (ended, ends) = mpsc::channel();
    let listener = {
        // Dropped in this order.
        let held = (handle.clone(), Witness(ended));
        move |_: Drain<'_, Event>| {
            let _held = &held;
            // The engine waits here until nobody else has a handle.
            let _ = (begun.send(()), gate.recv());
        }
    };
    let ticket = handle.submit_to(Request::new(model.prompt(10, 1), 100), listener).unwrap();
    events.recv().unwrap();
    drop((ticket, handle));
    drop(goes_on);
    assert_eq!(ends.recv(), Ok(false), "the engine's thread ends in order");
}

#[test]
fn the_status_tells_of_work_and_its_end() {
    let model = ToyModel::default();
    let handle = handle(&model);
    let before = handle.status();
    assert_eq!((before.running, before.waiting, before.free_slots, before.rounds), (0, 0, 2, 0));
    assert!(before.kv_blocks.iter().all(|blocks| blocks.free == blocks.all && blocks.all > 0));
    let (seen, statuses) = mpsc::channel();
    let watched = handle.clone();
    let listener = move |_: Drain<'_, Event>| drop(seen.send(watched.status()));
    let ticket = handle.submit_to(Request::new(model.prompt(10, 1), 100), listener).unwrap();
    let busy = statuses.recv().unwrap();
    assert_eq!((busy.running, busy.free_slots), (1, 1));
    assert!(busy.kv_use() > 0.0);
    // The listener is dropped with its request, and the queue ends.
    assert!(statuses.into_iter().count() > 10);
    drop(ticket);
    let after = handle.status();
    assert_eq!((after.running, &after.kv_blocks), (0, &before.kv_blocks));
    assert!(after.rounds > 10 && handle.is_running());
    let drafts = &after.drafts;
    assert!(drafts.accepted > 0 && drafts.accepted < drafts.drafted, "{drafts:?}");
    assert_eq!(drafts.accepted_by_position.iter().sum::<u64>(), drafts.accepted);
}

#[test]
fn the_events_of_a_round_come_together() {
    let model = ToyModel::default();
    let handle = handle(&model);
    let (seen, rounds) = mpsc::channel();
    let listener = move |round: Drain<'_, Event>| drop(seen.send(round.collect::<Vec<_>>()));
    let _ticket = handle.submit_to(Request::new(model.prompt(10, 1), 100), listener).unwrap();
    let rounds: Vec<_> = rounds.into_iter().collect();
    let Some(Event::Finished(finished)) = rounds.last().and_then(|round| round.last()) else {
        panic!("no end: {rounds:?}");
    };
    let draft = finished.draft.as_ref().unwrap();
    // The round that read the prompt brought one token.
    let tokens =
        rounds.iter().map(|round| round.iter().filter(|event| matches!(event, Event::Token { .. })).count());
    let expected = draft.accepted_per_round.iter().map(|accepted| *accepted as usize + 1);
    let drafted: Vec<_> = tokens.skip(1).filter(|n| *n > 1).collect();
    assert!(drafted.len() > 5);
    assert_eq!(drafted, expected.filter(|n| *n > 1).collect::<Vec<_>>());
}

#[test]
fn what_is_refused_never_reaches_the_engine() {
    let model = ToyModel::default();
    let handle = handle(&model);
    assert_eq!(handle.submit(Request::new(vec![], 3)).err(), Some(Refused::EmptyPrompt));
    let nothing = handle.submit(Request::new(model.prompt(3, 1), 0)).unwrap().wait().unwrap();
    assert!(nothing.token_ids.is_empty() && nothing.finished.unwrap().reason.as_str() == "length");
}
