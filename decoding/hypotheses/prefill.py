"""Searches that end before the text begins: they change what the prompt left behind."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array

from decoding import base
from models.base import Block


class Prefill(NamedTuple):
    """A way to read the prompt, after which any drafter decodes.

    - `window`: tokens of a row in a chunk of the prompt.
    - `numbers`: arrays that a sweep may change; programs take them as arguments.
    - `init(numbers, cache) -> State` of all rows, before the first chunk.
    - `read(params, state, cache, block, labels, count) -> cache, State` changes the
      target's committed slots, before the target itself reads `block`. `labels`
      int32[B, N] are the prompt's tokens after each node; a row has `count` int32[B]
      nodes, and one without any must stay as it is.
    """

    window: int
    numbers: Any
    init: Callable[[Any, Any], base.State]
    read: Callable[
        [base.Params, base.State, Any, Block, Array, Array], tuple[Any, base.State]
    ]
    guarantee: str = base.LOSSY
