//! An engine on a thread of its own.
//!
//! Requests go in through a channel; each has its own queue of events, which never makes the engine wait. A queue holds at most
//! the events of one output, so `max_tokens` bounds it. Between two rounds the thread takes what has come in; a cancelled
//! request is gone within one round.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::admission::Admission;
use crate::engine::Engine;
use crate::error::{Broken, Failed, Refused};
use crate::events::{Completion, Event};
use crate::request::{Request, RequestId};

enum Command {
    Submit(RequestId, Box<Request>, Sender<Event>),
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
    thread: Option<JoinHandle<()>>,
}

impl EngineHandle {
    /// Moves an engine to a thread of its own.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn spawn(engine: Engine) -> io::Result<Self> {
        let (commands, inbox) = mpsc::channel();
        let admission = engine.admission().clone();
        let next_id = engine.next_id();
        let thread = thread::Builder::new().name("paceline-engine".into()).spawn(|| serve(engine, inbox))?;
        let entrance = Mutex::new((next_id, commands));
        Ok(Self { shared: Arc::new(Shared { admission, entrance, thread: Some(thread) }) })
    }

    /// Takes a request and gives its events. If the engine has stopped, the only event says so.
    ///
    /// # Errors
    /// What is wrong with the request.
    pub fn submit(&self, request: Request) -> Result<Events, Refused> {
        self.shared.admission.check(&request)?;
        let (events, queue) = mpsc::channel();
        let mut entrance = self.shared.entrance.lock().unwrap_or_else(PoisonError::into_inner);
        let (next_id, commands) = &mut *entrance;
        let id = RequestId(*next_id);
        *next_id += 1;
        // If the thread has ended, the queue's other end is dropped with the command, and the queue says so.
        let _ = commands.send(Command::Submit(id, Box::new(request), events));
        Ok(Events { id, queue, commands: commands.clone(), ended: false })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let entrance = self.entrance.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = entrance.1.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic of the engine was told to each request as an ended queue; there is nobody left to tell.
            let _ = thread.join();
        }
    }
}

/// The events of one request, in order. Dropping it cancels the request.
pub struct Events {
    id: RequestId,
    queue: Receiver<Event>,
    commands: Sender<Command>,
    ended: bool,
}

impl Events {
    /// The request.
    pub fn id(&self) -> RequestId {
        self.id
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

impl Drop for Events {
    fn drop(&mut self) {
        if !self.ended {
            // If the thread has ended, there is nothing to cancel.
            let _ = self.commands.send(Command::Cancel(self.id));
        }
    }
}

/// The engine's thread: rounds while there is work, otherwise sleep until a command comes.
fn serve(mut engine: Engine, inbox: Receiver<Command>) {
    let mut clients: HashMap<RequestId, Sender<Event>> = HashMap::new();
    let mut events = Vec::new();
    loop {
        let first = if engine.is_idle() { Some(inbox.recv().unwrap_or(Command::Stop)) } else { None };
        for command in first.into_iter().chain(inbox.try_iter()) {
            match command {
                Command::Submit(id, request, client) => {
                    clients.insert(id, client);
                    engine.submit_checked(id, *request);
                }
                Command::Cancel(id) => {
                    clients.remove(&id);
                    engine.cancel(id);
                }
                Command::Stop => return,
            }
        }
        let stepped = engine.step(&mut events);
        for (id, event) in events.drain(..) {
            let ended = matches!(event, Event::Finished(_) | Event::Failed(_));
            // A client that has gone cancels by a command of its own.
            let _ = clients[&id].send(event);
            if ended {
                clients.remove(&id);
            }
        }
        if stepped.is_err() {
            return;
        }
    }
}
