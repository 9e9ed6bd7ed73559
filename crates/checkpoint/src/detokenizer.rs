//! Tokens to text, one token at a time.
//!
//! The text that comes out piece by piece is, joined, exactly the text of all tokens decoded at once:
//!
//! ```text
//! token                 in its file's notation
//!   -> replacements     "▁" becomes a space; each token by itself
//!   -> byte fallback    "<0x41>" is one byte; a whole run of such tokens is one text if it is UTF-8, else each of its
//!                       bytes becomes U+FFFD
//!   -> joined
//! ```
//! So a run of byte tokens is held back until the next ordinary token: a byte at its end can still spoil the
//! characters at its beginning. Characters are never cut.

use std::mem;

use serde::Deserialize;
use tokenizers::DecoderWrapper;

use crate::Tokenizer;

/// Whether special tokens appear in a decoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// They are left out, as a reader wants it.
    Skip,
    /// They are shown as they are written in a template.
    Show,
}

/// Decodes the tokens of one sequence as they come. The work for a token is proportional to the length of its text.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    special: SpecialTokens,
    /// Bytes of the byte tokens since the last ordinary one.
    held_back: Vec<u8>,
}

impl Detokenizer {
    /// A detokenizer at the beginning of a text.
    pub fn new(special: SpecialTokens) -> Detokenizer {
        Detokenizer { special, held_back: Vec::new() }
    }

    /// Adds a token and appends the text that is now certain to `out`. All tokens of a sequence must be pushed with
    /// the same tokenizer. A token that the tokenizer does not know adds nothing.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, out: &mut String) {
        match tokenizer.piece(id, self.special) {
            Some(Piece::Byte(byte)) => self.held_back.push(byte),
            Some(Piece::Text(text)) => {
                self.finish(out);
                out.push_str(&text);
            }
            None => {}
        }
    }

    /// Appends what is held back, at the end of the text.
    pub fn finish(&mut self, out: &mut String) {
        match String::from_utf8(mem::take(&mut self.held_back)) {
            Ok(text) => out.push_str(&text),
            Err(error) => out.extend(error.as_bytes().iter().map(|_| char::REPLACEMENT_CHARACTER)),
        }
    }
}

/// What a token adds to a text.
pub(crate) enum Piece {
    Text(String),
    Byte(u8),
}

/// The steps of a tokenizer's decoder that act on single tokens.
#[derive(Debug)]
pub(crate) struct PieceDecoder {
    replacements: Vec<Replacement>,
    has_byte_tokens: bool,
}

#[derive(Debug, Deserialize)]
struct Replacement {
    pattern: Pattern,
    content: String,
}

#[derive(Debug, Deserialize)]
struct Pattern {
    #[serde(rename = "String")]
    text: String,
}

impl PieceDecoder {
    /// Takes a decoder apart. Only the form of the Gemma family is known: replacements of plain texts, then byte
    /// fallback, then joining. Any other one is refused, since its texts would come out wrong.
    pub(crate) fn new(decoder: Option<&DecoderWrapper>) -> Option<PieceDecoder> {
        let Some(DecoderWrapper::Sequence(sequence)) = decoder else { return None };
        let steps = sequence.get_decoders();
        let n_replacements =
            steps.iter().take_while(|step| matches!(step, DecoderWrapper::Replace(_))).count();
        let (replacements, rest) = steps.split_at(n_replacements);
        let has_byte_tokens = match rest {
            [DecoderWrapper::ByteFallback(_), DecoderWrapper::Fuse(_)] => true,
            [DecoderWrapper::Fuse(_)] => false,
            _ => return None,
        };
        let replacements = replacements.iter().map(replacement).collect::<Option<_>>()?;
        Some(PieceDecoder { replacements, has_byte_tokens })
    }

    /// What `token`, in the notation of its file, adds to a text.
    pub(crate) fn decode(&self, token: String) -> Piece {
        let replace = |text: String, step: &Replacement| text.replace(&step.pattern.text, &step.content);
        let text = self.replacements.iter().fold(token, replace);
        match byte_of(&text).filter(|_| self.has_byte_tokens) {
            Some(byte) => Piece::Byte(byte),
            None => Piece::Text(text),
        }
    }
}

/// The library shows the fields of a step only in its written form.
fn replacement(step: &DecoderWrapper) -> Option<Replacement> {
    let step: Replacement = serde_json::from_value(serde_json::to_value(step).ok()?).ok()?;
    // An empty pattern means nothing to the library, and a place between any two characters to the standard one.
    Some(step).filter(|step| !step.pattern.text.is_empty())
}

/// The byte that `<0x..>` stands for, by the rule of the tokenizer library.
fn byte_of(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests;
