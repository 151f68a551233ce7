"""Double Sparsity: few channels find the tokens that are read with all of them.

Yang, Sheng, Gonzalez, Stoica, Zheng, *Post-Training Sparse Attention with Double
Sparsity*, 2024, arXiv 2408.07092, section 3. With C the d / `group` channels of a head
that matter most on calibration text, a node of query q reads the `budget` slots j of
the largest

    s_j = sum_{c in C} q_c k_jc

The label keys k_jC lie beside the cache, in `label_bits` bits. The first `full` layers
read all slots. `python -m experiments.label_channels` orders the channels.

Deviations: channels and slots are a KV head's, by the sum and the largest of its query
heads; the newest slot is always read, which the official code leaves to the scores;
channels are measured after rotation for every choice, there for q k alone; `refresh` >
1 is not in the paper. Cost: 1 / `group` of the keys for labels, and as much to read.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from decoding import base
from decoding.cache_eviction import budgets
from decoding.cache_reading import label_channels, selected
from decoding.catalogue import Card
from models.cache_layouts import held
from models.errors import MethodError

HALF = 4  # bits, two codes a byte
Channels = str | Sequence[Sequence[Sequence[int]]]

CARD = Card(
    paper="arXiv 2408.07092",
    guarantee=base.LOSSY,
    family="sparse reads",
    needs=("model",),
    sources=("yang2024double",),
    examples={
        "budget": 12,
        "group": 2,
        "full": 0,
        "label_bits": 0,
        "channels": (((1, 3, 5, 7), (0, 1, 4, 5)), ((0, 2, 4, 6), (2, 3, 6, 7))),
    },
)


def policy(
    model,
    budget: budgets.Budget = 128,
    group: int = 4,
    channels: Channels | None = None,
    full: int = 2,
    label_bits: int = 4,
    refresh: int = 1,
) -> base.CachePolicy:
    """Read the slots of the largest products of a few channels.

    Args:
        model: the target's functions.
        budget: slots that a KV head reads, or a share of the prompt.
        group: channels a label channel stands for; 1: all channels, the exact choice.
        channels: a file of `experiments.label_channels`, or each layer's and KV head's
            channels, the most important first. None: with `group=1` alone.
        full: the first layers, which read all slots.
        label_bits: 4, or 0: label keys in the cache's dtype.
        refresh: 1: every node selects; more: tokens that a list serves.

    Raises:
        MethodError: a number out of range, no channels, or those of another model.
    """
    dim = held.full_heads(model.config)[1]
    if group < 1 or dim % group or full < 0 or label_bits not in (0, HALF):
        raise MethodError(
            f"group={group}, full={full}, label_bits={label_bits}: use a divisor of "
            f"the heads' {dim} channels, at least 0, and 0 or {HALF}"
        )
    width = dim // group
    if label_bits and width % 2:
        raise MethodError(f"{width} label channels of 4 bits: use label_bits=0")
    table = label_channels.of_model(model.config, channels, width)

    def labels(layer, k):
        """Return the label channels of k [B, N, G, d]."""
        at = layer.given["channels"][:, None]
        return jnp.take_along_axis(k, at, axis=3)

    def mark(layer, k):
        return _coded(labels(layer, k)) if label_bits else {"label": labels(layer, k)}

    def score(layer, asked):
        label = _decoded(layer.notes) if label_bits else layer.notes["label"]
        at = layer.given["channels"][:, None, :, None]
        q = jnp.take_along_axis(asked.q, at, axis=4)
        s = jnp.einsum(
            "bngrc,bgsc->bgrns", q, label, preferred_element_type=jnp.float32
        )
        return jnp.where(asked.seen[:, None], s.max(2), -jnp.inf)

    # The labels of a kept layer have no dtype of their own: that of the cache.
    notes: dict[str, Any] = {"label": (None, (width,))}
    if label_bits:
        notes = {"code": (jnp.uint8, (width // 2,))}
        notes |= {"least": (jnp.float32, ()), "step": (jnp.float32, ())}
    rule = selected.Rule(
        score,
        notes,
        given=lambda i: {"channels": jnp.asarray(table[i])[None]},
        mark=mark,
        cost=1 / (2 * group),
    )
    return selected.policy(rule, budget, selected.own(full), refresh)


def _coded(x):
    """Return x [B, N, G, c] in 15 steps between a token's least and largest channel."""
    x = x.astype(jnp.float32)
    least, largest = x.min(-1), x.max(-1)
    step = jnp.maximum(largest - least, 1e-6) / 15
    code = jnp.round((x - least[..., None]) / step[..., None]).astype(jnp.uint8)
    first, second = jnp.split(code, 2, axis=-1)
    return {"code": first | (second << 4), "least": least, "step": step}


def _decoded(notes):
    """Return the label keys float32[B, G, S, c]."""
    code = notes["code"]
    code = jnp.concatenate([code & 15, code >> 4], -1).astype(jnp.float32)
    return notes["least"][..., None] + code * notes["step"][..., None]
