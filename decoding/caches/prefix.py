"""Keys of what stands before the active block are kept while it is written.

Wu et al., *Fast-dLLM: Training-free Acceleration of Diffusion LLM by Enabling KV Cache
and Parallel Decoding*, 2025, arXiv 2505.22618, section 3.2 ("PrefixCache" in 4.1).

The first forward of a block runs the whole canvas; those after it run the block and all
behind it, over the kept keys of all before it. Approximate: the kept keys saw the
block as masks.
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
        behind = between(canvas, canvas.lo, canvas.limit)
        return jnp.where(beginning(canvas), True, behind)

    return CanvasPolicy(run, lambda tokens, window, canvas: (canvas + 1,))
