"""Keys are kept one step after their tokens were committed, and renewed now and then.

Ma et al., *dKV-Cache: The Cache for Diffusion Language Models*, 2025, arXiv 2505.15781,
section 3.3 ("dKV-Cache-Decode").

A key is unstable while its token is a mask, and right after. So a step runs all open
positions and those that the step before committed; the others' keys are kept. The first
two steps of a block and every `refresh`-th one run the whole canvas. Approximate;
`refresh=1` is exact.

Deviation: the paper's greedier variant, which also keeps the keys of masks and needs
an order that is drawn before, is not here.
"""

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


def canvas_policy(refresh: int = 8) -> CanvasPolicy:
    """Build the policy.

    Args:
        refresh: steps of a block between two that run everything, 1 or more (8 for
            LLaDA, 4 for Dream in the paper's table 2).
    """
    if refresh < 1:
        raise MethodError(f"refresh={refresh}: use at least 1")

    def run(canvas, reads):
        age = jnp.where(beginning(canvas), 0, canvas.step - canvas.begun)
        whole = (age <= 1) | (age % refresh == 0)
        fresh = canvas.known & (canvas.born == canvas.step - 1)
        return canvas.open | fresh | whole

    def widths(tokens, window, canvas):
        return tuple(-(-canvas // part) + 1 for part in (4, 2, 1))

    return CanvasPolicy(run, widths, steady=False)
