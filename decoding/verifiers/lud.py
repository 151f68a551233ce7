"""LUD's rule: accept the tokens of a unit that the model guessed with confidence.

Sun et al., *Decoding at the Speed of Thought: Harnessing Parallel Decoding of Lexical
Units for LLMs*, 2024, arXiv 2405.15208, a reconstruction. Of a chain of guesses
y_1 .. y_n, made by the laws q_1 .. q_n,

    y_i is accepted if y_1 .. y_{i-1} are, and
        q_i(y_i) >= beta  and  y_i != y_{i-1},  or it is the target's own token there

with y_0 the root; then the target's own token follows. So a unit does not repeat
itself. beta → `threshold`; q_i → `tree.logits` of the parent of y_i, as `drafters/lud`
writes them. A draft without a law counts as certain. The target's own token is its best
token, or above temperature 0 its draw under the noise of the position.

The text does not follow the target's law: a confident guess is not checked. Above
beta = 1 it is plain decoding's.

Deviations from the paper: the target reads the guesses before they are accepted. So a
guess that is also the target's own token is accepted at any confidence. beta = 0.9 is
ours.

Cost per call: one log-softmax and one draw over V for every node of the path.
"""

import jax.numpy as jnp

from decoding import base, tree, vocab
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="Lexical unit decoding, arXiv 2405.15208",
    guarantee=base.LOSSY,
    family="relaxed",
    data=("threshold",),
    needs=("greedy",),
    sources=("sun2024decoding",),
)


def verifier(threshold: float = 0.9, greedy: bool = False) -> base.Verifier:
    """Accept guesses of probability `threshold` or more; above 1, none of them.

    The target's own tokens are its arg-max if `greedy`.
    """
    if not 0 <= threshold <= 2:
        raise MethodError(
            f"threshold={threshold}: use a probability, or 2 to accept no draft"
        )

    def init(params) -> base.State:
        return base.State(shared=jnp.float32(threshold))

    def verify(key, state, nodes: base.TokenTree, target: base.Target) -> base.Verdict:
        def pick(node, depth):
            children = (nodes.parents == node) & (nodes.kind == base.CANDIDATE)
            guess = nodes.tokens[jnp.argmax(children)]
            probability = jnp.float32(1)
            if nodes.logits is not None:
                probability = jnp.exp(vocab.token_logprob(nodes.logits[node], guess))
            confident = (probability >= state.shared) & (guess != nodes.tokens[node])
            accepted = children.any() & confident
            logits = target.logits[node]
            target_token = vocab.argmax(
                logits if greedy else logits + target.noise(depth)
            )
            return jnp.where(accepted, guess, target_token)

        return tree.walk(nodes, pick)

    return base.Verifier(init, verify, base.LOSSY, base.DRAWS)
