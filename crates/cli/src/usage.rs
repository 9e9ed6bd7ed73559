//! What the argument parser has to say: help on stdout, mistakes as one line.

use std::io::{self, Write};

use clap::error::ErrorKind;

use crate::failure::Failure;

/// Prints help or the version; turns anything else into a failure.
pub(crate) fn answer(error: &clap::Error) -> Result<(), Failure> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let mut out = io::stdout().lock();
            write!(out, "{}", error.render()).and_then(|()| out.flush()).map_err(Failure::output)
        }
        _ => Err(Failure::bad_input(format!(
            "{}; see `paceline --help`",
            sentence(&error.render().to_string())
        ))),
    }
}

/// The first paragraph of the parser's message, which says what is wrong; the others repeat the help.
fn sentence(message: &str) -> String {
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
}
