//! Text to tokens.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use serde::de::IgnoredAny;

use crate::detokenizer::{Piece, PieceDecoder};
use crate::tokenizer_config::TokenizerConfig;
use crate::{Detokenizer, Error, SpecialTokens};

/// A token id that two tokenizers take for different tokens. `None`: one of them has no such id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VocabularyDifference {
    /// The id.
    pub id: u32,
    /// Its token, as the file of the tokenizer that was asked writes it.
    pub here: Option<String>,
    /// Its token in the other one.
    pub there: Option<String>,
}

/// The tokenizer of a checkpoint.
///
/// The texts of special tokens are recognised wherever they stand in a text, as chat templates need it. Where the
/// checkpoint wants a BOS token, an encoded text has exactly one in front, whether the text already had it or not.
#[derive(Debug)]
pub struct Tokenizer {
    file: PathBuf,
    inner: tokenizers::Tokenizer,
    pieces: PieceDecoder,
    /// Token put in front of a text that does not begin with it.
    bos: Option<u32>,
}

impl Tokenizer {
    /// Parses `tokenizer.json`; `file` is its name in messages, `bos_token_id` what the configs say where
    /// `tokenizer_config.json` does not name the token.
    pub(crate) fn parse(
        file: &Path,
        bytes: &[u8],
        config: &TokenizerConfig,
        bos_token_id: Option<u32>,
    ) -> Result<Tokenizer, Error> {
        let wrong = |message: String| Error::Tokenizer { file: file.to_path_buf(), message };
        let mut inner = parse_library(bytes).map_err(wrong)?;
        // A prompt is neither cut nor filled up in silence.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| wrong(error.to_string()))?;
        if let Some((id, texts)) = doubled(&inner) {
            return Err(wrong(format!(
                "its vocabulary has token {id} twice: `{}` and `{}`",
                texts[0], texts[1]
            )));
        }
        let pieces = PieceDecoder::new(inner.get_decoder()).ok_or_else(|| {
            wrong("its decoder has not the supported form, which is Replace, ByteFallback, Fuse".to_owned())
        })?;
        let bos = match config.special_token("bos_token") {
            Some(text) => {
                let unknown =
                    || wrong(format!("it has no token `{text}`, the bos_token of tokenizer_config.json"));
                Some(inner.token_to_id(text).ok_or_else(unknown)?)
            }
            None => bos_token_id,
        };
        let adds_bos = match config.add_bos_token {
            Some(adds) => adds,
            None => {
                let empty = inner.encode_fast("", true).map_err(|error| wrong(error.to_string()))?;
                bos.is_some() && empty.get_ids().first().copied() == bos
            }
        };
        if adds_bos && bos.is_none() {
            return Err(wrong(
                "texts should begin with a BOS token, but no file says which it is".to_owned(),
            ));
        }
        Ok(Tokenizer { file: file.to_path_buf(), inner, pieces, bos: bos.filter(|_| adds_bos) })
    }

