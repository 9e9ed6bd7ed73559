use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::ModelFolder;

/// A template with everything that the published ones of the Gemma family use: macros that call themselves,
/// namespaces, captured blocks, sorted mappings, Python's methods, and refusals.
const TOOLS: &str = r#"
{%- macro value(v) -%}
    {%- if v is none -%}null
    {%- elif v is string -%}{{ '<|"|>' + v + '<|"|>' }}
    {%- elif v is boolean -%}{{ 'true' if v else 'false' }}
    {%- elif v is mapping -%}
        {{- '{' -}}
        {%- set ns = namespace(first=true) -%}
        {%- for key, item in v | dictsort -%}
            {%- if not ns.first %},{% endif -%}{%- set ns.first = false -%}
            {{ key }}:{{ value(item) }}
        {%- endfor -%}
        {{- '}' -}}
    {%- elif v is sequence -%}[{% for item in v %}{{ value(item) }}{% if not loop.last %},{% endif %}{% endfor %}]
    {%- else -%}{{ v }}{%- endif -%}
{%- endmacro -%}
{{ bos_token }}
{%- if tools %}{{ '<|turn>system\n' }}{% for tool in tools %}{{ '<|tool>' + tool['function']['name'] }}
{{- value(tool['function'].get('parameters')) + '<tool|>' }}{% endfor %}{{ '<turn|>\n' }}{% endif -%}
{%- for message in messages -%}
    {%- if message.role not in ['user', 'assistant', 'tool'] -%}
        {{- raise_exception('unknown role ' "'" + message.role + "'") -}}
    {%- endif -%}
    {{- '<|turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' -}}
    {%- if message.get('reasoning') and loop.last and enable_thinking | default(false) -%}
        {{- '<|channel>' + message.reasoning + '<channel|>' -}}
    {%- endif -%}
    {%- set content -%}
        {%- if message.content is string -%}{{ message.content.split('<channel|>')[-1] | trim }}
        {%- else -%}
            {%- for part in message.content or [] -%}
                {%- if part.type == 'text' -%}{{ part.text }}{%- else -%}<|{{ part.type }}|>{%- endif -%}
            {%- endfor -%}
        {%- endif -%}
    {%- endset -%}
    {{- content -}}
    {%- for call in message.get('tool_calls', []) -%}
        {{- '<|tool_call>' + call.function.name + value(call.function.arguments) + '<tool_call|>' -}}
    {%- endfor -%}
    {{- '<turn|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|turn>model\n' }}{%- endif -%}
"#;

fn parse(source: &str) -> Result<ChatTemplate, Error> {
    let tokens = [("bos_token".to_owned(), "<bos>".to_owned()), ("eos_token".to_owned(), "<eos>".to_owned())];
    ChatTemplate::parse(Path::new("m/chat_template.jinja"), source, &tokens)
}

/// Renders `{"messages", "tools"?, ...}`; further fields are variables.
fn render(source: &str, input: Value) -> Result<String, Error> {
    let Value::Object(mut variables) = input else { panic!("not an object") };
    let messages = variables.remove("messages").unwrap_or_else(|| json!([]));
    let tools = variables.remove("tools");
    let add_generation_prompt = variables.remove("add_generation_prompt") != Some(json!(false));
    parse(source)?.render(&Conversation {
        messages: &messages,
        tools: tools.as_ref(),
        add_generation_prompt,
        variables: &variables,
        unix_seconds: 1_709_251_199,
    })
}

fn text(source: &str, variables: Value) -> String {
    render(source, variables).unwrap()
}

