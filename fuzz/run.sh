#!/usr/bin/env bash
# fuzz/run.sh [SECONDS] [TARGET...]: runs the fuzz targets in turn, each for 300 seconds unless said otherwise, and prints a line
# of figures for each. Fails if there is a finding; its input is under fuzz/artifacts, and
# `cargo fuzz run -s none TARGET fuzz/artifacts/TARGET/FILE` repeats it.
#
# It needs a C++ compiler (libFuzzer is C++) and, the first time, the network (cargo-fuzz).
set -euo pipefail
cd "$(dirname "$0")/.."

readonly nightly=nightly-2026-05-20 nightly_commit=2026-05-19 cargo_fuzz=0.13.1
readonly seconds=${1:-300}
readonly targets=("${@:2}")
readonly all=(safetensors index config template)

# Built by the toolchain of the repository: it does not build with every nightly.
tools=$PWD/fuzz/target/tools
export PATH=$tools/bin:$PATH
if [[ "$(cargo-fuzz --version 2>/dev/null)" != "cargo-fuzz $cargo_fuzz" ]]; then
    cargo install --locked --quiet --root "$tools" "cargo-fuzz@$cargo_fuzz"
fi

# The pinned nightly, by its date or as the nightly that is there; else the toolchain of the repository, told to be one.
if rustup toolchain list | grep -q "^$nightly-"; then
    export RUSTUP_TOOLCHAIN=$nightly
elif rustup toolchain list | grep -q '^nightly-' && rustc +nightly --version | grep -q "$nightly_commit"; then
    export RUSTUP_TOOLCHAIN=nightly
else
    export RUSTC_BOOTSTRAP=1
    echo "note: $nightly is not installed; using $(rustc --version) with RUSTC_BOOTSTRAP=1" >&2
fi

seeds=fuzz/target/seeds
dictionary=fuzz/target/fields.dict

# Little endian bytes of a number: `bytes 3 1027`.
bytes() {
    local i
    for ((i = 0; i < $1; i++)); do
        printf "\\x$(printf %02x $(($2 >> (8 * i) & 255)))"
    done
}

# Seeds from the files of this repository.
make_seeds() {
    rm -rf "$seeds"
    mkdir -p "$seeds"/{safetensors,index,config,template}
    local file name n data=crates/testkit/data/oracles
    for file in "$data"/*/*.safetensors; do
        name=$(basename "$(dirname "$file")")-$(basename "$file")
        n=$(od -An -tu8 -N8 "$file" | tr -d ' ')
        # Longer headers have nothing that the shorter ones lack.
        ((n < 8192)) || continue
        { printf h; bytes 3 $(($(stat -c %s "$file") - 8 - n)); head -c $((8 + n)) "$file" | tail -c +9; } >"$seeds/safetensors/$name"
    done
    local header='{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"b":{"dtype":"I64","shape":[],"data_offsets":[8,16]}}'
    { printf f; bytes 8 ${#header}; printf %s "$header"; bytes 8 1; bytes 8 2; } >"$seeds/safetensors/whole"

    cp "$data"/*/*.index.json "$seeds/index/"
    echo '{"metadata":{},"weight_map":{"embed_tokens.weight":"model-00001-of-00002.safetensors","layers.0.layer_scalar":"model-00002-of-00002.safetensors"}}' >"$seeds/index/right"
    echo '{"weight_map":{"a":"../b","norm.weight":"again.safetensors","c":"model-00001-of-00002.safetensors"}}' >"$seeds/index/wrong"

    for file in assets/shapes/*.json assets/*/*config.json "$data"/*/*config*.json; do
        { printf '='; cat "$file"; } >"$seeds/config/${file//\//-}"
    done
    for ((n = 0; n < 16; n++)); do
        { bytes 1 "$n"; echo '{"hidden_size":64,"text_config":{"num_hidden_layers":2},"rope_theta":"~"}'; } >"$seeds/config/change-$n"
    done

    local talk='{"messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"x":[1,2.5,null]}}}]}],"tools":[{"type":"function","function":{"name":"f"}}],"enable_thinking":true}'
    { printf '\0'; printf %s "$talk"; } >"$seeds/template/conversation"
    { cat assets/tiny-gemma4/chat_template.jinja; printf '\0'; printf %s "$talk"; } >"$seeds/template/whole"
    local i=0 line
    while IFS= read -r line; do
        printf %s "$line" >"$seeds/template/line-$((i++))"
    done <<'TEMPLATES'
{%- macro v(x) -%}{% if x is mapping %}{% for k, y in x | dictsort %}{{ k }}:{{ v(y) }}{% endfor %}{% else %}{{ x | tojson(indent=2) }}{% endif %}{%- endmacro -%}{{ v(tools) }}
{% set ns = namespace(n=0) %}{% for m in messages | reverse %}{% set ns.n = ns.n + loop.index0 %}{{ m.get('role', '').split('e')[-1] | trim | upper }}{% endfor %}{{ ns.n ** 2 // 3 % 7 }}
{% for m in messages %}{% if loop.first and m['role'] not in ['a'] %}{{ raise_exception('no ' ~ m.role) }}{% endif %}{% endfor %}
{{ strftime_now('%d %b %Y') }}{{ messages[0].content[::-1] | length }}{% set x %}{{ range(9) | list | join(',') }}{% endset %}{{ x | replace('1', 'one') | indent(4) }}
{% for a in range(99) recursive %}{% if a > 3 %}{% break %}{% endif %}{{ loop.cycle(1, 2) }}{{ loop(range(a)) }}{% else %}{{ none | default('d', true) }}{% endfor %}
{{ messages | map(attribute='role') | selectattr('x', 'defined') | list }}{{ 'a' if tools else 'b' }}{{ "%s" | format(1) }}{{ [3,1] | sort | first }}{{ {'a': 1}.items() | list }}
TEMPLATES

    # Names that the seeds have, as words for the fuzzer.
    {
        cat "$seeds"/config/* "$seeds"/index/* | grep -aoE '"[A-Za-z_0-9.]{2,40}"' | tr -d '"'
        printf '%s\n' null true false '\"~\"' 16777216 -1 0.5 1e300 '{}' '[]' '\"dtype\":\"F8_E4M3\"' '\"BF16\"' '{%' '%}' '{{' '}}' namespace tojson macro endmacro dictsort
    } | sort -u | sed 's/.*/"&"/' >"$dictionary"
}

make_seeds
failed=0
for target in "${targets[@]:-${all[@]}}"; do
    mkdir -p "fuzz/corpus/$target"
    log=fuzz/target/$target.log
    # No address sanitizer: none of this is unsafe code. Overflow and debug checks are on, and a panic in any thread counts.
    code=0
    cargo fuzz run --sanitizer none "$target" "fuzz/corpus/$target" "$seeds/$target" -- -max_total_time="$seconds" \
        -max_len=8192 -timeout=30 -dict="$dictionary" -print_final_stats=1 >"$log" 2>&1 || code=$?
    ((code == 0)) || failed=1
    figure() { grep -aoE "$1" "$log" | tail -1 | grep -oE '[0-9]+$' || echo '?'; }
    printf '%-12s executions %s, edges covered %s, inputs kept %s, findings %s\n' "$target" \
        "$(figure 'number_of_executed_units: *[0-9]+')" "$(figure 'cov: [0-9]+')" "$(figure 'corp: [0-9]+')" "$((code != 0))"
    ((code == 0)) || grep -aE 'panicked|ERROR|error' "$log" | head -5
done
exit "$failed"
