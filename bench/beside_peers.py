#!/usr/bin/env python3
"""Paceline beside other engines on the tiny pair, in one run.

    bench/beside_peers.py --binary target/release/paceline --peers PEERS --python VENV/bin/python --models DIR --out FILE.json

PEERS is a folder with `run.py` (one engine and mode on 20 prompts, one JSON line a text) and `prompts.json`; VENV and DIR are what its
`setup.sh` makes. Rounds go over all engines in turn, each a new process, so that slow phases of the machine fall on all of them.
Rates are tokens after the first by their seconds; a figure is the median over the rounds of (all tokens / all seconds).
"""
import argparse
import json
import os
import subprocess
import tempfile

from record import figure, save

K = 4
NEW = 128
MODES = [("xllamacpp", "bf16/plain"), ("xllamacpp", "bf16/mtp"), ("transformers", "bf16/plain"), ("transformers", "bf16/mtp"), ("mistralrs", "f32/plain"),
         ("mistralrs", "bf16/plain"), ("mlx-vlm", "bf16/plain")]


def prompts(args):
    """The peers' prompts as token ids, by the peers' own tokenizer."""
    code = "import json, run; print(json.dumps(run.load_prompts()[0]))"
    done = subprocess.run([args.python, "-c", code], cwd=args.peers, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def ours(args, asked):
    """One round of `paceline bench`: {way: rate}, tokens a pass of the drafted way, and the texts by prompt."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        for _, ids in asked:
            f.write(json.dumps({"token_ids": ids}) + "\n")
        f.flush()
        command = [args.binary, "bench", "--draft", args.assistant, "--draft-tokens", str(K), "--prompts-file", f.name, "-n", str(NEW),
                   "--rounds", "3", "--threads", "2", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    rates = {}
    for drafted in (False, True):
        part = [line for line in lines if line["drafted"] == drafted]
        rates[drafted] = sum(line["n"] for line in part) / sum(line["decode_s"] for line in part)
    drafted = [line for line in lines if line["drafted"]]
    return rates, drafted


def theirs(args, engine, mode):
    """One round of a peer's mode: its rate."""
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as f:
        command = [args.python, "run.py", "--dir", args.models, "--engine", engine, "--mode", mode, "--out", f.name]
        subprocess.run(command, cwd=args.peers, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        lines = [json.loads(line) for line in f]
    texts = [line for line in lines if line.get("n") and line.get("decode_s")]
    return sum(line["n"] for line in texts) / sum(line["decode_s"] for line in texts)


def main():
    ap = argparse.ArgumentParser()
    for name in ("--binary", "--peers", "--python", "--models", "--assistant", "--out"):
        ap.add_argument(name, required=True)
    ap.add_argument("--rounds", type=int, default=3)
    args = ap.parse_args()
    for name in ("binary", "peers", "python", "models", "assistant", "out"):
        # Not resolved: a virtual environment's python is a link.
        setattr(args, name, os.path.abspath(getattr(args, name)))
    asked = prompts(args)
    plain, drafted, peers, per_pass = [], [], {}, []
    for r in range(args.rounds):
        rates, lines = ours(args, asked)
        plain.append(rates[False])
        drafted.append(rates[True])
        per_pass.append(sum(line["n"] for line in lines) / sum(line["passes"] for line in lines))
        for engine, mode in MODES:
            peers.setdefault((engine, mode), []).append(theirs(args, engine, mode))
        print("round", r + 1, {True: "drafted", False: "plain"}, {k: round(v) for k, v in rates.items()},
              {"/".join(k): round(v[-1]) for k, v in peers.items()}, flush=True)

    def over(ours_, key):
        return [a / b for a, b in zip(ours_, peers[key])]

    figures = [
        figure("tiny.plain_tokens_per_s", plain, "tokens/s"),
        figure("tiny.drafted_tokens_per_s", drafted, "tokens/s"),
        figure("tiny.tokens_per_pass", per_pass, "tokens"),
        figure("tiny.plain_over_llamacpp", over(plain, ("xllamacpp", "bf16/plain")), "ratio"),
        figure("tiny.plain_over_transformers", over(plain, ("transformers", "bf16/plain")), "ratio"),
        figure("tiny.plain_over_mistralrs", over(plain, ("mistralrs", "f32/plain")), "ratio, its f32, which is its faster form"),
        figure("tiny.plain_over_mlx_vlm", over(plain, ("mlx-vlm", "bf16/plain")), "ratio"),
        figure("tiny.drafted_over_plain", [a / b for a, b in zip(drafted, plain)], "ratio"),
        figure("tiny.drafted_over_llamacpp_drafted", over(drafted, ("xllamacpp", "bf16/mtp")), "ratio"),
        figure("tiny.drafted_over_transformers_drafted", over(drafted, ("transformers", "bf16/mtp")), "ratio"),
    ]
    figures += [figure("peer.%s.%s" % (engine, mode.replace("/", ".")), values, "tokens/s") for (engine, mode), values in peers.items()]
    command = "bench/beside_peers.py --rounds %d, 20 prompts of at most %d new tokens, greedy, bf16, 2 threads, K = %d" % (args.rounds, NEW, K)
    save(args.out, command, figures)
    for f in figures:
        print("%-40s %10.2f (%.2f to %.2f) %s" % (f["name"], f["value"], f["min"], f["max"], f["unit"]))


if __name__ == "__main__":
    main()
