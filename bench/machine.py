#!/usr/bin/env python3
"""What one machine reaches, beside its limits, in one run: products, attention, rounds, prompts and slices of published sizes.

    cargo build --release -p paceline-cli && cargo bench -p paceline-kernels --no-run
    bench/machine.py --binary target/release/paceline --benches target/release/deps --prompts PROMPTS.jsonl --out FILE.json

PROMPTS has a line `{"token_ids": [...], "kind": "chat"}` for each prompt to the tiny model; `kind` names its category. Standard library
only; needs some 12 GB of memory for the E2B pair with made-up weights (`--skip e2b` leaves it out). The benches of the kernels
(`linear`, `attend`, `ops`, `choose`) are found by their name in the folder; a missing one is said and left out.

The limit of decoding is reading: bytes that a token reads by the bandwidth that plain reading reaches in the same run.
"""
import argparse
import glob
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

from record import save

DRAFTS = (1, 2, 4, 7, 15)
UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "B": 1.0}
figures = []


def note(name, value, unit, limit=None, spread=None):
    figure = {"name": name, "value": round(value, 4), "unit": unit}
    if spread:
        figure["min"], figure["max"] = round(min(spread), 4), round(max(spread), 4)
    if limit is not None:
        figure["limit"] = round(limit, 4)
    figures.append(figure)
    print("%-48s %12.4f %s%s" % (name, value, unit, "" if limit is None else " of %.4f" % limit), flush=True)


def call(command, timeout=900):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        sys.exit("%s: exit %d: %s" % (" ".join(map(str, command)), done.returncode, done.stderr.strip()[-500:]))
    return done.stdout


def kernel_bench(args, name, *words):
    """Figures of a bench that writes them as one JSON object."""
    built = [path for path in glob.glob(os.path.join(args.benches, name + "*")) if os.access(path, os.X_OK) and not path.endswith(".d")]
    if not built:
        return print("no bench `%s` in %s: left out" % (name, args.benches))
    newest = max(built, key=os.path.getmtime)
    with tempfile.NamedTemporaryFile("r", suffix=".json") as f:
        call([newest, *words, "--json", f.name])
        for figure, value in json.load(f).items():
            unit = next((unit for part, unit in (("tflops", "TFLOP/s"), (".ns", "ns"), ("gb_per_s", "GB/s"), (".ms", "ms")) if part in figure), "ratio")
            note(figure, value, unit)


def found(name):
    return next((figure["value"] for figure in figures if figure["name"] == name), None)


def bytes_read(args, place):
    """Bytes of weights that a token reads, as `inspect` counts them."""
    for line in call([args.binary, "inspect", *place]).splitlines():
        if line.split()[:1] == ["all"]:
            return float(line.split()[-2]) * UNITS[line.split()[-1]]
    raise ValueError("`inspect` has no line `all`")


def bench(args, place, *words, ids=None):
    """Lines of `paceline bench --json`."""
    command = [args.binary, "bench", *place, "--threads", args.threads, "--json", *words]
    if ids is None:
        return [json.loads(line) for line in call(command).splitlines()]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        f.writelines(json.dumps({"token_ids": prompt}) + "\n" for prompt in ids)
        f.flush()
        return [json.loads(line) for line in call([*command, "--prompts-file", f.name]).splitlines()]


def total(lines, field):
    return sum(line[field] for line in lines)


def rounds(name, level, lines, counts):
    """Figures of plain and drafted rounds: where their time goes, what rows and draft steps cost."""
    of = {k: [line for line in lines if line["draft_tokens"] == k] for k in (0, *counts)}
    plain = of[0]
    # Tokens of a round are counted by rounds of the bench, so that slow phases show as spread.
    def rates(k):
        by_round = sorted({line["round"] for line in of[k]})
        return [total([l for l in of[k] if l["round"] == r], "n") / total([l for l in of[k] if l["round"] == r], "decode_s") for r in by_round]
    note("%s.plain_tokens_per_s" % name, total(plain, "n") / total(plain, "decode_s"), "tokens/s", spread=rates(0))
    step = total(plain, "verify_s") / total(plain, "passes")
    note("%s.plain_pass_ms" % name, step * 1e3, "ms")
    for k in counts:
        drafted, passes = of[k], total(of[k], "passes")
        ratio = [a / b for a, b in zip(rates(k), rates(0))]
        note("%s.drafted_over_plain.k%d" % (name, k), statistics.median(ratio), "ratio", spread=ratio)
        note("%s.tokens_per_round.k%d" % (name, k), total(drafted, "n") / passes, "tokens", k + 1)
        note("verify.rows%d_over_rows1.%s.%s" % (k + 1, name, level), total(drafted, "verify_s") / passes / step, "ratio")
        parts = {part: total(drafted, part + "_s") for part in ("draft", "verify", "choose", "host")}
        everything = sum(parts.values())
        for part, seconds in parts.items():
            note("round.%s_share.%s.k%d" % (part, name, k), seconds / everything, "of a round")
        note("draft_step_over_target_step.%s.k%d" % (name, k), parts["draft"] / (passes * k) / step, "ratio")


