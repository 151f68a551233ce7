"""Low-rank changes to a target in a tree of their own (Medusa-2, and whoever tunes it).

Hu et al., *LoRA: Low-Rank Adaptation of Large Language Models*, 2021, arXiv 2106.09685:

    W' = W + (alpha / r) A B,     A [in, r] random, B [r, out ...] zero at first

for every linear weight of every layer. The target's own params are not touched: the
merged model is another model, with a plain text of its own.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from models.errors import ConfigError
from models.heads.modules.decoder_layer import Params, normal

ALPHA = 16.0
WEIGHTS = (("attention", "qkv"), ("attention", "out"), ("mlp", "up"), ("mlp", "down"))


def init(key: Array, target: Any, rank: int = 32) -> Params:
    """A and B for the layers of a transformer's params, of `rank` r."""
    if rank < 1:
        raise ConfigError(f"rank={rank}: use at least 1")
    names = sorted(name for name in target if name.startswith("layer_"))
    if not names:
        raise ConfigError("the target has no layers of a transformer to adapt")
    found: Params = {}
    for i, name in enumerate(names):
        own: Params = {}
        for j, (part, weight) in enumerate(WEIGHTS):
            shape = target[name][part][weight].shape
            fresh = jax.random.fold_in(key, len(WEIGHTS) * i + j)
            a = normal(fresh, (shape[0], rank), shape[0])
            b = jnp.zeros((rank, *shape[1:]))
            own[f"{part}_{weight}"] = {"a": a, "b": b}
        found[name] = own
    return found


def merged(target: Any, lora: Params) -> Any:
    """The params of the changed model, in the target's dtypes; differentiable."""
    changed = dict(target)
    for name, own in lora.items():
        layer = dict(target[name])
        for part, weight in WEIGHTS:
            pair = own[f"{part}_{weight}"]
            scale = ALPHA / pair["a"].shape[1]
            step = scale * jnp.tensordot(pair["a"], pair["b"], 1)
            old = layer[part][weight]
            layer[part] = {**layer[part], weight: (old + step).astype(old.dtype)}
        changed[name] = layer
    return changed


def applied(target: Any, heads: Any) -> tuple[Any, Any]:
    """The params that heads are for, and the heads alone.

    Those of a tree {"lora", "heads"} are for the changed model; others for the target.
    """
    if "lora" not in heads:
        return target, heads
    return merged(target, heads["lora"]), heads["heads"]


def model(lm: Any, heads: Any) -> tuple[Any, Any]:
    """The same of a loaded model: the one that is decoded with the heads."""
    if "lora" not in heads:
        return lm, heads
    params, heads = applied(lm.params, heads)
    return dataclasses.replace(lm, params=params), heads
