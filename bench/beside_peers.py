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

from record import figure, rate, save

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
    """One round of `paceline bench`: {drafted: rate}, lines of the drafted way, and how many texts are the plain ones."""
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
        rates[drafted] = rate(part)
    drafted = [line for line in lines if line["drafted"]]
    plain = {(line["prompt"], line["round"]): line["token_ids"] for line in lines if not line["drafted"]}
    differing = {line["prompt"] for line in drafted if line["token_ids"] != plain[line["prompt"], line["round"]]}
    return rates, drafted, len({line["prompt"] for line in drafted} - differing)


def theirs(args, asked, engine, mode):
    """One round of a peer's mode: its rate, and its texts by prompt."""
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as f:
        # In its round 1 `run.py` writes lines of slower plain runs, too, which ask for logits.
        command = [args.python, "run.py", "--dir", args.models, "--engine", engine, "--mode", mode, "--round", "2", "--out", f.name]
        subprocess.run(command, cwd=args.peers, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        lines = [json.loads(line) for line in f]
    texts = {line["prompt"]: line for line in lines if line.get("n") and line.get("decode_s")}
    assert texts.keys() == {name for name, _ in asked}, "%s %s: %d texts of %d: %s" % (engine, mode, len(texts), len(asked), lines[-1])
    return rate(texts.values()), {name: line["ids"] for name, line in texts.items()}


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
    plain, drafted, peers, per_pass, same, peers_same = [], [], {}, [], [], {}
    for r in range(args.rounds):
        rates, lines, alike = ours(args, asked)
        same.append(alike)
        plain.append(rates[False])
        drafted.append(rates[True])
        per_pass.append(sum(line["n"] for line in lines) / sum(line["passes"] for line in lines))
        texts = {}
        for engine, mode in MODES:
            reached, texts[engine, mode] = theirs(args, asked, engine, mode)
            peers.setdefault((engine, mode), []).append(reached)
            if mode.endswith("/mtp"):
                plain_texts = texts[engine, mode.replace("/mtp", "/plain")]
                alike = sum(ids == plain_texts[name] for name, ids in texts[engine, mode].items())
                peers_same.setdefault((engine, mode), []).append(alike)
        print("round", r + 1, {True: "drafted", False: "plain"}, {k: round(v) for k, v in rates.items()},
              {"/".join(k): round(v[-1]) for k, v in peers.items()}, flush=True)

    def over(ours_, key):
        return [a / b for a, b in zip(ours_, peers[key])]

    figures = [
        figure("tiny.plain_tokens_per_s", plain, "tokens/s"),
        figure("tiny.drafted_tokens_per_s", drafted, "tokens/s"),
        figure("tiny.tokens_per_pass", per_pass, "tokens"),
        figure("tiny.same_texts", same, "texts drafted as plain", len(asked)),
        figure("tiny.plain_over_llamacpp", over(plain, ("xllamacpp", "bf16/plain")), "ratio"),
        figure("tiny.plain_over_transformers", over(plain, ("transformers", "bf16/plain")), "ratio"),
        figure("tiny.plain_over_mistralrs", over(plain, ("mistralrs", "f32/plain")), "ratio, its f32, which is its faster form"),
        figure("tiny.plain_over_mlx_vlm", over(plain, ("mlx-vlm", "bf16/plain")), "ratio"),
        figure("tiny.drafted_over_plain", [a / b for a, b in zip(drafted, plain)], "ratio"),
        figure("tiny.drafted_over_llamacpp_drafted", over(drafted, ("xllamacpp", "bf16/mtp")), "ratio"),
        figure("tiny.drafted_over_transformers_drafted", over(drafted, ("transformers", "bf16/mtp")), "ratio"),
    ]
    figures += [figure("peer.%s.%s" % (engine, mode.replace("/", ".")), values, "tokens/s") for (engine, mode), values in peers.items()]
    figures += [figure("peer.%s.%s.same_texts" % (engine, mode.replace("/", ".")), values, "texts drafted as plain", len(asked))
                for (engine, mode), values in peers_same.items()]
    command = "bench/beside_peers.py --rounds %d, 20 prompts of at most %d new tokens, greedy, bf16, 2 threads, K = %d" % (args.rounds, NEW, K)
    save(args.out, command, figures)
    for f in figures:
        print("%-40s %10.2f (%.2f to %.2f) %s" % (f["name"], f["value"], f["min"], f["max"], f["unit"]))


if __name__ == "__main__":
    main()
