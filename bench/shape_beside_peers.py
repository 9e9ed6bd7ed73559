#!/usr/bin/env python3
"""Paceline beside other engines on a model that lives in memory, not in the caches, with made-up weights, in one run.

    bench/shape_beside_peers.py --binary target/release/paceline --linear target/release/deps/linear-... --python VENV/bin/python
                                --converter convert_hf_to_gguf.py --dir DIR --out FILE.json

Writes the checkpoint into DIR, and what llama.cpp's CONVERTER makes of it, each once: 900 MB each. VENV has the engines. All get the same
ids and give as many tokens as PEERS says, whatever they are; Paceline as many as most. Rates are tokens after the first by their seconds.
Rounds go over all engines in turn, each a new process that first makes a text to warm up, so that slow phases of the machine fall on
all of them. Three rounds take a minute and a half.

The limit is reading every weight that a token needs once, at the bandwidth of plain reading, which the kernels' bench `linear` (built by
`cargo bench -p paceline-kernels --bench linear --no-run`) finds in each round.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from made_up import write
from record import figure, save

SHAPE = "bench-300m"
THREADS = 2
TOKENIZER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "assets", "tiny-gemma4")
# "Tell me a short story about a fox.", with <bos>.
PROMPT = [2, 845, 473, 369, 868, 597, 509, 369, 1160, 286]
WARM_UP = 4
# Rows of the made-up table until they repeat (`made_up.py` has 2^18 numbers, a row takes 1,024).
REPEAT = 256
UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9}


# One function for each engine: its rate in tokens/s, and the ids.

def transformers(args):
    import torch
    from transformers import Gemma4ForCausalLM
    torch.set_num_threads(THREADS)
    model = Gemma4ForCausalLM.from_pretrained(args.folder, dtype=torch.bfloat16)
    times = []

    class Clock:
        def put(self, _):
            times.append(time.perf_counter())

        def end(self):
            pass

    x = torch.tensor([PROMPT])
    for n in (WARM_UP, args.tokens):
        times.clear()
        ids = model.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=n, min_new_tokens=n, do_sample=False, streamer=Clock())
        # The first call is for the prompt.
        assert len(times) == n + 1, len(times)
    return (args.tokens - 1) / (times[-1] - times[1]), ids[0, len(PROMPT):].tolist()


def llamacpp(args):
    import urllib.request
    import xllamacpp
    p = xllamacpp.CommonParams()
    p.model.path = args.gguf
    p.n_ctx, p.n_parallel, p.n_gpu_layers, p.verbosity = 1024, 1, 0, -1
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = THREADS
    server = xllamacpp.Server(p)
    for n in (WARM_UP, args.tokens):
        body = {"prompt": PROMPT, "n_predict": n, "temperature": 0, "cache_prompt": False, "return_tokens": True, "ignore_eos": True}
        request = urllib.request.Request(server.listening_address + "/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
        answer = json.load(urllib.request.urlopen(request))
        timings = answer["timings"]
        assert (timings["prompt_n"], timings["predicted_n"]) == (len(PROMPT), n), timings
    return (args.tokens - 1) / timings["predicted_ms"] * 1e3, answer["tokens"]


def mlx_vlm(args):
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_vlm.generate.ar import generate_step
    from mlx_vlm.models.gemma4 import Model, ModelConfig, TextConfig, VisionConfig
    mx.set_default_device(mx.cpu)
    with open(os.path.join(args.folder, "config.json")) as f:
        text = TextConfig.from_dict(json.load(f))
    # It has no model of text alone: a tower of no layers.
    vision = VisionConfig.from_dict({"num_hidden_layers": 0, "hidden_size": 64, "intermediate_size": 64})
    model = Model(ModelConfig(text_config=text, vision_config=vision, model_type="gemma4", vocab_size=text.vocab_size, eos_token_id=[]))
    weights = {"language_model." + name: value for name, value in mx.load(os.path.join(args.folder, "model.safetensors")).items()}
    # Of the layers that share K/V it has projections that no checkpoint has.
    assert weights.keys() <= {name for name, _ in tree_flatten(model.parameters())}
    model.load_weights(list(weights.items()), strict=False)
    model.set_dtype(mx.bfloat16)
    model.eval()
    for n in (WARM_UP, args.tokens):
        steps = generate_step(mx.array([PROMPT]), model, None, None, max_tokens=n, temperature=0.0)
        ids, times = zip(*((int(token), time.perf_counter()) for token, _ in steps))
        assert len(times) == n, len(times)
    return (args.tokens - 1) / (times[-1] - times[0]), ids


# With the number of tokens: fewer where each takes a third of a second. mistral.rs is left out: slower yet.
PEERS = {"llamacpp": (llamacpp, 64), "transformers": (transformers, 64), "mlx-vlm": (mlx_vlm, 8)}


def peer(args, name):
    """One round of a peer, in a process of its own."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as f:
        words = [args.python, os.path.abspath(__file__), "--worker", name, "--folder", args.folder, "--gguf", args.gguf,
                 "--tokens", str(PEERS[name][1]), "--out", f.name]
        threads = {"%s_NUM_THREADS" % library: str(THREADS) for library in ("OMP", "OPENBLAS", "MKL")}
        done = subprocess.run(words, capture_output=True, text=True, env=dict(os.environ, HF_HUB_OFFLINE="1", **threads))
        text = f.read()
    if not text:
        sys.exit("%s: exit %d: %s" % (name, done.returncode, done.stderr[-2000:]))
    return json.loads(text)


