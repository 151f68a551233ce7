"""LoRA: low-rank changes to a target in a tree of their own (Medusa-2, fine-tuning).

Hu et al., *LoRA: Low-Rank Adaptation of Large Language Models*, 2022, arXiv 2106.09685:

    W' = W + (alpha / r) A B,     A [in, r] random, B [r, out ...] zero at first

for every linear weight of every layer. The target's own params stay as they are. The
merged model is another model: its plain decoding differs from the target's.

Deviations from Medusa-2's recipe (axolotl, QLoRA of rank 32, alpha 16): no change to
the LM head and no dropout (there 0.05). The parts of a fused weight (q, k, v; gate, up)
share one A, where each has its own there: 71.3 M numbers instead of 83.9 M in a 7B
target's layers. Changes are merged for a step, not multiplied beside the weights, so a
step holds a second copy of the target.
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
    """Initialise float32 A and B of `rank` r for the layers of an unstacked target."""
    if rank < 1:
        raise ConfigError(f"rank={rank}: use at least 1")
    names = sorted(name for name in target if name.startswith("layer_"))
    if not names:
        raise ConfigError(
            f"the target has no layers to adapt, only {sorted(target)}: give the "
            "unstacked params of a transformer"
        )
    layers: Params = {}
    for i, name in enumerate(names):
        pairs: Params = {}
        for j, (part, weight) in enumerate(WEIGHTS):
            shape = target[name][part][weight].shape
            fresh = jax.random.fold_in(key, len(WEIGHTS) * i + j)
            a = normal(fresh, (shape[0], rank), shape[0])
            b = jnp.zeros((rank, *shape[1:]))
            pairs[f"{part}_{weight}"] = {"a": a, "b": b}
        layers[name] = pairs
    return layers


def merged(target: Any, lora: Params) -> Any:
    """Add the changes to the target's params, in its dtypes; differentiable."""
    changed = dict(target)
    for name, pairs in lora.items():
        layer = dict(target[name])
        for part, weight in WEIGHTS:
            pair = pairs[f"{part}_{weight}"]
            scale = ALPHA / pair["a"].shape[1]
            step = scale * jnp.tensordot(pair["a"], pair["b"], 1)
            old = layer[part][weight]
            layer[part] = {**layer[part], weight: (old + step).astype(old.dtype)}
        changed[name] = layer
    return changed


def applied(target: Any, heads: Any) -> tuple[Any, Any]:
    """Return the params of the heads' model, and the heads alone.

    Heads in a tree {"lora", "heads"} are for the changed model, others for the target.
    """
    if "lora" not in heads:
        return target, heads
    return merged(target, heads["lora"]), heads["heads"]


def model(lm: Any, heads: Any) -> tuple[Any, Any]:
    """Return the loaded model to decode with the heads, and the heads alone."""
    if "lora" not in heads:
        return lm, heads
    params, heads = applied(lm.params, heads)
    return dataclasses.replace(lm, params=params), heads
