"""Budgets of cache slots: of a row, and of each layer of it.

A budget is a number of slots, or a share of the row's prompt. It is an average over the
layers that the policy keeps: their budgets sum to it times their number, exactly.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

from models.errors import MethodError

UNIFORM, PYRAMID = "uniform", "pyramid"
BETA = 20  # PyramidKV's: the last layer has 1 / BETA of the average, at least
SLACK = 1e-3  # slots: 0.3 of 400 tokens is 120, also in float32
PARTS = 1 << 10  # a layer's weight is a multiple of one part
Budget = int | float
Layers = str | Sequence[float]


def check(budget: Budget, layers: Layers) -> None:
    """Raise MethodError for a budget or layer weights that mean nothing."""
    share = isinstance(budget, float)
    if isinstance(budget, bool) or not isinstance(budget, (int, float)):
        raise MethodError(f"budget={budget!r}: use an int (slots) or a float (a share)")
    if (share and not 0 < budget <= 1) or (not share and budget < 1):
        raise MethodError(
            f"budget={budget}: use slots, an int of at least 1, or a share of the "
            "prompt, a float in (0, 1]"
        )
    if isinstance(layers, str):
        if layers not in (UNIFORM, PYRAMID):
            raise MethodError(
                f"layers={layers!r}: use {UNIFORM!r}, {PYRAMID!r} or a number a layer"
            )
    elif not all(weight > 0 for weight in layers):
        raise MethodError(f"layers={tuple(layers)}: use positive numbers, one a layer")


def shares(layers: Layers, count: int) -> tuple[int, ...]:
    """Return the parts, of `PARTS * count` in all, that each of `count` layers gets.

    Raises:
        MethodError: a number of weights that is not that of the layers.
    """
    if isinstance(layers, str):
        weights = np.ones(count)
        if layers == PYRAMID and count > 1:
            weights = np.linspace(2 - 1 / BETA, 1 / BETA, count)
    else:
        weights = np.asarray(layers, float)
    if len(weights) != count:
        raise MethodError(
            f"layers has {len(weights)} numbers, and {count} layers are kept by the "
            "policy: give one for each"
        )
    ends = np.round(np.cumsum(weights) / weights.sum() * PARTS * count).astype(int)
    return tuple(np.diff(ends, prepend=0).tolist())


def of_row(budget: Budget, prompt: Array | int) -> Array:
    """Return the slots of rows with prompts of `prompt` tokens, int32[B] or int32[].

    A share is rounded up.
    """
    if isinstance(budget, int):
        return jnp.full(jnp.shape(prompt), budget, jnp.int32)
    slots = jnp.ceil(budget * jnp.asarray(prompt) - SLACK)
    return jnp.maximum(slots, 1).astype(jnp.int32)


def of_layers(row: Array, parts: Sequence[int], each: int = 0) -> Array:
    """Divide rows' budgets int32[...] over the layers: int32[..., L], at least 1 each.

    Their sum is `row` times L, but for layers raised to 1. `each` slots of a layer are
    not divided.
    """
    ends = jnp.cumsum(jnp.asarray(parts, jnp.int32))
    row = jnp.maximum(jnp.asarray(row) - each, 0)
    upto = (row[..., None] // PARTS) * ends + (row[..., None] % PARTS) * ends // PARTS
    own = each + jnp.diff(upto, axis=-1, prepend=0)
    return jnp.maximum(own, 1).astype(jnp.int32)


def most(
    budget: Budget, prompt: int, parts: Sequence[int], each: int = 0
) -> tuple[int, ...]:
    """Return the most slots of each layer, of rows of prompts up to `prompt` tokens."""
    row = int(np.ceil(budget * prompt - SLACK)) if type(budget) is float else budget
    row = max(int(row) - each, 0)
    return tuple(max(each - (-row * part // PARTS), 1) for part in parts)
