"""Cache policies of canvases: which positions go through the model at a step.

Slots are positions. A canvas is written in any order, so a key that lies in the cache
may be of the time when its position, or another that it saw, was a mask. What is *run*
is written anew; what is not, is read as it was left. A policy that runs less than all
is exact only where later tokens cannot change earlier keys (`block_causal`).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from decoding.denoising.schedule import Canvas

CAUSAL, BIDIRECTIONAL, BLOCK_CAUSAL = "causal", "bidirectional", "block_causal"
VISIBILITIES = (CAUSAL, BIDIRECTIONAL, BLOCK_CAUSAL)
SAME, SHIFTED = ALIGNMENTS = ("same", "shifted")


class CanvasPolicy(NamedTuple):
    """What of a canvas runs, and what its nodes see.

    - `run(canvas, wanted bool[T]) -> bool[T]` ★: the positions to run, for the laws of
      the `wanted` open ones; the loop adds those whose states give these laws (for a
      steady policy that of the block's first in all its steps), and cuts at the
      canvas's limit.
    - `widths(tokens, window, canvas) -> sizes`: numbers of nodes that are worth a
      program of their own, for a buffer, a window and a canvas of such sizes. The
      largest, `tokens`, is added.
    - `visibility`: what a node sees, BIDIRECTIONAL (all below the limit) or
      BLOCK_CAUSAL (all before the end of its block).
    - `block`: positions of a block of BLOCK_CAUSAL, counted from position 0; else 0.
    - `prefills`: the prompt's blocks are read once, before the first step.
    - `steady`: it runs the same positions in all steps of a block but the first, so
      that several states of a row can share the keys of the others.
    - `foresees`: inside a block only what the step commits is `wanted`, so the schedule
      must have drawn it before the forward (`Scheduler.ahead`).
    """

    run: Callable[[Canvas, Array], Array]
    widths: Callable[[int, int, int], tuple[int, ...]]
    visibility: str = BIDIRECTIONAL
    block: int = 0
    prefills: bool = False
    steady: bool = True
    foresees: bool = False


def beginning(canvas: Canvas) -> Array:
    """★ Return whether a block begins at this step, bool[]."""
    return canvas.hi == canvas.lo


def between(canvas: Canvas, lo: Array, hi: Array) -> Array:
    """★ Return the positions from `lo` to `hi`, bool[T]."""
    index = jnp.arange(canvas.tokens.shape[0])
    return (index >= lo) & (index < hi)
