"""Typical acceptance: accept a draft whose probability under the target is high enough.

Cai, Li, Geng, Peng, Lee, Chen, Dao, *Medusa: Simple LLM Inference Acceleration
Framework with Multiple Decoding Heads*, 2024, arXiv 2401.10774, section 2.3.1 (Typical
acceptance). A draft x after a node with target law p is accepted if

    p(x) > min(epsilon, delta exp(-H(p)))

and if its parent is accepted. The longest accepted path is taken, of equally long ones
the likelier. The token after it is the arg-max of p at its end, which is the paper's
greedy first token of the next round. epsilon → `epsilon`, the threshold of a confident
target; delta → `delta`, the factor of exp(-H) at high entropy H, in nats.

The text does not follow the target's law: it omits unlikely tokens and, among the
others, prefers the draft's. A temperature scales p and nothing else; at temperature 0 p
is that of the unscaled logits. For the target's own greedy text keep the default
verifier.

Deviations from the paper: the official code adds 1e-5 to p inside the logarithm of H.

Cost per call: one log-softmax and one entropy of [N, V].
"""

import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import base, tree, vocab
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="Medusa, arXiv 2401.10774",
    guarantee=base.LOSSY,
    family="relaxed",
    data=("epsilon", "delta"),
    sources=("cai2024medusa",),
)


@struct.dataclass
class Thresholds:
    epsilon: Array  # float32[]
    delta: Array  # float32[]


def verifier(epsilon: float = 0.09, delta: float = 0.3) -> base.Verifier:
    """Accept drafts above min(`epsilon`, `delta` exp(-H)).

    Defaults are the paper's: `delta` is the square root of `epsilon`.
    """
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if not 0 <= value <= 1:
            raise MethodError(f"{name}={value}: use a probability, 0 to 1")

    def init(params) -> base.State:
        numbers = Thresholds(jnp.float32(epsilon), jnp.float32(delta))
        return base.State(shared=numbers)

    def verify(key, state, nodes: base.TokenTree, target: base.Target) -> base.Verdict:
        up = jnp.maximum(nodes.parents, 0)
        root = jnp.arange(nodes.tokens.shape[0]) == 0
        logprobs = vocab.token_logprob(target.logits[up], nodes.tokens)
        share = state.shared.delta * jnp.exp(-vocab.entropy(target.logits))
        least = jnp.minimum(state.shared.epsilon, share)[up]
        typical = (jnp.exp(logprobs) > least) & (nodes.kind == base.CANDIDATE) & ~root

        def descend(_: Array, carry: tuple) -> tuple:
            depth, score = carry
            reached = typical & (depth[up] >= 0)
            depth = jnp.where(root, 0, jnp.where(reached, depth[up] + 1, -1))
            return depth, jnp.where(reached, score[up] + logprobs, 0.0)

        start = (jnp.where(root, 0, -1), jnp.zeros_like(logprobs))
        depth, score = lax.fori_loop(0, nodes.depth, descend, start)
        longest = depth == depth.max()
        best = jnp.argmax(jnp.where(longest, score, -jnp.inf)).astype(jnp.int32)
        path, count = tree.lineage(nodes, best)
        return base.Verdict(path, count, vocab.argmax(target.logits[best]))

    draws = (base.POINT, base.IID, base.NO_REPLACE, base.COUPLED)
    return base.Verifier(init, verify, base.LOSSY, draws)
