"""PPD: trained prompt tokens in the target's own block guess the tokens after the next.

Chen, Luk, Yiu, Li, Mishchenko, Venieris, Fan, *Hardware-Aware Parallel Prompt Decoding
for Memory-Efficient Acceleration of LLM Inference*, 2024, arXiv 2405.18628, sections 3
and 4. Every node of the tree carries m prompt tokens z_1 .. z_m as AUX nodes behind it;
with a the last accepted node of a round, which chose the next root,

    q_i = softmax(mean over copies of target(text .. a, z_1 .. z_i)),   i = 1 .. m

is the law of the children of *every* node at depth i - 1 of the next round's tree.
`decoding/tree_building/aux_nodes.py` carries the laws from round to round; the prompts'
embeddings are `models/heads/ppd.py`. The tree of candidates is the topology's.

With a `plan` (section 4.1, the dynamic sparse tree;
`decoding/tree_design/ppd_sparse_trees.py` makes it) the number of prompts varies by
node. The tree of a round depends on its state, the number of prompts that the last
accepted node had.

Deviations from the paper: nothing is drafted in the first round, since the prompt's
chunks carry no prompt tokens. Without a plan every node carries all m.

Cost per call: no model call; the target's block is (1 + m copies) times as wide, less
what a plan leaves out, and its head reads all of it.
"""

from typing import Any

from decoding import base
from decoding.catalogue import Card
from decoding.tree_building import aux_nodes, draft_head
from models.heads import ppd

CARD = Card(
    paper="PPD, arXiv 2405.18628",
    guarantee=base.LAW,
    family="head",
    needs=("heads", "model", "topology"),
    trained=True,
    sources=("chen2024hardware",),
)


def drafter(
    heads, model, topology: base.Topology, plan: tuple[tuple[int, ...], ...] = ()
) -> base.Drafter:
    """Draft with `params["heads"]`.

    `plan` is as in `aux_nodes.AuxNodes`. It numbers the tree's nodes, so it needs a
    static tree.
    """
    ppd.check(heads, model.config)
    prompts, copies = ppd.counts(heads)
    draft_head.check_depth("PPD", topology, prompts)
    vocab = model.config.vocab_size

    def weights(params: base.Params, state: Any) -> Any:
        return ppd.weights(params["target"], params["heads"])

    behind = aux_nodes.AuxNodes(topology.nodes, prompts, copies, vocab, plan)
    return aux_nodes.drafter(topology, behind, ppd.wrapped, weights)