def tiny(args, level):
    with open(args.prompts) as f:
        prompts = [json.loads(line) for line in f if line.strip()]
    ids = [prompt["token_ids"] for prompt in prompts]
    counts = ",".join(map(str, DRAFTS))
    lines = bench(args, [], "--draft", "tiny", "--draft-tokens", counts, "-n", 128, "--rounds", args.rounds, ids=ids)
    rounds("tiny", level, lines, DRAFTS)
    for kind in sorted({prompt.get("kind", "any") for prompt in prompts}):
        part = [l for l in lines if l["draft_tokens"] == 4 and prompts[l["prompt"]].get("kind", "any") == kind]
        note("tiny.tokens_per_round.%s" % kind, total(part, "n") / total(part, "passes"), "tokens", 5)
    limit(args, "tiny", [])


def limit(args, name, place):
    """Share of the byte limit that plain decoding reaches."""
    read, rate = found("read.gb_per_s"), found("%s.plain_tokens_per_s" % name)
    if read:
        share = rate * bytes_read(args, place) / (read * 1e9)
        note("%s.decode_share_of_limit" % name, share, "of reading every weight once")


def made_up(args, level, name, shape, n, counts):
    place = ["--shape", shape, "--random-weights", 7]
    words = ["--draft", shape + "-assistant", "--draft-tokens", ",".join(map(str, counts)), "--ignore-eos"]
    rounds(name, level, bench(args, place, *words, "-n", n, "--rounds", 3), counts)
    limit(args, name, ["--shape", shape])


def first_token(args):
    """Milliseconds to the first token of long prompts, bench-300m."""
    for tokens in (2000, 16000):
        ids = [[2 + (i * 7919) % 60000 for i in range(tokens)]]
        lines = bench(args, ["--shape", "bench-300m", "--random-weights", 7], "-n", 2, "--rounds", 2, "--ignore-eos", ids=ids)
        times = [line["first_s"] * 1e3 for line in lines]
        note("ttft_ms.%d" % tokens, statistics.median(times), "ms", spread=times)


def slices(args):
    """One layer of each kind of the published sizes, with a small vocabulary: time a token against its bytes."""
    for shape in ("gemma4-e2b", "gemma4-12b", "gemma4-26b-a4b", "gemma4-31b"):
        config = json.loads(call([args.binary, "inspect", "--shape", shape, "--config"]))
        text = config.get("text_config", config)
        text.update(num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"], num_kv_shared_layers=0, vocab_size=16384)
        if text.get("vocab_size_per_layer_input"):
            text["vocab_size_per_layer_input"] = 16384
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "config.json"), "w") as f:
                json.dump(config, f)
            name = "slice." + shape
            lines = bench(args, [folder, "--random-weights", 7], "-n", 24, "--rounds", 3, "--ignore-eos")
            rates = [line["n"] / line["decode_s"] for line in lines]
            note("%s.plain_tokens_per_s" % name, statistics.median(rates), "tokens/s", spread=rates)
            note("%s.ms_per_layer" % name, 500 / statistics.median(rates), "ms, head of 16,384 tokens included")
            limit(args, name, [folder])


def main():
    ap = argparse.ArgumentParser()
    for name in ("--binary", "--benches", "--prompts", "--out"):
        ap.add_argument(name, required=True)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--reps", type=int, default=24)
    ap.add_argument("--commit", default="")
    ap.add_argument("--skip", default="", help="parts to leave out, with commas: linear, attend, ops, choose, tiny, bench300m, e2b, ttft, slices")
    args = ap.parse_args()
    skip = args.skip.split(",")
    level = re.search(r"^level +(\S+)", call([args.binary, "inspect"]), re.M).group(1)
    parts = {
        "linear": lambda: kernel_bench(args, "linear", "--threads", args.threads, "--reps", args.reps),
        "attend": lambda: kernel_bench(args, "attend", "--threads", args.threads, "--reps", args.reps),
        "ops": lambda: kernel_bench(args, "ops"),
        "choose": lambda: kernel_bench(args, "choose"),
        "tiny": lambda: tiny(args, level),
        "bench300m": lambda: made_up(args, level, "bench300m", "bench-300m", 48, (1, 4, 7, 15)),
        "e2b": lambda: made_up(args, level, "e2b", "gemma4-e2b", 16, (4, 7, 15)),
        "ttft": lambda: first_token(args),
        "slices": lambda: slices(args),
    }
    for name, part in parts.items():
        if name not in skip:
            part()
    command = "bench/machine.py --threads %d --rounds %d --reps %d, level %s" % (args.threads, args.rounds, args.reps, level)
    save(args.out, command, figures, args.commit)


if __name__ == "__main__":
    main()
