"""Greedy verification: a draft is accepted where it is the target's arg-max (baseline).

Stern, Shazeer, Uszkoreit, *Blockwise Parallel Decoding for Deep Autoregressive Models*,
2018, arXiv 1811.03115, section 3. With z_i the transformed logits at node i,

    y_i = argmax z_i;  descend to the child with token y_i, else stop and emit y_i.

Cost per call: one arg-max over [V] per committed token.
"""

import jax
import jax.numpy as jnp

from decoding import base, tree, vocab
from decoding.catalogue import Card

CARD = Card(
    paper="Blockwise parallel decoding, arXiv 1811.03115",
    guarantee=base.ARGMAX,
    family="matching",
    sources=("stern2018blockwise",),
)


def verifier() -> base.Verifier:
    """Accept the target's arg-max tokens: the default verifier at temperature 0.

    There its law is the target's (point) law.
    """

    def verify(key, state, nodes: base.TokenTree, target: base.Target) -> base.Verdict:
        return tree.walk(nodes, lambda node, depth: vocab.argmax(target.logits[node]))

    draws = (base.POINT, base.IID, base.NO_REPLACE, base.COUPLED)
    return base.Verifier(lambda params: base.State(), verify, base.ARGMAX, draws)


def in_rows(sampling: base.Verifier) -> base.Verifier:
    """Verify greedily in rows of temperature 0, and by `sampling` in all others.

    A verifier that takes coupled drafts needs none of this: it draws by the noise of
    positions, which is 0 in greedy rows.
    """
    best = verifier()

    def verify(key, state, nodes: base.TokenTree, target: base.Target) -> base.Verdict:
        drawn = sampling.verify(key, state, nodes, target)
        exact = best.verify(key, best.init(None), nodes, target)
        choose = lambda a, b: jnp.where(target.sampled, a, b)
        return jax.tree.map(choose, drawn, exact)

    return sampling._replace(verify=verify)