    /// The tokens of a text, plain or rendered by a chat template.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] when the text has a character that the tokenizer has no token for at all.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        let ids = self.encode_part(text)?;
        let missing_bos = self.bos.filter(|&bos| ids.first() != Some(&bos));
        Ok(missing_bos.into_iter().chain(ids).collect())
    }

    /// The tokens of a part of a text, without a BOS token in front that the part does not have.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_part(&self, text: &str) -> Result<Vec<u32>, Error> {
        let encoding = self
            .inner
            .encode_fast(text, false)
            .map_err(|error| Error::Tokenizer { file: self.file.clone(), message: error.to_string() })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of tokens; what [`Detokenizer`] gives piece by piece.
    pub fn decode(&self, ids: &[u32], special: SpecialTokens) -> String {
        let mut text = String::new();
        let mut detokenizer = Detokenizer::new(special);
        for &id in ids {
            detokenizer.push(self, id, &mut text);
        }
        detokenizer.finish(&mut text);
        text
    }

    /// The token whose text is exactly `text`.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.inner.token_to_id(text)
    }

    /// The token as the tokenizer's file writes it, spaces and bytes in its notation.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The bytes that a token stands for, special tokens as they are written: a whole text, or one byte of a character. `None`
    /// for a token that the tokenizer does not know.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        Some(match self.piece(id, SpecialTokens::Show)? {
            Piece::Text(text) => text.into_bytes(),
            Piece::Byte(byte) => vec![byte],
        })
    }

    /// Whether the token is a special one, that is, not part of the text.
    pub fn is_special(&self, id: u32) -> bool {
        self.token(id).is_some_and(|token| self.inner.get_added_vocabulary().is_special_token(&token))
    }

    /// Number of tokens.
    pub fn n_tokens(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Checks that this tokenizer can belong to a model with `n_model_tokens` tokens.
    ///
    /// Equality cannot be asked for: models pad their tables, and some files name a few media tokens that the text
    /// model has no rows for. So at most an eighth of the model's tokens may have no text, and the tokens that are
    /// not special must all have rows.
    ///
    /// # Errors
    /// [`Error::VocabularyMismatch`].
    pub fn check_vocabulary(&self, n_model_tokens: usize) -> Result<(), Error> {
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        let n_special = added.values().filter(|token| token.special).count();
        let found = self.n_tokens();
        let fits = found.saturating_sub(n_special) <= n_model_tokens && found >= n_model_tokens / 8 * 7;
        if fits {
            return Ok(());
        }
        Err(Error::VocabularyMismatch { file: self.file.clone(), found, expected: n_model_tokens })
    }

    /// The first token id below `end` that means something else in `other`, with its text here and there; `None` if every such id is the
    /// same token in both.
    pub fn first_difference(&self, other: &Tokenizer, end: usize) -> Option<VocabularyDifference> {
        let by_id = |tokenizer: &Tokenizer| -> BTreeMap<u32, String> {
            let tokens = tokenizer.inner.get_vocab(true).into_iter();
            tokens.filter(|&(_, id)| (id as usize) < end).map(|(text, id)| (id, text)).collect()
        };
        let (mut here, mut there) = (by_id(self), by_id(other));
        let differs = |id: &u32| here.get(id) != there.get(id);
        let id = here.keys().chain(there.keys()).copied().filter(differs).min()?;
        Some(VocabularyDifference { id, here: here.remove(&id), there: there.remove(&id) })
    }

    /// The first of these ids that is part of texts: a token, and not a special one.
    pub fn first_of_texts(&self, ids: Range<usize>) -> Option<(u32, String)> {
        let vocabulary = self.inner.get_vocab(true).into_iter();
        let of_texts = vocabulary.filter(|&(_, id)| ids.contains(&(id as usize)) && !self.is_special(id));
        of_texts.min_by_key(|&(_, id)| id).map(|(text, id)| (id, text))
    }

    /// What the token adds to a text.
    pub(crate) fn piece(&self, id: u32, special: SpecialTokens) -> Option<Piece> {
        let token = self.token(id)?;
        if special == SpecialTokens::Skip && self.inner.get_added_vocabulary().is_special_token(&token) {
            return None;
        }
        Some(self.pieces.decode(token))
    }
}

/// A token id that two texts of the vocabulary have: which of them it would be decoded to is left to chance. (Added tokens may stand
/// over one of the vocabulary, and then do.)
fn doubled(tokenizer: &tokenizers::Tokenizer) -> Option<(u32, [String; 2])> {
    let mut texts: HashMap<u32, String> = HashMap::new();
    for (text, id) in tokenizer.get_vocab(false) {
        if let Some(other) = texts.insert(id, text.clone()) {
            let mut both = [text, other];
            both.sort();
            return Some((id, both));
        }
    }
    None
}

/// Parses with the library, which panics on some malformed files: broken JSON is kept from it, and a panic about
/// anything else is a refused file all the same.
fn parse_library(bytes: &[u8]) -> Result<tokenizers::Tokenizer, String> {
    serde_json::from_slice::<IgnoredAny>(bytes).map_err(|error| error.to_string())?;
    match catch_unwind(|| tokenizers::Tokenizer::from_bytes(bytes)) {
        Ok(parsed) => parsed.map_err(|error| error.to_string()),
        Err(_) => Err("the tokenizer library cannot read it".to_owned()),
    }
}

#[cfg(test)]
mod tests;
