//! Paths, and what every request goes through: its id, its key, its line in the log.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use subtle::ConstantTimeEq;
use tracing::Instrument;

use crate::answer::random_id;
use crate::app::App;
use crate::error::{ApiError, Reason};
use crate::timings::milliseconds;
use crate::{chat, completions, openapi, status, tokens};

/// Names a request, in both directions.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest id of a client's own.
const MAX_REQUEST_ID: usize = 128;

/// Every path with its methods. Those without a key are for whoever watches the server.
pub(crate) const PATHS: [(&str, &str); 10] = [
    ("get", "/health"),
    ("get", "/ready"),
    ("get", "/metrics"),
    ("get", "/openapi.json"),
    ("get", "/v1/models"),
    ("get", "/v1/models/{model}"),
    ("post", "/v1/chat/completions"),
    ("post", "/v1/completions"),
    ("post", "/tokenize"),
    ("post", "/detokenize"),
];

/// What metrics call all other paths.
const OTHER: &str = "other";
/// Characters of one in the log.
const MAX_PATH: usize = 200;

/// Paths that need no key.
const OPEN: [&str; 4] = ["/health", "/ready", "/metrics", "/openapi.json"];

/// The service of a server.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/health", get(status::health))
        .route("/ready", get(status::ready))
        .route("/metrics", get(status::metrics))
        .route("/openapi.json", get(openapi::document))
        .route("/v1/models", get(status::models))
        .route("/v1/models/{*model}", get(status::model))
        .route("/v1/chat/completions", post(chat::handle))
        .route("/v1/completions", post(completions::handle))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .method_not_allowed_fallback(wrong_method)
        .fallback(nowhere)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), guard))
        .with_state(app)
}

async fn wrong_method(method: Method) -> ApiError {
    ApiError::no_such_method(method.as_str())
}

async fn nowhere(uri: Uri) -> ApiError {
    ApiError::no_such_path(uri.path(), meant(uri.path()))
}

/// A path that a wrong one ends like, with and without the `/v1` that belongs to it.
fn meant(path: &str) -> Option<&'static str> {
    let path = path.trim_end_matches('/');
    let tail = |known: &'static str| known.strip_prefix("/v1").unwrap_or(known);
    let known = PATHS.iter().map(|(_, known)| *known).filter(|known| path.ends_with(tail(known)));
    known.max_by_key(|known| known.len())
}

/// Lets a request through if it may, and notes how it was answered.
async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let id = request_id(request.headers());
    let method = request.method().clone();
    let path = known_path(&request);
    // Metrics do not count it by its name, and the log tells it.
    let wanted: Option<String> =
        (path == OTHER).then(|| request.uri().path().chars().take(MAX_PATH).collect());
    let span = tracing::info_span!("request", id = id.to_str().unwrap_or_default());
    let mut response = match may(&app, path, request.headers()) {
        true => next.run(request).instrument(span.clone()).await,
        false => ApiError::unauthorized().into_response(),
    };
    let status = response.status().as_u16();
    app.metrics.answered(path, status);
    span.in_scope(|| {
        let ms = milliseconds(start.elapsed());
        let reason = response.extensions().get::<Reason>().map(Reason::shown);
        let path = wanted.as_deref().unwrap_or(path);
        if OPEN.contains(&path) {
            tracing::debug!(%method, path, status, ms, reason, "answered");
        } else {
            tracing::info!(%method, path, status, ms, reason, "answered");
        }
    });
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// The client's own id if it is a decent one, else a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let decent = |id: &&HeaderValue| {
        (1..=MAX_REQUEST_ID).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    match headers.get(REQUEST_ID).filter(decent) {
        Some(id) => id.clone(),
        None => HeaderValue::try_from(random_id()).expect("hexadecimal digits are a header's value"),
    }
}

/// The path as the description has it, so that what strangers ask for does not fill the metrics.
fn known_path(request: &Request) -> &'static str {
    let matched = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let matched = if matched == "/v1/models/{*model}" { "/v1/models/{model}" } else { matched };
    PATHS.iter().map(|(_, path)| *path).find(|path| *path == matched).unwrap_or(OTHER)
}

/// Whether the request names the key, where there is one. The comparison takes the same time for all keys of one length.
fn may(app: &App, path: &str, headers: &HeaderMap) -> bool {
    let Some(key) = &app.settings.api_key else { return true };
    if OPEN.contains(&path) {
        return true;
    }
    let given = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    let given = match given.split_at_checked(b"Bearer ".len()) {
        Some((scheme, given)) if scheme.eq_ignore_ascii_case(b"Bearer ") => given,
        _ => return false,
    };
    given.ct_eq(key.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    #[test]
    fn keys_are_asked_for_where_there_is_one() {
        let app = |api_key: Option<&str>| {
            App::new(Settings { api_key: api_key.map(str::to_owned), ..Settings::default() })
        };
        let headers = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::try_from(value).unwrap());
            headers
        };
        assert!(may(&app(None), "/v1/models", &HeaderMap::new()));
        let app = app(Some("secret"));
        assert!(may(&app, "/health", &HeaderMap::new()));
        assert!(!may(&app, "/v1/models", &HeaderMap::new()));
        for (value, expected) in [
            ("Bearer secret", true),
            ("bearer secret", true),
            ("Bearer secreT", false),
            ("Bearer secret2", false),
            ("Bearer ", false),
            ("Bearer", false),
            ("Basic secret", false),
            ("secret", false),
        ] {
            assert_eq!(may(&app, "/v1/models", &headers(value)), expected, "{value}");
            assert_eq!(may(&app, "other", &headers(value)), expected, "{value}");
        }
    }

    #[test]
    fn paths_are_found_by_their_ends() {
        for (path, expected) in [
            ("/chat/completions", Some("/v1/chat/completions")),
            ("/v1/v1/chat/completions/", Some("/v1/chat/completions")),
            ("/api/completions", Some("/v1/completions")),
            ("/models", Some("/v1/models")),
            ("/v1/tokenize", Some("/tokenize")),
            ("/v1/embeddings", None),
            ("/", None),
        ] {
            assert_eq!(meant(path), expected, "{path}");
        }
    }

    #[test]
    fn request_ids_are_kept_if_they_can_be_shown() {
        let with = |id: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::try_from(id).unwrap());
            request_id(&headers)
        };
        assert_eq!(with("abc-1"), "abc-1");
        for id in ["", "a b", &"x".repeat(MAX_REQUEST_ID + 1)] {
            assert_eq!(with(id).len(), 24, "{id}");
        }
        assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
    }
}
