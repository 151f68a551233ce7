"""JetSpec's trees: the most probable node gets all its children at once.

Hu, Feng, Wu, Yuan et al., *JetSpec: Breaking the Scaling Ceiling of Speculative
Decoding with Parallel Tree Drafting*, 2026, arXiv 2606.18394. Of a table of likely
steps (`tree_building/tables.py`), with the value of a node the product of the laws
along its path, until there are `nodes`: the node of greatest value that has no children
yet gets its K likeliest ones (`accum_logp`). With `gap` (`top2gap_fanout`) the number
of children at depth d is, with g_d the distance of the two greatest log-probabilities
there,

    max(1, round(K sigmoid(-slope (g_d - middle))))

so that depths at which the draft is sure stay narrow. K → `children`, 16 in one and the
other; slope = middle = 1. The paper's draft is causal within the block
(`configs/heads/jetspec.py`).

Deviations: where laws depend on the token above, g_d is of the likeliest one.

Cost per call: a top-k over V for each depth and token above; a loop of `nodes` - 1
turns over N numbers a row."""

import jax
import jax.numpy as jnp
from jax import Array

from decoding import base
from decoding.catalogue import Card
from decoding.tree_building import tables
from models.errors import MethodError

CARD = Card(
    paper="JetSpec, arXiv 2606.18394",
    guarantee=base.LAW,
    family=tables.FAMILY,
    needs=("draw",),
    draws=tables.DRAWS,
    examples={"nodes": 7, "depth": 3, "above": 2, "children": 3},
    sources=("hu2026jetspec",),
)


def topology(
    nodes: int = 64,
    depth: int = 7,
    above: int = 16,
    children: int = 16,
    gap: bool = False,
    slope: float = 1.0,
    middle: float = 1.0,
    marginal: bool = False,
    draw: str = base.POINT,
) -> base.Topology:
    """Grow a tree, a node's children at a time.

    Args:
        nodes: nodes to verify, root included.
        depth: depth of the deepest draft; a block's guesses at most.
        above: tokens above each depth whose laws are computed.
        children: K.
        gap: whether depths differ in the number of children.
        slope: of the sigmoid.
        middle: distance of log-probabilities at which it is 1/2, in nats.
        marginal: use a block's own laws, and not what its head makes of the token
            above: DDTree's tree of another drafter than DFlash.
        draw: one of `CARD.draws`.
    """
    if gap and children < 2:
        raise MethodError(f"children={children}, gap=True: use at least 2 children")

    def grow(table: tables.Table) -> tuple[Array, Array, Array]:
        if not gap:
            return tables.expanded(table, nodes)
        best = table.logprobs[:, :, 0]
        apart = best[..., 0] - best[..., 1]
        share = jax.nn.sigmoid(-slope * (apart - middle))
        most = jnp.maximum(jnp.round(children * share), 1).astype(jnp.int32)
        return tables.expanded(table, nodes, most)

    tabled = tables.Tabled(above, children, grow, marginal)
    return tables.topology(tabled, nodes, depth, draw)
