"""A chain that ends where a trained head expects a rejection.

Huang, Guo, Wang, *SpecDec++: Boosting Speculative Decoding via Adaptive Candidate
Lengths*, 2024, arXiv 2405.19715, algorithm 1. With a_i what the head of
`models/predictors/acceptance_predictor.py` says of the i-th draft, from the draft
model's state where it has read that draft,

    stop when  1 - prod over j <= i of a_j > h

which is the best policy of a Markov decision process in which drafting, verifying and
a rejection have fixed costs. h → `threshold`. The head's params are
`params["acceptance"]`; an acceptance that was trained with a rejection weight w is too
low by design (training/objectives/predictors/specdec_pp.py), and h is chosen with it.

To judge a draft it must be read, and the call that reads it gives the law of the next.
So one more draft comes with the verdict for nothing: `free` keeps it, as the official
code does, which looks at the state of the token before; without it the chain ends with
the draft that raised the doubt, as in the paper's algorithm.

Whether a draft exists depends on the tokens and laws before it, never on itself, so
that the output law is the target's.

Deviations from the paper: none.

Cost per level: one arg-max or sample over V, and the head: blocks D^2 + 2 D products;
nothing, nor a draft call, once every row has stopped.
"""

from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base
from decoding.catalogue import Card
from decoding.tree_building import child_sampling, grow
from models.errors import MethodError
from models.predictors import acceptance_predictor

CARD = Card(
    paper="SpecDec++, arXiv 2405.19715",
    guarantee=base.LAW,
    family="adaptive chain",
    data=("threshold",),
    needs=("draw", "acceptance"),
    trained=True,
    examples={"length": 3, "least": 1, "blocks": 1, "threshold": 0.5},
)


@struct.dataclass
class Row:
    """One row's chain."""

    threshold: Array  # float32[B]: h
    alive: Array  # float32[B]: the product of the a_j of this round
    sure: Array  # bool[B]: 1 - alive <= h


def topology(
    acceptance: Any = None,
    length: int = 20,
    least: int = 2,
    threshold: float = 0.3,
    blocks: int = 3,
    free: bool = True,
    draw: str = base.POINT,
) -> base.Topology:
    """At most `length` drafts and at least `least`; `blocks` of the head, whose params
    are `acceptance`."""
    if not 1 <= least <= length:
        raise MethodError(f"least={least}, length={length}: use 1 <= least <= length")
    if not 0 <= threshold <= 1:
        raise MethodError(f"threshold={threshold}: use a probability, 0 to 1")
    if blocks < 0:
        raise MethodError(f"blocks={blocks}: use the head's number of blocks")
    if acceptance is not None:
        acceptance_predictor.check(acceptance)
    child_sampling.check(draw)
    widths = (1,) * (length + 1)

    def init(batch: int) -> base.State:
        ones = jnp.ones((batch,), jnp.float32)
        return base.State(Row(threshold * ones, ones, jnp.ones((batch,), bool)))

    def watch(params, state: base.State, own: Array, level: int) -> base.State:
        row: Row = state.row
        if "acceptance" not in params:
            raise MethodError('pass drafts={"acceptance": params} to generate')
        if level == 0:  # the root is no draft
            alive = jnp.ones_like(row.alive)
        else:
            acceptance_predictor.check(params["acceptance"], own.shape[-1])
            a = acceptance_predictor.probability(
                params["acceptance"], own[:, 0], blocks
            )
            alive = row.alive * a
        sure = 1.0 - alive <= row.threshold
        return base.State(Row(row.threshold, alive, sure))

    def expand(keys, state, tree: base.TokenTree, logits, noise, level: int):
        tokens = child_sampling.candidates(draw, keys, logits, 1, noise(level))[:, 0]
        wanted = state.row.sure | (free or level + 1 <= least)
        local = jnp.zeros_like(tokens)
        there = wanted[:, None]
        tree = grow.put(tree, widths, level, tokens, local, there, logits)
        return tree, state

    def more(state: base.State, level: int) -> Array:
        """Whether draft `level` is read; every chain has the first."""
        if level == 0:
            return jnp.ones_like(state.row.sure)
        asked = level + 1 if free else level
        return state.row.sure | (asked <= least)

    def adapt(state: base.State, outcome: base.Outcome) -> base.State:
        return state

    return base.Topology(
        init, expand, adapt, widths, draw, linear=True, more=more, watch=watch
    )
