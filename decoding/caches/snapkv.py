"""SnapKV: keep what the last queries of the prompt attend to, and what follows it.

Li, Huang, Yang, Venkitesh, Locatelli, Ye, Cai, Lewis, Chen, *SnapKV: LLM Knows What You
are Looking for Before Generation*, 2024, arXiv 2404.14469, section 4.

When the prompt is read, the softmax weights of its last `window` queries are summed by
slot, and pooled over `kernel` neighbours. Each KV head keeps the `budget` - `window`
slots of the highest sums before the window, and the window.

Deviations: one choice a KV head, from the sum over its query heads (the official code
repeats keys for each query head). Cost: one read of the keys, once.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax

from decoding import base
from decoding.cache_eviction import budgets, scored
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="arXiv 2404.14469",
    guarantee=base.LOSSY,
    family="eviction",
    sources=("li2024snapkv",),
    examples={"budget": 12, "window": 4, "kernel": 3},
)


def policy(
    budget: budgets.Budget = 320,
    window: int = 64,
    kernel: int = 5,
    pooling: str = "mean",
    layers: budgets.Layers = budgets.UNIFORM,
    bounded: bool = False,
    every: int = 32,
    each: int = 0,
) -> base.CachePolicy:
    """Evict once, by what the prompt's last queries saw.

    Args:
        budget: slots of a KV head, or a share of the prompt.
        window: the last queries of the prompt, whose keys are kept.
        kernel: slots that a sum is pooled over; odd.
        pooling: "mean" or "max".
        layers: "uniform", "pyramid", or each layer's weight.
        bounded: evict while decoding, too, every `every` tokens, by the last `window`
            queries; else what follows the prompt stays.
        every: see `bounded`.
        each: slots of the budget that are not divided over the layers.

    Raises:
        MethodError: a number out of range.
    """
    rest: dict[str, Any] = {"decode": bounded, "every": every, "each": each}
    return scored.policy(rule(window, kernel, pooling), budget, layers=layers, **rest)


def rule(
    window: int, kernel: int, pooling: str, ahead: int = 0, reduce: str = "sum"
) -> scored.Rule:
    """Value slots by what the last `window` queries saw, which themselves stay.

    Args:
        window: as of `policy`, like `kernel` and `pooling`.
        kernel: see there.
        pooling: see there.
        ahead: queries behind `length` that are read too, see `scored.Rule`.
        reduce: "sum" or "max", over the queries and the heads of a group.

    Raises:
        MethodError: a number out of range.
    """
    if window < 1 or kernel < 1 or kernel % 2 == 0:
        raise MethodError(
            f"window={window}, kernel={kernel}: use a window of at least 1 and an odd "
            "kernel"
        )
    if pooling not in ("mean", "max"):
        raise MethodError(f"pooling={pooling!r}: use 'mean' or 'max'")

    def value(layer, about):
        end = about.length + ahead if ahead else about.length
        q, tokens = layer.asked(end)
        if ahead:  # rows may have fewer
            late = tokens >= about.length[:, None]
            end = about.length + late.sum(1, dtype=jnp.int32)
        held = layer.tokens(end)
        first = (about.length - window)[:, None]
        weight = jnp.where(tokens >= first, 1.0, 0.0)
        weight = jnp.where(tokens < 0, 0.0, weight)
        sums = layer.received(q, weight, tokens, held, reduce=reduce)
        before = (held >= 0) & (held < first[..., None])
        sums = jnp.where(before, sums, 0.0)
        return jnp.where(before, pooled(sums, kernel, pooling), jnp.inf), layer

    return scored.Rule(value, window, ahead=ahead)


def pooled(x, kernel: int, pooling: str):
    """Pool float32[B, G, C] over windows of slots; borders count as zeros."""
    shape, pad = (1, 1, kernel), ((0, 0), (0, 0), (kernel // 2, kernel // 2))
    if pooling == "max":
        return lax.reduce_window(x, 0.0, lax.max, shape, (1, 1, 1), pad)
    return lax.reduce_window(x, 0.0, lax.add, shape, (1, 1, 1), pad) / kernel
