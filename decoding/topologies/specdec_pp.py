"""A chain that ends where a trained predictor expects a rejection.

Huang, Guo, Wang, *SpecDec++: Boosting Speculative Decoding via Adaptive Candidate
Lengths*, 2025, arXiv 2405.19715, algorithm 1. With a_i the probability of acceptance
that `models/predictors/acceptance_predictor.py` predicts for the i-th draft, from the
draft model's state after reading it,

    stop when  1 - prod over j <= i of a_j > h

which is the best policy of a Markov decision process in which drafting, verifying and
a rejection have fixed costs. h → `threshold`. The predictor's params are
`params["acceptance"]`. A predictor that was trained with a rejection weight w predicts
too low by design (training/objectives/predictors/specdec_pp.py); choose h for it.

The draft model must read a draft before the predictor can rate it, and the same call
gives the law of the next draft. So one more draft costs nothing. `free` keeps it, as
the official code does, which rates the state of the token before. Without `free` the
chain ends with the draft that the predictor doubts, as in the paper's algorithm.

Whether a draft exists depends on the tokens and laws before it, never on itself, so
the output law is the target's.

Deviations from the paper: none.

Cost per level: one arg-max or sample over V, and the predictor: blocks D^2 + 2 D
products. Once every row has stopped, a level costs nothing and makes no draft call.
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
    sources=("huang2025specdec",),
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
    """Grow a chain until the predictor expects a rejection.

    Args:
        acceptance: the predictor's params, to check; rounds read them from `params`.
        length: drafts at most.
        least: drafts at least.
        threshold: h, a probability of rejection.
        blocks: the predictor's number of blocks.
        free: keep the draft whose law came with the last rated draft.
        draw: one of `base.DRAWS`.
    """
    if not 1 <= least <= length:
        raise MethodError(f"least={least}, length={length}: use 1 <= least <= length")
    if not 0 <= threshold <= 1:
        raise MethodError(f"threshold={threshold}: use a probability, 0 to 1")
    if blocks < 0:
        raise MethodError(f"blocks={blocks}: use the predictor's number of blocks")
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
            raise MethodError(
                "topologies/specdec_pp needs its predictor: pass "
                'drafts={"acceptance": params} to generate'
            )
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
        exists = state.row.sure | (free or level + 1 <= least)
        local = jnp.zeros_like(tokens)
        live = exists[:, None]
        tree = grow.put(tree, widths, level, tokens, local, live, logits)
        return tree, state

    def more(state: base.State, level: int) -> Array:
        """Return whether draft `level` is read, bool[B]; every chain has the first."""
        if level == 0:
            return jnp.ones_like(state.row.sure)
        drafts = level + 1 if free else level
        return state.row.sure | (drafts <= least)

    def adapt(state: base.State, outcome: base.Outcome) -> base.State:
        return state

    return base.Topology(
        init, expand, adapt, widths, draw, linear=True, more=more, watch=watch
    )
