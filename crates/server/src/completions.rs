//! `/v1/completions`: a prompt as it is, continued.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use paceline::{
    Completion, Distribution, Event, Finished, LogprobOptions, Logprobs, SamplingOptions, TokenId,
};
use paceline_checkpoint::SpecialTokens;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::answer::{Answer, Envelope, Usage, finite, plain_ids, stop_reason, token_text};
use crate::app::App;
use crate::body;
use crate::error::{ApiError, json_response};
use crate::fields::{Fields, MOST, describe};
use crate::generation::{Delivery, Generation};
use crate::model::Model;
use crate::sampling::{Parameters, refuse_unsupported, token_ids};
use crate::stream::{Format, Streamed};

/// Tokens of an output where nothing is said, as OpenAI has it.
const USUAL_TOKENS: usize = 16;
/// Most entries of `logprobs`.
const MAX_TOP: u64 = 20;

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct CompletionRequest {
    model: Option<String>,
    prompts: Vec<Prompt>,
    max_tokens: usize,
    /// The prompt is a part of the answer.
    echo: bool,
    logprobs: Option<LogprobOptions>,
    /// A BOS token is put in front of texts, where the model wants one.
    special: bool,
    parameters: Parameters,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Prompt {
    Text(String),
    Ids(Vec<TokenId>),
}

impl CompletionRequest {
    /// Takes the fields.
    pub(crate) fn take(
        fields: &mut Fields,
        defaults: &SamplingOptions,
        most_choices: usize,
    ) -> Result<Self, ApiError> {
        refuse_unsupported(fields)?;
        let model = fields.text("model")?;
        let prompts = prompts(fields)?;
        let max_tokens = fields.count("max_tokens", 0..=MOST)?.unwrap_or(USUAL_TOKENS);
        let echo = fields.flag("echo")?.unwrap_or(false);
        let top = fields.count("logprobs", 0..=MAX_TOP)?;
        let logprobs = top.map(|top| LogprobOptions { top, of: Distribution::Model, prompt: echo });
        let special = fields.flag("add_special_tokens")?.unwrap_or(true);
        let parameters = Parameters::take(fields, defaults, most_choices)?;
        if prompts.len() * parameters.n > most_choices {
            let problem = format!("asks with n for more than {most_choices} outputs, which is the limit");
            return Err(fields.error("prompt", problem));
        }
        Ok(Self { model, prompts, max_tokens, echo, logprobs, special, parameters })
    }
}

/// A string, a list of strings, token ids, or a list of lists of them.
fn prompts(fields: &mut Fields) -> Result<Vec<Prompt>, ApiError> {
    let expected = "expected a string, token ids, or a list of either";
    let value = match fields.value("prompt") {
        None => return Err(fields.error("prompt", format!("is missing; {expected}"))),
        Some(Value::String(text)) => return Ok(vec![Prompt::Text(text)]),
        Some(value) => value,
    };
    let items = match &value {
        Value::Array(items) if !items.is_empty() => items,
        other => return Err(fields.error("prompt", format!("is {}; {expected}", describe(other)))),
    };
    if items[0].is_number() {
        let ids = token_ids(&value)
            .ok_or_else(|| fields.error("prompt", "has something else among its token ids"))?;
        return Ok(vec![Prompt::Ids(ids)]);
    }
    let prompt = |item: &Value| match item {
        Value::String(text) => Ok(Prompt::Text(text.clone())),
        Value::Array(ids) if !ids.is_empty() => token_ids(item)
            .map(Prompt::Ids)
            .ok_or_else(|| fields.error("prompt", "has something else among its token ids")),
        other => Err(fields.error("prompt", format!("has {} in it; {expected}", describe(other)))),
    };
    items.iter().map(prompt).collect()
}

/// A prompt as tokens, and as the text of an echo.
#[derive(Clone, Debug)]
struct Encoded {
    ids: Vec<TokenId>,
    text: String,
    /// The first token is a BOS token that the text does not have.
    bos_added: bool,
}

impl Encoded {
    fn new(model: &Model, prompt: Prompt, special: bool) -> Result<Self, ApiError> {
        match prompt {
            Prompt::Text(text) => {
                let ids = model.encode_text(&text, special)?;
                let bos_added = special && ids.len() > model.encode_text(&text, false)?.len();
                Ok(Self { ids, text, bos_added })
            }
            Prompt::Ids(ids) => {
                let text = model.tokenizer.decode(&plain_ids(&ids), SpecialTokens::Show);
                Ok(Self { ids, text, bos_added: false })
            }
        }
    }
}

/// Answers with continuations.
pub(crate) async fn handle(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let served = app.served()?;
    let model = &served.model;
    let mut fields = body::read(&app.settings, request).await?;
    let mut asked = CompletionRequest::take(&mut fields, &model.defaults, app.settings.choices)?;
    app.note_unknown(fields.unknown());
    model.check_name(asked.model.as_deref())?;
    let (encoder, given, special) = (Arc::clone(model), std::mem::take(&mut asked.prompts), asked.special);
    let encode = move |prompt| Encoded::new(&encoder, prompt, special);
    let prompts: Vec<Encoded> = body::compute(move || given.into_iter().map(encode).collect()).await?;

    let n = asked.parameters.n;
    let n_outputs = prompts.len() * n;
    asked.parameters.share_seed(n_outputs);
    let requests = (0..n_outputs).map(|index| {
        let prompt = prompts[index / n].ids.clone();
        asked.parameters.request(prompt, asked.max_tokens, asked.logprobs, index % n, model.most_drafts)
    });
    let delivery = Delivery::of(asked.parameters.stream);
    let mut generation = Generation::start(&app, served, requests.collect(), "prompt", delivery)?;

    let envelope = Envelope::new("cmpl", model);
    let mut usage = Usage::new(prompts.iter().map(|prompt| prompt.ids.len()).sum(), false);
    let shape = Shape {
        model: Arc::clone(model),
        echo: asked.echo,
        logprobs: asked.logprobs.is_some(),
        return_token_ids: asked.parameters.return_token_ids,
        stops: asked.parameters.stop.clone(),
    };
    let (drafts_asked, seed_form) = (asked.parameters.draft.enabled, asked.parameters.seed_form);
    if asked.parameters.stream {
        let waiting = (0..n_outputs).map(|index| Echo::new(&shape, &prompts[index / n]));
        let format = Chunks { outputs: waiting.collect(), shape };
        let include_usage = asked.parameters.include_usage;
        let streamed = Streamed {
            app: Arc::clone(&app),
            generation,
            format,
            envelope,
            n_outputs,
            usage,
            include_usage,
            drafts_asked,
            seed_form,
        };
        return Ok(streamed.respond());
    }
    let completions = generation.collect().await?;
    let timings = generation.timings().json(model.drafters.first().copied(), drafts_asked);
    let whole = move || {
        let mut seed = None;
        let choices = completions.iter().enumerate().map(|(index, completion)| {
            let finished = completion.finished.as_ref().expect("collected completions have ended");
            usage.add(finished);
            seed = Some(seed_form.tell(finished.seed));
            shape.whole(index, &prompts[index / n], completion, finished)
        });
        let choices: Vec<Choice> = choices.collect();
        let mut answer = Answer::new(&envelope, "text_completion", &choices);
        answer.usage = Some(Some(usage));
        answer.seed = seed;
        answer.timings = Some(timings);
        Ok(json_response(StatusCode::OK, &answer))
    };
    // Only log-probabilities make it long.
    if asked.logprobs.is_some() { body::compute(whole).await } else { whole() }
}

#[derive(Debug, Serialize)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<TokenTable>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
}

