//! Where prompts come from.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::failure::Failure;
use crate::sampling::SamplingArgs;
use crate::text_file;

/// What a prompt is given as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// A text, which the tokenizer and perhaps the chat template turn into tokens.
    Text(String),
    /// Tokens, used as they are.
    TokenIds(Vec<u32>),
}

/// One prompt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Prompt {
    pub(crate) input: Input,
    /// Most tokens to generate, where the prompt itself says so.
    pub(crate) n: Option<usize>,
    /// What the prompt itself says about choosing tokens.
    pub(crate) sampling: SamplingArgs,
}

impl Prompt {
    /// A prompt that says no more than what it is.
    fn new(input: Input) -> Self {
        Self { input, n: None, sampling: SamplingArgs::default() }
    }
}

/// Where to look for prompts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Argument(String),
    File(PathBuf),
    Stdin,
    TokenIds(Vec<u32>),
    /// A prompt on each line.
    Lines(PathBuf),
}

impl Source {
    /// Reads the prompts; there is at least one, and none is empty.
    pub(crate) fn read(self) -> Result<Vec<Prompt>, Failure> {
        let text = match self {
            Source::TokenIds(ids) => return Ok(vec![Prompt::new(Input::TokenIds(ids))]),
            Source::Lines(path) => return lines(&path),
            Source::Argument(text) => text,
            Source::File(path) => text_file::read(&path)?,
            Source::Stdin => text_file::read_stdin()?,
        };
        if text.is_empty() {
            return Err(Failure::bad_input("the prompt is empty; expected at least one character"));
        }
        Ok(vec![Prompt::new(Input::Text(text))])
    }
}

/// Parses a prompt in the form `2,105,...`.
pub(crate) fn parse_token_ids(word: &str) -> Result<TokenIds, String> {
    if word.trim().is_empty() {
        return Err("the prompt is empty; expected token ids with commas between, such as 2,105".to_owned());
    }
    parse_ids(word)
}

/// Parses `2,105,...`.
pub(crate) fn parse_ids(word: &str) -> Result<TokenIds, String> {
    let parse = |id: &str| {
        let id = id.trim();
        id.parse().map_err(|_| format!("`{id}` is not a token id; expected numbers with commas between"))
    };
    word.split(',').map(parse).collect::<Result<_, _>>().map(TokenIds)
}

/// A list of ids as one argument.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct TokenIds(pub(crate) Vec<u32>);

/// Prompts of a file with one on each line: plain text, or JSON objects if the first line is one. Lines without a
/// character are skipped.
fn lines(path: &Path) -> Result<Vec<Prompt>, Failure> {
    let name = path.display().to_string();
    let prompts =
        parse_lines(&text_file::read(path)?).map_err(|what| Failure::bad_input(format!("{name}: {what}")))?;
    if prompts.is_empty() {
        return Err(Failure::bad_input(format!("{name}: holds no prompt; expected one on each line")));
    }
    Ok(prompts)
}

fn parse_lines(text: &str) -> Result<Vec<Prompt>, String> {
    // Some editors put a byte order mark in front.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = || text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let is_json = lines().next().is_some_and(|(_, line)| line.trim_start().starts_with('{'));
    if !is_json {
        return Ok(lines().map(|(_, line)| Prompt::new(Input::Text(line.to_owned()))).collect());
    }
    let parse =
        |(index, line): (usize, &str)| parse_json(line).map_err(|what| format!("line {}: {what}", index + 1));
    lines().map(parse).collect()
}

fn parse_json(line: &str) -> Result<Prompt, String> {
    let mut found: Map<String, Value> = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let input = match (take::<String>(&mut found, "prompt")?, take::<Vec<u32>>(&mut found, "token_ids")?) {
        (Some(text), None) if !text.is_empty() => Input::Text(text),
        (None, Some(ids)) if !ids.is_empty() => Input::TokenIds(ids),
        (None, None) => return Err("has no prompt; expected `prompt` or `token_ids`".to_owned()),
        (Some(_), Some(_)) => return Err("has `prompt` and `token_ids`; expected one of them".to_owned()),
        _ => return Err("the prompt is empty; expected at least one token".to_owned()),
    };
    let n = take(&mut found, "n")?;
    if n == Some(0) {
        return Err("`n` is 0, expected at least 1".to_owned());
    }
    // What is left is about choosing tokens, by the names of the options.
    let sampling = serde_json::from_value(Value::Object(found)).map_err(|error| error.to_string())?;
    Ok(Prompt { input, n, sampling })
}

/// Takes a field that may be absent or null.
fn take<T: DeserializeOwned>(object: &mut Map<String, Value>, field: &str) -> Result<Option<T>, String> {
    let value = object.remove(field).unwrap_or_default();
    serde_json::from_value(value).map_err(|error| format!("`{field}`: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Prompt {
        Prompt::new(Input::Text(text.to_owned()))
    }

    #[test]
    fn token_ids_are_numbers_with_commas() {
        assert_eq!(parse_token_ids("2, 105,7").unwrap().0, [2, 105, 7]);
        for (word, part) in [
            ("", "empty"),
            (" ", "empty"),
            ("2,", "``"),
            ("2,x", "`x`"),
            ("-1", "`-1`"),
            ("4294967296", "429"),
        ] {
            let error = parse_token_ids(word).unwrap_err();
            assert!(error.contains(part), "{word:?}: {error}");
        }
    }

    #[test]
    fn lines_are_prompts() {
        assert_eq!(
            parse_lines("one\n\n two \r\nthree").unwrap(),
            [text("one"), text(" two "), text("three")]
        );
        assert!(parse_lines(" \n").unwrap().is_empty());
    }

    #[test]
    fn lines_of_json_are_prompts() {
        let lines = "{\"prompt\": \"a\", \"n\": 3}\n{\"token_ids\": [2, 3]}\n";
        let ids = Prompt::new(Input::TokenIds(vec![2, 3]));
        let prompts = [Prompt { n: Some(3), ..text("a") }, ids];
        assert_eq!(parse_lines(lines).unwrap(), prompts);
        assert_eq!(parse_lines(&format!("\u{feff}{lines}")).unwrap(), prompts);
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (line, part) in [
            ("{", "EOF"),
            ("{}", "has no prompt"),
            ("{\"prompt\": \"a\", \"token_ids\": [1]}", "one of them"),
            ("{\"prompt\": \"\"}", "empty"),
            ("{\"token_ids\": []}", "empty"),
            ("{\"token_ids\": [-1]}", "-1"),
            ("{\"prompt\": \"a\", \"n\": 0}", "`n` is 0"),
            ("{\"prompt\": \"a\", \"tone\": 1}", "tone"),
            ("{\"prompt\": 1}", "`prompt`: invalid type"),
            ("{\"prompt\": \"a\", \"n\": -1}", "`n`: invalid value"),
            ("{\"prompt\": \"a\", \"top_p\": \"much\"}", "much"),
            ("plain", "expected value"),
        ] {
            let error = parse_lines(&format!("{{\"prompt\": \"a\"}}\n{line}")).unwrap_err();
            assert!(error.starts_with("line 2: ") && error.contains(part), "{line}: {error}");
        }
    }
}
