"""SpecInfer's expansion: every node of a depth has the same number of i.i.d. children.

Miao, Oliaro, Zhang, Cheng, Wang, Zhang, Wong, Zhu, Yang, Shi, Shi, Chen, Arfeen,
Abhyankar, Jia, *SpecInfer*, 2024, arXiv 2305.09781, section 3 (expansion-based token
tree construction). With the expansion configuration <k_1, ..., k_m>

    the children of a node at depth i - 1 are x_1, ..., x_{k_i} ~ q(. | node), i.i.d.

k → `expansion`. Drafts may repeat one another. For greedy decoding, as in the paper,
and under the coupled verifier the children are the k_i best tokens instead.
`(k, 1, 1, ...)` gives SpecTr's k independent sequences.

Deviations from the paper: one draft model; the paper merges the trees of several.

Cost per level: k_i samples over V a node.
"""

from decoding import base
from decoding.catalogue import Card
from decoding.topologies import static
from decoding.tree_building import child_sampling
from decoding.tree_design import tree_shape
from models.errors import MethodError

CARD = Card(
    paper="SpecInfer, arXiv 2305.09781",
    guarantee=base.LAW,
    family="static tree",
    needs=("draw",),
    draws=(base.IID, base.POINT, base.COUPLED),
    examples={"expansion": (2, 1, 1)},
    sources=("miao2024specinfer",),
)


def topology(
    expansion: tuple[int, ...] = (1, 1, 3, 1, 1, 1, 1, 1), draw: str = base.IID
) -> base.Topology:
    """Give every node `expansion[depth]` children; the default is the paper's."""
    if not expansion or min(expansion) < 1:
        raise MethodError(
            f"expansion={expansion}: give the number of children at each depth, at "
            "least 1"
        )
    child_sampling.check(draw, CARD.draws)
    return static.topology(tree_shape.full_choices(expansion), draw)
