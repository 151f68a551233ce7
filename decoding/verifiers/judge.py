"""Judge decoding: a draft that differs from the target's token may still be accepted.

Bachmann, Anagnostidis, Pumarola, Georgopoulos, Sanakoyeu, Du, Schönfeld, Thabet,
Kohler, *Judge Decoding: Faster Speculative Sampling Requires Going Beyond Model
Alignment*, 2025, arXiv 2501.19309. With h_x the target's last normed state after
reading the draft x, a draft whose parent is accepted is accepted if

    it is the target's own token there,   or
    sigma(w . h_x + b) > delta

The longest accepted path is taken, of equally long ones the likelier, and then the
target's own token. w, b → `params["judge"]` (models/predictors/judge_predictor.py),
trained by training/runs/judge_run.py; delta → `threshold`. The target's own token is
its arg-max, or above temperature 0 its draw under the noise of the position. So a judge
that accepts nothing leaves the text plain decoding's.

The text does not follow the target's law. Measure its quality: judges are known to fail
on tasks other than their own.

Deviations from the paper: standard verification is by coupling, not by rejection.

Cost per call: one arg-max over [V] and one product over [D] a node, and above
temperature 0 the noise of every depth.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import base, tree, vocab
from decoding.catalogue import Card
from models.errors import MethodError
from models.predictors import judge_predictor

CARD = Card(
    paper="Judge decoding, arXiv 2501.19309",
    guarantee=base.LOSSY,
    family="relaxed",
    data=("threshold",),
    needs=("greedy", "judge"),
    trained=True,
    sources=("bachmann2025judge",),
)


@struct.dataclass
class Judge:
    params: Any  # `params["judge"]`
    threshold: Array  # float32[]: delta


def verifier(
    judge: Any = None, threshold: float = 0.5, greedy: bool = True
) -> base.Verifier:
    """Accept the drafts that the judge rates above `threshold`.

    Args:
        judge: params of `models/predictors/judge_predictor.py`, to check; rounds read
            them from `params`.
        threshold: delta. Below 0 every draft passes, from 1 on only the target's own
            tokens.
        greedy: whether the target's own tokens are its arg-max.
    """
    if judge is not None:
        judge_predictor.check(judge)
    if not -1 <= threshold <= 2:
        raise MethodError(
            f"threshold={threshold}: use a probability, -1 to accept every draft, or 2 "
            "to accept none"
        )

    def init(params) -> base.State:
        if "judge" not in params:
            raise MethodError(
                'the judge needs its weights: pass drafts={"judge": params} to generate'
            )
        return base.State(shared=Judge(params["judge"], jnp.float32(threshold)))

    def verify(key, state, nodes: base.TokenTree, target: base.Target) -> base.Verdict:
        shared: Judge = state.shared
        good = (
            judge_predictor.probability(shared.params, target.hidden["norm"])
            > shared.threshold
        )
        target_tokens = spoken(nodes, target, greedy)
        return longest(nodes, target.logits, target_tokens, good)

    draws = (base.POINT, base.IID, base.NO_REPLACE, base.COUPLED)
    if not greedy:  # coupled drafts are most often the target's own tokens
        draws = (base.COUPLED, base.POINT, base.IID, base.NO_REPLACE)
    return base.Verifier(init, verify, base.LOSSY, draws, taps=("norm",))


def spoken(nodes: base.TokenTree, target: base.Target, greedy: bool) -> Array:
    """★ Return the target's own token after every node, int32[N]."""
    if greedy:
        return vocab.argmax(target.logits)
    noise = jax.vmap(target.noise)(jnp.arange(nodes.depth + 1))
    return vocab.gumbel_argmax(target.logits, noise[depth_of(nodes)])


def depth_of(nodes: base.TokenTree) -> Array:
    """★ Return every node's distance from the root, int32[N]."""
    up = jnp.maximum(nodes.parents, 0)
    below = (nodes.parents >= 0).astype(jnp.int32)
    sink = lambda _, depth: jnp.where(below > 0, depth[up] + 1, 0)
    return lax.fori_loop(0, nodes.depth, sink, jnp.zeros_like(below))


def longest(
    nodes: base.TokenTree, logits: Array, said: Array, good: Array
) -> base.Verdict:
    """★ Accept the longest path of drafts that are `good` or the target's own.

    Args:
        nodes: one row's tree.
        logits: float32[N, V], the target's.
        said: int32[N], the target's own token after every node.
        good: bool[N], the drafts that pass anyway.
    """
    up = jnp.maximum(nodes.parents, 0)
    root = jnp.arange(nodes.tokens.shape[0]) == 0
    logprobs = vocab.token_logprob(logits[up], nodes.tokens)
    passes = (good | (nodes.tokens == said[up])) & ~root
    passes = passes & (nodes.kind == base.CANDIDATE)

    def descend(_: Array, carry: tuple) -> tuple:
        depth, score = carry
        reached = passes & (depth[up] >= 0)
        depth = jnp.where(root, 0, jnp.where(reached, depth[up] + 1, -1))
        return depth, jnp.where(reached, score[up] + logprobs, 0.0)

    start = (jnp.where(root, 0, -1), jnp.zeros_like(logprobs))
    depth, score = lax.fori_loop(0, nodes.depth, descend, start)
    far = depth == depth.max()
    best = jnp.argmax(jnp.where(far, score, -jnp.inf)).astype(jnp.int32)
    path, count = tree.lineage(nodes, best)
    return base.Verdict(path, count, said[best])
