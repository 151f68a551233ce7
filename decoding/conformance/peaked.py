"""A small transformer whose attention is peaked, so that an evicted slot is missed.

Random weights attend nearly uniformly, and what a policy evicts would not show in the
text. Here queries and keys are scaled up, and what is read weighs as much as the token.
"""

import functools
import types
from typing import Any

import jax
import numpy as np

from decoding.conformance import kit
from models.transformer.config import Config, Rope
from models.transformer.model import transformer

LAYERS, HEADS, GROUPS, DIM = 2, 4, 2, 8
PROMPTS = (*kit.PROMPTS, [int(t) for t in np.random.default_rng(1).integers(0, 7, 39)])
SIZE, NEW = 128, 24


def config(**changes: Any) -> Config:
    rope = Rope(tuple(10_000 ** (-i / (DIM // 2)) for i in range(DIM // 2)))
    fields: dict[str, Any] = {
        "vocab_size": kit.VOCAB,
        "d_model": 32,
        "n_layers": LAYERS,
        "n_heads": HEADS,
        "n_kv_heads": GROUPS,
        "head_dim": DIM,
        "d_ff": 32,
        "max_positions": 512,
        "ropes": (rope,),
        "rope_of": (0,) * LAYERS,
        "tied": False,
        **changes,
    }
    return Config(**fields)


@functools.cache
def functions(cache: Any = None) -> Any:
    """Make the model's functions; `cache` makes an empty cache of another layout."""
    return transformer(config(), **({} if cache is None else {"cache": cache}))


@functools.cache
def model(seed: int = 3, cache: Any = None) -> Any:
    """Make the model in the form that `models.load` returns."""
    params = jax.tree.map(np.asarray, functions().init(jax.random.key(seed)))
    for i in range(LAYERS):
        attention = params[f"layer_{i}"]["attention"]
        qkv = np.array(attention["qkv"])
        qkv[:, :, :-1] *= 3  # queries and keys
        attention["qkv"], attention["out"] = qkv, 8 * attention["out"]
    params["embedding"]["head"] = 4 * params["embedding"]["head"]
    params = jax.tree.map(jax.numpy.asarray, params)
    return types.SimpleNamespace(
        model=functions(cache), params=params, tokenizer=None, config=config()
    )


@functools.cache
def bounded(cap: float = 2.0) -> Any:
    """Make the model with capped scores, and with a sink in every head."""
    own = config(attention_softcap=cap, sinks=True)
    params = dict(model().params)
    for i in range(LAYERS):
        sinks = jax.numpy.linspace(-1.0, 4.0, HEADS).reshape(GROUPS, -1)
        attention = {**params[f"layer_{i}"]["attention"], "sinks": sinks}
        params[f"layer_{i}"] = {**params[f"layer_{i}"], "attention": attention}
    return types.SimpleNamespace(
        model=transformer(own), params=params, tokenizer=None, config=own
    )


def parts() -> dict[str, Any]:
    """Return what the catalogue fills in, for a policy that is built alone."""
    return {"model": functions(), "draft": functions()}
