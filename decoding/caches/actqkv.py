"""ActQKV: a probe query of unusual queries finds the blocks that are read.

Xiao, Wang, Li, Deng, Tang, Li, Zhang, Wang, Chen, *Activation-aware Probe-Query:
Effective Key-Value Retrieval for Long-Context LLMs Inference*, 2025, arXiv 2502.13542,
section 3. Over the queries of a window, with the mean mu and variance v of each channel
over all queries so far, and v' the mean of v over channels,

    b_i = mean over channels of (q_i - mu)^2 / (v + v' / 100)
    w_i = b_i / sum_i b_i,    probe = sum_i w_i q_i

Blocks of `block` tokens are ranked by the cosine of the probe and their representative
keys. With h the entropy of the softmax over n blocks, divided by log n, a layer reads
`least` + h (most - `least`) of them, where `budget` holds most; besides the first
`first` tokens and the last `local`, which are always read.

Deviations: with `refresh=1` a node's window is its own query, as when the paper
decodes; the prompt, which the paper reads window by window with a probe each, is read
whole;
`refresh` > 1 uses probes of the last `window` queries. Statistics are of a layer, row
and KV head, where the official code has one for all layers. Representatives are the
mean keys of `parts` parts of a block, the best of which counts, and not the keys of the
largest attention. A question is not weighted. All blocks are read if `budget` holds
them. Cost: `parts` / `block` of the keys, and as much to read.
"""

from typing import Any

import jax
import jax.numpy as jnp

from decoding import base
from decoding.cache_eviction import budgets
from decoding.cache_reading import pages, selected
from decoding.catalogue import Card
from models.errors import MethodError

TINY = 1e-12

CARD = Card(
    paper="arXiv 2502.13542",
    guarantee=base.LOSSY,
    family="sparse reads",
    sources=("xiao2025actqkv",),
    examples={
        "budget": 16,
        "block": 4,
        "parts": 2,
        "first": 4,
        "local": 4,
        "least": 1,
        "window": 4,
    },
)


