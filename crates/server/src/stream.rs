//! Answers as server-sent events.
//!
//! ```text
//! data: {chunk}      for each token that has text (or log-probabilities, or an id, where they are asked for)
//! data: {chunk}      with finish_reason, for each output; the last one has timings
//! data: {usage}      if asked for
//! data: [DONE]       always, also behind an error
//! ```
//! Events that are there at the same time leave in one write. The body is made only as fast as the client reads; the engine does
//! not notice.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::unfold;
use paceline::{Event, Finished};
use serde::Serialize;
use tokio::time::timeout;

use crate::answer::{Answer, Envelope, Usage};
use crate::app::App;
use crate::error::ApiError;
use crate::generation::Generation;

/// After so long without an event a comment is sent, so that nothing on the way thinks that the connection is dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How one kind of answer looks as chunks.
pub(crate) trait Format: Send + 'static {
    /// A choice of a chunk.
    type Choice: Serialize + Send;
    /// The `object` of a chunk.
    const OBJECT: &'static str;

    /// What output `index` begins with.
    fn open(&mut self, index: usize) -> Option<Self::Choice>;

    /// What an event that is not the last one adds.
    fn event(&mut self, index: usize, event: Event) -> Vec<Self::Choice>;

    /// What an output ends with.
    fn finish(&mut self, index: usize, finished: &Finished) -> Vec<Self::Choice>;
}

/// An answer on its way.
pub(crate) struct Streamed<F> {
    pub(crate) app: Arc<App>,
    pub(crate) generation: Generation,
    pub(crate) format: F,
    pub(crate) envelope: Envelope,
    pub(crate) n_outputs: usize,
    /// Of the prompts, and of the outputs that have ended.
    pub(crate) usage: Usage,
    pub(crate) include_usage: bool,
    /// The request let drafts be made.
    pub(crate) drafts_asked: bool,
}

struct State<F> {
    streamed: Streamed<F>,
    batch: Vec<(usize, Event)>,
    out: Vec<u8>,
    done: bool,
}

impl<F: Format> Streamed<F> {
    /// The response.
    pub(crate) fn respond(self) -> Response {
        let mut state = State { streamed: self, batch: Vec::new(), out: Vec::new(), done: false };
        for index in 0..state.streamed.n_outputs {
            if let Some(choice) = state.streamed.format.open(index) {
                state.chunk(&[choice], None);
            }
        }
        let body = unfold(state, |mut state| async move {
            let part = state.next().await?;
            Some((Ok::<_, Infallible>(part), state))
        });
        let headers =
            [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8"), (header::CACHE_CONTROL, "no-cache")];
        (headers, Body::from_stream(body)).into_response()
    }
}

impl<F: Format> State<F> {
    /// The next part of the body.
    async fn next(&mut self) -> Option<Bytes> {
        while self.out.is_empty() {
            if self.done {
                return None;
            }
            match timeout(KEEP_ALIVE, self.streamed.generation.next(&mut self.batch)).await {
                Err(_) => self.out.extend_from_slice(b": still here\n\n"),
                Ok(Err(error)) => self.fail(&error),
                Ok(Ok(())) => self.take_batch(),
            }
        }
        Some(Bytes::from(std::mem::take(&mut self.out)))
    }

    fn take_batch(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        let n_ends = batch.iter().filter(|(_, event)| matches!(event, Event::Finished(_))).count();
        let mut n_ended = 0;
        for (index, event) in batch.drain(..) {
            let Event::Finished(finished) = event else {
                for choice in self.streamed.format.event(index, event) {
                    self.chunk(&[choice], None);
                }
                continue;
            };
            n_ended += 1;
            self.streamed.usage.add(&finished);
            let mut choices = self.streamed.format.finish(index, &finished);
            let last = choices.pop();
            for choice in choices {
                self.chunk(&[choice], None);
            }
            let is_last = n_ended == n_ends && self.streamed.generation.is_over();
            self.chunk(last.as_slice(), is_last.then_some(&finished));
        }
        self.batch = batch;
        if self.streamed.generation.is_over() {
            self.end();
        }
    }

    /// Writes a chunk; with the end of the last output it tells of the whole answer.
    fn chunk(&mut self, choices: &[F::Choice], last: Option<&Finished>) {
        let streamed = &self.streamed;
        let mut answer = Answer::new(&streamed.envelope, F::OBJECT, choices);
        answer.usage = streamed.include_usage.then_some(None);
        if let Some(finished) = last {
            answer.seed = Some(finished.seed);
            let loaded = streamed.app.loaded().and_then(|served| served.model.drafter);
            answer.timings = Some(streamed.generation.timings().json(loaded, streamed.drafts_asked));
        }
        write_event(&mut self.out, &answer);
    }

    fn end(&mut self) {
        if self.streamed.include_usage {
            let no_choices: &[F::Choice] = &[];
            let mut answer = Answer::new(&self.streamed.envelope, F::OBJECT, no_choices);
            answer.usage = Some(Some(self.streamed.usage));
            write_event(&mut self.out, &answer);
        }
        self.out.extend_from_slice(b"data: [DONE]\n\n");
        self.done = true;
    }

    fn fail(&mut self, error: &ApiError) {
        tracing::warn!(id = self.streamed.envelope.id, %error, "a stream is cut off");
        write_event(&mut self.out, &error.body());
        self.out.extend_from_slice(b"data: [DONE]\n\n");
        self.done = true;
    }
}

fn write_event(out: &mut Vec<u8>, event: &impl Serialize) {
    out.extend_from_slice(b"data: ");
    serde_json::to_writer(&mut *out, event).expect("answers have text keys and finite numbers");
    out.extend_from_slice(b"\n\n");
}
