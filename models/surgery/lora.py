"""LoRA: low-rank changes to a target in a tree of their own (Medusa-2, fine-tuning).

Hu et al., *LoRA: Low-Rank Adaptation of Large Language Models*, 2022, arXiv 2106.09685:

    W' = W + (alpha / r) A B,     A [in, r] random, B [r, out] zero at first

for q, k, v, o, gate, up and down of every layer, each with an A and a B of its own, and
for a separate LM head. The target's own params stay as they are. In training the change
is multiplied beside the weight, drop(x) A B (`beside`); for decoding it is added to the
weight (`merged`). The changed model is another model: its plain decoding differs from
the target's. Rank 32, alpha 16 and all the weights are those of Medusa-2's recipe
(axolotl, QLoRA).

Deviations from that recipe: the target's weights keep their dtype, where QLoRA
quantises them to four bits. A head that is the target's embedding (tied), or whose
logits are capped, has no change. Decoding and held-out figures hold a second copy of
the target, the merged one.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from models.errors import ConfigError
from models.heads.modules.decoder_layer import Params
from models.transformer.low_rank import LowRank

ALPHA = 16.0
HEAD = "head"
# (module, weight) -> the parts of the fused weight, joined on its last axis but one.
WEIGHTS = {
    ("attention", "qkv"): ("q", "k", "v"),
    ("attention", "out"): ("o",),
    ("mlp", "up"): ("gate", "up"),
    ("mlp", "down"): ("down",),
}


def init(key: Array, target: Any, rank: int = 32, head: bool = True) -> Params:
    """Initialise float32 A and B of `rank` r for the weights of an unstacked target.

    `head`: whether an LM head of its own is changed too.
    """
    if rank < 1:
        raise ConfigError(f"rank={rank}: use at least 1")
    names = sorted(name for name in target if name.startswith("layer_"))
    if not names:
        raise ConfigError(
            f"the target has no layers to adapt, only {sorted(target)}: give the "
            "unstacked params of a transformer"
        )
    count = 0

    def pair(inputs: int, outputs: tuple[int, ...]) -> Params:
        nonlocal count
        count += 1
        bound = inputs**-0.5  # PEFT's
        fresh = jax.random.fold_in(key, count)
        a = jax.random.uniform(fresh, (inputs, rank), minval=-bound, maxval=bound)
        return {"a": a, "b": jnp.zeros((rank, *outputs))}

    changes: Params = {}
    for name in names:
        changes[name] = {}
        for (module, weight), parts in WEIGHTS.items():
            shape = target[name][module][weight].shape
            for part, outputs in _outputs(parts, shape).items():
                changes[name][part] = pair(shape[0], outputs)
    rows = target.get("embedding", {}).get("head")
    if head and rows is not None:
        changes[HEAD] = pair(rows.shape[1], (rows.shape[0],))
    return changes


def _outputs(parts: tuple[str, ...], shape: tuple[int, ...]) -> dict[str, tuple]:
    """Return the output shape of every part; an `up` without a gate is one part."""
    if len(shape) == 2:
        return {parts[-1]: shape[1:]}
    sizes = [shape[-2] - len(parts) + 1, *[1] * (len(parts) - 1)]
    return {p: (*shape[1:-2], n, shape[-1]) for p, n in zip(parts, sizes)}


def _scaled(pair: Params) -> tuple[Array, Array]:
    """Return A [in, r] and (alpha / r) B [r, out ...]."""
    return pair["a"], ALPHA / pair["a"].shape[1] * pair["b"]


def _pairs(changes: Params, name: tuple[str, str], parts: tuple[str, ...]) -> tuple:
    """Return the scaled pairs of a fused weight's parts that the target has.

    Exports of version 0.1 have one pair for the whole of it.
    """
    whole = "_".join(name)
    names = (whole,) if whole in changes else parts
    return tuple(_scaled(changes[part]) for part in names if part in changes)


def beside(
    target: Any, changes: Params, dropout: float = 0.0, key: Array | None = None
) -> Any:
    """Put the layers' changes beside the target's weights, to be trained.

    `dropout` drops inputs of every A, drawn from `key`. The head's change is
    `head_change`.
    """
    changed = dict(target)
    for i, name in enumerate(name for name in changes if name != HEAD):
        layer = dict(target[name])
        for j, ((module, weight), parts) in enumerate(WEIGHTS.items()):
            pairs = _pairs(changes[name], (module, weight), parts)
            own = None
            if dropout and key is not None:
                own = jax.random.fold_in(key, len(WEIGHTS) * i + j)
            both = LowRank(layer[module][weight], pairs, own, dropout)
            layer[module] = {**layer[module], weight: both}
        changed[name] = layer
    return changed


def head_change(changes: Params, states: Array) -> Array:
    """Compute the change float32[..., V] of the logits from `states` [..., D]."""
    a, b = _scaled(changes[HEAD])
    return ((states @ a) @ b).astype(jnp.float32)


def merged(target: Any, changes: Params) -> Any:
    """Add the changes to the target's params, in its dtypes; differentiable."""

    def added(weight: Array, pairs: tuple[tuple[Array, Array], ...]) -> Array:
        steps = [jnp.tensordot(a, b, 1) for a, b in pairs]
        step = jnp.concatenate(steps, -2) if len(steps) > 1 else steps[0]
        return (weight + step).astype(weight.dtype)

    changed = dict(target)
    for name in changes:
        if name == HEAD:
            a, b = _scaled(changes[HEAD])
            rows = added(target["embedding"]["head"], ((b.T, a.T),))
            changed["embedding"] = {**target["embedding"], "head": rows}
            continue
        layer = dict(target[name])
        for (module, weight), parts in WEIGHTS.items():
            pairs = _pairs(changes[name], (module, weight), parts)
            new = added(layer[module][weight], pairs)
            layer[module] = {**layer[module], weight: new}
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