def policy(
    budget: budgets.Budget = 2048,
    block: int = 32,
    parts: int = 4,
    first: int = 64,
    local: int = 512,
    least: int = 32,
    window: int = 32,
    full: int = 0,
    refresh: int = 1,
) -> base.CachePolicy:
    """Read the blocks whose representative keys fit a probe query.

    Args:
        budget: slots that a KV head reads, or a share of the prompt.
        block: tokens of a block.
        parts: representative keys of a block.
        first: first tokens, which are always read: whole blocks.
        local: last tokens, which are always read: whole blocks.
        least: blocks that are read at least.
        window: the last queries, of which a list's probe is made.
        full: the first layers, which read all slots.
        refresh: 1: every node selects; more: tokens that a list serves.

    Raises:
        MethodError: a number out of range.
    """
    if block < 2 or parts < 1 or block % parts or local < block or local % block:
        raise MethodError(
            f"block={block}, parts={parts}, local={local}: use a block of at least 2, "
            "parts that divide it, and a multiple of it"
        )
    if first < 0 or first % block or least < 1 or window < 1 or full < 0:
        raise MethodError(
            f"first={first}, least={least}, window={window}, full={full}: use a "
            f"multiple of {block}, at least 1, 1 and 0"
        )
    newest, sinks, listed = local // block, first // block, refresh > 1

    def means(keys):
        split = (*keys.shape[:2], parts, block // parts, keys.shape[3])
        return {"means": keys.reshape(split).mean(3)}

    def learn(layer, about):
        layer = pages.filled(layer, about.before, about.length, block, means)
        held = layer.queries
        if not (listed and layer.is_read and held is not None):
            return layer
        index = jnp.arange(about.tokens.shape[1], dtype=jnp.int32)
        slots = about.before[:, None] + index
        rows = jnp.arange(slots.shape[0])[:, None]
        q = held.q.at[rows, slots - held.first[:, None]].get(mode="clip")
        return _counted(layer, q, slots < about.length[:, None])

    def ended(layer, length):
        if not listed:
            return layer
        q, tokens = layer.asked(length)
        q = q.reshape(*q.shape[:2], *layer.extra["sum"].shape[1:])
        return _counted(layer, q, tokens >= 0)

    def score(layer, asked):
        q = asked.q.astype(jnp.float32)
        if listed:
            number = jnp.maximum(layer.extra["number"], 1.0)[..., None, None]
            mean = layer.extra["sum"] / number
            spread = jnp.maximum(layer.extra["square"] / number - mean**2, 0)
            q = probe(q, asked.seen.any(-1), mean, spread)[:, None]
        found = cosines(q, layer.extra["means"])
        order = jnp.arange(found.shape[-1], dtype=jnp.int32)
        start = (asked.prefix // block + 1 - newest) * block
        old = ((order + 1) * block <= start[:, None])[:, None, None]
        most = jnp.maximum(-(-layer.budget // block) - newest, 0)
        free = old & (order >= sinks)
        cut = entropy_cut(found, free, jnp.maximum(most - sinks, 0), least)
        found = jnp.where(free & cut, found, -jnp.inf)
        return jnp.where(old & (order < sinks), jnp.inf, found)

    heads = lambda slots, heads: (jnp.float32, heads)
    parted = lambda slots, heads: _blocks(slots, block, parts, heads[1])
    extra: dict[str, Any] = {"means": parted}
    if listed:
        extra |= {"number": (jnp.float32, ()), "sum": heads, "square": heads}
    rule = selected.Rule(
        score,
        extra=extra,
        learn=learn,
        ended=ended,
        unit=block,
        newest=newest,
        queries=window if listed else 1,
        cost=parts / block / 2,
    )
    return selected.policy(rule, budget, selected.own(full), refresh)


def probe(q, valid, mean, variance):
    """Return the probes float32[B, G, R, d] of windows of queries.

    Args:
        q: float32[B, M, G, R, d].
        valid: bool[B, M].
        mean: float32[B, G, R, d], of all queries so far.
        variance: float32[B, G, R, d].
    """
    floor = variance.mean((-1, -2), keepdims=True) / 100 + TINY
    bias = ((q - mean[:, None]) ** 2 / (variance + floor)[:, None]).mean((-1, -2))
    weight = jnp.where(valid[..., None], bias + TINY, 0.0)
    weight = weight / jnp.maximum(weight.sum(1, keepdims=True), TINY)
    return (weight[..., None, None] * q).sum(1)


def cosines(q, means):
    """Return the cosines float32[B, G, N, P] of queries and blocks, the best part's.

    A head's queries stand side by side, and each has the same keys.

    Args:
        q: float32[B, N, G, R, d].
        means: float32[B, G, P, parts, d].
    """
    product = jnp.einsum("bngrd,bgpcd->bgnpc", q, means)
    size = jnp.sqrt((q**2).sum((-1, -2)) * q.shape[3]).swapaxes(1, 2)
    length = jnp.sqrt((means**2).sum(-1))
    whole = size[..., None, None] * length[:, :, None]
    return (product / jnp.maximum(whole, TINY)).max(-1)


def entropy_cut(scores, free, most, least: int):
    """Return bool[B, G, N, P]: the blocks that remain, by their scores' entropy.

    Args:
        scores: float32[B, G, N, P].
        free: bool[B, 1, 1, P]: blocks that may be cut.
        most: int32[B]: blocks that the budget holds; if it holds all, none is cut.
        least: blocks that remain at least.
    """
    scores = scores.astype(jnp.bfloat16).astype(jnp.float32)
    count = free.sum(-1, keepdims=True)
    share = jax.nn.softmax(jnp.where(free, scores, -jnp.inf), -1, where=free)
    entropy = -(jnp.where(free, share * jnp.log(share + TINY), 0.0)).sum(-1)
    entropy = entropy[..., None] / jnp.log(jnp.maximum(count, 2))
    most = most[:, None, None, None]
    low = jnp.minimum(least, most)
    # Rounded first, since blocks of other widths sum the entropy in another order.
    entropy = entropy.astype(jnp.bfloat16).astype(jnp.float32)
    keep = jnp.round(low + entropy * (most - low))
    keep = jnp.where(count <= most, count, keep)
    order = jnp.argsort(jnp.where(free, -scores, jnp.inf), axis=-1, stable=True)
    return jnp.argsort(order, axis=-1) < keep


def _blocks(slots, block, parts, dim):
    return jnp.float32, (max(slots // block, 1), parts, dim)


def _counted(layer, q, new):
    """Count the queries q [B, M, G, R, d] that are `new` bool[B, M]."""
    q = jnp.where(new[:, :, None, None, None], q.astype(jnp.float32), 0.0)
    extra, number = dict(layer.extra), new.sum(1).astype(jnp.float32)
    extra["number"] += number[:, None]
    extra["sum"] += q.sum(1)
    extra["square"] += (q**2).sum(1)
    return layer.replace(extra=extra)
