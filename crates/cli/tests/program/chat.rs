//! `paceline chat`, from a pipe.

use std::fs;

use crate::process::{copy_of_folder, error_line, paceline, refuses, root, text, with_stdin};

/// What the program writes to standard output and standard error.
fn chat(arguments: &[&str], input: &str) -> (String, String) {
    let output = with_stdin(paceline().arg("chat").args(["-n", "24"]).args(arguments), input.as_bytes());
    assert!(output.status.success(), "{}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn answers_alone_go_to_standard_output() {
    let (answers, notes) =
        chat(&[], "What is the capital of France?\n\n/stats\n/exit\nWhat is the capital of Italy?\n");
    assert_eq!(answers, "The capital of France is Paris.\n");
    assert!(notes.contains("note: 1 turn, a context of"), "{notes}");
    assert!(
        notes.contains("last turn: 0 of the conversation's 16 tokens were there, 16 were read in"),
        "{notes}"
    );
}

#[test]
fn a_turn_that_is_taken_back_leaves_nothing() {
    let story = "Tell me a short story about a fox.\n";
    let (alone, _) = chat(&[], story);
    for command in ["/undo", "/reset"] {
        let (answers, _) = chat(&[], &format!("What is the capital of France?\n{command}\n{story}"));
        assert_eq!(answers, format!("The capital of France is Paris.\n{alone}"), "{command}");
    }
}

#[test]
fn drafts_and_quotes_change_nothing() {
    let question = "What is the capital of France?\nTell me a short story about a fox.\n";
    let quoted =
        "\"\"\"What is the capital of France?\"\"\"\n\"\"\"\nTell me a short story about a fox.\n\"\"\"\n";
    let (plain, _) = chat(&[], question);
    assert_eq!(plain, chat(&["--draft", "tiny"], quoted).0);
}

#[test]
fn unknown_commands_are_said_to_be_none() {
    let (answers, notes) = chat(&[], "/sing\n/help\n/undo\n");
    assert_eq!(answers, "");
    for part in ["there is no command /sing", "/reset", "/stats", "nothing to take back"] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
}

#[test]
fn a_message_without_an_answer_is_named_and_the_next_one_goes_on() {
    let question = "What is the capital of France?\n";
    let long = format!("{}\n", "word ".repeat(50));
    for (end, code) in [("", Some(2)), ("/exit\n", Some(2))] {
        let input = [question, &long, "/reset\n", &long, question, end].concat();
        let output = with_stdin(paceline().args(["chat", "--context", "32"]), input.as_bytes());
        assert_eq!(output.status.code(), code);
        assert_eq!(text(&output.stdout), "The capital of France is Paris.\n".repeat(2));
        let lines = text(&output.stderr);
        let lines: Vec<_> = lines.lines().filter(|line| line.contains("the context holds 32")).collect();
        for (line, start) in lines.iter().zip([
            "note: message 2: the conversation has",
            "note: message 3: ",
            "error: 2 of 4 messages got no answer: message 2: ",
        ]) {
            assert!(line.starts_with(start), "{line}");
        }
        assert_eq!(lines.len(), 3);
    }
}

#[test]
fn what_cannot_be_read_ends_it() {
    let output = with_stdin(paceline().arg("chat"), b"\"\"\"never\nclosed\n");
    assert_eq!(output.status.code(), Some(2));
    assert!(error_line(&output, "chat").contains("ends within a message"));
}

#[test]
fn a_model_without_tokenizer_or_template_cannot_be_talked_with() {
    let folder = copy_of_folder(&root().join("assets/tiny-gemma4"));
    fs::remove_file(folder.path().join("chat_template.jinja")).unwrap();
    refuses(paceline().arg("chat").arg(folder.path()), 2, &["has no chat template", "paceline run"]);
    fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    refuses(paceline().arg("chat").arg(folder.path()), 2, &["has no tokenizer.json"]);
}
