//! Outputs on their way: submits requests to the engine and waits for their events without blocking a thread.
//!
//! ```text
//! engine's thread   -> listener of each output -> post -> one bounded queue -> the task of the request
//! ```
//! The listener never waits. It counts tokens when they are made, and leaves events at the post: those of a round together, or, where
//! nobody looks at an answer before it is whole, all of an output at its end, so that the task does not take processor time from
//! the rounds. If the queue is full, whoever should read it is too slow: the request ends with an error that says so. Dropping a
//! [`Generation`] cancels what has not ended, which the engine does before its next round.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::vec::Drain;

use paceline::{Completion, DraftStatistics, Event, Failed, Request, Ticket, Usage};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, Sleep, sleep_until};
use tracing::Span;

use crate::app::{App, Served};
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::post::{Post, Route};
use crate::timings::{Timings, milliseconds};

/// Rounds of one output that may wait for a reader.
const QUEUE_ROUNDS: usize = 8192;
/// Rounds that are taken at one time.
const MOST_AT_ONCE: usize = 256;

/// When events of an output are left at the post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// After each round.
    Rounds,
    /// When it has ended.
    Whole,
}

impl Delivery {
    /// What an answer needs that is streamed, or is not.
    pub(crate) fn of(streamed: bool) -> Self {
        if streamed { Self::Rounds } else { Self::Whole }
    }
}

/// Outputs of one HTTP request.
pub(crate) struct Generation {
    app: Arc<App>,
    queue: Receiver<Part>,
    /// What was taken out of the queue.
    parts: Vec<Part>,
    /// A part found no room.
    overflow: Arc<AtomicBool>,
    outputs: Vec<Output>,
    n_open: usize,
    /// The request said what it expects.
    predicted: bool,
    started: Instant,
    /// Sleeps until the answer has taken too long. Made once: a timer for each wait would cost more than the wait.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Names the request in the log.
    span: Span,
    /// Given back when all has ended.
    _places: OwnedSemaphorePermit,
}

/// One output.
struct Output {
    /// Cancels when dropped.
    ticket: Option<Ticket>,
    progress: Progress,
    draft: Option<DraftStatistics>,
}

/// Events of an output that come together.
#[derive(Debug)]
pub(crate) struct Part {
    index: usize,
    events: Vec<Event>,
    progress: Progress,
}

/// How far an output has come.
#[derive(Clone, Copy, Debug)]
struct Progress {
    first_token: Option<Instant>,
    /// Before the first token, when it was asked for.
    last_token: Instant,
    n_tokens: usize,
}

/// Hears the events of one output, on the engine's thread.
struct Listener {
    metrics: Arc<Metrics>,
    index: usize,
    delivery: Delivery,
    n_prompt: usize,
    started: Instant,
    progress: Progress,
    /// What was not left at the post yet.
    events: Vec<Event>,
    has_begun: bool,
    has_finished: bool,
    post: Arc<Post<Part>>,
    route: Arc<Route<Part>>,
}

impl Listener {
    fn hear(&mut self, round: Drain<'_, Event>) {
        let before = self.events.len();
        self.events.extend(round);
        let new = &self.events[before..];
        let now = Instant::now();
        self.count(now, new.iter().filter(|event| matches!(event, Event::Token { .. })).count());
        let last = self.events.last();
        if let Some(Event::Finished(finished)) = last {
            self.has_finished = true;
            self.metrics.finished(finished.reason.as_str(), finished.usage, self.started.elapsed());
        }
        let has_ended = matches!(last, Some(Event::Finished(_) | Event::Failed(_)));
        if has_ended || self.delivery == Delivery::Rounds {
            let part =
                Part { index: self.index, events: std::mem::take(&mut self.events), progress: self.progress };
            self.post.leave(&self.route, part, has_ended || !self.has_begun);
            self.has_begun = true;
        }
    }

    /// Counts the tokens of a round, which share the time that it took.
    fn count(&mut self, now: Instant, n_tokens: usize) {
        if n_tokens == 0 {
            return;
        }
        let (progress, metrics) = (&mut self.progress, &self.metrics);
        let pause = now.duration_since(progress.last_token);
        if progress.first_token.is_none() {
            progress.first_token = Some(now);
            metrics.first_token(pause);
            metrics.tokens(n_tokens - 1, Duration::ZERO);
        } else {
            metrics.tokens(n_tokens, pause);
        }
        progress.last_token = now;
        progress.n_tokens += n_tokens;
    }
}

impl Drop for Listener {
    /// The output was cancelled, or failed.
    fn drop(&mut self) {
        if !self.has_finished {
            let usage = Usage { prompt_tokens: self.n_prompt, completion_tokens: self.progress.n_tokens };
            self.metrics.finished("abort", usage, self.started.elapsed());
        }
    }
}

