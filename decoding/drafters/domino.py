"""Domino: a block's laws, each corrected by a GRU over the drafts before it.

Huang, Zhang, Zhang, Lin, Xu, Zhang, *Domino: Decoupling Causal Modeling from
Autoregressive Drafting in Speculative Decoding*, 2026, arXiv 2605.29707. With U_k the
laws of a shifted block, as `drafters/dflash` makes them, and s the GRU's state after
the drafts above a node,

    q_k(. | drafts) = softmax(U_k + M(h_k, s))

and the block's own law at the root (`models/heads/domino.py`). The state is one of a
path: every node of a tree has its own. `topologies/eagle2` keeps the best paths of a
level, as DARTree does (arXiv 2608.13524).

Deviations from the paper: the last slot guesses too; the published code leaves it out.

Cost per call: as `drafters/dflash`, and (6 G (D + G) + 2 E (D + G + V)) a node; no
model call.
"""

from collections.abc import Sequence

from decoding import base
from decoding.catalogue import Card
from decoding.tree_building import block_draft
from models.heads import domino

CARD = Card(
    paper="Domino, arXiv 2605.29707",
    guarantee=base.LAW,
    family="head",
    needs=("heads", "model", "topology"),
    trained=True,
    sources=("huang2026domino",),
)


def drafter(
    heads, model, topology: base.Topology, taps: Sequence[int] = ()
) -> base.Drafter:
    """Draft with `params["heads"]`, of `models/heads/domino.py`.

    `taps` are the states that the heads were trained on, if other than the paper's.
    """
    return block_draft.drafter(domino.HEAD, heads, model, topology, taps)