#[test]
fn conversations_with_tools_thinking_and_parts() {
    let turns = json!([{"role": "user", "content": " Hi {{ 1 }} \n"}]);
    let plain = json!({"messages": turns});
    assert_eq!(text(TOOLS, plain), "<bos><|turn>user\nHi {{ 1 }}<turn|>\n<|turn>model\n");
    let closed = json!({"messages": turns, "add_generation_prompt": false});
    assert_eq!(text(TOOLS, closed), "<bos><|turn>user\nHi {{ 1 }}<turn|>\n");

    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "Look "}, {"type": "image"}]}]);
    assert_eq!(
        text(TOOLS, json!({"messages": parts})),
        "<bos><|turn>user\nLook <|image|><turn|>\n<|turn>model\n"
    );

    let call =
        json!({"name": "weather", "arguments": {"unit": "c", "city": "Oslo", "days": [1, 2.5], "x": null}});
    let round = json!({
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"b": true, "A": {}}}}],
        "messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": null,
            "tool_calls": [{"function": call}]}, {"role": "tool", "content": "{\"t\": -3}"}]});
    let expected = concat!(
        "<bos><|turn>system\n<|tool>weather{A:{},b:true}<tool|><turn|>\n<|turn>user\n?<turn|>\n<|turn>model\n",
        "<|tool_call>weather{city:<|\"|>Oslo<|\"|>,days:[1,2.5],unit:<|\"|>c<|\"|>,x:null}<tool_call|><turn|>\n",
        "<|turn>tool\n{\"t\": -3}<turn|>\n<|turn>model\n"
    );
    assert_eq!(text(TOOLS, round), expected);

    let thought = json!([{"role": "assistant", "content": "<|channel>old<channel|>Yes", "reasoning": "hm"}]);
    let shown = json!({"messages": thought, "enable_thinking": true, "add_generation_prompt": false});
    assert_eq!(text(TOOLS, shown), "<bos><|turn>model\n<|channel>hm<channel|>Yes<turn|>\n");
    let hidden = json!({"messages": thought, "add_generation_prompt": false});
    assert_eq!(text(TOOLS, hidden), "<bos><|turn>model\nYes<turn|>\n");
}

#[test]
fn a_template_refuses_in_its_own_words() {
    let error = render(TOOLS, json!({"messages": [{"role": "king", "content": "x"}]})).unwrap_err();
    let Error::TemplateRefused { message, .. } = &error else { panic!("{error}") };
    assert_eq!(message, "unknown role 'king'");
    // From inside a macro too.
    let deep = "{% macro a() %}{{ raise_exception('no') }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ b() }}";
    let error = render(deep, json!({})).unwrap_err();
    assert_eq!(error.to_string(), "m/chat_template.jinja: chat template refuses the conversation: no");
}

