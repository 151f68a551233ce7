"""Keys of all but the active block are kept while it is written.

Wu et al., *Fast-dLLM: Training-free Acceleration of Diffusion LLM by Enabling KV Cache
and Parallel Decoding*, 2025, arXiv 2505.22618, section 3.2 ("DualCache").

The first forward of a block runs the whole canvas; those after it run the block alone,
over the kept keys of the text before it and of the masks behind it. Approximate: all
kept keys saw the block as masks. Where a law is at the position before its own, the one
before the block runs with it.
"""

import jax.numpy as jnp

from decoding import base
from decoding.catalogue import Card
from decoding.denoising.canvas_policy import CanvasPolicy, beginning, between

CARD = Card(
    paper="Wu et al. 2025, arXiv 2505.22618",
    guarantee=base.LOSSY,
    family="canvas",
    sources=("wu2025fastdllm",),
    kind="canvas_policy",
)


def canvas_policy() -> CanvasPolicy:
    """Build the policy."""

    def run(canvas, wanted):
        active = between(canvas, canvas.lo, canvas.hi)
        return jnp.where(beginning(canvas), True, active)

    return CanvasPolicy(run, lambda tokens, window, canvas: (window + 1,))
