//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use paceline::{
    Completion, Distribution, Event, Finished, LogprobOptions, Logprobs, SamplingOptions, TokenId,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::answer::{Answer, Envelope, Usage, finite, plain_ids, stop_reason, token_text};
use crate::app::App;
use crate::body;
use crate::error::{ApiError, json_response};
use crate::fields::{Fields, MOST};
use crate::generation::{Delivery, Generation};
use crate::messages;
use crate::model::{Chat, Model};
use crate::sampling::{Parameters, refuse_unsupported};
use crate::stream::{Format, Streamed};

/// Most entries of `top_logprobs`.
const MAX_TOP: u64 = 20;

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct ChatRequest {
    model: Option<String>,
    chat: Chat,
    /// Left out: what the context has room for.
    max_tokens: Option<usize>,
    logprobs: Option<LogprobOptions>,
    /// The text that the answer is expected to be.
    prediction: Option<String>,
    parameters: Parameters,
}

impl ChatRequest {
    /// Takes the fields.
    pub(crate) fn take(
        fields: &mut Fields,
        defaults: &SamplingOptions,
        most_choices: usize,
    ) -> Result<Self, ApiError> {
        refuse_unsupported(fields)?;
        let model = fields.text("model")?;
        let chat = messages::take(fields)?;
        let newer = fields.count("max_completion_tokens", 0..=MOST)?;
        let older = fields.count("max_tokens", 0..=MOST)?;
        let top = fields.count("top_logprobs", 0..=MAX_TOP)?;
        let logprobs = match (fields.flag("logprobs")?.unwrap_or(false), top) {
            (false, Some(top)) if top > 0 => {
                return Err(fields.error("top_logprobs", "expected logprobs: true with it"));
            }
            (false, _) => None,
            (true, top) => {
                Some(LogprobOptions { top: top.unwrap_or(0), of: Distribution::Model, prompt: false })
            }
        };
        let prediction = prediction(fields)?;
        let parameters = Parameters::take(fields, defaults, most_choices)?;
        Ok(Self { model, chat, max_tokens: newer.or(older), logprobs, prediction, parameters })
    }
}

/// The text of the field `prediction`.
fn prediction(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let Some(mut prediction) = fields.object("prediction")? else { return Ok(None) };
    match prediction.text("type")?.as_deref() {
        Some("content") => {}
        Some(other) => return Err(prediction.error("type", format!("is `{other}`; expected `content`"))),
        None => return Err(prediction.error("type", "is missing; expected `content`")),
    }
    let content = prediction.value("content");
    let part = |part: &Value| match (part.get("type").and_then(Value::as_str), part.get("text")) {
        (Some("text"), Some(Value::String(text))) => Some(text.clone()),
        _ => None,
    };
    let text = match &content {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Array(parts)) => parts.iter().map(part).collect(),
        _ => None,
    };
    let problem = "expected a string or a list of text parts";
    text.map(Some).ok_or_else(|| prediction.error("content", problem))
}

/// Answers a conversation.
pub(crate) async fn handle(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let served = app.served()?;
    let model = &served.model;
    let mut fields = body::read(&app.settings, request).await?;
    let asked = ChatRequest::take(&mut fields, &model.defaults, app.settings.choices)?;
    app.note_unknown(fields.unknown());
    let ChatRequest { model: name, chat, max_tokens, logprobs, prediction, mut parameters } = asked;
    model.check_name(name.as_deref())?;
    let encoder = Arc::clone(model);
    let (prompt, prediction) = body::compute(move || {
        let prediction = prediction.map(|text| encoder.encode_prediction(&text)).transpose()?;
        Ok((encoder.encode_chat(&chat)?, prediction))
    })
    .await?;

    let n = parameters.n;
    parameters.share_seed(n);
    let max_tokens = max_tokens.unwrap_or(model.context.saturating_sub(prompt.len()).max(1));
    let requests = (0..n).map(|choice| {
        let mut request = parameters.request(prompt.clone(), max_tokens, logprobs, choice, model.most_drafts);
        request.prediction = prediction.clone().unwrap_or_default();
        request
    });
    let delivery = Delivery::of(parameters.stream);
    let mut generation = Generation::start(&app, served, requests.collect(), "messages", delivery)?;

    let envelope = Envelope::new("chatcmpl", model);
    let Parameters { stream, include_usage, return_token_ids, ref stop, draft, seed_form, .. } = parameters;
    let mut usage = Usage::new(prompt.len(), prediction.is_some());
    if stream {
        let format = ChatChunks {
            model: Arc::clone(model),
            logprobs: logprobs.is_some(),
            return_token_ids,
            stops: stop.clone(),
        };
        let streamed = Streamed {
            app: Arc::clone(&app),
            generation,
            format,
            envelope,
            n_outputs: n,
            usage,
            include_usage,
            drafts_asked: draft.enabled,
            seed_form,
        };
        return Ok(streamed.respond());
    }
    let completions = generation.collect().await?;
    let timings = generation.timings().json(model.drafters.first().copied(), draft.enabled);
    let model = Arc::clone(model);
    let whole = move || {
        let mut seed = None;
        let choices = completions.iter().enumerate().map(|(index, completion)| {
            let finished = completion.finished.as_ref().expect("collected completions have ended");
            usage.add(finished);
            seed = Some(seed_form.tell(finished.seed));
            choice(&model, index, completion, finished, &parameters, logprobs.is_some())
        });
        let choices: Vec<Value> = choices.collect();
        let ids = return_token_ids.then(|| plain_ids(&prompt));
        let mut answer = Answer::new(&envelope, "chat.completion", &choices);
        answer.usage = Some(Some(usage));
        answer.seed = seed;
        answer.prompt_token_ids = ids.as_deref();
        answer.timings = Some(timings);
        Ok(json_response(StatusCode::OK, &answer))
    };
    // Only log-probabilities make it long.
    if logprobs.is_some() { body::compute(whole).await } else { whole() }
}