/// Log-probabilities, one entry of each list for a token. The first token of a text has none: nothing comes before it.
#[derive(Debug, Default, Serialize)]
struct TokenTable {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f64>>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
    /// Characters of the text before each token.
    text_offset: Vec<usize>,
}

impl TokenTable {
    fn push(&mut self, model: &Model, id: TokenId, logprobs: Option<&Logprobs>, offset: usize) {
        let (token, _) = token_text(model, id);
        let top = logprobs.map(|logprobs| {
            let mut top = Map::new();
            for &(id, logprob) in &logprobs.top {
                // Of two tokens that look the same the likelier one stands.
                top.entry(token_text(model, id).0).or_insert_with(|| json!(finite(logprob)));
            }
            if !logprobs.top.is_empty() {
                top.entry(token.clone()).or_insert_with(|| json!(finite(logprobs.logprob)));
            }
            top
        });
        self.tokens.push(token);
        self.token_logprobs.push(logprobs.map(|logprobs| finite(logprobs.logprob)));
        self.top_logprobs.push(top);
        self.text_offset.push(offset);
    }
}

/// What the choices of an answer have.
struct Shape {
    model: Arc<Model>,
    echo: bool,
    logprobs: bool,
    return_token_ids: bool,
    stops: Vec<String>,
}

impl Shape {
    fn whole(&self, index: usize, prompt: &Encoded, completion: &Completion, finished: &Finished) -> Choice {
        let mut echo = Echo::new(self, prompt);
        echo.scores.clone_from(&completion.prompt_logprobs);
        let (mut text, mut table) = echo.take(self).unwrap_or_default();
        let mut offset = text.chars().count();
        text.push_str(completion.text.as_deref().unwrap_or_default());
        for (id, logprobs) in completion.token_ids.iter().zip(&completion.logprobs) {
            table.push(&self.model, *id, Some(logprobs), offset);
            offset += self.chars(*id);
        }
        Choice {
            index,
            text,
            logprobs: self.logprobs.then_some(table),
            finish_reason: Some(finished.reason.as_str()),
            stop_reason: stop_reason(finished.reason, &self.stops),
            token_ids: self.return_token_ids.then(|| plain_ids(&completion.token_ids)),
            prompt_token_ids: self.return_token_ids.then(|| plain_ids(&prompt.ids)),
        }
    }

