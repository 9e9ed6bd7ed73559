//! Outputs on their way: submits requests to the engine and waits for their events without blocking a thread.
//!
//! ```text
//! engine's thread   -> listener of each output -> one bounded queue -> the task of the request
//! ```
//! The listener never waits. If the queue is full, whoever should read it is too slow: the request ends with an error that says
//! so. Dropping a [`Generation`] cancels what has not ended, which the engine does before its next round.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use paceline::{Completion, DraftStatistics, Event, Failed, Request, Ticket, Usage};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{self, Receiver};
use tokio::time::{Instant, timeout_at};

use crate::app::{App, Served};
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::timings::Timings;

/// Events of one output that may wait for a reader.
const QUEUE_EVENTS: usize = 8192;
/// Events that are taken at one time.
const BATCH_EVENTS: usize = 256;

/// Outputs of one HTTP request.
pub(crate) struct Generation {
    app: Arc<App>,
    queue: Receiver<(usize, Event)>,
    /// An event found no room.
    overflow: Arc<AtomicBool>,
    outputs: Vec<Output>,
    n_open: usize,
    started: Instant,
    deadline: Option<Instant>,
    /// Given back when all has ended.
    _places: OwnedSemaphorePermit,
}

/// One output.
struct Output {
    /// Cancels when dropped.
    ticket: Option<Ticket>,
    n_prompt: usize,
    first_token: Option<Instant>,
    last_token: Instant,
    n_tokens: usize,
    /// Tokens of the batch that are not counted yet.
    n_in_batch: usize,
    draft: Option<DraftStatistics>,
}

impl Output {
    /// Counts its tokens of the batch, which came together. Those of one round did; a reader that is late sees more as one.
    fn count_batch(&mut self, now: Instant, metrics: &Metrics) {
        let n_tokens = std::mem::take(&mut self.n_in_batch);
        if n_tokens == 0 {
            return;
        }
        let pause = now.duration_since(self.last_token);
        if self.first_token.is_none() {
            self.first_token = Some(now);
            metrics.first_token(pause);
            metrics.tokens(n_tokens - 1, Duration::ZERO);
        } else {
            metrics.tokens(n_tokens, pause);
        }
        self.last_token = now;
        self.n_tokens += n_tokens;
    }
}

impl Generation {
    /// Submits requests. `prompt` is the field that their prompts came in.
    ///
    /// # Errors
    /// A request that can not be, or no room for all of them.
    pub(crate) fn start(
        app: &Arc<App>,
        served: &Served,
        requests: Vec<Request>,
        prompt: &'static str,
    ) -> Result<Self, ApiError> {
        let model = &served.model;
        for request in &requests {
            let n_prompt = request.prompt.len();
            if n_prompt > model.context || (n_prompt == model.context && request.max_tokens > 0) {
                return Err(ApiError::context_exceeded(prompt, n_prompt, model.context));
            }
            model.engine.check(request).map_err(|refused| ApiError::refused(&refused, prompt))?;
        }
        let places = served.places(requests.len()).inspect_err(|_| app.metrics.rejected())?;
        let (sender, queue) = mpsc::channel(QUEUE_EVENTS * requests.len());
        let overflow = Arc::new(AtomicBool::new(false));
        let started = Instant::now();
        let mut outputs: Vec<Output> = Vec::with_capacity(requests.len());
        for (index, mut request) in requests.into_iter().enumerate() {
            // The outputs of one prompt follow one another, and read it once.
            let first = index.checked_sub(request.choice as usize).and_then(|at| outputs.get(at));
            request.same_prompt_as = first.and_then(|first| first.ticket.as_ref()).map(Ticket::id);
            let (sender, overflow) = (sender.clone(), Arc::clone(&overflow));
            let n_prompt = request.prompt.len();
            let listener = move |event| {
                if let Err(mpsc::error::TrySendError::Full(_)) = sender.try_send((index, event)) {
                    overflow.store(true, Ordering::Relaxed);
                }
            };
            let ticket = model
                .engine
                .submit_to(request, listener)
                .map_err(|refused| ApiError::refused(&refused, prompt))?;
            outputs.push(Output {
                ticket: Some(ticket),
                n_prompt,
                first_token: None,
                last_token: started,
                n_tokens: 0,
                n_in_batch: 0,
                draft: None,
            });
        }
        let deadline = app.settings.answer_time.map(|time| started + time);
        Ok(Self {
            app: Arc::clone(app),
            queue,
            overflow,
            n_open: outputs.len(),
            outputs,
            started,
            deadline,
            _places: places,
        })
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
        let receive = self.queue.recv_many(batch, BATCH_EVENTS);
        let received = match self.deadline {
            Some(deadline) => timeout_at(deadline, receive).await.map_err(|_| ApiError::timed_out())?,
            None => receive.await,
        };
        if self.overflow.load(Ordering::Relaxed) {
            return Err(ApiError::slow_reader());
        }
        if received == 0 {
            self.app.engine_ended();
            return Err(ApiError::engine_ended());
        }
        self.take_note(batch)
    }

    /// Measures what the batch says.
    fn take_note(&mut self, batch: &[(usize, Event)]) -> Result<(), ApiError> {
        let now = Instant::now();
        for (index, event) in batch {
            self.outputs[*index].n_in_batch += usize::from(matches!(event, Event::Token { .. }));
        }
        for (index, event) in batch {
            let output = &mut self.outputs[*index];
            output.count_batch(now, &self.app.metrics);
            match event {
                Event::Finished(finished) => {
                    output.ticket = None;
                    output.draft.clone_from(&finished.draft);
                    self.n_open -= 1;
                    let total = now.duration_since(self.started);
                    self.app.metrics.finished(finished.reason.as_str(), finished.usage, total);
                }
                Event::Failed(failed) => {
                    if let Failed::Stopped(_) = failed {
                        self.app.engine_ended();
                    }
                    return Err(ApiError::failed(failed));
                }
                _ => {}
            }
        }
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
        let first = self.outputs.iter().filter_map(|output| output.first_token).min();
        let last = self.outputs.iter().map(|output| output.last_token).max();
        Timings {
            first_token: first.map(|first| first - self.started),
            decode: first.zip(last).map(|(first, last)| last - first),
            n_tokens: self.outputs.iter().map(|output| output.n_tokens).sum(),
            n_outputs: self.outputs.len(),
            draft: self.outputs.iter().filter_map(|output| output.draft.clone()).collect(),
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        let now = Instant::now();
        for output in self.outputs.iter().filter(|output| output.ticket.is_some()) {
            let usage = Usage { prompt_tokens: output.n_prompt, completion_tokens: output.n_tokens };
            self.app.metrics.finished("abort", usage, now.duration_since(self.started));
        }
    }
}
