"""Judge decoding: a draft that the target would not say is kept if it is good enough.

Bachmann, Anagnostidis, Pumarola, Georgopoulos, Sanakoyeu, Du, Schoenfeld, Thabet,
Kohler, *Judge Decoding: Faster Speculative Sampling Requires Going Beyond Model
Alignment*, 2025, arXiv 2501.19309. With h_x the target's last normed state where it has
read the draft x, a draft whose parent is accepted is accepted if

    it is the token that the target itself says there,   or
    sigma(w . h_x + b) > delta

and the longest accepted path is taken, of equally long ones the likelier; then the
target's own token follows. w, b → `params["judge"]`
(models/predictors/judge_predictor.py), trained by training/runs/judge_run.py; delta →
`threshold`. What the target itself says is its arg-max, or above temperature 0 its draw
under the noise of the position, so that a judge who approves of nothing leaves the text
plain decoding's.

The text does not follow the target's law. Quality must be measured: judges are known to
fail on tasks other than their own.

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
)


@struct.dataclass
class Judge:
    params: Any  # `params["judge"]`
    threshold: Array  # float32[]: delta


def verifier(
    judge: Any = None, threshold: float = 0.5, greedy: bool = True
) -> base.Verifier:
    """Below 0 everything passes, from 1 on nothing but the target's own tokens.

    `judge` are the params of `models/predictors/judge_predictor.py`.
    """
    if judge is not None:
        judge_predictor.check(judge)
    if not -1 <= threshold <= 2:
        raise MethodError(f"threshold={threshold}: use a chance, or -1 or 2 for none")

    def init(params) -> base.State:
        if "judge" not in params:
            raise MethodError('the judge needs its weights: drafts={"judge": params}')
        return base.State(shared=Judge(params["judge"], jnp.float32(threshold)))

    def verify(key, state, nodes: base.TokenTree, target: base.Target) -> base.Verdict:
        own: Judge = state.shared
        good = (
            judge_predictor.probability(own.params, target.hidden["norm"])
            > own.threshold
        )
        said = spoken(nodes, target, greedy)
        return longest(nodes, target.logits, said, good)

    draws = (base.POINT, base.IID, base.NO_REPLACE, base.COUPLED)
    if not greedy:  # what the target would draw itself is drafted most often
        draws = (base.COUPLED, base.POINT, base.IID, base.NO_REPLACE)
    return base.Verifier(init, verify, base.LOSSY, draws, taps=("norm",))


def spoken(nodes: base.TokenTree, target: base.Target, greedy: bool) -> Array:
    """★ int32[N]: the target's own token after every node."""
    if greedy:
        return vocab.argmax(target.logits)
    noise = jax.vmap(target.noise)(jnp.arange(nodes.depth + 1))
    return vocab.gumbel_argmax(target.logits, noise[depth_of(nodes)])


def depth_of(nodes: base.TokenTree) -> Array:
    """★ int32[N]: every node's distance from the root."""
    up = jnp.maximum(nodes.parents, 0)
    below = (nodes.parents >= 0).astype(jnp.int32)
    sink = lambda _, depth: jnp.where(below > 0, depth[up] + 1, 0)
    return lax.fori_loop(0, nodes.depth, sink, jnp.zeros_like(below))


def longest(
    nodes: base.TokenTree, logits: Array, said: Array, good: Array
) -> base.Verdict:
    """★ The longest path of drafts that are `good` or what the target `said`."""
    up = jnp.maximum(nodes.parents, 0)
    root = jnp.arange(nodes.tokens.shape[0]) == 0
    own = vocab.token_logprob(logits[up], nodes.tokens)
    passes = (good | (nodes.tokens == said[up])) & ~root
    passes = passes & (nodes.kind == base.CANDIDATE)

    def descend(_: Array, carry: tuple) -> tuple:
        depth, score = carry
        reached = passes & (depth[up] >= 0)
        depth = jnp.where(root, 0, jnp.where(reached, depth[up] + 1, -1))
        return depth, jnp.where(reached, score[up] + own, 0.0)

    start = (jnp.where(root, 0, -1), jnp.zeros_like(own))
    depth, score = lax.fori_loop(0, nodes.depth, descend, start)
    far = depth == depth.max()
    best = jnp.argmax(jnp.where(far, score, -jnp.inf)).astype(jnp.int32)
    path, count = tree.lineage(nodes, best)
    return base.Verdict(path, count, said[best])
