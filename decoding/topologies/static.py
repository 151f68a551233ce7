"""A static tree as data: the same shape every round (baseline of the dynamic trees).

Cai et al., *Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding
Heads*, 2024, arXiv 2401.10774, section 2.3.3, whose notation of choices is used: a node
is the tuple of sibling ranks on its path.

Cost per level: one top-k or sample over [w, V].
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from decoding import base
from decoding.catalogue import Card
from decoding.tree_building import child_sampling
from decoding.tree_design import tree_code

CARD = Card(
    paper="Medusa's static trees, arXiv 2401.10774",
    guarantee=base.LAW,
    family="static tree",
    needs=("draw",),
    examples={"choices": ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0))},
    sources=("cai2024medusa",),
)

# 16 nodes and the root; wide where a small draft errs, deep along its first choice.
CHOICES = (
    ((0,), (1,), (2,), (3,))
    + ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0))
    + ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0))
    + ((0, 0, 0, 0), (0, 0, 0, 1))
)


def topology(
    choices: tuple[tuple[int, ...], ...] | str = CHOICES, draw: str = base.POINT
) -> base.Topology:
    """Expand every node of a level to as many candidates as it has children.

    Args:
        choices: the tree in Medusa's notation, or its code
            (`decoding/tree_design/tree_code.py`), as in `configs/trees`.
        draw: one of `base.DRAWS`.
    """
    shape = tree_code.shape(choices)
    child_sampling.check(draw)
    widths = tuple(len(level) for level in shape.levels)
    parents = jnp.asarray(shape.parents)
    laws = draw in (base.IID, base.NO_REPLACE)

    def init(batch: int) -> base.State:
        return base.State()

    def expand(keys, state, nodes: base.TokenTree, logits, noise, level: int):
        here, below = shape.levels[level], shape.levels[level + 1]
        local = shape.parents[below] - here[0]
        ranks = shape.ranks[below]
        ranked_tokens = child_sampling.candidates(
            draw, keys, logits, int(ranks.max()) + 1, noise(level)
        )
        span = slice(int(below[0]), int(below[-1]) + 1)
        batch = nodes.tokens.shape[0]
        nodes = replace(
            nodes,
            tokens=nodes.tokens.at[:, span].set(ranked_tokens[:, local, ranks]),
            parents=nodes.parents.at[:, span].set(
                jnp.broadcast_to(parents[span], (batch, len(below)))
            ),
            kind=nodes.kind.at[:, span].set(base.CANDIDATE),
        )
        if laws:
            written: Any = nodes.logits
            at = slice(int(here[0]), int(here[-1]) + 1)
            nodes = replace(nodes, logits=written.at[:, at].set(logits))
        return nodes, state

    def adapt(state: base.State, outcome: base.Outcome) -> base.State:
        return state

    return base.Topology(init, expand, adapt, widths, draw, shape.linear)
