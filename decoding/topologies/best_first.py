"""The most probable tree of a block's laws, of any shape, in one go (DDTree).

Ringel, Romano, *Accelerating Speculative Decoding with Block Diffusion Draft Trees*,
2026, arXiv 2604.12989. A drafter that has the laws of all depths gives a table of
likely steps (`tree_building/tables.py`). With the value of a node

    v = product over the nodes of its path of q(token | token above)

the tree is the `nodes` - 1 nodes of greatest v, taken one after the other: each opens
its next sibling and its first child. On a marginal drafter (`drafters/dflash`) this is
DDTree; on one whose laws read the token above it is a tree conditioned on its path, as
PCTree's (arXiv 2608.02123, `drafters/dspark`) and TreeFlash's (arXiv 2606.03819): of 16
tokens above each depth, 16 children each. A child that is none of the next depth's
tokens above is a leaf. Drafts are the likeliest tokens; where the verifier couples, of
the laws with its noise.

Deviations: none of TreeFlash. DDTree has as many children as nodes.

Cost per call: a top-k over V for each depth and token above; a loop of `nodes` turns
over 2 N numbers a row."""

from jax import Array

from decoding import base
from decoding.catalogue import Card
from decoding.tree_building import tables

CARD = Card(
    paper="DDTree, arXiv 2604.12989",
    guarantee=base.LAW,
    family=tables.FAMILY,
    needs=("draw",),
    draws=tables.DRAWS,
    examples={"nodes": 7, "depth": 3, "above": 2, "children": 3},
    sources=("ringel2026accelerating",),
)


def topology(
    nodes: int = 64,
    depth: int = 7,
    above: int = 16,
    children: int = 16,
    marginal: bool = False,
    draw: str = base.POINT,
) -> base.Topology:
    """Grow the most probable tree.

    Args:
        nodes: nodes to verify, root included.
        depth: depth of the deepest draft; a block's guesses at most.
        above: tokens above each depth whose laws are computed.
        children: children of a node at most.
        marginal: use a block's own laws, and not what its head makes of the token
            above: DDTree's tree of another drafter than DFlash.
        draw: one of `CARD.draws`.
    """

    def grow(table: tables.Table) -> tuple[Array, Array, Array]:
        return tables.best_first(table, nodes)

    tabled = tables.Tabled(above, children, grow, marginal)
    return tables.topology(tabled, nodes, depth, draw)
