"""Checkpoints with made-up weights, as files: for what can be measured with them only, and for other engines."""
import json
import os
import random
import struct


def tensors(config):
    """Names and shapes of a Gemma 4 text checkpoint without experts, in order."""
    hidden, heads, per_layer = config["hidden_size"], config["num_attention_heads"], config["hidden_size_per_layer_input"]
    kinds, n_layers = config["layer_types"], config["num_hidden_layers"]
    assert not config["enable_moe_block"], "a shape without experts is needed"
    yield "model.embed_tokens.weight", [config["vocab_size"], hidden]
    if per_layer:
        yield "model.embed_tokens_per_layer.weight", [config["vocab_size_per_layer_input"], n_layers * per_layer]
        yield "model.per_layer_model_projection.weight", [n_layers * per_layer, hidden]
        yield "model.per_layer_projection_norm.weight", [per_layer]
    first_shared = n_layers - config["num_kv_shared_layers"]
    for i, kind in enumerate(kinds):
        full, shared = kind == "full_attention", i >= first_shared
        head = config["global_head_dim"] if full else config["head_dim"]
        kv_heads = (config["num_global_key_value_heads"] if full else None) or config["num_key_value_heads"]
        width = config["intermediate_size"] * (2 if shared and config["use_double_wide_mlp"] else 1)
        layer = "model.layers.%d." % i
        yield layer + "layer_scalar", [1]
        for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            yield layer + norm + "_layernorm.weight", [hidden]
        attention = [("q_proj", [heads * head, hidden]), ("o_proj", [hidden, heads * head]), ("q_norm", [head])]
        if not shared:
            attention += [("k_proj", [kv_heads * head, hidden]), ("k_norm", [head])]
            if not (full and config["attention_k_eq_v"]):
                attention.append(("v_proj", [kv_heads * head, hidden]))
        for name, shape in attention:
            yield layer + "self_attn." + name + ".weight", shape
        for name, shape in [("gate_proj", [width, hidden]), ("up_proj", [width, hidden]), ("down_proj", [hidden, width])]:
            yield layer + "mlp." + name + ".weight", shape
        if per_layer:
            yield layer + "per_layer_input_gate.weight", [per_layer, hidden]
            yield layer + "per_layer_projection.weight", [hidden, per_layer]
            yield layer + "post_per_layer_input_norm.weight", [hidden]
    yield "model.norm.weight", [hidden]


def n_bytes(shape):
    n = 2
    for side in shape:
        n *= side
    return n


def write(folder, config, shard_bytes=None):
    """Writes config and weights, in shards with an index where `shard_bytes` says so; the bytes of all tensors and the number of shards."""
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    shards, total = [[]], 0
    for name, shape in tensors(config):
        if shard_bytes and shards[-1] and sum(n_bytes(s) for _, s in shards[-1]) + n_bytes(shape) > shard_bytes:
            shards.append([])
        shards[-1].append((name, shape))
        total += n_bytes(shape)
    seeded = random.Random(7)
    normal = [seeded.gauss(0, 0.02) for _ in range(1 << 18)]

    def values(mean):
        return b"".join(struct.pack("<f", mean + value)[2:] for value in normal)

    weights, scales, weight_map = values(0), values(1), {}
    for i, shard in enumerate(shards):
        file, header, at = "model-%05d-of-%05d.safetensors" % (i + 1, len(shards)) if shard_bytes else "model.safetensors", {}, 0
        for name, shape in shard:
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n_bytes(shape)]}
            at += n_bytes(shape)
            weight_map[name] = file
        header["__metadata__"] = {"format": "pt"}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(folder, file), "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for name, shape in shard:
                part = scales if "norm" in name or name.endswith("scalar") else weights
                # A start of its own for each tensor, so that no two are the same.
                start = 2 * seeded.randrange(len(normal))
                left = n_bytes(shape)
                while left:
                    piece = part[start:start + left]
                    f.write(piece)
                    left, start = left - len(piece), 0
    if shard_bytes:
        with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
            json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f)
    return total, len(shards)
