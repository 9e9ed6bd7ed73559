#!/usr/bin/env python3
"""What loading a sharded checkpoint costs in memory, beside its packed weights.

    bench/load_memory.py --binary target/release/paceline [--size 2.0] [--shape gemma4-12b] [--rounds 3] [--out FILE.json]

Writes a made-up checkpoint of about SIZE gigabytes: the last layers of a published dense size, in shards with an index, in a temporary
folder that goes again. Runs the program on it and watches, every 2 ms until the program ends, how much memory that no file backs
(RssAnon) and how much in all (VmRSS, with those pages of the mapped shards that it has not let go of) the process has. The figures
that count are the largest of both over the bytes of the packed weights; K/V of 256 tokens and all buffers are in them. Linux only.
"""
import argparse
import datetime
import json
import os
import random
import statistics
import struct
import subprocess
import tempfile
import time

LIMIT = 1.25
SHARD_BYTES = 450_000_000
VOCABULARY = 65_536
CONTEXT = 256


def tensors(config):
    """Names and shapes of a dense checkpoint, in order."""
    hidden, width, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    yield "model.embed_tokens.weight", [config["vocab_size"], hidden]
    for i, kind in enumerate(config["layer_types"]):
        full = kind == "full_attention"
        head = config["global_head_dim"] if full else config["head_dim"]
        kv_heads = config["num_global_key_value_heads"] if full else config["num_key_value_heads"]
        layer = "model.layers.%d." % i
        yield layer + "layer_scalar", [1]
        for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            yield layer + norm + "_layernorm.weight", [hidden]
        for name, shape in [("q_proj", [heads * head, hidden]), ("k_proj", [kv_heads * head, hidden]), ("v_proj", [kv_heads * head, hidden]),
                            ("o_proj", [hidden, heads * head]), ("q_norm", [head]), ("k_norm", [head])]:
            if not (full and config["attention_k_eq_v"] and name == "v_proj"):
                yield layer + "self_attn." + name + ".weight", shape
        for name, shape in [("gate_proj", [width, hidden]), ("up_proj", [width, hidden]), ("down_proj", [hidden, width])]:
            yield layer + "mlp." + name + ".weight", shape
    yield "model.norm.weight", [hidden]


def n_bytes(shape):
    n = 2
    for side in shape:
        n *= side
    return n


def cut(config, size):
    """The config with a small vocabulary and as many of its last layers as come nearest to `size` bytes."""
    assert not config["enable_moe_block"] and not config["hidden_size_per_layer_input"], "a dense shape is needed"
    kinds = config["layer_types"]

    def slice_of(n):
        return dict(config, vocab_size=VOCABULARY, vocab_size_per_layer_input=VOCABULARY, num_hidden_layers=n, layer_types=kinds[-n:])

    return min((slice_of(n) for n in range(1, len(kinds) + 1)), key=lambda c: abs(size - sum(n_bytes(s) for _, s in tensors(c))))


def write(folder, config):
    """Writes config, shards and index; returns the bytes of all tensors and the number of shards."""
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    shards, total = [[]], 0
    for name, shape in tensors(config):
        if shards[-1] and sum(n_bytes(s) for _, s in shards[-1]) + n_bytes(shape) > SHARD_BYTES:
            shards.append([])
        shards[-1].append((name, shape))
        total += n_bytes(shape)
    seeded = random.Random(7)
    values = b"".join(struct.pack("<f", seeded.gauss(0, 0.02))[2:] for _ in range(1 << 18))
    weight_map = {}
    for i, shard in enumerate(shards):
        file, header, at = "model-%05d-of-%05d.safetensors" % (i + 1, len(shards)), {}, 0
        for name, shape in shard:
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n_bytes(shape)]}
            at += n_bytes(shape)
            weight_map[name] = file
        text = json.dumps(header).encode()
        with open(os.path.join(folder, file), "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for left in range(at, 0, -len(values)):
                f.write(values[:left])
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f)
    return total, len(shards)


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


def figure(name, values, unit, limit=None):
    parts = {"name": name, "value": statistics.median(values), "unit": unit, "min": min(values), "max": max(values)}
    rounded = {key: round(part, 4) if isinstance(part, float) else part for key, part in parts.items()}
    return dict(rounded, limit=limit) if limit else rounded


def processor():
    with open("/proc/cpuinfo") as f:
        return next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), os.uname().machine)


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
        weights, n_shards = write(folder, config)
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
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        result = {"date": datetime.date.today().isoformat(), "machine": "%d cores, %s" % (os.cpu_count(), processor()), "commit": commit,
                  "command": "bench/load_memory.py --size %g --shape %s --rounds %d: %d layers in %d shards, %d threads"
                             % (args.size, args.shape, args.rounds, config["num_hidden_layers"], n_shards, args.threads),
                  "figures": figures}
        with open(args.out, "w") as f:
            json.dump(result, f, indent=1)
            f.write("\n")
    if max(ratios) > LIMIT:
        raise SystemExit("more than %g times the weights" % LIMIT)


if __name__ == "__main__":
    main()
