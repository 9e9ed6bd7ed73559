//! From prompts to requests: what a prompt says itself goes before what the arguments say of all.

use std::path::PathBuf;

use paceline::{GenerationConfig, ModelFolder, Request, TokenId, Tokenizer};

use crate::chat_prompt::PromptEncoder;
use crate::failure::Failure;
use crate::prompts::{Input, Prompt};
use crate::sampling::SamplingArgs;

/// Makes requests to one model.
pub(crate) struct Requests<'a> {
    folder: &'a ModelFolder,
    tokenizer: Option<&'a Tokenizer>,
    generation: GenerationConfig,
    /// Prompts are used as they are, without the chat template.
    raw: bool,
    /// Once there was a text.
    encoder: Option<PromptEncoder<'a>>,
}

impl<'a> Requests<'a> {
    pub(crate) fn new(
        folder: &'a ModelFolder,
        tokenizer: Option<&'a Tokenizer>,
        raw: bool,
    ) -> Result<Self, Failure> {
        Ok(Self { folder, tokenizer, generation: folder.generation()?, raw, encoder: None })
    }

    /// The request for a prompt: `n` tokens at most and tokens chosen like `sampling`, unless the prompt says otherwise.
    pub(crate) fn make(
        &mut self,
        prompt: Prompt,
        n: usize,
        sampling: &SamplingArgs,
    ) -> Result<Request, Failure> {
        let ids = match prompt.input {
            Input::TokenIds(ids) => ids,
            Input::Text(text) => {
                let encoder = match &mut self.encoder {
                    Some(encoder) => encoder,
                    none => none.insert(PromptEncoder::new(self.folder, self.tokenizer, self.raw)?),
                };
                encoder.encode(&text)?
            }
        };
        let mut request = Request::new(ids.into_iter().map(TokenId).collect(), prompt.n.unwrap_or(n));
        request.sampling = prompt.sampling.or(sampling).options(&self.generation);
        Ok(request)
    }
}

/// Where a prompt stands that is of a file of several.
pub(crate) fn origin(file: Option<&PathBuf>, prompt: &Prompt) -> Option<String> {
    file.zip(prompt.line).map(|(file, line)| format!("{}: line {line}", file.display()))
}