impl Generation {
    /// Submits requests. `prompt` is the field that their prompts came in, `delivery` says when their events are wanted.
    ///
    /// # Errors
    /// A request that can not be, or no room for all of them.
    pub(crate) fn start(
        app: &Arc<App>,
        served: &Served,
        requests: Vec<Request>,
        prompt: &'static str,
        delivery: Delivery,
    ) -> Result<Self, ApiError> {
        let model = &served.model;
        for request in &requests {
            let n_prompt = request.prompt.len();
            // An output has at least a token.
            let needed = n_prompt + usize::from(request.max_tokens > 0);
            if needed > model.context {
                let largest = model.facts.largest_context;
                let largest = (needed <= largest).then_some(largest);
                return Err(ApiError::context_exceeded(prompt, n_prompt, model.context, largest));
            }
            model.engine.check(request).map_err(|refused| ApiError::refused(&refused, prompt))?;
        }
        let places = served.places(requests.len()).inspect_err(|_| app.metrics.rejected())?;
        let predicted = requests.iter().any(|request| !request.prediction.is_empty());
        let (route, queue, overflow) = Route::new(QUEUE_ROUNDS * requests.len());
        let started = Instant::now();
        let progress = Progress { first_token: None, last_token: started, n_tokens: 0 };
        let mut outputs: Vec<Output> = Vec::with_capacity(requests.len());
        for (index, mut request) in requests.into_iter().enumerate() {
            // The outputs of one prompt follow one another, and read it once.
            let first = index.checked_sub(request.choice as usize).and_then(|at| outputs.get(at));
            request.same_prompt_as = first.and_then(|first| first.ticket.as_ref()).map(Ticket::id);
            let mut listener = Listener {
                metrics: Arc::clone(&app.metrics),
                index,
                delivery,
                n_prompt: request.prompt.len(),
                started,
                progress,
                events: Vec::new(),
                has_begun: false,
                has_finished: false,
                post: Arc::clone(&model.post),
                route: Arc::clone(&route),
            };
            let ticket = model
                .engine
                .submit_to(request, move |round: Drain<'_, Event>| listener.hear(round))
                .map_err(|refused| ApiError::refused(&refused, prompt))?;
            outputs.push(Output { ticket: Some(ticket), progress, draft: None });
        }
        let deadline = app.settings.answer_time.map(|time| Box::pin(sleep_until(started + time)));
        Ok(Self {
            app: Arc::clone(app),
            queue,
            parts: Vec::new(),
            overflow,
            n_open: outputs.len(),
            predicted,
            outputs,
            started,
            deadline,
            span: Span::current(),
            _places: places,
        })
    }

    /// The request in the log, for what happens after its answer has begun.
    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// Whether all outputs have ended.
    pub(crate) fn is_over(&self) -> bool {
        self.n_open == 0
    }

    /// Waits for events and puts them into `batch`, each with the index of its output, in the order in which they happened. At
    /// least one, unless all outputs have ended.
    ///
    /// # Errors
    /// The answer can not be finished.
    pub(crate) async fn next(&mut self, batch: &mut Vec<(usize, Event)>) -> Result<(), ApiError> {
        batch.clear();
        if self.n_open == 0 {
            return Ok(());
        }
        let receive = self.queue.recv_many(&mut self.parts, MOST_AT_ONCE);
        let received = match &mut self.deadline {
            Some(deadline) => tokio::select! {
                biased;
                received = receive => received,
                () = deadline.as_mut() => return Err(ApiError::timed_out()),
            },
            None => receive.await,
        };
        if self.overflow.load(Ordering::Relaxed) {
            return Err(ApiError::slow_reader());
        }
        if received == 0 {
            self.app.engine_ended();
            return Err(ApiError::engine_ended());
        }
        let mut parts = std::mem::take(&mut self.parts);
        let taken = parts.drain(..).try_for_each(|part| self.take(part, batch));
        self.parts = parts;
        taken
    }

    /// Notes what a part says, and puts its events into `batch`.
    fn take(&mut self, part: Part, batch: &mut Vec<(usize, Event)>) -> Result<(), ApiError> {
        let Part { index, events, progress } = part;
        let output = &mut self.outputs[index];
        output.progress = progress;
        match events.last() {
            Some(Event::Finished(finished)) => {
                output.ticket = None;
                output.draft.clone_from(&finished.draft);
                self.n_open -= 1;
            }
            Some(Event::Failed(failed)) => {
                if let Failed::Stopped(_) = failed {
                    self.app.engine_ended();
                }
                return Err(ApiError::failed(failed));
            }
            _ => {}
        }
        batch.extend(events.into_iter().map(|event| (index, event)));
        Ok(())
    }

    /// Waits for the whole outputs.
    ///
    /// # Errors
    /// The answer can not be finished.
    pub(crate) async fn collect(&mut self) -> Result<Vec<Completion>, ApiError> {
        let mut completions = vec![Completion::default(); self.outputs.len()];
        let mut batch = Vec::new();
        while !self.is_over() {
            self.next(&mut batch).await?;
            for (index, event) in batch.drain(..) {
                completions[index].add(event).map_err(|failed| ApiError::failed(&failed))?;
            }
        }
        Ok(completions)
    }

    /// Tokens of prompt and output of all outputs that have ended.
    pub(crate) fn timings(&self) -> Timings {
        let progress = || self.outputs.iter().map(|output| output.progress);
        let first = progress().filter_map(|progress| progress.first_token).min();
        let last = progress().map(|progress| progress.last_token).max();
        Timings {
            first_token: first.map(|first| first - self.started),
            decode: first.zip(last).map(|(first, last)| last - first),
            n_tokens: progress().map(|progress| progress.n_tokens).sum(),
            n_outputs: self.outputs.len(),
            draft: self.outputs.iter().filter_map(|output| output.draft.clone()).collect(),
            predicted: self.predicted,
        }
    }
}

impl Drop for Generation {
    /// Says in the log what became of the request; of a stream that is known only now.
    fn drop(&mut self) {
        let timings = self.timings();
        self.span.in_scope(|| {
            tracing::info!(
                outputs = self.outputs.len(),
                unfinished = self.n_open,
                tokens = timings.n_tokens,
                first_token_ms = timings.first_token.map(milliseconds),
                ms = milliseconds(self.started.elapsed()),
                "generated"
            );
        });
    }
}
