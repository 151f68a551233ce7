"""TreeFlash: a block's states, each moved by the token that was drafted before.

Rheinboldt, Berdoz, Wattenhofer, *TreeFlash: Parallel AR-Approximation for Faster
Speculative Decoding*, 2026, arXiv 2606.03819. With y_k the states of a block, as
`drafters/dflash` makes them, and a the token of the node above,

    q_k(. | a) = softmax(W_lm norm(y_k + f(e(a), norm(y_k))))

f is a gated layer (`models/heads/treeflash.py`). No slot waits for the one before it,
so `topologies/best_first` has the laws of all pairs of a slot and a likely token above
it at once, the paper's table of 16 by 16.

Deviations from the paper: none.

Cost per call: as `drafters/dflash`, and (6 D F + 2 V D) a node; no model call.
"""

from collections.abc import Sequence

from decoding import base
from decoding.catalogue import Card
from decoding.tree_building import block_draft
from models.heads import treeflash

CARD = Card(
    paper="TreeFlash, arXiv 2606.03819",
    guarantee=base.LAW,
    family="head",
    needs=("heads", "model", "topology"),
    trained=True,
    sources=("rheinboldt2026treeflash",),
)


def drafter(
    heads, model, topology: base.Topology, taps: Sequence[int] = ()
) -> base.Drafter:
    """Draft with `params["heads"]`, of `models/heads/treeflash.py`.

    `taps` are the states that the heads were trained on, if other than the paper's.
    """
    return block_draft.drafter(treeflash.HEAD, heads, model, topology, taps)
