//! Texts from outside: read whole, up to a limit, and only if they are UTF-8.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::failure::Failure;

/// Largest accepted text, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// The text of a file.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| cannot(&name, &error))?;
    read_from(&name, file)
}

/// The text on standard input.
pub(crate) fn read_stdin() -> Result<String, Failure> {
    read_from("standard input", io::stdin().lock())
}

fn read_from(name: &str, from: impl Read) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    from.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| cannot(name, &error))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Failure::bad_input(format!(
            "{name}: has more than the {MAX_BYTES} bytes that are accepted"
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::bad_input(format!(
            "{name}: is not UTF-8 text: byte {at} begins no character; convert it to UTF-8"
        ))
    })
}

fn cannot(name: &str, error: &io::Error) -> Failure {
    Failure::bad_input(format!("{name}: cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(bytes: impl Read) -> String {
        match read_from("x", bytes) {
            Err(Failure::BadInput(message)) => message,
            other => panic!("expected a refusal, found {other:?}"),
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_refused_with_their_place() {
        assert_eq!(read_from("x", "né".as_bytes()).unwrap(), "né");
        assert!(message(&b"ab\xffc"[..]).contains("byte 2"));
        assert!(message(&b"ab\xc3"[..]).contains("byte 2"));
    }

    #[test]
    fn endless_input_is_refused() {
        assert!(message(io::repeat(b'a')).contains("more than"));
    }
}
