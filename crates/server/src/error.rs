//! Answers that are not what was asked for, in the shape that OpenAI's clients read.

use std::borrow::Cow;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use paceline::{Failed, Refused};
use serde_json::{Value, json};
use thiserror::Error;

/// An error that a client gets.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// The class of errors that clients branch on.
    kind: &'static str,
    /// The field of the request that is at fault.
    pub(crate) param: Option<Cow<'static, str>>,
    code: Option<&'static str>,
    /// Seconds until another try makes sense.
    retry_after: Option<u32>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), kind, param: None, code: None, retry_after: None }
    }

    /// A request that can not be read at all.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A field that is not what it has to be. The message begins with its name.
    pub(crate) fn field(name: impl Into<Cow<'static, str>>, problem: impl AsRef<str>) -> Self {
        let name = name.into();
        let message = format!("{name}: {}", problem.as_ref());
        Self { param: Some(name), ..Self::bad_request(message) }
    }

    /// A prompt that leaves no room in the context. `largest` is the model's own limit, where the prompt would fit into that.
    pub(crate) fn context_exceeded(
        param: &'static str,
        tokens: usize,
        context: usize,
        largest: Option<usize>,
    ) -> Self {
        let more = match largest {
            Some(largest) => format!("start the server with a larger --context, up to the model's {largest}"),
            None => "take a model that has a longer context than this one".to_owned(),
        };
        let problem = format!(
            "the prompt has {tokens} tokens, and the context holds {context}, output included; shorten it or {more}"
        );
        Self { code: Some("context_length_exceeded"), ..Self::field(param, problem) }
    }

    /// What the engine refused. `prompt` is the name of the field that the prompt came in.
    pub(crate) fn refused(refused: &Refused, prompt: &'static str) -> Self {
        let name = match refused.field() {
            "prompt" => prompt,
            "draft.tokens_per_round" => "draft.max_tokens",
            "logprobs.prompt" => "logprobs",
            "allowed" => "allowed_token_ids",
            name => name,
        };
        // The engine's own words about a field begin with its name, under which the request may not know it.
        let problem = match refused {
            Refused::OutOfRange { found, expected, .. } => format!("is {found}; expected {expected}"),
            Refused::UnknownListedToken { id, vocab_size, .. } => {
                format!("has token {id}, which is not in the vocabulary; expected ids below {vocab_size}")
            }
            other => other.to_string(),
        };
        Self::field(name, problem)
    }

    /// A request that was taken and failed.
    pub(crate) fn failed(failed: &Failed) -> Self {
        let error = Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", failed.to_string());
        match failed {
            Failed::NotFinite { .. } => Self { code: Some("not_finite"), ..error },
            _ => Self { code: Some("engine_stopped"), ..error },
        }
    }

    /// Something that should not be.
    pub(crate) fn internal(message: &'static str) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// The engine's thread has gone.
    pub(crate) fn engine_ended() -> Self {
        let message = "the engine has stopped; the server has to be started anew";
        let error = Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message);
        Self { code: Some("engine_stopped"), ..error }
    }

    /// No key, or a wrong one.
    pub(crate) fn unauthorized() -> Self {
        let message = "a missing or wrong API key; expected the header `Authorization: Bearer KEY`";
        let error = Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message);
        Self { code: Some("invalid_api_key"), ..error }
    }

    /// Nothing is at this path. `meant` is one that there is.
    pub(crate) fn no_such_path(path: &str, meant: Option<&str>) -> Self {
        let shown: String = path.chars().take(100).collect();
        let meant = meant.map_or(String::new(), |meant| format!("; did you mean {meant}?"));
        Self::new(
            StatusCode::NOT_FOUND,
            "invalid_request_error",
            format!("there is nothing at {shown}{meant}"),
        )
    }

    /// The path has other methods.
    pub(crate) fn no_such_method(method: &str) -> Self {
        let shown: String = method.chars().take(20).collect();
        let message = format!("{shown} is not a method of this path");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    /// A model that is not here.
    pub(crate) fn no_such_model(found: &str, served: &str) -> Self {
        let shown: String = found.chars().take(100).collect();
        let problem = format!("`{shown}` is not served here; expected `{served}`, or no model at all");
        Self { status: StatusCode::NOT_FOUND, code: Some("model_not_found"), ..Self::field("model", problem) }
    }

    /// The model is not loaded yet, or the server is about to end.
    pub(crate) fn unavailable(message: &'static str) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message);
        Self { code: Some("unavailable"), retry_after: Some(1), ..error }
    }

    /// There is no room in the queue.
    pub(crate) fn overloaded(capacity: usize) -> Self {
        let message = format!("all {capacity} places for requests are taken; try again later");
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        Self { code: Some("rate_limit_exceeded"), retry_after: Some(1), ..error }
    }

    /// A body that does not come.
    pub(crate) fn slow_body() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", "the body did not arrive in time")
    }

    /// A body that is too large.
    pub(crate) fn large_body(limit: usize) -> Self {
        let message = format!("the body has more than {limit} bytes, which is the limit");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// A body of another type.
    pub(crate) fn not_json() -> Self {
        let message = "expected the header `Content-Type: application/json`";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
    }

    /// The answer took too long.
    pub(crate) fn timed_out() -> Self {
        let message = "the answer took longer than the server allows; ask for fewer tokens";
        let error = Self::new(StatusCode::GATEWAY_TIMEOUT, "server_error", message);
        Self { code: Some("timeout"), ..error }
    }

    /// The client left its events lying.
    pub(crate) fn slow_reader() -> Self {
        let message = "the answer was read too slowly and is cut off here";
        let error = Self::new(StatusCode::REQUEST_TIMEOUT, "server_error", message);
        Self { code: Some("slow_reader"), ..error }
    }

    /// The object that clients read.
    pub(crate) fn body(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }})
    }
}

/// Why a response is no answer, for the log.
#[derive(Clone, Debug)]
pub(crate) struct Reason(String);

impl Reason {
    /// Some hundred characters of it: values of the client's own may be in it.
    pub(crate) fn shown(&self) -> String {
        self.0.chars().take(300).collect()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, &self.body());
        response.extensions_mut().insert(Reason(self.message));
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// An answer in JSON.
pub(crate) fn json_response(status: StatusCode, body: &impl serde::Serialize) -> Response {
    let bytes = serde_json::to_vec(body).expect("answers have text keys and finite numbers");
    (status, [(header::CONTENT_TYPE, "application/json")], bytes).into_response()
}
