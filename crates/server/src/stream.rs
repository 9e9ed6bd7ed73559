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
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::unfold;
use paceline::{Event, Finished};
use serde::Serialize;
use tokio::time::{Instant, Sleep, sleep};

use crate::answer::{Answer, Envelope, Usage};
use crate::app::App;
use crate::error::ApiError;
use crate::generation::Generation;
use crate::sampling::SeedForm;

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
    pub(crate) seed_form: SeedForm,
}

struct State<F> {
    streamed: Streamed<F>,
    frame: Frame,
    batch: Vec<(usize, Event)>,
    out: Vec<u8>,
    done: bool,
    /// When the last part left.
    told: Instant,
    /// Sleeps until nothing was told for too long since some part. Made once: a timer for each part would cost more than the part.
    quiet: Pin<Box<Sleep>>,
}

impl<F: Format> Streamed<F> {
    /// The response.
    pub(crate) fn respond(self) -> Response {
        let frame = Frame::new(&self.envelope, F::OBJECT, self.include_usage);
        let mut state = State {
            streamed: self,
            frame,
            batch: Vec::new(),
            out: Vec::new(),
            done: false,
            told: Instant::now(),
            quiet: Box::pin(sleep(KEEP_ALIVE)),
        };
        for index in 0..state.streamed.n_outputs {
            if let Some(choice) = state.streamed.format.open(index) {
                state.chunk(&choice);
            }
        }
        let body = unfold(state, |mut state| async move {
            let part = state.next().await?;
            Some((Ok::<_, Infallible>(part), state))
        });
        let headers = [
            (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
            (header::CACHE_CONTROL, "no-cache"),
            // nginx would hold events back.
            (HeaderName::from_static("x-accel-buffering"), "no"),
        ];
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
            tokio::select! {
                biased;
                taken = self.streamed.generation.next(&mut self.batch) => match taken {
                    Ok(()) => self.take_batch(),
                    Err(error) => self.fail(&error),
                },
                () = self.quiet.as_mut() => self.keep_alive(),
            }
        }
        self.told = Instant::now();
        Some(Bytes::from(std::mem::take(&mut self.out)))
    }

    /// Says something if nothing was told for a while, and sleeps on.
    fn keep_alive(&mut self) {
        let now = Instant::now();
        if now >= self.told + KEEP_ALIVE {
            self.out.extend_from_slice(b": still here\n\n");
            self.told = now;
        }
        self.quiet.as_mut().reset(self.told + KEEP_ALIVE);
    }

    fn take_batch(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        let n_ends = batch.iter().filter(|(_, event)| matches!(event, Event::Finished(_))).count();
        let mut n_ended = 0;
        for (index, event) in batch.drain(..) {
            let Event::Finished(finished) = event else {
                for choice in self.streamed.format.event(index, event) {
                    self.chunk(&choice);
                }
                continue;
            };
            n_ended += 1;
            self.streamed.usage.add(&finished);
            let choices = self.streamed.format.finish(index, &finished);
            let (last, others) = choices.split_last().expect("an end is told");
            others.iter().for_each(|choice| self.chunk(choice));
            if n_ended == n_ends && self.streamed.generation.is_over() {
                self.last_chunk(last, &finished);
            } else {
                self.chunk(last);
            }
        }
        self.batch = batch;
        if self.streamed.generation.is_over() {
            self.end();
        }
    }

    /// Writes a chunk.
    fn chunk(&mut self, choice: &F::Choice) {
        self.out.extend_from_slice(&self.frame.head);
        write_json(&mut self.out, choice);
        self.out.extend_from_slice(&self.frame.tail);
    }

    /// Writes the chunk with the end of the last output, which tells of the whole answer.
    fn last_chunk(&mut self, choice: &F::Choice, finished: &Finished) {
        let streamed = &self.streamed;
        let mut answer = Answer::new(&streamed.envelope, F::OBJECT, std::slice::from_ref(choice));
        answer.usage = streamed.include_usage.then_some(None);
        answer.seed = Some(streamed.seed_form.tell(finished.seed));
        let loaded = streamed.app.loaded().and_then(|served| served.model.drafters.first().copied());
        answer.timings = Some(streamed.generation.timings().json(loaded, streamed.drafts_asked));
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
        let span = self.streamed.generation.span();
        span.in_scope(|| tracing::warn!(answer = self.streamed.envelope.id, %error, "a stream is cut off"));
        write_event(&mut self.out, &error.body());
        self.out.extend_from_slice(b"data: [DONE]\n\n");
        self.done = true;
    }
}

/// What stands around the choice of a chunk. It is the same for all tokens, so it is written once.
struct Frame {
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl Frame {
    fn new(envelope: &Envelope, object: &'static str, include_usage: bool) -> Self {
        let no_choices: &[()] = &[];
        let mut answer = Answer::new(envelope, object, no_choices);
        answer.usage = include_usage.then_some(None);
        let mut head = Vec::new();
        write_event(&mut head, &answer);
        // In a text the quotes would be escaped.
        let field = b"\"choices\":[";
        let at = head.windows(field.len()).position(|window| window == field).expect("answers have choices");
        let tail = head.split_off(at + field.len());
        Self { head, tail }
    }
}

fn write_event(out: &mut Vec<u8>, event: &impl Serialize) {
    out.extend_from_slice(b"data: ");
    write_json(out, event);
    out.extend_from_slice(b"\n\n");
}

fn write_json(out: &mut Vec<u8>, value: &impl Serialize) {
    serde_json::to_writer(out, value).expect("answers have text keys and finite numbers");
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_choice_in_its_frame_is_the_whole_chunk() {
        let envelope = Envelope {
            id: "x-1".to_owned(),
            created: 5,
            model: "a \"choices\":[ b".to_owned(),
            fingerprint: "f".to_owned(),
        };
        let choice = json!({"index": 0});
        for include_usage in [false, true] {
            let frame = Frame::new(&envelope, "chunk", include_usage);
            let mut answer = Answer::new(&envelope, "chunk", std::slice::from_ref(&choice));
            answer.usage = include_usage.then_some(None);
            let mut whole = Vec::new();
            write_event(&mut whole, &answer);
            let framed = [&frame.head[..], choice.to_string().as_bytes(), &frame.tail].concat();
            assert_eq!(String::from_utf8(framed), String::from_utf8(whole));
            let body = frame.head.strip_prefix(b"data: ").unwrap();
            let body: Value = serde_json::from_slice(&[body, &frame.tail].concat()).unwrap();
            assert_eq!((&body["choices"], body.get("usage").is_some()), (&json!([]), include_usage));
        }
    }
}
