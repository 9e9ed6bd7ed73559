//! Where the text of tokens comes from.

use paceline_backend::TokenId;

/// Makes a [`Detokenizer`] for each request.
pub trait TextDecoder: Send + Sync {
    /// Starts a text.
    fn detokenizer(&self) -> Box<dyn Detokenizer>;
}

/// Turns the tokens of one output into text, piece by piece.
pub trait Detokenizer: Send {
    /// The text that is certain with one more token: never half a character, possibly empty. End tokens have none.
    fn push(&mut self, token: TokenId) -> String;

    /// What is left at the end, such as bytes that are not a whole character.
    fn finish(&mut self) -> String;
}
