"""Blocks of a fixed size, written from left to right.

Nie et al., *Large Language Diffusion Models*, 2025, arXiv 2502.09992, appendix B.4 of
its third version ("semi-autoregressive remasking"). Schedules without this part have
blocks of 32.

Cost: nothing; the window of C = `size` positions is what the head runs on.
"""

from decoding import base
from decoding.catalogue import Card
from decoding.denoising.schedule import Scheduler
from models.errors import MethodError

CARD = Card(
    paper="Nie et al. 2025, arXiv 2502.09992",
    guarantee=base.LAW,
    family="blocks",
    sources=("nie2025large",),
)


def scheduler(size: int = 0) -> Scheduler:
    """Build the part.

    Args:
        size: positions of a block; 0: the whole canvas is one.
    """
    if size < 0:
        raise MethodError(f"size={size}: use 1 or more, or 0 for one block")

    def plan(state, canvas, proposal):
        return canvas.lo + size if size else canvas.limit

    return Scheduler(
        plan=plan, window=lambda tokens: size or tokens, guarantee=base.LAW
    )
