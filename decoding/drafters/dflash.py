"""DFlash: one pass over masks behind the text guesses a block of tokens.

Chen, Liang, Liu, *DFlash: Block Diffusion for Flash Speculative Decoding*, 2026, arXiv
2602.06036. With H the fused features of the committed text before the root x_a,

    h = Layers([x_a, MASK, .., MASK]; keys and values of H),   q_k = softmax(W_lm h_k)

q_k is the law of the children of *every* node at depth k, whatever the tokens above.
The state is the keys of H in each layer; the block's own keys are dropped. After a
round the features of the root and of the accepted drafts are appended. A tree of these
laws (`topologies/eagle2`) is a marginal tree, such as DDTree's (arXiv 2604.12989).

Deviations from the paper: none. The topology's draw decides between its April code's
most probable drafts (POINT) and its release's samples (IID); both are exact.

Cost per call: one pass of the draft's layers over W slots, K products [D, V] a row, and
n D^2 + 2 D G d a layer for each committed token; no model call.
"""

from collections.abc import Sequence

from decoding import base
from decoding.catalogue import Card
from decoding.tree_building import block_draft
from models.heads import dflash

CARD = Card(
    paper="DFlash, arXiv 2602.06036",
    guarantee=base.LAW,
    family="head",
    needs=("heads", "model", "topology"),
    trained=True,
    sources=("chen2026dflash",),
)


def drafter(
    heads, model, topology: base.Topology, taps: Sequence[int] = ()
) -> base.Drafter:
    """Draft with `params["heads"]`, of `models/heads/dflash.py`.

    `taps` are the states that the heads were trained on, if other than the paper's.
    """

    return block_draft.drafter(dflash.HEAD, heads, model, topology, taps)
