"""Accept every draft with a set probability, whatever its token: for studies of speed.

A round then has the cost of a draft of that quality, before one is trained. Leviathan,
Kalman, Matias, *Fast Inference from Transformers via Speculative Decoding*, 2023, arXiv
2211.17192, section 3.1 and equation (1): with i.i.d. acceptance alpha, a chain of gamma
drafts commits

    E[tokens a call] = (1 - alpha^(gamma + 1)) / (1 - alpha).

alpha → `rate`. In a tree only the first child of a node is accepted, with probability
`rate`: more siblings add cost to a round, and no tokens.

Deviations from the paper: there the formula describes a real verifier; here the
verifier simulates it. The text is not the target's (LOSSY). Cost per call: an arg-max
over V a token.
"""

import jax
import jax.numpy as jnp

from decoding import base, tree
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="Expected speed of speculative decoding, arXiv 2211.17192",
    guarantee=base.LOSSY,
    family="simulation",
    data=("rate",),
    sources=("leviathan2023fast",),
)


def verifier(rate: float = 0.8) -> base.Verifier:
    """Accept a draft with probability `rate`."""
    if not 0.0 <= rate <= 1.0:
        raise MethodError(f"rate={rate}: use a probability, 0 to 1")

    def init(params) -> base.State:
        return base.State(jnp.float32(rate))

    def verify(key, state, nodes: base.TokenTree, target: base.Target) -> base.Verdict:
        def pick(node, depth):
            children = (nodes.parents == node) & (nodes.kind == base.CANDIDATE)
            first = nodes.tokens[jnp.argmax(children)]
            # After a rejection no child's token may follow, or it would count.
            size = target.logits.shape[-1]
            child_tokens = jnp.where(children, nodes.tokens, size)
            others = target.logits[node].at[child_tokens].set(-jnp.inf, mode="drop")
            coin = jax.random.uniform(jax.random.fold_in(key, depth))
            accepted = (coin < state.row) & children.any()
            return jnp.where(accepted, first, jnp.argmax(others))

        return tree.walk(nodes, pick)

    return base.Verifier(init, verify, base.LOSSY, base.DRAWS)
