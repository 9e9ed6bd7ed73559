#!/usr/bin/env python3
"""What loading a sharded checkpoint costs in memory, beside its packed weights.

    bench/load_memory.py --binary target/release/paceline [--size 2.0] [--shape gemma4-12b] [--rounds 3] [--out FILE.json]

Writes a made-up checkpoint of about SIZE gigabytes: the last layers of a published dense size, in shards with an index, in a temporary
folder that goes again. Runs the program on it and watches, every 2 ms until the program ends, how much memory that no file backs
(RssAnon) and how much in all (VmRSS, with those pages of the mapped shards that it has not let go of) the process has. The figures
that count are the largest of both over the bytes of the packed weights; K/V of 256 tokens and all buffers are in them. Linux only.
"""
import argparse
import json
import subprocess
import tempfile
import time

from made_up import n_bytes, tensors, write
from record import figure, save

LIMIT = 1.25
SHARD_BYTES = 450_000_000
VOCABULARY = 65_536
CONTEXT = 256


def cut(config, size):
    """The config with a small vocabulary and as many of its last layers as come nearest to `size` bytes."""
    assert not config["hidden_size_per_layer_input"], "a dense shape is needed"
    kinds = config["layer_types"]

    def slice_of(n):
        return dict(config, vocab_size=VOCABULARY, vocab_size_per_layer_input=VOCABULARY, num_hidden_layers=n, layer_types=kinds[-n:])

    return min((slice_of(n) for n in range(1, len(kinds) + 1)), key=lambda c: abs(size - sum(n_bytes(s) for _, s in tensors(c))))


def resident(pid):
    """Bytes of RssAnon and of VmRSS; nothing once the process has ended."""
    try:
        with open("/proc/%d/status" % pid) as f:
            fields = dict(line.split(":", 1) for line in f)
        return [int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "VmRSS")]
    except (OSError, KeyError):
        return None


def watch(command):
    """Runs the program; its largest RssAnon and VmRSS, and what it printed."""
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True)
        most = [0, 0]
        while process.poll() is None:
            now = resident(process.pid)
            if now:
                most = [max(pair) for pair in zip(most, now)]
            time.sleep(0.002)
        if process.returncode:
            raise SystemExit("%s ended with %d: %s" % (command[0], process.returncode, process.stderr.read()))
        process.stderr.close()
        out.seek(0)
        return most, json.loads(out.read().splitlines()[-1])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--binary", required=True)
    ap.add_argument("--size", type=float, default=2.0, help="gigabytes")
    ap.add_argument("--shape", default="gemma4-12b")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--temp", help="folder for the checkpoint; must not be in memory itself")
    ap.add_argument("--out")
    args = ap.parse_args()
    printed = subprocess.run([args.binary, "inspect", "--shape", args.shape, "--config"], capture_output=True, text=True, check=True).stdout
    config = cut(json.loads(printed), args.size * 1e9)
    with tempfile.TemporaryDirectory(dir=args.temp) as folder:
        weights, n_shards = write(folder, config, SHARD_BYTES)
        print("%s, %d layers: %.3f GB in %d shards" % (args.shape, config["num_hidden_layers"], weights / 1e9, n_shards), flush=True)
        command = [args.binary, "run", folder, "--token-ids", "2,100,200,300", "-n", "4", "--ignore-eos", "--context", str(CONTEXT),
                   "--threads", str(args.threads), "--json"]
        anon, resident_, loads = [], [], []
        for r in range(args.rounds):
            (most_anon, most_resident), report = watch(command)
            anon.append(most_anon)
            resident_.append(most_resident)
            loads.append(report["timings"]["load_ms"])
            print("round %d: %.3f GB anonymous, %.3f of the weights; %.3f GB in all, %.3f of the weights; loaded in %.0f ms"
                  % (r + 1, most_anon / 1e9, most_anon / weights, most_resident / 1e9, most_resident / weights, loads[-1]), flush=True)
    ratios = [most / weights for most in resident_]
    figures = [
        figure("load_memory.anonymous_over_weights", [most / weights for most in anon], "ratio", LIMIT),
        figure("load_memory.resident_over_weights", ratios, "ratio", LIMIT),
        figure("load_memory.anonymous_bytes", anon, "bytes", round(LIMIT * weights)),
        figure("load_memory.resident_bytes", resident_, "bytes"),
        figure("load_memory.weight_bytes", [weights], "bytes"),
        figure("load_memory.load_ms", loads, "ms"),
    ]
    if args.out:
        save(args.out, "bench/load_memory.py --size %g --shape %s --rounds %d: %d layers in %d shards, %d threads"
             % (args.size, args.shape, args.rounds, config["num_hidden_layers"], n_shards, args.threads), figures)
    if max(ratios) > LIMIT:
        raise SystemExit("more than %g times the weights" % LIMIT)


if __name__ == "__main__":
    main()
