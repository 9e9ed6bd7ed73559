#!/usr/bin/env python3
"""What each kind of drafter gains: on the tiny pair with its own drafts, on made-up weights with drafts of a stated quality.

    bench/simulated.py --binary target/release/paceline --prompts PROMPTS.jsonl --out FILE.json [--shape bench-300m] [--rounds N]

PROMPTS has a line `{"token_ids": [...]}` for each prompt to the tiny model. Made-up drafters draft nothing of use, so their drafts are
replaced (`paceline bench --draft-acceptance`) after they were made at their own cost. Plain and drafted answers alternate in one run. Limits:
tokens a round that such drafts give at most, `1 + p + ... + p^k`, and the same as a gain where drafting and further rows cost nothing.
"""
import argparse
import json
import subprocess
import sys

from record import figure, rate, save

ACCEPTANCES = (0.5, 0.7, 0.9)
TINY = [("assistant", "tiny", "2,4,7"), ("dflash", "tiny-dflash", "3,7"), ("ngram", "ngram", "4"), ("ngram,assistant", "ngram,tiny", "4")]
SHAPES = {"bench-300m": [("assistant", "bench-300m-assistant", "4,7"), ("dflash", "bench-300m-dflash", "7,15"), ("ngram", "ngram", "4,7")],
          "gemma4-e2b": [("assistant", "gemma4-e2b-assistant", "4"), ("ngram", "ngram", "4")]}


def bench(args, *words):
    command = [args.binary, "bench", "--threads", "2", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit("%s: exit %d: %s" % (" ".join(command), done.returncode, done.stderr))
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare(prefix, lines):
    """Figures of each way beside the plain one, round by round."""
    rounds = range(1 + max(line["round"] for line in lines))
    of_round = [[line for line in lines if line["round"] == r] for r in rounds]
    plain = [rate([line for line in part if not line["drafted"]]) for part in of_round]
    figures = [figure(prefix + ".plain.tokens_per_s", plain, "tokens/s")]
    ways = sorted({(line["draft_tokens"], line["draft_acceptance"]) for line in lines if line["drafted"]}, key=str)
    for k, right in ways:
        parts = [[line for line in part if line["drafted"] and (line["draft_tokens"], line["draft_acceptance"]) == (k, right)]
                 for part in of_round]
        rates = [rate(part) for part in parts]
        limit = None if right is None else sum(right**i for i in range(k + 1))
        name = "%s.k%d%s" % (prefix, k, "" if right is None else ".p%g" % right)
        figures += [
            figure(name + ".tokens_per_s", rates, "tokens/s"),
            figure(name + ".tokens_per_round", [sum(line["n"] for line in part) / sum(line["passes"] for line in part) for part in parts],
                   "tokens", limit),
            figure(name + ".over_plain", [drafted / alone for drafted, alone in zip(rates, plain)], "ratio", limit),
        ]
        print("%-42s %8.1f tokens/s, %.2f tokens a round, %.2f x plain%s" % (
            name, figures[-3]["value"], figures[-2]["value"], figures[-1]["value"], "" if limit is None else " of %.2f" % limit), flush=True)
    return figures


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--binary", "--prompts", "--out"):
        ap.add_argument(name, required=True)
    ap.add_argument("--shape", choices=SHAPES, action="append", help="may be given more than once; left out, bench-300m")
    ap.add_argument("--rounds", type=int, default=3)
    args = ap.parse_args()
    figures = []
    for name, drafter, counts in TINY:
        lines = bench(args, "--draft", drafter, "--draft-tokens", counts, "--prompts-file", args.prompts, "--rounds", str(args.rounds))
        figures += compare("tiny.%s" % name, lines)
    for shape in args.shape or ["bench-300m"]:
        tokens = "193" if shape == "bench-300m" else "33"
        for name, drafter, counts in SHAPES[shape]:
            lines = bench(args, "--shape", shape, "--random-weights", "7", "--draft", drafter, "--draft-tokens", counts, "-n", tokens,
                          "--draft-acceptance", ",".join(map(str, ACCEPTANCES)), "--rounds", str(args.rounds), "--ignore-eos")
            figures += compare("simulated.%s.%s" % (shape, name), lines)
    save(args.out, "bench/simulated.py --rounds %d, two threads" % args.rounds, figures)


if __name__ == "__main__":
    main()
