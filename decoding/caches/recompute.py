"""Run the whole canvas at every step: exact, and the reference of every other policy.

Baseline: Nie et al., *Large Language Diffusion Models*, 2025, arXiv 2502.09992
(LLaDA's `generate` keeps no keys).
"""

from decoding import base
from decoding.catalogue import Card
from decoding.denoising.canvas_policy import BIDIRECTIONAL, BLOCK_CAUSAL, CanvasPolicy
from models.errors import MethodError

CARD = Card(
    paper="Nie et al. 2025, arXiv 2502.09992",
    guarantee=base.LAW,
    family="canvas",
    needs=("visibility", "block_size"),
    sources=("nie2025large",),
    kind="canvas_policy",
)


def canvas_policy(visibility: str, block_size: int) -> CanvasPolicy:
    """Build the policy.

    Args:
        visibility: what a position sees: "bidirectional", or "block_causal". Filled in:
            what the model was trained for first.
        block_size: positions of a block of "block_causal". Filled in: the model's.
    """
    if visibility not in (BIDIRECTIONAL, BLOCK_CAUSAL):
        raise MethodError(
            f"visibility={visibility!r}: use {BIDIRECTIONAL!r} or {BLOCK_CAUSAL!r}"
        )
    block = block_size if visibility == BLOCK_CAUSAL else 0
    return CanvasPolicy(
        lambda canvas, wanted: wanted | True, lambda *sizes: (), visibility, block
    )
