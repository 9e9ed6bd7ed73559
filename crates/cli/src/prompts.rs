//! Where prompts come from.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::failure::Failure;
use crate::json_map::UniqueKeys;
use crate::numbers::{at_least_one, of_json};
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
    /// Its line in a file of prompts, from 1.
    pub(crate) line: Option<usize>,
}

impl Prompt {
    /// A prompt that says no more than what it is.
    pub(crate) fn new(input: Input) -> Self {
        Self { input, n: None, sampling: SamplingArgs::default(), line: None }
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
    word.split(',').map(|id| parse_id(id.trim())).collect::<Result<_, _>>().map(TokenIds)
}

fn parse_id(id: &str) -> Result<u32, String> {
    id.parse().map_err(|_| format!("`{id}` is not a token id; expected numbers with commas between"))
}

/// A list of ids as one argument, or of JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenIds(pub(crate) Vec<u32>);

impl<'de> Deserialize<'de> for TokenIds {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let list = Box::<RawValue>::deserialize(from)?;
        let wrong = |what: &str| {
            serde::de::Error::custom(format!("`{what}` is no list of token ids; expected one, as [2, 105]"))
        };
        let ids: Vec<Box<RawValue>> = serde_json::from_str(list.get()).map_err(|_| wrong(list.get()))?;
        let ids = ids.iter().map(|id| parse_id(id.get()));
        ids.collect::<Result<_, _>>().map(TokenIds).map_err(serde::de::Error::custom)
    }
}

/// Prompts of a file with one on each line: JSON objects if the first line that is not empty begins with `{`, else plain text.
/// Lines without a character are skipped.
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
    let lines = || (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let Some((first, begins)) = lines().next() else { return Ok(Vec::new()) };
    let is_json = begins_object(begins);
    let parse = |(number, line): (usize, &str)| {
        let prompt = match is_json {
            true => parse_json(line, (number != first).then_some(first))
                .map_err(|what| format!("line {number}: {what}"))?,
            false if is_prompt_object(line) => {
                let found = excerpt(line);
                return Err(format!(
                    "line {number}: expected plain text, as line {first} is, found the JSON object `{found}`; objects need one on line {first} too"
                ));
            }
            false => Prompt::new(Input::Text(line.to_owned())),
        };
        Ok(Prompt { line: Some(number), ..prompt })
    };
    lines().map(parse).collect()
}

fn begins_object(line: &str) -> bool {
    line.trim_start().starts_with('{')
}

/// Whether a line is what prompts are in a file of JSON objects.
fn is_prompt_object(line: &str) -> bool {
    let object = serde_json::from_str::<HashMap<String, IgnoredAny>>(line);
    object.is_ok_and(|object| object.contains_key("prompt") || object.contains_key("token_ids"))
}

/// The begin of a line, for errors.
fn excerpt(line: &str) -> String {
    let line = line.trim();
    match line.char_indices().nth(40) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}

/// Parses an object; `first` is the line because of which it has to be one, if another.
fn parse_json(line: &str, first: Option<usize>) -> Result<Prompt, String> {
    let UniqueKeys(fields) =
        serde_json::from_str::<UniqueKeys<String, Box<RawValue>>>(line).map_err(|error| {
            let what = without_place(&error);
            if error.is_data() && begins_object(line) {
                return what;
            }
            let why = match first {
                Some(first) => format!("line {first} is one"),
                None => "it begins with `{`".to_owned(),
            };
            let (found, column) = (excerpt(line), error.column());
            format!("expected a JSON object, as {why}, found `{found}`: {what} at column {column}")
        })?;
    let (mut text, mut ids, mut n, mut sampling) = (None, None, None, SamplingArgs::default());
    for (name, value) in &fields {
        match name.as_str() {
            "prompt" => text = parse_field::<Option<String>>(name, value)?,
            "token_ids" => ids = parse_field::<Option<TokenIds>>(name, value)?,
            "n" => n = of_json(value, at_least_one).map_err(|problem| format!("`{name}`: {problem}"))?,
            _ if !SamplingArgs::fields().contains(name) => return Err(unknown_field(name)),
            // What is left is about choosing tokens, by the names of the options.
            _ => sampling = SamplingArgs::of_field(name, value)?.or(&sampling),
        }
    }
    let input = match (text, ids) {
        (Some(text), None) if !text.is_empty() => Input::Text(text),
        (None, Some(TokenIds(ids))) if !ids.is_empty() => Input::TokenIds(ids),
        (None, None) => return Err("has no prompt; expected `prompt` or `token_ids`".to_owned()),
        (Some(_), Some(_)) => return Err("has `prompt` and `token_ids`; expected one of them".to_owned()),
        _ => return Err("the prompt is empty; expected at least one token".to_owned()),
    };
    Ok(Prompt { n, sampling, ..Prompt::new(input) })
}

