"""Accept a draft if the draft's and the target's laws are close (baseline).

The training-free counterpart of `judge`: with p the target's law and q the draft's at
the draft's parent, both warped, a draft whose parent is accepted is accepted if

    it is the target's own token there,   or   KL(p || q) <= epsilon

epsilon → `threshold`, in nats. Linear judges have been argued to reduce to such a rule
(Sun, Li, Liu, Lin, Zhen, Yu, Yuan, Ma, *Revisiting Judge Decoding from First Principles
via Training-Free Distributional Divergence*, 2026, arXiv 2601.04766, abstract). The
walk is that of `judge`.

The text does not follow the target's law: if the laws are close, the draft's choice
replaces the target's.

The rule needs the draft's laws, which only trees of samples hold. So drafts are samples
at temperature 0 too, while the judge's are the draft's best tokens.

Deviations from the paper: the baseline is read from the abstract alone.

Cost per call: one divergence and one arg-max over [V] a node.
"""

import jax.numpy as jnp
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from decoding.verifiers import judge
from models.errors import MethodError

CARD = Card(
    paper="KL judge, arXiv 2601.04766",
    guarantee=base.LOSSY,
    family="relaxed",
    data=("threshold",),
    needs=("greedy",),
    sources=("sun2026revisiting",),
)


def verifier(threshold: float = 0.1, greedy: bool = True) -> base.Verifier:
    """Accept drafts within a divergence of `threshold` nats.

    Below 0 only the target's own tokens pass; they are its arg-max if `greedy`.
    """
    if not threshold == threshold:
        raise MethodError(f"threshold={threshold}: use a number of nats")

    def verify(key, state, nodes: base.TokenTree, target: base.Target) -> base.Verdict:
        if nodes.logits is None:
            raise MethodError(
                "the KL rule needs the draft's laws: give the topology draw='iid'"
            )
        epsilon: Array = state.shared
        p, q = vocab.log_softmax(target.logits), vocab.log_softmax(nodes.logits)
        supported = p > -jnp.inf
        each = jnp.where(
            supported, jnp.exp(p) * (jnp.where(supported, p, 0.0) - q), 0.0
        )
        near = each.sum(-1) <= epsilon
        target_tokens = judge.spoken(nodes, target, greedy)
        up = jnp.maximum(nodes.parents, 0)
        return judge.longest(nodes, target.logits, target_tokens, near[up])

    init = lambda params: base.State(shared=jnp.float32(threshold))
    return base.Verifier(init, verify, base.LOSSY, (base.IID, base.NO_REPLACE))
