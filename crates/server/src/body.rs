//! Reads bodies, within the limits, and does what takes long away from the threads that serve connections.

use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::header;
use tokio::time::timeout;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::settings::Settings;

/// Bytes of a body that are parsed in less time than handing them over takes.
const SMALL_BODY: usize = 64 << 10;

/// Reads the object that a request has for a body.
pub(crate) async fn read(settings: &Settings, request: Request) -> Result<Fields, ApiError> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let essence = kind.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        return Err(ApiError::not_json());
    }
    let limit = settings.body_bytes;
    let said = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    if said.and_then(|length| length.parse::<u64>().ok()).is_some_and(|length| length > limit as u64) {
        return Err(ApiError::large_body(limit));
    }
    // One byte more shows that the limit is passed, and not that the connection failed.
    let reading = to_bytes(request.into_body(), limit + 1);
    let bytes = match timeout(settings.body_time, reading).await {
        Err(_) => return Err(ApiError::slow_body()),
        Ok(Ok(bytes)) if bytes.len() <= limit => bytes,
        Ok(Ok(_)) => return Err(ApiError::large_body(limit)),
        Ok(Err(error)) if is_limit(&error) => return Err(ApiError::large_body(limit)),
        Ok(Err(error)) => return Err(ApiError::bad_request(format!("the body can not be read: {error}"))),
    };
    match bytes.len() {
        0..=SMALL_BODY => Fields::parse(&bytes),
        _ => compute(move || Fields::parse(&bytes)).await,
    }
}

fn is_limit(error: &axum::Error) -> bool {
    let mut cause = Some(error as &(dyn std::error::Error + 'static));
    while let Some(error) = cause {
        if error.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Runs what takes longer than the thread that serves connections may be kept: templates, tokenizers, long answers.
pub(crate) async fn compute<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => {
            tracing::error!(%error, "work on a request ended early");
            Err(ApiError::internal("the request could not be worked on: this is a bug, please report it"))
        }
    }
}
