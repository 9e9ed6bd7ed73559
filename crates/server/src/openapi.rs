//! `/openapi.json`: the description of the interface, compared with the handlers by the tests here and with their answers by
//! `tests/http`.

use axum::http::header;
use axum::response::{IntoResponse, Response};

/// The description.
const DOCUMENT: &str = include_str!("openapi.json");

/// Gives the description.
pub(crate) async fn document() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use paceline::SamplingOptions;
    use serde_json::Value;

    use super::*;
    use crate::chat::ChatRequest;
    use crate::completions::CompletionRequest;
    use crate::error::ApiError;
    use crate::fields::Fields;
    use crate::router::PATHS;
    use crate::tokens::TokenizeRequest;

    fn described() -> Value {
        serde_json::from_str(DOCUMENT).unwrap()
    }

    #[test]
    fn the_paths_are_those_of_the_router() {
        let document = described();
        let paths = document["paths"].as_object().unwrap();
        let methods = |(path, item): (&String, &Value)| -> Vec<(String, String)> {
            item.as_object().unwrap().keys().map(|method| (method.clone(), path.clone())).collect()
        };
        let described: BTreeSet<_> = paths.iter().flat_map(methods).collect();
        let routed = PATHS.iter().map(|(method, path)| ((*method).to_owned(), (*path).to_owned()));
        assert_eq!(described, routed.collect());
    }

    /// The fields that are described are those that the handler asks for, at all levels below the body itself.
    fn compare<T>(schema: &str, body: &str, take: impl Fn(&mut Fields) -> Result<T, ApiError>) {
        let document = described();
        let properties = document["components"]["schemas"][schema]["properties"].as_object().unwrap();
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        take(&mut fields).unwrap_or_else(|error| panic!("{body}: {error}"));
        let asked: BTreeSet<_> = fields.asked.iter().map(String::as_str).collect();
        assert_eq!(asked, properties.keys().map(String::as_str).collect(), "{schema}");
        let required = document["components"]["schemas"][schema]["required"].as_array();
        for name in required.into_iter().flatten() {
            let error = take(&mut Fields::parse(b"{}").unwrap()).err().expect("something is missing");
            assert_eq!(error.param.as_deref(), name.as_str());
        }
    }

    #[test]
    fn the_fields_are_those_that_the_handlers_ask_for() {
        let defaults = SamplingOptions::default();
        let messages = r#"{"messages": [{"role": "user", "content": "a"}]}"#;
        compare("ChatRequest", messages, |fields| ChatRequest::take(fields, &defaults, 8));
        let prompt = r#"{"prompt": "a"}"#;
        compare("CompletionRequest", prompt, |fields| CompletionRequest::take(fields, &defaults, 8));
        compare("TokenizeRequest", messages, TokenizeRequest::take);
    }
}
