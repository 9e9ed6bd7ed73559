//! Which requests an engine takes.

use std::sync::Arc;

use paceline_backend::{Sampling, TokenId};

use crate::error::Refused;
use crate::request::Request;
use crate::sampling::Limits;

/// What there is to know about an engine to judge a request, on any thread.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    pub(crate) vocab_size: usize,
    /// Tokens of a sequence at most.
    pub(crate) context: usize,
    /// What that could be at most with this model.
    pub(crate) model_context: usize,
    pub(crate) max_drafts: usize,
    /// Tokens that may not stand in a prompt.
    pub(crate) refused: Arc<[TokenId]>,
    /// There is a tokenizer.
    pub(crate) has_text: bool,
    /// Prompts can be scored.
    pub(crate) scores_prompts: bool,
    /// Tokens that end a text.
    pub(crate) end_tokens: Arc<[TokenId]>,
    /// Tokens that are never chosen.
    pub(crate) suppressed: Arc<[TokenId]>,
}

impl Admission {
    /// Tokens at which a request ends.
    pub(crate) fn limit(&self, request: &Request) -> usize {
        request.prompt.len().saturating_add(request.max_tokens).min(self.context)
    }

    /// Tokens that end the request's text.
    pub(crate) fn end_tokens(&self, request: &Request) -> Arc<[TokenId]> {
        if request.ignore_eos { [].into() } else { self.end_tokens.clone() }
    }

    /// How the tokens of a checked request are chosen. Draws the seed if it has none.
    pub(crate) fn rules(&self, request: &Request) -> Sampling {
        let sampling = &request.sampling;
        sampling.rules(&self.suppressed, sampling.seed_in_force(), request.choice, self.vocab_size)
    }

    /// Checks a request.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub(crate) fn check(&self, request: &Request) -> Result<(), Refused> {
        self.check_prompt(&request.prompt)?;
        if let Some(index) = request.stop.iter().position(String::is_empty) {
            return Err(Refused::EmptyStop { index });
        }
        if !request.stop.is_empty() && !self.has_text {
            return Err(Refused::StopWithoutText);
        }
        request.sampling.check(Limits {
            vocab_size: self.vocab_size,
            max_tokens: request.max_tokens,
            suppressed: &self.suppressed,
            end_tokens: &self.end_tokens(request),
        })?;
        if let Some(logprobs) = &request.logprobs {
            logprobs.check()?;
            if logprobs.prompt && !self.scores_prompts {
                return Err(Refused::NoPromptLogprobs);
            }
        }
        match request.draft.tokens_per_round {
            Some(found) if request.draft.enabled && found > self.max_drafts => {
                return Err(Refused::TooManyDrafts { found, most: self.max_drafts });
            }
            _ => {}
        }
        match request.draft.confidence {
            Some(found) if !(0.0..1.0).contains(&found) => Err(Refused::OutOfRange {
                field: "draft.confidence",
                found: found.to_string(),
                expected: "at least 0 and below 1".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    fn check_prompt(&self, prompt: &[TokenId]) -> Result<(), Refused> {
        if prompt.is_empty() {
            return Err(Refused::EmptyPrompt);
        }
        if prompt.len() > self.context {
            let &Admission { context, model_context, .. } = self;
            return Err(Refused::PromptTooLong { found: prompt.len(), context, model_context });
        }
        for (index, token) in prompt.iter().enumerate() {
            let id = token.0;
            if id as usize >= self.vocab_size {
                return Err(Refused::UnknownToken { index, id, vocab_size: self.vocab_size });
            }
            if self.refused.contains(token) {
                return Err(Refused::UnsupportedToken { index, id });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use paceline_backend::Distribution;

    use super::*;
    use crate::sampling::LogprobOptions;

    #[test]
    fn each_refusal_names_its_field() {
        let admission = Admission {
            vocab_size: 100,
            context: 1000,
            model_context: 1200,
            max_drafts: 4,
            refused: [TokenId(50)].into(),
            has_text: true,
            scores_prompts: false,
            end_tokens: [TokenId(1)].into(),
            suppressed: [].into(),
        };
        let request = |prompt: &[u32], n| Request::new(prompt.iter().map(|&id| TokenId(id)).collect(), n);
        let refuse = |request: &Request| admission.check(request).unwrap_err();
        assert_eq!(admission.check(&request(&[2, 99], 190)), Ok(()));
        assert_eq!(refuse(&request(&[], 1)), Refused::EmptyPrompt);
        let unknown = Refused::UnknownToken { index: 1, id: 100, vocab_size: 100 };
        assert_eq!(refuse(&request(&[2, 100], 1)), unknown);
        assert_eq!(refuse(&request(&[50], 1)), Refused::UnsupportedToken { index: 0, id: 50 });
        let long = refuse(&request(&[2; 1001], 0));
        assert_eq!(long, Refused::PromptTooLong { found: 1001, context: 1000, model_context: 1200 });
        assert!(
            long.to_string().ends_with("or load with a larger context, up to the model's 1200"),
            "{long}"
        );
        let longer = refuse(&request(&[2; 1201], 0)).to_string();
        assert!(longer.contains("1201 tokens, and the model reads 1200 at most"), "{longer}");
        assert!(longer.ends_with("or take a model with a longer context"), "{longer}");
        let stop = Request { stop: vec!["a".into(), String::new()], ..request(&[2], 1) };
        assert_eq!(refuse(&stop), Refused::EmptyStop { index: 1 });
        let mut drafts = request(&[2], 1);
        drafts.draft.tokens_per_round = Some(5);
        assert_eq!(refuse(&drafts), Refused::TooManyDrafts { found: 5, most: 4 });
        assert_eq!(refuse(&drafts).field(), "draft.tokens_per_round");
        for confidence in [-0.1, 1.0, f32::NAN] {
            let mut unsure = Request::new(vec![TokenId(1)], 5);
            unsure.draft.confidence = Some(confidence);
            assert_eq!(refuse(&unsure).field(), "draft.confidence");
        }
        let mut hot = request(&[2], 1);
        hot.sampling.temperature = -1.0;
        assert_eq!(refuse(&hot).field(), "temperature");
        let mut echo = request(&[2], 1);
        echo.logprobs = Some(LogprobOptions { top: 0, of: Distribution::Model, prompt: true });
        assert_eq!(refuse(&echo), Refused::NoPromptLogprobs);
        let textless = Admission { has_text: false, ..admission.clone() };
        let stop = Request { stop: vec!["a".into()], ..request(&[2], 1) };
        assert_eq!(textless.check(&stop), Err(Refused::StopWithoutText));
    }
}
