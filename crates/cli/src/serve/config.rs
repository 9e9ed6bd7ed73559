//! The file of `--config`: options of the command line under their own names.
//!
//! Its lines become arguments in front of those that were given, so there is one place that knows names, values and defaults.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::Path;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use toml::Spanned;

use super::Args;
use crate::failure::Failure;
use crate::{text_file, usage};

/// The arguments of `serve` alone. What comes later wins.
#[derive(Debug, Parser)]
#[command(name = "paceline serve", args_override_self = true)]
struct Whole {
    #[command(flatten)]
    args: Args,
}

/// The program's arguments and those of a file. `has_model` says whether the model is among the former.
pub(super) fn read(file: &Path, has_model: bool) -> Result<Args, Failure> {
    let text = text_file::read(file)?;
    // Behind the program's name and the subcommand's.
    join(&text, file, has_model, std::env::args_os().skip(2))
}

fn join(
    text: &str,
    file: &Path,
    has_model: bool,
    given: impl Iterator<Item = OsString>,
) -> Result<Args, Failure> {
    let arguments = arguments(text, has_model)
        .map_err(|problem| Failure::bad_input(format!("{}: {problem}", file.display())))?;
    let name = OsString::from("paceline serve");
    match Whole::try_parse_from([name].into_iter().chain(arguments).chain(given)) {
        Ok(whole) => Ok(whole.args),
        Err(error) => {
            usage::answer(&error, &Whole::command())?;
            unreachable!("help was answered when the arguments were read the first time")
        }
    }
}

/// The value of a key.
enum Found {
    /// A text, or a whole number in digits.
    Word(String),
    /// A number whose text counts.
    Number,
    Other(&'static str),
}

impl<'de> Deserialize<'de> for Found {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(FoundVisitor)
    }
}

struct FoundVisitor;

impl<'de> Visitor<'de> for FoundVisitor {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a number")
    }

    fn visit_str<E>(self, text: &str) -> Result<Found, E> {
        Ok(Found::Word(text.to_owned()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Found, E> {
        Ok(Found::Word(number.to_string()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Found, E> {
        Ok(Found::Word(number.to_string()))
    }

    fn visit_i128<E>(self, number: i128) -> Result<Found, E> {
        Ok(Found::Word(number.to_string()))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Found, E> {
        Ok(Found::Number)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Found, E> {
        Ok(Found::Other("a boolean"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Found, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Found::Other("an array"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Found, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Found::Other("a table"))
    }
}

/// The arguments that a file stands for.
fn arguments(text: &str, has_model: bool) -> Result<Vec<OsString>, String> {
    let table: BTreeMap<String, Spanned<Found>> = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        format!("line {line}: {}", error.message())
    })?;
    let program = Whole::command();
    let known = |key: &str| key != "config" && program.get_arguments().any(|arg| arg.get_long() == Some(key));
    let mut arguments = Vec::new();
    for (key, value) in &table {
        let word = match value.get_ref() {
            Found::Word(word) => word.clone(),
            // As it is written: one that is very small would have become 0 by being read.
            Found::Number => text[value.span()].replace('_', ""),
            Found::Other(kind) => return Err(format!("`{key}` is {kind}; expected a text or a number")),
        };
        match key.as_str() {
            "model" if has_model => {}
            "model" => arguments.push(word.into()),
            key if known(key) => {
                let argument = OsString::from(format!("--{key}={word}"));
                check(key, &argument)?;
                arguments.push(argument);
            }
            key => {
                return Err(format!(
                    "there is no option `{key}`; `paceline serve --help` lists those there are"
                ));
            }
        }
    }
    Ok(arguments)
}

/// Checks the value of one option by itself. What it needs beside it may be among the arguments.
fn check(key: &str, argument: &OsString) -> Result<(), String> {
    match Whole::command().try_get_matches_from([&OsString::from("paceline serve"), argument]) {
        Err(error) if matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation) => {
            Err(format!("`{key}`: {}", usage::sentence(&error.render().to_string())))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(text: &str, given: &[&str]) -> Result<Args, String> {
        let has_model = given.first().is_some_and(|word| !word.starts_with('-'));
        let words = given.iter().map(OsString::from);
        join(text, Path::new("serve.toml"), has_model, words).map_err(|failure| match failure {
            Failure::BadInput(message) => message,
            other => panic!("another failure: {other:?}"),
        })
    }

    #[test]
    fn arguments_win_over_the_file() {
        let text = "model = \"a\"\nport = 1\nqueue = 2\ndraft = \"tiny\"\ndraft-tokens = 3\nlog = \"warn\"\n";
        let args = joined(text, &["--port", "9"]).unwrap();
        assert_eq!((args.port, args.queue, args.max_running), (9, 2, 8));
        assert_eq!(args.model.model.as_deref(), Some(Path::new("a")));
        assert_eq!(joined(text, &["b"]).unwrap().model.model.as_deref(), Some(Path::new("b")));
        let args = joined("port = 0x1f90\nrandom-weights = 18446744073709551615\n", &[]).unwrap();
        assert_eq!((args.port, args.made_up.is_asked_for()), (8080, true));
        // What one needs may stand in the other.
        assert!(joined("draft-tokens = 3\n", &["--draft", "tiny"]).is_ok());
        assert!(joined("draft-tokens = 3\n", &[]).unwrap_err().contains("--draft"));
    }

    #[test]
    fn wrong_files_are_named_with_what_is_wrong() {
        for (text, part) in [
            ("port = 1\nprot = 2\n", "no option `prot`"),
            ("config = \"x\"\n", "no option `config`"),
            (
                "port = \"x\"\n",
                "`port`: invalid value 'x' for '--port <P>': expected a whole number from 0 to 65535",
            ),
            ("port = 70000\n", "'70000' for '--port <P>': expected a whole number from 0 to 65535"),
            ("port = 80.5\n", "'80.5' for '--port <P>': expected a whole number from 0 to 65535"),
            ("max-running = 0\n", "'--max-running <N>': expected a whole number from 1 to 1024"),
            ("threads = -1\n", "'-1' for '--threads <N>': expected a whole number from 1 to 4096"),
            ("queue = \"many\"\n", "'many' for '--queue <N>': expected a whole number from 0 to 1048576"),
            (
                "queue = 99999999999999999999\n",
                "'99999999999999999999' for '--queue <N>': expected a whole number",
            ),
            ("port = [1, 2]\n", "`port` is an array"),
            ("header-time = 0\n", "'--header-time <S>': expected at least 1"),
            (
                "draft-confidence = -0.1\n",
                "'-0.1' for '--draft-confidence <P>': expected a number from 0 that",
            ),
            ("draft-confidence = 1e-4_00\n", "`1e-400` is not 0"),
            ("draft-confidence = inf\n", "'inf' for '--draft-confidence <P>': expected a number from 0 that"),
            ("host = \"a\"\nport\n", "line 2"),
            ("port = 1\nport = 2\n", "line 2"),
            ("port = true\n", "`port` is a boolean"),
            ("api-key = \"\"\n", "`api-key`"),
            ("[limits]\n", "`limits` is a table"),
        ] {
            let message = joined(text, &[]).unwrap_err();
            assert!(message.starts_with("serve.toml: ") && message.contains(part), "{text:?}: {message}");
        }
    }
}
