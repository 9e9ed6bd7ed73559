//! What the argument parser has to say: help on stdout, mistakes as one line.

use std::ffi::OsStr;
use std::io::{self, Write};

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::failure::Failure;

/// Prints help or the version; turns anything else into a failure that names the help page of `program`.
pub(crate) fn answer(error: &clap::Error, program: &Command) -> Result<(), Failure> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let mut out = io::stdout().lock();
            write!(out, "{}", error.render()).and_then(|()| out.flush()).map_err(Failure::output)
        }
        _ => Err(Failure::bad_input(format!(
            "{}{}; see `{} --help`",
            sentence(&error.render().to_string()),
            meant(error).unwrap_or_default(),
            page(program, std::env::args_os().nth(1).as_deref())
        ))),
    }
}

/// The program, with the subcommand that was asked for if there is one of that name.
fn page(program: &Command, word: Option<&OsStr>) -> String {
    let name = program.get_name();
    match word.and_then(|word| program.find_subcommand(word)) {
        Some(subcommand) => format!("{name} {}", subcommand.get_name()),
        None => name.to_owned(),
    }
}

/// What there is of a name much like the one that was given.
fn meant(error: &clap::Error) -> Option<String> {
    let kinds = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    let names = kinds.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(name) => Some(format!("`{name}`")),
        ContextValue::Strings(names) if !names.is_empty() => {
            Some(names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" or "))
        }
        _ => None,
    })?;
    Some(format!(" (did you mean {names}?)"))
}

/// The first paragraph of the parser's message, which says what is wrong; the others repeat the help.
pub(crate) fn sentence(message: &str) -> String {
    let lines: Vec<&str> = message.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let text = lines.join(" ");
    text.strip_prefix("error: ").unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_paragraph_is_kept() {
        let message = "error: required arguments are missing:\n  <A>\n\nUsage: x\n";
        assert_eq!(sentence(message), "required arguments are missing: <A>");
    }

    #[test]
    fn names_with_a_mistake_are_told() {
        let program =
            || Command::new("paceline").subcommand(Command::new("serve").arg(clap::arg!(--threads <N>)));
        let meant_by = |words: &[&str]| {
            let words = ["paceline"].iter().chain(words);
            program().try_get_matches_from(words).err().and_then(|error| meant(&error))
        };
        assert_eq!(meant_by(&["serv"]).as_deref(), Some(" (did you mean `serve`?)"));
        assert_eq!(meant_by(&["serve", "--thread"]).as_deref(), Some(" (did you mean `--threads`?)"));
        assert_eq!(meant_by(&["serve", "--sing"]), None);
    }

    #[test]
    fn the_page_is_that_of_the_subcommand() {
        let program = Command::new("paceline").subcommand(Command::new("run"));
        let of = |word: &str| page(&program, Some(OsStr::new(word)));
        assert_eq!(
            (of("run"), of("sing"), page(&program, None)),
            ("paceline run".into(), "paceline".into(), "paceline".into())
        );
    }
}
