"""DFlash 2: a block with convolutions, and a selector among each slot's best tokens.

Inco AI, *DFlash 2: Keep Drafting Parallel*, 2026, inco.ai/blog/dflash2. With U_k the
laws of a block, as `drafters/dflash` makes them, and a the token of the node above, of
the 16 tokens b of greatest U_k

    q_k(b | a) = softmax(U_k(b) + <A(a) * H h_k, C(b)>),    0 elsewhere

(`models/heads/dflash2.py`). A chain from one pass is the walk along the selector; a
tree has the law of every node's own token.

Deviations: none.

Cost per call: as `drafters/dflash`, the convolutions, and 16 r a node; no model call.
"""

from collections.abc import Sequence

from decoding import base
from decoding.catalogue import Card
from decoding.tree_building import block_draft
from models.heads import dflash2

CARD = Card(
    paper="DFlash 2, inco.ai",
    guarantee=base.LAW,
    family="head",
    needs=("heads", "model", "topology"),
    trained=True,
    sources=("incoai2026dflash",),
)


def drafter(
    heads, model, topology: base.Topology, taps: Sequence[int] = ()
) -> base.Drafter:
    """Draft with `params["heads"]`, of `models/heads/dflash2.py`.

    `taps` are the states that the heads were trained on, if other than the default.
    """
    return block_draft.drafter(dflash2.HEAD, heads, model, topology, taps)
