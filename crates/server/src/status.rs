//! What a server says about itself: `/health`, `/ready`, `/v1/models`, `/metrics`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::app::App;
use crate::error::{ApiError, json_response};
use crate::metrics;
use crate::model::Model;

/// Whether the server works: also while it loads or ends, but not once its engine has stopped.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    match app.loaded() {
        Some(served) if !served.model.engine.is_running() => {
            Err(ApiError::unavailable("the engine has stopped"))
        }
        _ => Ok(json_response(StatusCode::OK, &json!({"status": "ok"}))),
    }
}

/// Whether requests are welcome.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    match app.not_ready() {
        Some(why) => Err(ApiError::unavailable(why)),
        None => Ok(json_response(StatusCode::OK, &json!({"status": "ready"}))),
    }
}

/// The list of models, which has one.
pub(crate) async fn models(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let model = &app.served()?.model;
    Ok(json_response(StatusCode::OK, &json!({"object": "list", "data": [describe(model)]})))
}

/// One model by its name.
pub(crate) async fn model(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Response, ApiError> {
    let model = &app.served()?.model;
    model.check_name(Some(&name))?;
    Ok(json_response(StatusCode::OK, &describe(model)))
}

fn describe(model: &Model) -> Value {
    let facts = &model.facts;
    let sources = model.drafters.iter().map(|of| json!({"kind": of.kind, "max_tokens": of.suggested}));
    let sources: Vec<_> = sources.collect();
    let suggested = model.drafters.iter().map(|of| of.suggested).max();
    let draft = model.drafters.first().map(|first| {
        json!({"kind": first.kind, "max_tokens": suggested, "most_tokens": model.most_drafts, "sources": sources})
    });
    json!({
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "paceline",
        "max_model_len": model.context,
        "architecture": facts.architecture,
        "layers": facts.layers,
        "vocabulary": facts.vocabulary,
        "level": facts.level,
        "threads": facts.threads,
        "slots": model.slots,
        "draft": draft,
    })
}

/// Figures for Prometheus.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], metrics::render(&app)).into_response()
}
