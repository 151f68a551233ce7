"""LUD's rule: tokens of a unit are text if the model was sure when it guessed them.

Sun et al., *Decoding at the Speed of Thought: Harnessing Parallel Decoding of Lexical
Units for LLMs*, 2024, arXiv 2405.15208, a reconstruction. Of a chain of guesses
y_1 .. y_n, made by the laws q_1 .. q_n,

    y_i is accepted if y_1 .. y_{i-1} are, and
        q_i(y_i) >= beta  and  y_i != y_{i-1},  or it is what the target says there

with y_0 the root; then the target's own token follows. A unit so does not repeat
itself. beta → `threshold`; q_i → `tree.logits` of the parent of y_i, as `drafters/lud`
hands them over; a draft that comes without a law counts as sure. What the target says
is its best token, or above temperature 0 its draw under the noise of the position.

The text does not follow the target's law: no guess that is sure is checked. Above
beta = 1 it is plain decoding's.

Deviations from the paper: guesses are read by the target before they are taken, and so
one that it says itself is text, sure or not.

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
)


def verifier(threshold: float = 0.9, greedy: bool = False) -> base.Verifier:
    """`threshold` is a chance; above 1 nothing is accepted."""
    if not 0 <= threshold <= 2:
        raise MethodError(f"threshold={threshold}: use a chance, or 2 for no draft")

    def init(params) -> base.State:
        return base.State(shared=jnp.float32(threshold))

    def verify(key, state, nodes: base.TokenTree, target: base.Target) -> base.Verdict:
        def pick(node, depth):
            children = (nodes.parents == node) & (nodes.kind == base.CANDIDATE)
            guess = nodes.tokens[jnp.argmax(children)]
            chance = jnp.float32(1)
            if nodes.logits is not None:
                chance = jnp.exp(vocab.token_logprob(nodes.logits[node], guess))
            sure = (chance >= state.shared) & (guess != nodes.tokens[node])
            taken = children.any() & sure
            logits = target.logits[node]
            own = vocab.argmax(logits if greedy else logits + target.noise(depth))
            return jnp.where(taken, guess, own)

        return tree.walk(nodes, pick)

    return base.Verifier(init, verify, base.LOSSY, base.DRAWS)
