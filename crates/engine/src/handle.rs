//! An engine on a thread of its own.
//!
//! Requests go in through a channel; the events of each go to a listener of its own, which must not wait. The ready-made
//! listener is a queue ([`Events`]); it holds at most the events of one output, so `max_tokens` bounds it. Between two rounds the
//! thread takes what has come in; a cancelled request is gone within one round.

use std::collections::HashMap;
use std::io;
use std::iter;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::vec::Drain;

use crate::admission::Admission;
use crate::engine::Engine;
use crate::error::{Broken, Failed, Refused};
use crate::events::{Completion, Event};
use crate::request::{Request, RequestId};
use crate::status::EngineStatus;

/// Hears the events of one request on the engine's thread, those of a round together.
type Listener = Box<dyn FnMut(Drain<'_, Event>) + Send>;

enum Command {
    Submit(RequestId, Box<Request>, Listener),
    Cancel(RequestId),
    Stop,
}

/// Submits requests to an engine on its own thread. Clones share the engine; it stops when the last one is dropped.
#[derive(Clone)]
pub struct EngineHandle {
    shared: Arc<Shared>,
}

struct Shared {
    admission: Admission,
    /// Ids ascend in the order in which commands go in, so both are under one lock.
    entrance: Mutex<(u64, Sender<Command>)>,
    status: Arc<Mutex<EngineStatus>>,
    thread: Option<JoinHandle<()>>,
}

impl EngineHandle {
    /// Moves an engine to a thread of its own.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn spawn(engine: Engine) -> io::Result<Self> {
        Self::spawn_with(engine, || ())
    }

    /// The same with something to do after each round, on the engine's thread, when all listeners have heard what it brought: it must
    /// return at once and must not panic. It is dropped when the thread ends.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn spawn_with(engine: Engine, after_round: impl FnMut() + Send + 'static) -> io::Result<Self> {
        let (commands, inbox) = mpsc::channel();
        let admission = engine.admission().clone();
        let next_id = engine.next_id();
        let status = Arc::new(Mutex::new(engine.status()));
        let board = Arc::clone(&status);
        let thread = thread::Builder::new()
            .name("paceline-engine".into())
            .spawn(move || serve(engine, inbox, &board, after_round))?;
        let entrance = Mutex::new((next_id, commands));
        Ok(Self { shared: Arc::new(Shared { admission, entrance, status, thread: Some(thread) }) })
    }

    /// What the engine was doing after its last round.
    pub fn status(&self) -> EngineStatus {
        lock(&self.shared.status).clone()
    }

    /// Takes a request and gives its events. If the engine has stopped, the only event says so.
    ///
    /// # Errors
    /// What is wrong with the request.
    pub fn submit(&self, request: Request) -> Result<Events, Refused> {
        let (events, queue) = mpsc::channel();
        // A client that has gone cancels by a command of its own.
        let listener = move |round: Drain<'_, Event>| round.for_each(|event| drop(events.send(event)));
        let ticket = self.submit_to(request, listener)?;
        Ok(Events { ticket, queue, ended: false })
    }

    /// Whether the engine's thread is there. A broken engine ends it.
    pub fn is_running(&self) -> bool {
        self.shared.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Checks a request as [`EngineHandle::submit`] does, without taking it.
    ///
    /// # Errors
    /// What is wrong with the request.
    pub fn check(&self, request: &Request) -> Result<(), Refused> {
        self.shared.admission.check(request)
    }

    /// Takes a request and tells its events to `listener`, on the engine's thread, all that a round brought in one call: it must
    /// return at once and must not panic. If the engine has stopped, the listener is dropped without hearing an end.
    ///
    /// # Errors
    /// What is wrong with the request.
    pub fn submit_to(
        &self,
        request: Request,
        listener: impl FnMut(Drain<'_, Event>) + Send + 'static,
    ) -> Result<Ticket, Refused> {
        self.shared.admission.check(&request)?;
        let mut entrance = lock(&self.shared.entrance);
        let (next_id, commands) = &mut *entrance;
        let id = RequestId(*next_id);
        *next_id += 1;
        // If the thread has ended, the listener is dropped with the command.
        let _ = commands.send(Command::Submit(id, Box::new(request), Box::new(listener)));
        Ok(Ticket { id, commands: commands.clone() })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Shared {
    fn drop(&mut self) {
        let entrance = self.entrance.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = entrance.1.send(Command::Stop);
        // A listener may hold the last handle, which is then dropped on the engine's own thread: nobody waits for that one.
        let own = |thread: &JoinHandle<()>| thread.thread().id() == thread::current().id();
        if let Some(thread) = self.thread.take_if(|thread| !own(thread)) {
            // A panic of the engine was told to each request as an ended queue; there is nobody left to tell.
            let _ = thread.join();
        }
    }
}

/// A request in an engine. Dropping it cancels the request, if it has not ended.
#[derive(Debug)]
pub struct Ticket {
    id: RequestId,
    commands: Sender<Command>,
}

impl Ticket {
    /// The request.
    pub fn id(&self) -> RequestId {
        self.id
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // If the thread has ended, there is nothing to cancel.
        let _ = self.commands.send(Command::Cancel(self.id));
    }
}

/// The events of one request, in order. Dropping it cancels the request.
pub struct Events {
    ticket: Ticket,
    queue: Receiver<Event>,
    ended: bool,
}

impl Events {
    /// The request.
    pub fn id(&self) -> RequestId {
        self.ticket.id
    }

    /// Waits for the whole output.
    ///
    /// # Errors
    /// The request failed.
    pub fn wait(self) -> Result<Completion, Failed> {
        let mut completion = Completion::default();
        for event in self {
            completion.add(event)?;
        }
        Ok(completion)
    }
}

impl Iterator for Events {
    type Item = Event;

    /// Waits for the next event; `None` after the last one.
    fn next(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let event = self.queue.recv().unwrap_or(Event::Failed(Failed::Stopped(Broken::ThreadEnded)));
        self.ended = matches!(event, Event::Finished(_) | Event::Failed(_));
        Some(event)
    }
}

/// The engine's thread: rounds while there is work, otherwise sleep until a command comes.
fn serve(
    mut engine: Engine,
    inbox: Receiver<Command>,
    board: &Mutex<EngineStatus>,
    mut after_round: impl FnMut(),
) {
    let mut listeners: HashMap<RequestId, Listener> = HashMap::new();
    let (mut events, mut of_one) = (Vec::new(), Vec::new());
    loop {
        let first = if engine.is_idle() { Some(inbox.recv().unwrap_or(Command::Stop)) } else { None };
        for command in first.into_iter().chain(inbox.try_iter()) {
            match command {
                Command::Submit(id, request, listener) => {
                    listeners.insert(id, listener);
                    engine.submit_checked(id, *request);
                }
                Command::Cancel(id) => {
                    listeners.remove(&id);
                    engine.cancel(id);
                }
                Command::Stop => return,
            }
        }
        let stepped = engine.step(&mut events);
        // Before the events: who hears of an end finds it in the status.
        engine.write_status(&mut lock(board));
        let mut events = events.drain(..).peekable();
        while let Some((id, first)) = events.next() {
            of_one.push(first);
            of_one
                .extend(iter::from_fn(|| events.next_if(|(other, _)| *other == id)).map(|(_, event)| event));
            let ended = matches!(of_one.last(), Some(Event::Finished(_) | Event::Failed(_)));
            let listener = listeners.get_mut(&id).expect("events come for requests that are there");
            listener(of_one.drain(..));
            if ended {
                listeners.remove(&id);
            }
        }
        after_round();
        if let Err(broken) = stepped {
            lock(board).broken = Some(broken);
            return;
        }
    }
}
