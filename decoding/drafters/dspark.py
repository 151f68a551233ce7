"""DSpark: a block's laws, each corrected by the token that was drafted before.

Cheng, Yu, Shao, Li, Xiong et al., *DSpark: Confidence-Scheduled Speculative Decoding
with Semi-Autoregressive Generation*, 2026, arXiv 2607.05147. With U_k the laws of a
shifted block, as `drafters/dflash` makes them, and a the token of the node above,

    q_k(. | a) = softmax(U_k + M_k(a))

M is a Markov head of low rank, which only here reads tokens (`models/heads/dspark.py`).
The root is the first a, so W slots guess W tokens. A chain costs a product [r, V] a
draft. In a tree every node has the law of its own path: `topologies/eagle2` grows a
conditioned tree, such as PCTree's (arXiv 2608.02123).

Deviations from the paper: none. Its confidence head is read by
`topologies/confidence_schedule`.

Cost per call: as `drafters/dflash`, and 2 r V a node; no model call.
"""

from collections.abc import Sequence

from decoding import base
from decoding.catalogue import Card
from decoding.tree_building import block_draft
from models.heads import dspark

CARD = Card(
    paper="DSpark, arXiv 2607.05147",
    guarantee=base.LAW,
    family="head",
    needs=("heads", "model", "topology"),
    trained=True,
    sources=("cheng2026dspark",),
)


def drafter(
    heads, model, topology: base.Topology, taps: Sequence[int] = ()
) -> base.Drafter:
    """Draft with `params["heads"]`, of `models/heads/dspark.py`.

    `taps` are the states that the heads were trained on, if other than the paper's.
    """
    return block_draft.drafter(dspark.HEAD, heads, model, topology, taps)
