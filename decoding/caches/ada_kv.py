"""Ada-KV: SnapKV whose KV heads divide a layer's budget by their scores.

Feng, Lv, Cao, Xie, Zhou, *Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget
Allocation for Efficient LLM Inference*, 2024, arXiv 2407.11550, section 3.

Of the layer's slots before the window, heads G times b on average, head g would get the
f_g that are among the G · b highest scores of all heads. It gets

    (1 - alpha) · f_g + alpha · b

so that `alpha` safeguards a share of an equal split (`floor_alpha` of the official
code).
Within a head, SnapKV's scores choose. Heads have pages of their own
(`cache_layouts/own_pages`), so that a head that keeps fewer slots frees their bytes.
With `heads`, the split is fixed, such as one with whole heads for retrieval and short
ones for streaming.

Deviations: KV heads, not query heads; what a division leaves goes to the heads of the
largest remainders, so that the budget is spent exactly. Cost: SnapKV's, and a sort of
the layer's scores, once.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from decoding import base
from decoding.cache_eviction import budgets, scored
from decoding.caches import snapkv
from decoding.catalogue import Card
from models.cache_layouts import own_pages
from models.cache_layouts.held import full_heads
from models.distributed import sharding
from models.errors import MethodError

CARD = Card(
    paper="arXiv 2407.11550",
    guarantee=base.LOSSY,
    family="eviction",
    sources=("feng2024adakv",),
    examples={"budget": 12, "window": 4, "kernel": 3, "page": 4},
)

PARTS = 1 << 10  # of alpha, and of a head's fixed share
Heads = Sequence[float] | None


def policy(
    budget: budgets.Budget = 1024,
    window: int = 32,
    kernel: int = 7,
    pooling: str = "max",
    alpha: float = 0.2,
    heads: Heads = None,
    layers: budgets.Layers = budgets.UNIFORM,
    page: int = own_pages.PAGE,
) -> base.CachePolicy:
    """Evict once, by what the prompt's last queries saw, unequally by heads.

    Args:
        budget: slots of a KV head on average, or a share of the prompt.
        window: the last queries of the prompt, whose keys every head keeps.
        kernel: slots that a sum is pooled over; odd.
        pooling: "mean" or "max".
        alpha: share of a head's budget that does not depend on the scores, in [0, 1].
        heads: a fixed split in place of the scores': a weight for each KV head of each
            layer in turn, `n_layers` · G numbers, or G for all layers.
        layers: "uniform", "pyramid", or each layer's weight.
        page: slots of a page.

    Raises:
        MethodError: a number out of range.
    """
    if not 0 <= alpha <= 1 or page < 1:
        raise MethodError(f"alpha={alpha}, page={page}: use [0, 1] and at least 1")
    if heads is not None and (not len(heads) or min(heads) < 0 or not sum(heads)):
        raise MethodError(
            f"heads={tuple(heads)}: use numbers of at least 0, one a head"
        )
    rule = snapkv.rule(window, kernel, pooling)
    share = round(alpha * PARTS)

    def granted(values, held, about):
        """Divide the slots before the window; see `scored.Rule.heads`."""
        used = held[:, 0].sum(-1, dtype=jnp.int32)
        groups = held.shape[1]
        before = held & jnp.isfinite(values.astype(jnp.float32))
        there = before[:, 0].sum(-1, dtype=jnp.int32)
        near = jnp.minimum(used - there, about.keep)
        each = jnp.minimum(about.keep - near, there)  # b
        if heads is None:
            won = wins(values, before, groups * each)
            parts = (PARTS - share) * won + share * each[:, None]
        else:
            parts = fixed(groups, about.layer) * (groups * each)[:, None]
        count = divided(parts, groups * each, there)
        return count + near[:, None]

    def wins(values, before, count):
        """Return f: how many of the `count` highest values each head has."""
        shape = before.shape
        flat = jnp.where(before, values.astype(jnp.float32), -jnp.inf)
        flat = flat.reshape(shape[0], -1)
        rank = jnp.argsort(jnp.argsort(-flat, -1, stable=True), -1)
        best = (rank < count[:, None]).reshape(shape) & before
        return best.sum(-1, dtype=jnp.int32)

    def fixed(groups, layer):
        """Return the layer's weights in `PARTS` in all, int32[G]."""
        assert heads is not None
        own = list(heads) if len(heads) == groups else heads[layer * groups :][:groups]
        if len(own) != groups or not sum(own):
            raise MethodError(
                f"heads={tuple(heads)}: give {groups} numbers, or {groups} a layer, "
                "not all of them 0"
            )
        return jnp.asarray(budgets.shares(own, groups), jnp.int32) // groups

    def divided(parts, total, most):
        """Round `parts` / `PARTS` to whole slots that sum to `total`, if they fit."""
        whole = jnp.minimum(parts // PARTS, most[:, None])
        left = total - whole.sum(1)
        fits = most[:, None] - whole
        order = jnp.argsort(-(parts % PARTS), 1, stable=True)
        # The largest remainders first; what does not fit goes to the next heads.
        room = jnp.take_along_axis(fits, order, 1)
        one = jnp.minimum(room, 1)
        first = jnp.clip(left[:, None] - (jnp.cumsum(one, 1) - one), 0, one)
        room, left = room - first, left - first.sum(1)
        rest = jnp.clip(left[:, None] - (jnp.cumsum(room, 1) - room), 0, room)
        more = jnp.zeros_like(whole)
        rows = jnp.arange(len(whole))[:, None]
        return whole + more.at[rows, order].set(first + rest)

    rule = rule._replace(heads=granted, page=page)
    base_policy = scored.policy(rule, budget, layers=layers)

    def make(model: Any, sizes: base.Sizes, length):
        if sharding.pieces(full_heads(model.config)[0], "kv_heads") > 1:
            raise MethodError(
                "ada_kv on a mesh that cuts KV heads, which share a pool of pages: use "
                "a mesh that cuts the batch alone"
            )
        if getattr(model.config, "latent", None):
            raise MethodError(
                "ada_kv over latent attention, whose values are parts of their keys: "
                "pages hold both; use caches/snapkv"
            )
        assert base_policy.make is not None
        return base_policy.make(model, sizes, length)

    return base_policy._replace(make=make)
