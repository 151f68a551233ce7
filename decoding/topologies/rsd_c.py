"""RSD-C: a constant number of children a level, drawn without replacement.

Jeon, Gagrani, Goel, Park, Lee, Lott, *Recursive Speculative Decoding: Accelerating LLM
Inference via Sampling Without Replacement*, 2024, arXiv 2402.14160, section 3 (RSD
with constant branching factors). With branching factors b = (b_1, ..., b_L)

    children of a node at depth l - 1:  top-b_l over x of  log q(x | node) + G(x)

G: independent Gumbel noise, so the children are a sample without replacement, in draw
order. b → `branching`. The verifier is `recursive_rejection`.

Deviations from the paper: none. Greedy decoding uses no noise, and the coupled verifier
the position's noise.

Cost per level: one top-k over V a node.
"""

from decoding import base
from decoding.catalogue import Card
from decoding.topologies import static
from decoding.tree_building import child_sampling
from decoding.tree_design import tree_shape
from models.errors import MethodError

CARD = Card(
    paper="Recursive speculative decoding (RSD-C), arXiv 2402.14160",
    guarantee=base.LAW,
    family="static tree",
    needs=("draw",),
    draws=(base.NO_REPLACE, base.POINT, base.COUPLED),
    examples={"branching": (2, 1, 2)},
    sources=("jeon2024recursive",),
)


def topology(
    branching: tuple[int, ...] = (2, 2, 2, 2), draw: str = base.NO_REPLACE
) -> base.Topology:
    """Give every node `branching[depth]` children; the default drafts 30 tokens."""
    if not branching or min(branching) < 1:
        raise MethodError(
            f"branching={branching}: give the number of children at each depth, at "
            "least 1"
        )
    child_sampling.check(draw, CARD.draws)
    return static.topology(tree_shape.full_choices(branching), draw)
