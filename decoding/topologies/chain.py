"""A chain of drafts of fixed length (baseline).

Leviathan, Kalman, Matias, *Fast Inference from Transformers via Speculative Decoding*,
2023, arXiv 2211.17192, algorithm 1 (gamma drafts).

Cost per level: one arg-max or sample over V.
"""

from decoding import base
from decoding.catalogue import Card
from decoding.topologies import static
from decoding.tree_design import tree_shape
from models.errors import MethodError

CARD = Card(
    paper="Speculative decoding, arXiv 2211.17192",
    guarantee=base.LAW,
    family="chain",
    needs=("draw",),
    examples={"length": 3},
    sources=("leviathan2023fast",),
)


def topology(length: int = 5, draw: str = base.POINT) -> base.Topology:
    """Grow `length` drafts, each the first candidate after the one before."""
    if length < 1:
        raise MethodError(f"length={length}: a chain needs at least one draft")
    return static.topology(tree_shape.path_choices(length), draw)
