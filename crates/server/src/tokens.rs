//! `/tokenize` and `/detokenize`, as vLLM has them.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use paceline_checkpoint::SpecialTokens;
use serde_json::json;

use crate::answer::{plain_ids, token_text};
use crate::app::App;
use crate::body;
use crate::error::{ApiError, json_response};
use crate::fields::{Fields, describe};
use crate::messages;
use crate::model::Chat;
use crate::sampling::token_ids;

/// A request for the tokens of a text or a conversation.
#[derive(Clone, Debug)]
pub(crate) struct TokenizeRequest {
    model: Option<String>,
    input: Input,
    special: bool,
    strings: bool,
}

#[derive(Clone, Debug)]
enum Input {
    Text(String),
    Chat(Chat),
}

impl TokenizeRequest {
    /// Takes the fields.
    pub(crate) fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let model = fields.text("model")?;
        let input = match fields.text("prompt")? {
            None => Input::Chat(messages::take(fields)?),
            Some(text) => {
                if fields.value("messages").is_some() {
                    return Err(fields.error("messages", "stands beside prompt; expected one of them"));
                }
                messages::take_rendering(fields)?;
                Input::Text(text)
            }
        };
        let special = fields.flag("add_special_tokens")?.unwrap_or(true);
        let strings = fields.flag("return_token_strs")?.unwrap_or(false);
        Ok(Self { model, input, special, strings })
    }
}

/// Gives tokens.
pub(crate) async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let model = &app.served()?.model;
    let mut fields = body::read(&app.settings, request).await?;
    let asked = TokenizeRequest::take(&mut fields)?;
    app.note_unknown(fields.unknown());
    model.check_name(asked.model.as_deref())?;
    let encoder = Arc::clone(model);
    let encode = move || match &asked.input {
        Input::Text(text) => encoder.encode_text(text, asked.special),
        Input::Chat(chat) => encoder.encode_chat(chat),
    };
    let ids = body::compute(encode).await?;
    let mut answer = json!({"count": ids.len(), "max_model_len": model.context, "tokens": plain_ids(&ids)});
    if asked.strings {
        answer["token_strs"] = ids.iter().map(|id| token_text(model, *id).0).collect();
    }
    Ok(json_response(StatusCode::OK, &answer))
}

/// Gives the text of tokens.
pub(crate) async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let model = &app.served()?.model;
    let mut fields = body::read(&app.settings, request).await?;
    let name = fields.text("model")?;
    let ids = match fields.value("tokens") {
        None => return Err(fields.error("tokens", "is missing; expected token ids")),
        Some(value) => token_ids(&value).ok_or_else(|| {
            fields.error("tokens", format!("is {}; expected a list of token ids", describe(&value)))
        })?,
    };
    app.note_unknown(fields.unknown());
    model.check_name(name.as_deref())?;
    if let Some(unknown) = ids.iter().find(|id| model.tokenizer.token(id.0).is_none()) {
        let problem = format!("token {} is not in the vocabulary", unknown.0);
        return Err(ApiError::field("tokens", problem));
    }
    let text = model.tokenizer.decode(&plain_ids(&ids), SpecialTokens::Show);
    Ok(json_response(StatusCode::OK, &json!({"prompt": text})))
}
