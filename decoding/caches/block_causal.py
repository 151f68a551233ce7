"""Exact keys for models whose blocks see only themselves and what stands before them.

Arriola et al., *Block Diffusion: Interpolating Between Autoregressive and Diffusion
Language Models*, ICLR 2025, arXiv 2503.09573, section 3.

Blocks of W positions are counted from position 0. A position sees all before the end of
its block, so the keys of a finished block never change. The first forward of a block
also runs the tokens of the one before, whose last run had masks among them. The
prompt's whole blocks are read once.
"""

import jax.numpy as jnp

from decoding import base
from decoding.catalogue import Card
from decoding.denoising.canvas_policy import (
    BLOCK_CAUSAL,
    CanvasPolicy,
    beginning,
    between,
)
from models.errors import MethodError

CARD = Card(
    paper="Arriola et al. 2025, arXiv 2503.09573",
    guarantee=base.LAW,
    family="canvas",
    needs=("visibilities", "block_size"),
    sources=("arriola2025block",),
    kind="canvas_policy",
)


def canvas_policy(visibilities: tuple[str, ...], block_size: int) -> CanvasPolicy:
    """Build the policy.

    Args:
        visibilities: what the model was trained for; filled in.
        block_size: W. Filled in: the model's.

    Raises:
        MethodError: the model was not trained for it, or has no block size.
    """
    if BLOCK_CAUSAL not in visibilities:
        raise MethodError(
            f"the model was trained for {visibilities} attention, whose keys change "
            "with later tokens: use caches/recompute, or an approximate policy such as "
            "caches/dual"
        )
    if block_size < 1:
        raise MethodError(f"block_size={block_size}: use at least 1")

    def run(canvas, wanted):
        first = canvas.lo // block_size * block_size
        begin = jnp.where(beginning(canvas), first - block_size, first)
        return between(canvas, begin, first + block_size)

    def widths(tokens, window, canvas):
        return (block_size + 1, 2 * block_size)

    return CanvasPolicy(run, widths, BLOCK_CAUSAL, block_size, prefills=True)
