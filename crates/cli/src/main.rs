//! The `paceline` program. Each subcommand has its file: raw arguments become a validated request once, then it runs.
//!
//! Exit codes: 0 done, 1 failed, 2 bad usage or input. Errors are one line on stderr.
#![forbid(unsafe_code)]

mod bench;
mod builtin;
mod chat;
mod chat_prompt;
mod check;
mod clock;
mod draft;
mod draws;
mod failure;
#[cfg(feature = "hub")]
mod hub;
mod inspect;
mod json_map;
mod loading;
mod made_up;
mod memory;
mod model;
mod numbers;
mod peak_memory;
mod progress;
mod prompts;
mod prove;
mod render;
mod requests;
mod run;
mod sampling;
mod score;
mod scripted;
mod serve;
mod shapes;
mod text_file;
mod usage;
mod weights;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use failure::Failure;

/// Runs language models on the CPU, exactly: drafting, batching, chunking, threads and CPU level never change the text.
#[derive(Debug, Parser)]
#[command(name = "paceline", version, arg_required_else_help = false, args_override_self = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Chat(Box<chat::Args>),
    Score(score::Args),
    Serve(Box<serve::Args>),
    Inspect(inspect::Args),
    Check(check::Args),
    Prove(Box<prove::Args>),
    Render(render::Args),
    Bench(bench::Args),
}

impl Command {
    fn run(self) -> Result<(), Failure> {
        match self {
            Command::Run(args) => run::run(*args),
            Command::Chat(args) => chat::run(&args),
            Command::Score(args) => score::run(&args),
            Command::Serve(args) => serve::run(*args),
            Command::Inspect(args) => inspect::run(args),
            Command::Check(args) => check::run(args),
            Command::Prove(args) => prove::run(*args),
            Command::Render(args) => render::run(args),
            Command::Bench(args) => bench::run(&args),
        }
    }
}

fn main() -> ExitCode {
    let done = match Cli::try_parse() {
        Ok(cli) => cli.command.run(),
        Err(error) => usage::answer(&error, &Cli::command()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said to a value of an option by itself; `None` if it is taken.
    fn refusal(subcommand: &str, words: &[&str]) -> Option<String> {
        let error = Cli::try_parse_from([&["paceline", subcommand], words].concat()).err()?;
        Some(usage::sentence(&error.render().to_string()))
    }

    #[test]
    fn every_number_says_what_was_expected_and_may_begin_with_a_minus() {
        let program = Cli::command();
        let mut n_numbers = 0;
        for subcommand in program.get_subcommands() {
            for option in subcommand.get_arguments() {
                let flag = match (option.get_long(), option.get_short()) {
                    (Some(long), _) => format!("--{long}"),
                    (None, Some(short)) => format!("-{short}"),
                    (None, None) => continue,
                };
                let is_text = ["TEXT", "F", "S", "D[,D...]"];
                let Some(name) = option.get_value_names().filter(|_| option.get_action().takes_values())
                else {
                    continue;
                };
                let place = format!("{} {flag}", subcommand.get_name());
                let Some(said) = refusal(subcommand.get_name(), &[&flag, "many"]) else { continue };
                let is_number = said.contains("'many'") && option.get_possible_values().is_empty();
                if !is_number || is_text.contains(&name[0].as_str()) {
                    continue;
                }
                n_numbers += 1;
                assert!(said.contains("expected ") || said.contains("is not a number"), "{place}: {said}");
                for word in ["-1", "-1e-5", "-0.1,0.2", "-x"] {
                    let said = refusal(subcommand.get_name(), &[&flag, word]).unwrap_or_default();
                    assert!(!said.contains("unexpected argument"), "{place} {word}: {said}");
                    assert!(!said.contains("digit") && !said.contains(" in 1.."), "{place} {word}: {said}");
                }
            }
        }
        assert!(n_numbers > 60, "{n_numbers} options take numbers");
    }
}