    /// Characters of a token; a part of a character counts as none.
    fn chars(&self, id: TokenId) -> usize {
        let bytes = self.model.tokenizer.token_bytes(id.0).unwrap_or_default();
        std::str::from_utf8(&bytes).map_or(0, |text| text.chars().count())
    }
}

/// The prompt that an output begins with, until it is told, and where the output stands.
struct Echo {
    prompt: Option<Encoded>,
    /// Log-probabilities of the prompt from its second token on.
    scores: Vec<Logprobs>,
    offset: usize,
}

impl Echo {
    fn new(shape: &Shape, prompt: &Encoded) -> Self {
        Self { prompt: shape.echo.then(|| prompt.clone()), scores: Vec::new(), offset: 0 }
    }

    /// The text and the table of the prompt, once.
    fn take(&mut self, shape: &Shape) -> Option<(String, TokenTable)> {
        let Encoded { ids, text, bos_added } = self.prompt.take()?;
        let mut table = TokenTable::default();
        if shape.logprobs {
            let scores = std::iter::once(None).chain(self.scores.iter().map(Some));
            for (place, (id, scores)) in ids.iter().zip(scores).enumerate() {
                table.push(&shape.model, *id, scores, self.offset);
                self.offset += if place == 0 && bos_added { 0 } else { shape.chars(*id) };
            }
        }
        self.offset = text.chars().count();
        Some((text, table))
    }
}

/// Chunks of a streamed answer.
struct Chunks {
    shape: Shape,
    outputs: Vec<Echo>,
}

impl Chunks {
    /// The chunk of the prompt, if it has to be told and was not.
    fn echo(&mut self, index: usize) -> Vec<Choice> {
        let told = self.outputs[index].take(&self.shape);
        told.map(|(text, table)| self.choice(index, text, table)).into_iter().collect()
    }

    fn choice(&self, index: usize, text: String, table: TokenTable) -> Choice {
        Choice {
            index,
            text,
            logprobs: self.shape.logprobs.then_some(table),
            finish_reason: None,
            stop_reason: None,
            token_ids: None,
            prompt_token_ids: None,
        }
    }
}

impl Format for Chunks {
    type Choice = Choice;
    const OBJECT: &'static str = "text_completion";

    fn open(&mut self, _: usize) -> Option<Choice> {
        None
    }

    fn event(&mut self, index: usize, event: Event) -> Vec<Choice> {
        let (id, text, logprobs) = match event {
            Event::Prompt(scores) => {
                self.outputs[index].scores.extend(scores);
                return Vec::new();
            }
            Event::Token { id, text, logprobs } => (id, text.unwrap_or_default(), logprobs),
            _ => return Vec::new(),
        };
        let mut choices = self.echo(index);
        if text.is_empty() && !self.shape.logprobs && !self.shape.return_token_ids {
            return choices;
        }
        let mut table = TokenTable::default();
        if let Some(logprobs) = &logprobs {
            table.push(&self.shape.model, id, Some(logprobs), self.outputs[index].offset);
            self.outputs[index].offset += self.shape.chars(id);
        }
        let mut choice = self.choice(index, text, table);
        choice.token_ids = self.shape.return_token_ids.then(|| vec![id.0]);
        choices.push(choice);
        choices
    }

    fn finish(&mut self, index: usize, finished: &Finished) -> Vec<Choice> {
        let mut choices = self.echo(index);
        let mut last = self.choice(index, String::new(), TokenTable::default());
        last.logprobs = None;
        last.finish_reason = Some(finished.reason.as_str());
        last.stop_reason = stop_reason(finished.reason, &self.shape.stops);
        choices.push(last);
        choices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_come_in_four_forms() {
        let taken = |prompt: &str| {
            let body = format!(r#"{{"prompt": {prompt}}}"#);
            prompts(&mut Fields::parse(body.as_bytes()).unwrap())
        };
        let ids = |ids: &[u32]| Prompt::Ids(ids.iter().map(|id| TokenId(*id)).collect());
        let text = |text: &str| Prompt::Text(text.to_owned());
        assert_eq!(taken("\"a\"").unwrap(), [text("a")]);
        assert_eq!(taken(r#"["a", ""]"#).unwrap(), [text("a"), text("")]);
        assert_eq!(taken("[2, 3]").unwrap(), [ids(&[2, 3])]);
        assert_eq!(taken(r#"[[2], "a", [3, 4]]"#).unwrap(), [ids(&[2]), text("a"), ids(&[3, 4])]);
        for wrong in
            ["null", "5", "{}", "[]", "[[]]", "[2, \"a\"]", "[2, -1]", "[2.5]", "[[2, \"a\"]]", "[\"a\", 2]"]
        {
            assert_eq!(taken(wrong).unwrap_err().param.as_deref(), Some("prompt"), "{wrong}");
        }
    }
}