/// Expected texts are those of Jinja2 with the settings of `transformers`.
#[test]
fn the_environment_is_that_of_transformers() {
    let variables = json!({"s": "a\"<b>&'é\u{1F642}\n\u{7f}", "d": {"z": 1, "a": [1, 2.5, null, true], "e": {}},
        "f": 0.00001, "big": 1e20, "one": 1.0, "t": true, "z": null, "names": ["b", "A"]});
    for (source, expected) in [
        ("{{ d | tojson }}", r#"{"z": 1, "a": [1, 2.5, null, true], "e": {}}"#),
        ("{{ d | tojson(sort_keys=true) }}", r#"{"a": [1, 2.5, null, true], "e": {}, "z": 1}"#),
        ("{{ d | tojson(separators=(',', ':')) }}", r#"{"z":1,"a":[1,2.5,null,true],"e":{}}"#),
        ("{{ {'k': [1, []]} | tojson(indent=2) }}", "{\n  \"k\": [\n    1,\n    []\n  ]\n}"),
        ("{{ s | tojson }}", "\"a\\\"<b>&'é\u{1F642}\\n\u{7f}\""),
        ("{{ s | tojson(ensure_ascii=True) }}", r#""a\"<b>&'\u00e9\ud83d\ude42\n\u007f""#),
        ("{{ {1: 2, none: 3, false: 4} | tojson }}", r#"{"1": 2, "null": 3, "false": 4}"#),
        ("{{ [f, big, one] | tojson }}", "[1e-05, 1e+20, 1.0]"),
        ("{{ f }} {{ big }} {{ one }} {{ t }} {{ z }}", "1e-05 1e+20 1.0 True None"),
        ("{{ ['a', none, true, {'k': 1}] }}", "['a', None, True, {'k': 1}]"),
        ("{{ missing }}{{ missing is defined }}{{ tools is none }}{{ documents is none }}", "FalseTrueTrue"),
        ("{{ s is sequence }}{{ d is sequence }}{{ one is sequence }}", "TrueTrueFalse"),
        ("{{ eos_token }}{{ strftime_now('%d %B %Y') }}", "<eos>29 February 2024"),
        ("{{ 'a' 'b' }}{{ ' x '.strip() }}{{ 'a,b'.split(',')[1] }}{{ 'ab'.startswith('a') }}", "abxbTrue"),
        ("{% for k, v in d.items() %}{{ k }}{% endfor %}", "zae"),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "13"),
        ("a\n{% if t %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"),
        ("  {{ 1 }}\n{# x #}\n{%- if t %} y{% endif %}", "  1\n y"),
    ] {
        assert_eq!(text(source, variables.clone()), expected, "{source}");
    }
}

#[test]
fn what_goes_wrong_in_a_template_names_the_file() {
    for (source, part) in [
        ("{% if %}", "syntax error"),
        ("{{ missing.field }}", "undefined"),
        ("{{ 'a'.nope() }}", "unknown method"),
        ("{{ x | nope }}", "unknown filter"),
        ("{{ 1 / 0 }}", "1 / 0"),
        ("{{ strftime_now('%Q') }}", "`%Q` is not supported"),
        ("{{ namespace(a=1) | tojson(nope=1) }}", "nope"),
        ("{% include 'default' %}", "syntax error"),
    ] {
        let message = render(source, json!({})).unwrap_err().to_string();
        assert!(message.starts_with("m/chat_template.jinja: chat template fails: "), "{message}");
        assert!(message.contains(part) && !message.contains('\n'), "{message}");
    }
}

#[test]
fn loops_and_floods_end() {
    for source in [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ 'xxxxxxxxxx' }}{% endfor %}{% endfor %}",
        "{{ 'x' * 1000000000 }}",
        "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{{ [[1]] | tojson(indent=999999999) }}",
    ] {
        let error = render(source, json!({})).unwrap_err();
        assert!(matches!(error, Error::TemplateTooLong { .. }), "{source}: {error}");
    }
    let recursion = "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}";
    assert!(matches!(render(recursion, json!({})), Err(Error::Template { .. })));
}

#[test]
fn deep_nesting_needs_no_luck() {
    let nest =
        "{% set ns = namespace(v=[]) %}{% for i in range(99999) %}{% set ns.v = [[[[ns.v]]]] %}{% endfor %}";
    assert_eq!(text(nest, json!({})), "");
    assert!(render(&format!("{nest}{{{{ ns.v | tojson }}}}"), json!({})).is_err());
    let branches = format!("{{% if x %}}{}{{% endif %}}", "{%elif x%}".repeat(20_000));
    assert_eq!(text(&branches, json!({})), "");
}

#[test]
fn oversized_templates_are_refused() {
    let message = |source: &str| parse(source).unwrap_err().to_string();
    assert!(message(&" ".repeat(MAX_TEMPLATE_BYTES as usize + 1)).contains("more than the limit of 262144"));
    let long = message(&format!("\n{{{{ 1{} }}}}", "+1".repeat(1000)));
    assert!(long.ends_with("the tag in line 2 has more than 1024 bytes of code"), "{long}");
}

#[test]
fn a_folder_has_its_template_in_one_of_two_files() {
    let files = |extra: &[(&str, &str)]| {
        let files = extra.iter().map(|&(name, text)| (name.to_owned(), text.as_bytes().to_vec()));
        let config = [("config.json".to_owned(), b"{}".to_vec())];
        ModelFolder::from_files("toy", config.into_iter().chain(files)).unwrap().chat_template()
    };
    let shown = |extra: &[(&str, &str)], tools: Option<&Value>| {
        let conversation = Conversation {
            messages: &json!([]),
            tools,
            add_generation_prompt: true,
            variables: &Map::new(),
            unix_seconds: 0,
        };
        files(extra).unwrap().unwrap().render(&conversation).unwrap()
    };
    assert!(files(&[]).unwrap().is_none());
    assert!(files(&[("tokenizer_config.json", "{}")]).unwrap().is_none());
    let one = ("tokenizer_config.json", r#"{"bos_token": "<s>", "chat_template": "{{ bos_token }}1"}"#);
    assert_eq!(shown(&[one], None), "<s>1");
    assert_eq!(shown(&[one, ("chat_template.jinja", "{{ bos_token }}2")], None), "<s>2");
    let named = r#"{"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"},
        {"name": "rag", "template": "{{ not parsed"}]}"#;
    let named = ("tokenizer_config.json", named);
    assert_eq!(shown(&[named], None), "d");
    assert_eq!(shown(&[named], Some(&json!([]))), "t");
    let unnamed = r#"{"chat_template": [{"name": "rag", "template": "x"}]}"#;
    let error = files(&[("tokenizer_config.json", unnamed)]).unwrap_err().to_string();
    assert!(error.contains("none of its templates is called `default`"), "{error}");
    assert!(files(&[("chat_template.jinja", "{% if %}")]).is_err());
    // One that says nothing is no template, and one in the other file is not taken for it.
    for empty in ["", " \n\t"] {
        let error = files(&[one, ("chat_template.jinja", empty)]).unwrap_err().to_string();
        assert!(error.starts_with("toy/chat_template.jinja: ") && error.contains("it is empty"), "{error}");
    }
    let error = files(&[("tokenizer_config.json", r#"{"chat_template": ""}"#)]).unwrap_err().to_string();
    assert!(error.starts_with("toy/tokenizer_config.json: ") && error.contains("it is empty"), "{error}");
    let config = [("config.json", b"{}".to_vec()), ("chat_template.jinja", vec![0xff])];
    assert!(ModelFolder::from_files("toy", config).unwrap().chat_template().is_err());
}

/// Pieces of templates, good and bad.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "{{ messages }}",
            "{% for m in messages %}",
            "{% endfor %}",
            "{% if m %}",
            "{% elif 1 %}",
            "{% else %}",
            "{% endif %}",
            "{{ m.content | trim }}",
            "{% set x = [x] %}",
            "{% macro f(a) %}",
            "{% endmacro %}",
            "{{ f(f) }}",
            "{{ x * 99 }}",
            "{{ m | tojson(indent=2) }}",
            "{% set ns = namespace(a=x) %}",
            "{% set ns.a = ns.a ~ x %}",
            "{{ m['role'][0:2] }}",
            "{{ raise_exception(x) }}",
            "{#",
            "#}",
            "{%- ",
            " -%}",
            "{{ range(99) | list }}",
            "{% raw %}",
            "{% endraw %}",
            "{{ x.split(y) }}",
            "{{ -x ** x }}",
            "{% break %}",
        ])
        .prop_map(str::to_owned),
        "[{}%#|'\" a-z0-9.()\\[\\]+*~-]{0,12}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn any_template_gives_an_answer(pieces in prop::collection::vec(piece(), 0..12)) {
        let input = json!({"messages": [{"role": "user", "content": "hi"}, {"role": "x", "content": [1, {"a": null}]}]});
        let _ = render(&pieces.concat(), input);
    }

    #[test]
    fn any_conversation_gives_an_answer(content in any::<String>(), role in "[a-z]{0,9}", more in any::<i64>()) {
        let messages = json!([{"role": role, "content": content}, {"role": "user", "content": more}, more]);
        let _ = render(TOOLS, json!({"messages": messages, "tools": more, "enable_thinking": content}));
    }
}