def work():
    """What `peer` starts."""
    ap = argparse.ArgumentParser()
    for option in ("--worker", "--folder", "--gguf", "--out"):
        ap.add_argument(option, required=True)
    ap.add_argument("--tokens", type=int, required=True)
    args = ap.parse_args()
    made = PEERS[args.worker][0](args)
    with open(args.out, "w") as f:
        json.dump(made, f)
    os._exit(0)  # Some engines hang in their own clean-up.


def ours(args):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        f.write(json.dumps({"token_ids": PROMPT}) + "\n")
        f.flush()
        tokens = max(tokens for _, tokens in PEERS.values())
        words = [args.binary, "bench", args.folder, "--prompts-file", f.name, "-n", str(tokens), "--rounds", "1", "--ignore-eos",
                 "--threads", str(THREADS), "--json"]
        line = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    assert line["n"] == tokens - 1, line["n"]
    return line["n"] / line["decode_s"], line["token_ids"]


def bandwidth(args):
    """GB/s of plain reading."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as f:
        words = [args.linear, "--threads", str(THREADS), "--reps", "5", "--megabytes", "600", "--json", f.name]
        subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
        return json.load(f)["read.gb_per_s"]


def bytes_read(args):
    """Bytes of weights that a token reads, as `inspect` counts them."""
    for line in subprocess.run([args.binary, "inspect", args.folder], capture_output=True, text=True, check=True).stdout.splitlines():
        if line.split()[:1] == ["all"]:
            return float(line.split()[-2]) * UNITS[line.split()[-1]]
    raise ValueError("`inspect` has no line `all`")


def prepare(args):
    """The checkpoint and llama.cpp's form of it, unless they are there."""
    args.folder, args.gguf = os.path.join(args.dir, SHAPE), os.path.join(args.dir, SHAPE + ".gguf")
    if not os.path.exists(os.path.join(args.folder, "model.safetensors")):
        os.makedirs(args.folder, exist_ok=True)
        printed = subprocess.run([args.binary, "inspect", "--shape", SHAPE, "--config"], capture_output=True, text=True, check=True).stdout
        config = json.loads(printed)
        # llama.cpp takes the K/V of shared layers from the last two layers that have their own, whatever their kinds: the last must
        # be a full one, as in published models. The kinds of two neighbours are swapped, which changes no count of anything.
        kinds, last = config["layer_types"], config["num_hidden_layers"] - config["num_kv_shared_layers"] - 1
        kinds[last - 1], kinds[last] = kinds[last], kinds[last - 1]
        assert (kinds[last - 1], kinds[last]) == ("sliding_attention", "full_attention"), kinds
        for name in ("tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
            shutil.copy(os.path.join(TOKENIZER, name), args.folder)
        with open(os.path.join(TOKENIZER, "tokenizer.json")) as f:
            tokenizer = json.load(f)
        # The converter cuts the table, and so the head, to the tokens that there are.
        vocabulary = tokenizer["model"]["vocab"]
        vocabulary.update(("<unused%d>" % i, i) for i in range(len(vocabulary), config["vocab_size"]))
        with open(os.path.join(args.folder, "tokenizer.json"), "w") as f:
            json.dump(tokenizer, f)
        write(args.folder, config)
    if not os.path.exists(args.gguf):
        subprocess.run([args.python, args.converter, args.folder, "--outfile", args.gguf, "--outtype", "bf16"], check=True, stdout=subprocess.DEVNULL)


def agreeing(ids, other):
    """How many tokens begin both texts. Rows of the made-up table repeat, so that tokens tie, of which each engine takes another."""
    return next((i for i, (a, b) in enumerate(zip(ids, other)) if (a - b) % REPEAT), min(len(ids), len(other)))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--binary", "--linear", "--python", "--converter", "--dir", "--out"):
        ap.add_argument(name, required=True)
    ap.add_argument("--rounds", type=int, default=3)
    args = ap.parse_args()
    prepare(args)
    rounds = []
    for _ in range(args.rounds):
        made = {"paceline": ours(args), **{name: peer(args, name) for name in PEERS}}
        rounds.append({"read": bandwidth(args), "made": made})
        print("round", len(rounds), "%.1f GB/s" % rounds[-1]["read"], {name: round(rate, 1) for name, (rate, _) in made.items()}, flush=True)
    read, plain = [r["read"] for r in rounds], [r["made"]["paceline"][0] for r in rounds]
    limit = statistics.median(read) * 1e9 / bytes_read(args)
    figures = [figure("read.gb_per_s", read, "GB/s"), figure("bench300m.plain_tokens_per_s", plain, "tokens/s", limit)]
    for name in PEERS:
        rates = [r["made"][name][0] for r in rounds]
        figures.append(figure("peer.%s.plain_tokens_per_s" % name, rates, "tokens/s", limit))
        figures.append(figure("bench300m.plain_over_%s" % name.replace("-", "_"), [a / b for a, b in zip(plain, rates)], "ratio"))
        same = [agreeing(r["made"]["paceline"][1], r["made"][name][1]) for r in rounds]
        figures.append(figure("peer.%s.same_tokens" % name, same, "tokens that begin the text alike", PEERS[name][1]))
    tokens = ", ".join("%s %d" % (name, tokens) for name, (_, tokens) in PEERS.items())
    save(args.out, "bench/shape_beside_peers.py --rounds %d: new tokens %s; greedy, bf16, %d threads" % (len(rounds), tokens, THREADS), figures)
    for f in figures:
        print("%-40s %10.2f (%.2f to %.2f) %s" % (f["name"], f["value"], f["min"], f["max"], f["unit"]))


if __name__ == "__main__":
    work() if sys.argv[1:2] == ["--worker"] else main()
