"""A chain that ends where the draft model's confidence falls below a threshold.

Zhang, Wang, Li, Shou, Chen, Chen, Mehrotra, *Draft & Verify: Lossless Large Language
Model Acceleration via Self-Speculative Decoding*, 2024, arXiv 2309.08168
(adaptive draft-exiting). SWIFT (arXiv 2410.06916) and the assisted generation of HF
transformers stop likewise:

    draft x_i ~ q_i;  go on while  max over x of q_i(x) >= gamma

gamma → `threshold`. The draft at which the chain stops stays in it. Whether a draft
exists depends on the laws before its own, never on its token, so the output law is the
target's.

Deviations from the paper: gamma is constant; the paper moves it towards a target
acceptance rate. Its code, SWIFT's and HF's compare the drawn token's own probability,
which is the largest one in greedy decoding alone.

Cost per level: one arg-max or sample over V. Once every row has stopped, a level costs
nothing and makes no draft call.
"""

import jax.numpy as jnp
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from decoding.tree_building import child_sampling, grow
from models.errors import MethodError

CARD = Card(
    paper="Draft & Verify's exit, arXiv 2309.08168",
    guarantee=base.LAW,
    family="adaptive chain",
    data=("threshold",),
    needs=("draw",),
    examples={"length": 3, "threshold": 0.5},
    sources=("zhang2024draft",),
)


def topology(
    length: int = 12, threshold: float = 0.8, draw: str = base.POINT
) -> base.Topology:
    """Grow at most `length` drafts while the confidence is at least `threshold`.

    `length` is that of the authors' evaluation (their code's default is 8). `threshold`
    is the initial gamma of their code.
    """
    if length < 1:
        raise MethodError(f"length={length}: a chain needs at least one draft")
    if not 0 <= threshold <= 1:
        raise MethodError(f"threshold={threshold}: use a probability, 0 to 1")
    child_sampling.check(draw)
    widths = (1,) * (length + 1)

    def init(batch: int) -> base.State:
        gamma = jnp.full((batch,), threshold, jnp.float32)
        return base.State((gamma, jnp.ones((batch,), bool)))

    def expand(keys, state, tree: base.TokenTree, logits, noise, level: int):
        gamma, _ = state.row
        tokens = child_sampling.candidates(draw, keys, logits, 1, noise(level))[:, 0]
        sure = jnp.exp(vocab.maximum(vocab.log_softmax(logits[:, 0]))) >= gamma
        exists = jnp.ones_like(tokens, bool)
        local = jnp.zeros_like(tokens)
        tree = grow.put(tree, widths, level, tokens, local, exists, logits)
        return tree, base.State((gamma, sure))

    def more(state: base.State, level: int) -> Array:
        sure: Array = state.row[1]
        return sure | (level == 0)

    def adapt(state: base.State, outcome: base.Outcome) -> base.State:
        return state

    return base.Topology(init, expand, adapt, widths, draw, linear=True, more=more)