/// A whole choice.
fn choice(
    model: &Model,
    index: usize,
    completion: &Completion,
    finished: &Finished,
    asked: &Parameters,
    logprobs: bool,
) -> Value {
    let entries = completion.token_ids.iter().zip(&completion.logprobs);
    let content = || entries.map(|(id, entry)| entry_of(model, *id, entry)).collect::<Vec<_>>();
    let logprobs = logprobs.then(|| json!({"content": content()}));
    let mut choice = json!({
        "index": index,
        "message": {
            "role": "assistant",
            "content": completion.text.as_deref().unwrap_or_default(),
            "refusal": null,
        },
        "logprobs": logprobs,
        "finish_reason": finished.reason.as_str(),
        "stop_reason": stop_reason(finished.reason, &asked.stop),
    });
    if asked.return_token_ids {
        choice["token_ids"] = json!(plain_ids(&completion.token_ids));
    }
    choice
}

/// Log-probabilities of one token.
fn entry_of(model: &Model, id: TokenId, logprobs: &Logprobs) -> Value {
    let entry = |id: TokenId, logprob: f32| {
        let (token, bytes) = token_text(model, id);
        json!({"token": token, "logprob": finite(logprob), "bytes": bytes})
    };
    let mut whole = entry(id, logprobs.logprob);
    whole["top_logprobs"] = logprobs.top.iter().map(|&(id, logprob)| entry(id, logprob)).collect();
    whole
}

/// Chunks of a streamed answer.
struct ChatChunks {
    model: Arc<Model>,
    logprobs: bool,
    return_token_ids: bool,
    stops: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ChunkChoice {
    index: usize,
    delta: Delta,
    logprobs: Option<Value>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<[u32; 1]>,
}

#[derive(Debug, Default, Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

impl ChunkChoice {
    fn new(index: usize, delta: Delta) -> Self {
        Self { index, delta, logprobs: None, finish_reason: None, stop_reason: None, token_ids: None }
    }
}

impl Format for ChatChunks {
    type Choice = ChunkChoice;
    const OBJECT: &'static str = "chat.completion.chunk";

    fn open(&mut self, index: usize) -> Option<ChunkChoice> {
        let delta = Delta { role: Some("assistant"), content: Some(String::new()) };
        Some(ChunkChoice::new(index, delta))
    }

    fn event(&mut self, index: usize, event: Event) -> Vec<ChunkChoice> {
        let Event::Token { id, text, logprobs } = event else { return Vec::new() };
        let text = text.unwrap_or_default();
        if text.is_empty() && !self.logprobs && !self.return_token_ids {
            return Vec::new();
        }
        let mut choice = ChunkChoice::new(index, Delta { role: None, content: Some(text) });
        choice.logprobs = logprobs.map(|logprobs| json!({"content": [entry_of(&self.model, id, &logprobs)]}));
        choice.token_ids = self.return_token_ids.then_some([id.0]);
        vec![choice]
    }

    fn finish(&mut self, index: usize, finished: &Finished) -> Vec<ChunkChoice> {
        let mut choice = ChunkChoice::new(index, Delta::default());
        choice.finish_reason = Some(finished.reason.as_str());
        choice.stop_reason = stop_reason(finished.reason, &self.stops);
        vec![choice]
    }
}
