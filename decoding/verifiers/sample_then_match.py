"""Sample, then match: draw the target's token at a node, descend if a child has it.

The verification of Saxena's prompt lookup, REST and Token Recycling at temperature > 0
(He, Zhong, Cai, Lee, He, *REST: Retrieval-Based Speculative Decoding*, 2024, arXiv
2311.08252, section 3), as one draw a *node*:

    y_d ~ p_node;   descend to the child with token y_d, else stop and emit y_d

y_d → the token drawn at depth d; p → softmax of `target.logits`. The draw does not
depend on q, so it is exact for any tree. The walk descends from a node with probability
sum of p(c) over its children c. That is optimal for children chosen by a rule (POINT),
and below `recursive_rejection` for sampled children.

Deviations from the paper: REST's code draws once per *candidate row* and keeps the
longest row, so a token shared by r rows is accepted with 1 - (1 - p)^r. It also draws
again after a mismatch. Both bias the law. Here one draw serves all the children, and is
emitted.

Cost per call: one draw over V per committed token.
"""

import jax

from decoding import base, tree, vocab
from decoding.catalogue import Card

CARD = Card(
    paper="REST, arXiv 2311.08252",
    guarantee=base.LAW,
    family="matching",
    sources=("he2024rest",),
)


def verifier() -> base.Verifier:
    """Verify any tree exactly, with the round's own draws, not the positions' noise."""

    def verify(key, state, nodes: base.TokenTree, target: base.Target) -> base.Verdict:
        def pick(node, depth):
            return vocab.sample(jax.random.fold_in(key, depth), target.logits[node])

        return tree.walk(nodes, pick)

    draws = (base.POINT, base.IID, base.NO_REPLACE)
    return base.Verifier(lambda params: base.State(), verify, base.LAW, draws)
