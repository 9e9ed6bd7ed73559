//! Help and usage.

use crate::process::{paceline, refuses, stdout};

#[test]
fn help_says_what_there_is() {
    assert_eq!(stdout(paceline().arg("--help")), include_str!("snapshots/help.txt"));
    let pages = [
        ("run", include_str!("snapshots/run.txt")),
        ("chat", include_str!("snapshots/chat.txt")),
        ("score", include_str!("snapshots/score.txt")),
        ("serve", include_str!("snapshots/serve.txt")),
        ("inspect", include_str!("snapshots/inspect.txt")),
        ("check", include_str!("snapshots/check.txt")),
        ("render", include_str!("snapshots/render.txt")),
        ("prove", include_str!("snapshots/prove.txt")),
        ("bench", include_str!("snapshots/bench.txt")),
    ];
    for (subcommand, page) in pages {
        assert_eq!(stdout(paceline().args([subcommand, "-h"])), page);
    }
}

#[test]
fn the_version_is_the_crates() {
    assert_eq!(stdout(paceline().arg("--version")), format!("paceline {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn wrong_usage_is_one_line_and_exit_code_2() {
    refuses(&mut paceline(), 2, &["requires a subcommand"]);
    refuses(paceline().arg("sing"), 2, &["sing"]);
    refuses(paceline().args(["inspect", "--frobnicate"]), 2, &["--frobnicate", "`paceline inspect --help`"]);
    refuses(paceline().args(["inspect", "--context", "0"]), 2, &["--context", "at least 1"]);
    refuses(paceline().args(["inspec"]), 2, &["'inspec'", "did you mean `inspect`?", "`paceline --help`"]);
    refuses(paceline().args(["run", "--draft-token", "3"]), 2, &["did you mean `--draft-tokens`?"]);
    refuses(paceline().args(["inspect", "--shape", "gemma4-26b-a4"]), 2, &["did you mean `gemma4-26b-a4b`"]);
}

#[test]
fn help_is_a_subcommand_too() {
    assert_eq!(stdout(paceline().arg("help")), stdout(paceline().arg("--help")));
    assert_eq!(stdout(paceline().args(["help", "serve"])), stdout(paceline().args(["serve", "--help"])));
}
