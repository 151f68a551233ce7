"""GEAR: blocks of few bits, a low-rank matrix for the rest, and exact outliers.

Kang, Zhang, Kundu, Jeong, Liu, Krishna, Zhao, *GEAR: An Efficient KV Cache Compression
Recipe for Near-Lossless Generative Inference of LLM*, 2024, arXiv 2403.05527.

The newest `window` tokens at least are exact. Of a complete block of `block` older ones

    X ~ dequantised codes + A B^T + outliers

with codes of `bits` bits, keys by channel and values by token in groups of `group`
channels, A and B of rank `rank` from a subspace iteration of three rounds, and a share
of `outliers` of each vector's elements, half of them at each end, kept as they are.

Deviations: blocks count from the first token, in the prompt too, which attends to codes
where the official code compresses it when it is read, at rank 4; 2^bits - 1 levels (the
official code has bits^2 - 1, the same at 2 bits alone); a constant group is exact;
outliers are at least one at each end; the low-rank term is not added to outliers;
values' vectors are of one head; scales and factors have the cache's dtype.

Cost: a round expands the codes, rank · (n + d) products a block and head; once in
`block` tokens a row codes a block.
"""

import functools
from typing import Any

from jax import Array

from decoding import base
from decoding.caches import dense
from decoding.catalogue import Card
from models.cache_layouts import gear
from models.cache_layouts.kv_cache import of_sizes
from models.cache_layouts.residual_codes import Rule
from models.errors import ConfigError, MethodError

CARD = Card(
    paper="arXiv 2403.05527",
    guarantee=base.LOSSY,
    family="codes",
    sources=("kang2024gear",),
    examples={"group": 4, "block": 32, "window": 16},
)


def policy(
    bits: int = 2,
    group: int = 64,
    rank: int = 2,
    outliers: float = 0.02,
    block: int = 64,
    window: int = 64,
) -> base.CachePolicy:
    """Code complete blocks of old tokens.

    Args:
        bits: of a code: 2, 4 or 8.
        group: channels of a value that share a scale; it divides the heads' channels,
            or is all of them where they are fewer.
        rank: r, of A and B; 0: none.
        outliers: share of exact elements; 0: none.
        block: tokens that are coded together, and that share a key channel's scale: 32,
            64, ..., 256.
        window: the tokens that are exact at least. A draft tree has no more nodes.

    Raises:
        MethodError: a number out of range.
    """
    if bits not in (2, 4, 8) or group < 1 or rank < 0 or not 0 <= outliers < 1:
        raise MethodError(
            f"bits={bits}, group={group}, rank={rank}, outliers={outliers}: use 2, 4 "
            "or 8 bits, a group of at least 1, a rank of at least 0, a share below 1"
        )
    full = dense.policy()

    def make(model: Any, sizes: base.Sizes, length: Array):
        config = model.config
        if model.init_layer is None or getattr(config, "position", "") == "alibi":
            raise MethodError(
                f"a cache of codes for {config}: use a transformer without ALiBi, or "
                "caches/dense"
            )
        if sizes.block > window:
            raise MethodError(
                f"window={window}, and a round writes {sizes.block} slots: use a "
                f"window of {sizes.block} at least, or a smaller tree"
            )
        wide = [config.cached(i) for i in range(config.n_layers)]
        rule = Rule(bits, min(group, *(dim for _, dim in wide)), rank, outliers)
        new = functools.partial(gear.cache, rule=rule, block=block, window=window)
        try:
            return of_sizes(new, wide, sizes.batch, sizes.slots, sizes.dtype)
        except ConfigError as error:
            raise MethodError(str(error)) from None

    return base.CachePolicy(full.init, full.place, full.retain, make=make)
