"""Keys are kept one step after their tokens were committed, and renewed now and then.

Ma et al., *dKV-Cache: The Cache for Diffusion Language Models*, 2025, arXiv 2505.15781,
section 3.3.

A key is unstable while its token is a mask, and right after. So a step runs all open
positions and those that the step before committed; the others' keys are kept. The first
two steps of a block and every `refresh`-th one run the whole canvas
("dKV-Cache-Decode").

With a `window` keys of masks are kept, too ("dKV-Cache-Greedy"): a step runs what the
step before committed, what this one commits, and of the open positions the `window`
nearest to each of these, on the left first (`llada_dkv_cache_greedy.py` of the official
repository; only the first step of a block and every `refresh`-th are whole). That needs
a schedule whose order is known before the forward: `diffusion/llada` in random order.

Approximate; `refresh=1` is exact.

Deviation: where a step commits several positions, their windows may overlap. In the
official code they share no position: a later one takes the next nearest.
"""

import jax
import jax.numpy as jnp

from decoding import base
from decoding.catalogue import Card
from decoding.denoising.canvas_policy import CanvasPolicy, beginning
from models.errors import MethodError

CARD = Card(
    paper="Ma et al. 2025, arXiv 2505.15781",
    guarantee=base.LOSSY,
    family="canvas",
    sources=("ma2025dkvcache",),
    kind="canvas_policy",
)


def canvas_policy(refresh: int = 8, window: int | None = None) -> CanvasPolicy:
    """Build the policy.

    Args:
        refresh: steps of a block between two that run everything, 1 or more (8 for
            LLaDA, 4 for Dream in the paper's table 2; 2 with a window).
        window: open positions that run beside each one that is committed, 0 or more
            (their example: 4); None: all open positions run.
    """
    if refresh < 1 or (window is not None and window < 0):
        raise MethodError(
            f"refresh={refresh}, window={window}: use a refresh of 1 or more, and a "
            "window of 0 or more or None"
        )
    stale = 1 if window is None else 0  # the age up to which a block's steps are whole

    def run(canvas, wanted):
        age = jnp.where(beginning(canvas), 0, canvas.step - canvas.begun)
        whole = (age <= stale) | (age % refresh == 0)
        fresh = canvas.known & (canvas.born == canvas.step - 1)
        part = canvas.open if window is None else wanted | near(canvas, wanted, window)
        return part | fresh | whole

    def widths(tokens, block, canvas):
        parts = tuple(-(-canvas // part) + 1 for part in (4, 2, 1))
        # One committed before and one now, its window, and where its law is.
        return parts if window is None else (window + 3, *parts)

    is_greedy = window is not None
    return CanvasPolicy(run, widths, steady=False, foresees=is_greedy)


def near(canvas, wanted, window):
    """★ Return the `window` open positions nearest to each of the `wanted`, bool[T].

    Those that are wanted themselves do not count; the left one of two comes first.
    """
    place = jnp.arange(wanted.shape[0], dtype=jnp.int32)
    others = canvas.open & ~wanted
    before = jnp.pad(jnp.cumsum(others, dtype=jnp.int32), (1, 0))

    def of(center):
        far = jnp.abs(place - center)
        begin = center - far + (place < center)  # itself is behind the left one
        count = before[jnp.minimum(center + far, place.size)]
        count -= before[jnp.maximum(begin, 0)]
        return others & (count < window)

    centers = canvas.lo + jnp.arange(canvas.window, dtype=jnp.int32)
    taken = wanted.at[centers].get(mode="fill", fill_value=False)
    return (jax.vmap(of)(centers) & taken[:, None]).any(0)