fn unknown_field(name: &str) -> String {
    let of_sampling = SamplingArgs::fields().iter().map(String::as_str);
    let known: Vec<_> =
        ["prompt", "token_ids", "n"].into_iter().chain(of_sampling).map(|name| format!("`{name}`")).collect();
    format!("unknown field `{name}`; expected one of {}", known.join(", "))
}

/// Parses the value of a field, whose name errors begin with.
fn parse_field<T: DeserializeOwned>(name: &str, value: &RawValue) -> Result<T, String> {
    serde_json::from_str(value.get()).map_err(|error| format!("`{name}`: {}", without_place(&error)))
}

/// An error about the text of one value, whose lines and columns nobody would look for.
pub(crate) fn without_place(error: &serde_json::Error) -> String {
    let what = error.to_string();
    // Only at the end: what stands before it may quote the value.
    let place = format!(" at line {} column {}", error.line(), error.column());
    what.strip_suffix(&place).unwrap_or(&what).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(line: usize, text: &str) -> Prompt {
        Prompt { line: Some(line), ..Prompt::new(Input::Text(text.to_owned())) }
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
            [text(1, "one"), text(3, " two "), text(4, "three")]
        );
        assert!(parse_lines(" \n").unwrap().is_empty());
    }

    #[test]
    fn lines_of_json_are_prompts() {
        let lines = "{\"prompt\": \"a\", \"n\": 3}\n\n{\"token_ids\": [2, 3], \"n\": null}\n";
        let ids = Prompt { line: Some(3), ..Prompt::new(Input::TokenIds(vec![2, 3])) };
        let prompts = [Prompt { n: Some(3), ..text(1, "a") }, ids];
        assert_eq!(parse_lines(lines).unwrap(), prompts);
        assert_eq!(parse_lines(&format!("\u{feff}{lines}")).unwrap(), prompts);
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (line, part) in [
            (
                "{",
                "expected a JSON object, as line 1 is one, found `{`: EOF while parsing an object at column 1",
            ),
            ("{}", "has no prompt"),
            ("{\"prompt\": \"a\", \"token_ids\": [1]}", "one of them"),
            ("{\"prompt\": \"\"}", "empty"),
            ("{\"token_ids\": []}", "empty"),
            ("{\"token_ids\": [2, -1]}", "`token_ids`: `-1` is not a token id"),
            ("{\"token_ids\": [4294967296]}", "`token_ids`: `4294967296` is not a token id"),
            ("{\"token_ids\": 2}", "`token_ids`: `2` is no list of token ids"),
            ("{\"prompt\": \"a\", \"n\": 0}", "`n`: `0`: expected at least 1"),
            (
                "{\"prompt\": \"a\", \"tone\": 1}",
                "unknown field `tone`; expected one of `prompt`, `token_ids`, `n`, `temperature`, `sample`",
            ),
            ("{\"prompt\": 1}", "`prompt`: invalid type"),
            ("{\"prompt\": \"a\", \"n\": -1}", "`n`: `-1`: expected a whole number of at least 1"),
            ("{\"prompt\": \"a\", \"top_p\": \"much\"}", "`top_p`: `\"much\"` is not a number"),
            (
                "{\"prompt\": \"a\", \"top_p\": \"as at line 3\"}",
                "`top_p`: `\"as at line 3\"` is not a number",
            ),
            ("{\"prompt\": \"a\", \"n\": 1, \"prompt\": \"b\"}", "`prompt` stands twice"),
            ("{\"prompt\": \"a\", \"top_k\": 1, \"top_k\": 1}", "`top_k` stands twice"),
            ("plain", "expected a JSON object, as line 1 is one, found `plain`: expected value at column 1"),
            ("[1]", "expected a JSON object, as line 1 is one, found `[1]`"),
        ] {
            let error = parse_lines(&format!("{{\"prompt\": \"a\"}}\n\n{line}")).unwrap_err();
            assert!(error.starts_with("line 3: ") && error.contains(part), "{line}: {error}");
            assert!(!error[7..].contains("line 3 ") || line.contains("line 3"), "{error}");
        }
        let error = parse_lines("{hello").unwrap_err();
        assert!(
            error.starts_with("line 1: expected a JSON object, as it begins with `{`, found `{hello`"),
            "{error}"
        );
    }

    #[test]
    fn objects_among_plain_lines_are_refused() {
        for line in ["{\"prompt\": \"a\"}", " {\"token_ids\": [2], \"prompt\": 1, \"prompt\": 2}"] {
            let error = parse_lines(&format!("\nplain\n{line}")).unwrap_err();
            assert!(error.starts_with("line 3: expected plain text, as line 2 is"), "{error}");
        }
        // Other texts with braces are texts.
        assert_eq!(parse_lines("a\n{\"b\": 1}").unwrap(), [text(1, "a"), text(2, "{\"b\": 1}")]);
    }
}
