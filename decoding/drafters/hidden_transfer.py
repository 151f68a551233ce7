"""Hidden Transfer: pseudo states, born mid-network, guess the tokens after the next.

Wu, Liu, Gong, Wang, Li, Wang, Cai, Zhao, *Parallel Decoding via Hidden Transfer for
Lossless Large Language Model Acceleration*, 2024, arXiv 2404.12022. Every node of the
tree carries k AUX nodes, whose states at the entry of layer l are T_j h of their node;
with a the last accepted node of a round, which chose the next root,

    q_j = softmax(target from layer l on(text .. a, T_1 h_a, .., T_j h_a)),  j = 1 .. k

is the law of the children of every node at depth j - 1 of the next round's tree.
`decoding/tree_building/aux_nodes.py` carries the laws from round to round; T is in
`models/heads/hidden_transfer.py`. The tree of candidates is the topology's.

Deviations from the paper: a reconstruction from the abstract; one layer for all j,
where the paper's may differ. Nothing is drafted in the first round, since the prompt's
chunks carry no pseudo states. Below layer l the AUX nodes run as tokens that no
node sees, since a block has one width.

Cost per call: no model call; the target's block is (1 + k) times as wide, and k
products [D, D] a node.
"""

from typing import Any

from decoding import base
from decoding.catalogue import Card
from decoding.tree_building import aux_nodes, draft_head
from models.heads import hidden_transfer

CARD = Card(
    paper="Hidden Transfer, arXiv 2404.12022",
    guarantee=base.LAW,
    family="head",
    needs=("heads", "model", "topology"),
    trained=True,
    sources=("wu2024parallel",),
)


def drafter(heads, model, topology: base.Topology, layer: int = -1) -> base.Drafter:
    """Draft with `params["heads"]`, born at the entry of `layer` (-1: the middle)."""
    hidden_transfer.check(heads, model.config)
    layer = hidden_transfer.middle(model.config, layer)
    steps = hidden_transfer.count(heads)
    draft_head.check_depth("Hidden Transfer", topology, steps)
    vocab = model.config.vocab_size

    def wrap(lm: Any) -> Any:
        return hidden_transfer.wrapped(lm, layer, topology.nodes)

    def weights(params: base.Params, state: Any) -> Any:
        return hidden_transfer.weights(params["target"], params["heads"])

    behind = aux_nodes.AuxNodes(topology.nodes, steps, 1, vocab)
    return aux_nodes.drafter(topology, behind, wrap, weights)
