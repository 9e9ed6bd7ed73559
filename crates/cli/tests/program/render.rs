//! `paceline render`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::process::{oracle, paceline, refuses, stdout};

/// A folder with a conversation and a template.
fn files(conversation: &str, template: &str) -> (TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (input, jinja) = (folder.path().join("conversation.json"), folder.path().join("template.jinja"));
    fs::write(&input, conversation).unwrap();
    fs::write(&jinja, template).unwrap();
    (folder, input, jinja)
}

fn render(conversation: &str, template: &str, check: impl FnOnce(&mut Command)) {
    let (_folder, input, jinja) = files(conversation, template);
    check(paceline().arg("render").arg("--template").arg(jinja).arg("--input").arg(input));
}

const HELLO: &str = r#"{"messages": [{"role": "user", "content": "Hello"}]}"#;

#[test]
fn the_builtin_models_template_is_used() {
    let (_folder, input, _) = files(HELLO, "");
    let text = stdout(paceline().arg("render").arg("--input").arg(input));
    assert_eq!(text, "<bos><|turn>user\nHello<turn|>\n<|turn>model\n");
}

#[test]
fn a_template_sees_all_of_the_conversation() {
    let conversation = r#"{"messages": [{"role": "user", "content": "é"}], "tools": [{"b": 1, "a": 2}],
        "add_generation_prompt": false, "enable_thinking": true}"#;
    let template = "{{ bos_token }}{{ messages[0].content }} {{ tools | tojson }} {{ add_generation_prompt }} {{ enable_thinking }}";
    render(conversation, template, |command| {
        assert_eq!(stdout(command), r#"<bos>é [{"b": 1, "a": 2}] False True"#);
    });
    render(HELLO, "{{ add_generation_prompt }}", |command| assert_eq!(stdout(command), "True"));
}

#[test]
fn what_a_template_raises_is_exit_code_1() {
    render(HELLO, "{{ raise_exception('roles must alternate') }}", |command| {
        refuses(command, 1, &["roles must alternate"]);
    });
}

#[test]
fn wrong_templates_and_conversations_are_exit_code_2() {
    render(HELLO, "{% for %}", |command| refuses(command, 2, &["template.jinja"]));
    let endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    render(HELLO, endless, |command| refuses(command, 2, &["template.jinja"]));
    for (conversation, word) in [
        ("", "not a conversation"),
        ("[]", "not a conversation"),
        ("{}", "`messages`"),
        (r#"{"messages": 3}"#, "`messages`"),
        (r#"{"messages": [], "tools": 3}"#, "`tools`"),
        (r#"{"messages": [], "add_generation_prompt": 3}"#, "`add_generation_prompt`"),
    ] {
        render(conversation, "x", |command| refuses(command, 2, &["conversation.json", word]));
    }
    let (_folder, input, _) = files(HELLO, "");
    let mut command = paceline();
    refuses(
        command.arg("render").arg(oracle("gemma4_e")).arg("--input").arg(input),
        2,
        &["no chat template"],
    );
    refuses(paceline().args(["render", "--input", "/nonexistent/c.json"]), 2, &["/nonexistent/c.json"]);
}
