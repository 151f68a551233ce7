"""Gumbel-coupled verification: the text depends on seed, request and target alone.

Every position has its own Gumbel noise, and the target's token there is
y = argmax(z + G(position)), a sample of softmax(z) by the Gumbel-max trick. A draft
that was chosen with the same noise (`base.COUPLED`) often agrees:

    y_i = argmax_v z_i(v) + G(length + depth_i)(v);  descend to the child with y_i.

Daliri, Musco, Suresh, *Coupling without Communication and Drafter-Invariant Speculative
Decoding*, 2024, arXiv 2408.07978, section 3. z: transformed logits at a node; G: the
noise of `decoding/noise.py`. For coupled drafts P(accept) >= (1 - TV) / (1 + TV).

Deviations from the paper: trees, where the paper drafts one token. Cost per call: one
Gumbel vector and arg-max over [V] per committed token.
"""

from decoding import base, tree, vocab
from decoding.catalogue import Card

CARD = Card(
    paper="Drafter-invariant speculative decoding, arXiv 2408.07978",
    guarantee=base.LAW,
    family="matching",
    sources=("daliri2024coupling",),
)


def verifier() -> base.Verifier:
    """Accept the target's coupled draws: the default verifier at temperature > 0.

    Every drafter gives plain decoding's text.
    """

    def verify(key, state, nodes: base.TokenTree, target: base.Target) -> base.Verdict:
        def pick(node, depth):
            return vocab.gumbel_argmax(target.logits[node], target.noise(depth))

        return tree.walk(nodes, pick)

    draws = (base.COUPLED, base.POINT, base.IID, base.NO_REPLACE)
    return base.Verifier(lambda params: base.State(), verify, base.LAW, draws)
