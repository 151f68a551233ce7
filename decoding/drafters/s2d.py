"""S2D: one nested draft model, as deep for each token as the token needs.

Kavehzadeh, Pourreza, Valipour, Zhu, Bai, Ghodsi, Chen, Rezagholizadeh, *S2D: Sorted
Speculative Decoding For More Efficient Deployment of Nested Large Language Models*,
2024, arXiv 2407.01955. The draft was trained to predict after each of the depths
e_1 < ... < e_n (training/objectives/language_models/draft_model.py with `exits`). With
q_e its law after e layers and one head for all,

    e = e_1;  while max over x of q_e(x) < tau and e is not the last:  e <- the next

and the token is drawn from q_e. e → `exits` and the whole model; tau → `threshold`.
Layers that a token leaves out get keys and values of the state that it stopped with, so
that later tokens may go deeper.

Deviations from the authors' code (github.com/parsareal/SD2), the source beside the
abstract: there a deeper sub-model first runs on the queued states of all tokens that
stopped before it, so that keys and values are exact; tau is one number here, 0.7 at
first, and one a depth there (0.5, 0.5, and 0 for the last). Drafts are trained by the
target's laws in configs/draft_models/s2d.py; there by cross-entropy with the text
(SoFT) from the target's first layers. Thresholds by target are the caller's. A row's
drafts depend on its own tokens alone: layers run for the batch when any node needs
them, and write for those nodes only.

Cost per call: as `drafters/model` with the layers of the deepest token of the batch,
keys and values of the others, and one head for each depth that was reached.
"""

import itertools
from dataclasses import replace

import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import base, vocab
from decoding.catalogue import Card
from decoding.drafters import model as models
from models.base import LanguageModel
from models.errors import MethodError

CARD = Card(
    paper="S2D, arXiv 2407.01955",
    guarantee=base.LAW,
    family="draft model",
    data=("threshold",),
    needs=("draft", "topology"),
    trained=True,
    examples={"exits": (1,), "threshold": 0.5},
    sources=("kavehzadeh2024s2d",),
)
DEPTH = "depth"  # tap: number of layers that ran for each node, float[B, N, 1]


@struct.dataclass
class Shared:
    """The state that rows share."""

    grown: object  # the topology's
    threshold: Array  # float32[]: tau


def drafter(
    draft, topology: base.Topology, exits: tuple[int, ...], threshold: float = 0.7
) -> base.Drafter:
    """Draft with `draft`, which stops for each token as early as its law is sure.

    Args:
        draft: a `LanguageModel` whose params are `params["draft"]`.
        topology: of the trees.
        exits: numbers of layers of `draft` after which it may stop, besides all.
        threshold: tau, a probability.
    """
    depth = draft.config.n_layers
    if not exits or list(exits) != sorted(set(exits)) or not 0 < exits[0]:
        raise MethodError(f"exits={exits}: give numbers of layers in rising order")
    if exits[-1] >= depth:
        raise MethodError(
            f"exits={exits} of a draft of {depth} layers: name some of 1 to {depth - 1}"
        )
    if not 0 <= threshold <= 1:
        raise MethodError(f"threshold={threshold}: use a probability, 0 to 1")
    inner = models.drafter(draft, topology)

    def init(ctx: base.Context) -> base.State:
        state = inner.init(ctx)
        return base.State(state.row, Shared(state.shared, jnp.float32(threshold)))

    def propose(keys, ctx: base.Context, state: base.State):
        shared = state.shared
        stopping = nested(draft, tuple(exits), shared.threshold)
        inner_state = base.State(state.row, shared.grown)
        nodes, inner_state, cache = models.propose(
            stopping, topology, keys, ctx, inner_state
        )
        return (
            nodes,
            base.State(inner_state.row, replace(shared, grown=inner_state.shared)),
            cache,
        )

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        inner_state = base.State(state.row, state.shared.grown)
        inner_state = inner.observe(ctx, inner_state, outcome)
        return base.State(
            inner_state.row, replace(state.shared, grown=inner_state.shared)
        )

    return inner._replace(init=init, draft=propose, observe=observe)


def nested(
    model: LanguageModel, exits: tuple[int, ...], threshold: Array | float
) -> LanguageModel:
    """Make each node of `model` stop at the first exit whose law is sure enough."""
    depths = (*exits, model.config.n_layers)

    def unsure(params, x: Array) -> Array:
        logits = model.head(params, model.norm(params, x))
        best = jnp.exp(vocab.maximum(logits) - vocab.logsumexp(logits))
        # tau = 1 needs all layers, even where a law rounds to certainty.
        return (best < threshold) | (jnp.asarray(threshold) >= 1)

    def layers(params, cache, x, block, lo, hi, taps=()):
        assert (lo, hi) == (0, depths[-1]), "a nested model runs as a whole"
        left = block.slots < cache.size  # padding never goes deeper
        reached = jnp.full(left.shape, depths[0], x.dtype)
        dropped = cache.size + jnp.arange(left.shape[1], dtype=jnp.int32)
        x, cache, _ = model.layers(params, cache, x, block, 0, depths[0])
        for lo, hi in itertools.pairwise(depths):
            left = left & unsure(params, x)
            cache = model.fill(params, cache, x, block, lo, hi)
            deeper_block = replace(block, slots=jnp.where(left, block.slots, dropped))

            def deeper(
                x,
                stores,
                left=left,
                deeper_block=deeper_block,
                lo=lo,
                hi=hi,
                cache=cache,
            ):
                cache = cache.put(lo, stores)
                y, cache, _ = model.layers(params, cache, x, deeper_block, lo, hi)
                return jnp.where(left[..., None], y, x), cache.layers[lo:hi]

            stay = lambda x, stores: (x, stores)
            x, stores = lax.cond(left.any(), deeper, stay, x, cache.layers[lo:hi])
            cache = cache.put(lo, stores)
            reached = jnp.where(left, hi, reached)
        hidden = {DEPTH: reached[..., None]} if DEPTH in taps else {}
        return x, cache, hidden

    return model._replace(layers=layers)
