"""RSD-S: stochastic beam search over the sequences of every level.

Jeon, Gagrani, Goel, Park, Lee, Lott, *Recursive Speculative Decoding: Accelerating LLM
Inference via Sampling Without Replacement*, 2024, arXiv 2402.14160, section 3 (RSD
with stochastic beam search, after Kool, van Hoof, Welling, 2019, arXiv 1903.06059,
algorithm 1). At the root phi = G = 0; for every kept sequence s and token x

    phi_sx = phi_s + log q(x | s)
    g_x    = phi_sx + Gumbel,       Z_s = max over x of g_x
    G_sx   = -log(exp(-G_s) - exp(-Z_s) + exp(-g_x))

and the W sequences of greatest G continue. phi → `Beam.phi`, G → `Beam.value`: the
perturbed log-probability, whose maximum over the children is their parent's. W →
`width`. In a Gumbel-top-k sample the j-th *token* is independent of its value, given
the tokens before it. So a cut by value is independent of the drafts' tokens, and
siblings in falling G are an unbiased sample without replacement.

Deviations from the paper: none. Greedy decoding uses no noise (a beam search by phi),
and the coupled verifier the position's noise.

Cost per level: one top-k over V a node, one over W^2.
"""

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from decoding.tree_building import child_sampling, grow, node_ranking
from models.errors import MethodError

CARD = Card(
    paper="Recursive speculative decoding (RSD-S), arXiv 2402.14160",
    guarantee=base.LAW,
    family="dynamic tree",
    needs=("draw",),
    draws=(base.NO_REPLACE, base.POINT, base.COUPLED),
    examples={"width": 3, "depth": 3},
    sources=("jeon2024recursive", "kool2019stochastic"),
)


@struct.dataclass
class Beam:
    """The beam of the level to grow next; unused places hold -inf."""

    phi: Array  # float32[B, W]: log-probability of the path
    value: Array  # float32[B, W]: perturbed log-probability of the path


def topology(
    width: int = 6, depth: int = 5, draw: str = base.NO_REPLACE
) -> base.Topology:
    """Search `depth` levels with a beam of `width`; the defaults give 30 drafts.

    That is a budget of the paper's.
    """
    if width < 1 or depth < 1:
        raise MethodError(f"width={width}, depth={depth}: use at least 1 of both")
    child_sampling.check(draw, CARD.draws)
    widths = (1, *(width,) * depth)

    def init(batch: int) -> base.State:
        zeros = jnp.zeros((batch, width), jnp.float32)
        return base.State(Beam(zeros, zeros))

    def expand(keys, state, nodes: base.TokenTree, logits, noise, level: int):
        size = logits.shape[1]
        beam: Beam = state.row
        zeros = jnp.zeros_like(beam.phi[:, :size])
        alive = jnp.ones_like(zeros, bool) if level == 0 else beam.phi > -jnp.inf
        phi = jnp.where(alive & (level > 0), beam.phi[:, :size], 0.0)[..., None]
        parent_values = jnp.where(alive & (level > 0), beam.value[:, :size], 0.0)[
            ..., None
        ]
        phi = phi + vocab.log_softmax(logits)
        value = child_sampling.perturbed(draw, keys, phi, noise(level))
        if draw != base.POINT:
            value = conditioned(parent_values, value)
        value = jnp.where(alive[..., None] & (phi > -jnp.inf), value, -jnp.inf)
        local, tokens, best = node_ranking.best_children(value, width)
        live = best > -jnp.inf
        rows = jnp.arange(tokens.shape[0])[:, None]
        phi_of_beam = jnp.where(live, phi[rows, local, tokens], -jnp.inf)
        nodes = grow.put(nodes, widths, level, tokens, local, live, logits)
        return nodes, base.State(Beam(phi_of_beam, best))

    def adapt(state: base.State, outcome: base.Outcome) -> base.State:
        return state

    return base.Topology(init, expand, adapt, widths, draw, linear=width == 1)


def conditioned(top: Array, noisy: Array) -> Array:
    """Shift `noisy` [..., V] so that its maximum over V is `top` [..., 1].

    The order within V is kept. This is the stable form of Kool et al., appendix B.3.
    """
    best = vocab.maximum(noisy)[..., None]
    # `best` may be rounded differently from `noisy`, and the gap is then above 0.
    gap = jnp.minimum(noisy - best, 0.0)
    gap = jnp.where(noisy > -jnp.inf, gap, -jnp.inf)
    v = top - noisy + jnp.log1p(-jnp.exp(gap))
    return top - jnp.maximum(v, 0.0) - jnp.log1p(jnp.exp(-jnp.abs(v)))
