"""Measure a call's cost by block width, and suggest the fastest width."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from models.base import ALL, causal_block

QUARTS = (0.25, 0.75)
CALLS = 24  # in one compiled loop, so that dispatch is not measured


def call_times(
    lm: Any,
    widths: Sequence[int],
    context: int = 256,
    size: int = 512,
    repeats: int = 5,
) -> list[dict[str, Any]]:
    """Time a call (logits at all nodes, arg-max) by width: milliseconds.

    The block is a chain after `context` tokens in a cache of `size` slots, batch 1;
    each call's tokens come from the one before. Widths take turns in every repeat.

    Returns:
        `width`, median `ms`, its quartiles `ms_quartiles` over repeats, and
        `plain_calls`, the median in calls of the narrowest block; for each width.
    """
    programs = {width: _program(lm, width) for width in widths}
    dtype = jax.tree.leaves(lm.params)[0].dtype
    caches = {}
    for width, run in programs.items():
        cache = lm.model.init_cache(1, max(size, context + width), dtype)
        cache = cache.replace(length=jnp.full((1,), context, jnp.int32))
        caches[width] = run(lm.params, cache, jnp.int32(2))
    times: dict[int, list[float]] = {width: [] for width in widths}
    for _ in range(repeats):
        for width, run in programs.items():
            begun = time.perf_counter()
            caches[width] = jax.block_until_ready(
                run(lm.params, caches[width], jnp.int32(CALLS))
            )
            times[width].append((time.perf_counter() - begun) / CALLS)
    medians = {width: statistics.median(t) for width, t in times.items()}
    one = medians[min(medians)]
    return [
        {
            "width": width,
            "ms": 1e3 * t,
            "ms_quartiles": [1e3 * float(x) for x in np.quantile(times[width], QUARTS)],
            "plain_calls": t / one,
        }
        for width, t in medians.items()
    ]


def _program(lm: Any, width: int) -> Any:
    """Compile a loop of calls of one block width."""

    def run(params: Any, cache: Any, calls: jax.Array) -> Any:
        def body(i: jax.Array, carry: tuple) -> tuple:
            cache, tokens = carry
            count = jnp.full((1,), width, jnp.int32)
            block = causal_block(tokens, cache.length, count, cache.size, ALL)
            out, cache = lm.model(params, cache, block)
            return cache, jnp.argmax(out.logits, -1).astype(jnp.int32)

        tokens = jnp.zeros((1, width), jnp.int32)
        return lax.fori_loop(0, calls, body, (cache, tokens))[0]

    return jax.jit(run, donate_argnums=1)


def suggest(
    times: Sequence[dict[str, Any]], committed: Sequence[float], share: float = 0.1
) -> dict[str, Any]:
    """Suggest the block width at which a chain would decode fastest.

    `committed[d]` is the share of rounds that committed a draft of depth d + 1. So a
    chain of N nodes commits 1 + sum(committed[:N - 1]) tokens a round. `share` of a
    round is spent outside the call. The result is width 1, plain decoding, where no
    other is faster.
    """
    options = [{"width": 1, "tokens_per_call": 1.0, "speedup": 1.0}]
    for entry in times:
        width = int(entry["width"])
        if width == 1 or width > len(committed) + 1:
            continue
        tokens = 1 + sum(committed[: width - 1])
        speed = tokens * (1 - share) / entry["plain_calls"]
        options.append({"width": width, "tokens_per_call": tokens, "speedup": speed})
    return max(options, key=lambda entry: entry["speedup"])
