"""Accept every draft: two models take turns, and the drafter chooses between them.

The verifier of the methods that *switch* models: entropy adaptive decoding (Simonds,
2025, arXiv 2502.06833), FoReaL-Decoding (Li et al., 2025, arXiv 2506.06998) and the
router of FS-GEN (Zhang et al., 2024, arXiv 2406.12295). Their draft model leads, and
its drafts are committed. The target's call over the block fills the target's cache.
Along the first children x_1 .. x_n of the tree, of at most D,

    n < D   commit x_1 .. x_n and the target's own token: the drafter handed over
    n = D   commit x_1 .. x_D alone: the block was full, without a handover

so the text does not depend on the size of the block. x → `tree.tokens`, D →
`tree.depth`; the target's own token is greedy or coupled to the position's noise, as in
plain decoding. A drafter that hands over after exactly D drafts drafts nothing in the
next round.

Deviations from the papers: none of them has a block; theirs is the text of any D.

Cost per call: one draw over V a row.
"""

import jax.numpy as jnp

from decoding import base, tree, vocab
from decoding.catalogue import Card

CARD = Card(
    paper="Entropy adaptive decoding, arXiv 2502.06833",
    guarantee=base.LOSSY,
    family="relaxed",
    needs=("greedy",),
    sources=("simonds2025entropy", "li2025reasoning", "zhang2024fast"),
)


def verifier(greedy: bool = False) -> base.Verifier:
    """Accept every draft; the target's own tokens are `greedy` or follow its law."""

    def verify(key, state, nodes: base.TokenTree, target: base.Target) -> base.Verdict:
        def first(node, depth):
            child = (nodes.parents == node) & (nodes.kind == base.CANDIDATE)
            token = nodes.tokens[jnp.argmax(child)]
            return jnp.where(child.any(), token, -1)  # no child has token -1

        walked = tree.walk(nodes, first)
        if nodes.depth == 0:
            full, last = jnp.bool_(False), jnp.int32(0)
        else:
            full = walked.count == nodes.depth
            last = nodes.tokens[walked.path[nodes.depth - 1]]
        count = walked.count - full
        index = jnp.arange(nodes.depth, dtype=jnp.int32)
        path = jnp.where(index < count, walked.path, 0)
        node = tree.last_node(base.Verdict(path[None], count[None], last[None]))[0]
        logits = target.logits[node]
        target_token = vocab.argmax(logits if greedy else logits + target.noise(count))
        return base.Verdict(path, count, jnp.where(full, last, target_token), full)

    draws = (base.POINT, base.COUPLED, base.IID, base.NO_REPLACE)
    if not greedy:
        draws = (base.COUPLED, base.POINT, base.IID, base.NO_REPLACE)
    return base.Verifier(lambda params: base.State(), verify, base.LOSSY, draws)
