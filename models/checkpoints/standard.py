"""The layout that Llama introduced and most families share: config fields and names."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from models import transformer
from models.checkpoints import fields, hf, rope

ATTENTION = "layers.{i}.self_attn."
FEED_FORWARD = "layers.{i}.mlp."
OURS = "layer_{i}/attention/"
MLP = "layer_{i}/mlp/"

TOP = (
    hf.Entry("embedding/tokens", ("embed_tokens.weight",), hf.SAME),
    hf.Entry("embedding/head", ("/lm_head.weight",), hf.SAME),
    *hf.norm("embedding/norm", "norm"),
)
PROJECTIONS = (
    hf.Entry(
        OURS + "qkv",
        tuple(f"{ATTENTION}{x}_proj.weight" for x in "qkv"),
        hf.KERNEL_HEADS,
    ),
    hf.Entry(
        OURS + "qkv_bias", tuple(f"{ATTENTION}{x}_proj.bias" for x in "qkv"), hf.HEADS
    ),
    hf.Entry(OURS + "out", (ATTENTION + "o_proj.weight",), hf.KERNEL),
    hf.Entry(OURS + "out_bias", (ATTENTION + "o_proj.bias",), hf.SAME),
    *hf.norm(OURS + "q_norm", ATTENTION + "q_norm"),
    *hf.norm(OURS + "k_norm", ATTENTION + "k_norm"),
    hf.Entry(
        MLP + "up",
        (FEED_FORWARD + "gate_proj.weight", FEED_FORWARD + "up_proj.weight"),
        hf.KERNEL_PAIR,
    ),
    hf.Entry(
        MLP + "up_bias",
        (FEED_FORWARD + "gate_proj.bias", FEED_FORWARD + "up_proj.bias"),
        hf.PAIR,
    ),
    hf.Entry(MLP + "down", (FEED_FORWARD + "down_proj.weight",), hf.KERNEL),
    hf.Entry(MLP + "down_bias", (FEED_FORWARD + "down_proj.bias",), hf.SAME),
)
NORMS = (
    *hf.norm("layer_{i}/attention_norm", "layers.{i}.input_layernorm"),
    *hf.norm("layer_{i}/mlp_norm", "layers.{i}.post_attention_layernorm"),
)
ENTRIES = (*TOP, *NORMS, *PROJECTIONS)


def experts(
    router: str, expert: str, gate: str, up: str, down: str
) -> tuple[hf.Entry, ...]:
    """Return the entries of experts stored one by one, by names within a layer."""
    at = "layers.{i}." + expert
    pair = (f"{at}.{gate}.weight", f"{at}.{up}.weight")
    return (
        hf.Entry(MLP + "router", ("layers.{i}." + router + ".weight",), hf.KERNEL),
        hf.Entry(MLP + "experts_up", pair, hf.EXPERT_PAIRS),
        hf.Entry(MLP + "experts_down", (f"{at}.{down}.weight",), hf.EXPERTS),
    )


# As transformers of version 5 holds them: all experts of a layer in one tensor.
FUSED_EXPERTS = (
    hf.Entry(
        MLP + "experts_up",
        ("layers.{i}.mlp.experts.gate_up_proj",),
        hf.FUSED_EXPERT_PAIRS,
    ),
    hf.Entry(
        MLP + "experts_down", ("layers.{i}.mlp.experts.down_proj",), hf.FUSED_EXPERTS
    ),
)
# Buffers that old versions of transformers stored with the weights.
BUFFERS = ("*rotary_emb.inv_freq",)


def read(f: fields.Fields, theta: float = 10000.0, **changes: Any) -> hf.Config:
    """Read a Config from the common fields; `changes` are the family's own."""
    out = {**shape(f), **changes}
    raw = rope.parameters(f, theta)
    spun = rope.build(raw, out["head_dim"], out["max_positions"], f.where)
    return transformer.Config(**{"ropes": (spun,), **out})


def shape(f: fields.Fields, **defaults: Any) -> dict[str, Any]:
    """Read the fields of every family but GPT-2 and OPT; ConfigError if some lack."""

    def integer(name: str, default: Any = fields.MISSING) -> int:
        return f.integer(name, defaults.get(name, default))

    d_model, n_heads = integer("hidden_size"), integer("num_attention_heads")
    out: dict[str, Any] = {
        "vocab_size": integer("vocab_size"),
        "d_model": d_model,
        "n_layers": integer("num_hidden_layers"),
        "n_heads": n_heads,
        "n_kv_heads": integer("num_key_value_heads", n_heads),
        "head_dim": integer("head_dim", d_model // n_heads),
        "d_ff": integer("intermediate_size"),
        "max_positions": integer("max_position_embeddings"),
        "norm_eps": f.number("rms_norm_eps", defaults.get("rms_norm_eps", 1e-6)),
        "tied": f.flag("tie_word_embeddings", defaults.get("tied", False)),
    }
    f.complete()
    if "hidden_act" in f.data:
        out["activation"] = f.choice("hidden_act", fields.ACTIVATIONS, "silu")
    return out


def layer(c: hf.Config, i: int, **changes: Any) -> transformer.LayerShape:
    """Return the shape of a layer with some of its fields changed."""
    return dataclasses.replace(c.layer(i), **changes)


def shaped(c: hf.Config, shapes: Sequence[transformer.LayerShape]) -> hf.Config:
    """Return a config whose layer i has `shapes[i]`."""
    every = tuple(dict.fromkeys(shapes))
    kinds = tuple(every.index(shape) for shape in shapes)
    return dataclasses.replace(c, windows=(), rope_of=(), shapes=every, kinds=kinds)


def write(c: hf.Config, **fields_of_family: Any) -> dict[str, Any]:
    """Return the common fields of config.json, in the spellings of both versions."""
    return {**dims(c), **rope.spellings(c.ropes[0]), **fields_of_family}


def dims(c: hf.Config) -> dict[str, Any]:
    """Return the fields of config.json that `shape` reads."""
    activations = {"gelu_tanh": "gelu_pytorch_tanh"}
    return {
        "vocab_size": c.vocab_size,
        "hidden_size": c.d_model,
        "num_hidden_layers": c.n_layers,
        "num_attention_heads": c.n_heads,
        "num_key_value_heads": c.n_kv_heads,
        "head_dim": c.head_dim,
        "intermediate_size": c.d_ff,
        "max_position_embeddings": c.max_positions,
        "rms_norm_eps": c.norm_eps,
        "tie_word_embeddings": c.tied,
        "hidden_act": activations.get(c.activation, c.activation),
    }
