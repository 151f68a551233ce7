"""What decides how much of a draft a round verifies."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from decoding.base import State


class WidthPolicy(NamedTuple):
    """Decides how much of a draft a round verifies, and when to draft at all.

    - `init(batch, depth) -> State`, for drafts of at most `depth`.
    - `plan(state) -> int32[]` is the depth to draft; 0 pauses a drafter that `pauses`.
    - `rest(state) -> int32[]`: rounds of the pause that are left, this one included;
      of a draft of which only the root is kept, rounds before the next draft.
    - `keep(state, tree, widths, active) -> live, least, state` chooses bool[B, N], the
      nodes to verify, and the least width int32[] of their block. A node's parent is
      kept with it, and so are the siblings that were drawn before it. Which nodes it
      keeps may depend on earlier rounds and on the tree's form, never on its tokens.
    - `observe(state, tree, verdict, width, active, rounds) -> state` gets the whole
      draft, in which nodes that were not verified are padding, the verdict on it, and
      the width int32[] of the block. After as many `rounds` int32[] of a pause at once
      it gets the nodes that their text tested, and the path that the text took.
    """

    init: Callable[[int, int], State] = lambda batch, depth: State()
    plan: Callable[[State], Array] | None = None
    rest: Callable[[State], Array] = lambda state: jnp.int32(1)
    keep: Callable[..., tuple[Array, Array, State]] | None = None
    observe: Callable[..., State] | None = None
    measured: bool = False  # whether its state takes `block_width.costs.Costs`


PAPER = WidthPolicy()  # every node, every round
