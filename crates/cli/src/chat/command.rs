//! What can be typed beside messages.

/// Names and meanings, for help.
pub(super) const COMMANDS: [(&str, &str); 5] = [
    ("/reset", "begins the conversation anew"),
    ("/undo", "takes back the last message and its answer"),
    ("/stats", "tells how long the conversation is and how fast the last answer came"),
    ("/help", "tells these"),
    ("/exit", "leaves"),
];

/// A line that is no message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Reset,
    Undo,
    Stats,
    Help,
    Exit,
    Unknown(String),
}

impl Command {
    /// The command that a line is, if it is one: a word behind a slash, alone. A longer text is a message, even if it
    /// begins with a path.
    pub(super) fn parse(line: &str) -> Option<Command> {
        let word = line.trim();
        let name = word.strip_prefix('/')?;
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphabetic()) {
            return None;
        }
        Some(match name {
            "reset" => Command::Reset,
            "undo" => Command::Undo,
            "stats" => Command::Stats,
            "help" => Command::Help,
            "exit" => Command::Exit,
            _ => Command::Unknown(word.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_behind_a_slash_is_a_command() {
        assert_eq!(Command::parse(" /undo "), Some(Command::Undo));
        assert_eq!(Command::parse("/quit"), Some(Command::Unknown("/quit".to_owned())));
        for message in ["", "/", "undo", "/etc/hosts", "/undo that", "what is /undo"] {
            assert_eq!(Command::parse(message), None, "{message:?}");
        }
        for (name, _) in COMMANDS {
            assert!(!matches!(Command::parse(name), None | Some(Command::Unknown(_))), "{name}");
        }
    }
}
