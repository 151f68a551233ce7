"""DySpec: a tree that grows where the draft predicts acceptance, within a budget.

Xiong, Zhang, Li, Wu, Zou, *DySpec: Faster Speculative Decoding with Dynamic
Token Tree Structure*, 2024, arXiv 2410.11744, algorithms 1 (greedy) and 3 (threshold).
A slot is a place for a draft. Its value is the draft's estimate of the chance that
verification reaches it:

    value of the first child slot of y      v_y = v_slot(y) R(y)
    value of the slot after y's             v_slot(y) (1 - R(y))

R: the law q without the earlier siblings, normalised; the root's first slot has 1. So,
for the j-th child x_j of a node u, the slot has v_u (1 - q(x_1) - ... - q(x_{j-1})) and
its draft, once drawn, v_u q(x_j). The greedy form takes the slot of greatest value m
times. Values fall along the tree, so these are the m best slots of the whole tree. The
threshold form takes every slot of value >= t. A slot's value is independent of its own
draft, so siblings are an unbiased sample without replacement.

m → `nodes` - 1; t → `threshold`, 0 for the greedy form; v → `Growth.value`, in logs.

Deviations from the paper: both forms grow level by level, in `depth` levels of the
`width` best slots; the paper's greedy form makes one draft call a token. Within these
bounds the slots are the greedy form's. For greedy decoding the drafts are the best
tokens and a slot has its draft's own value. Under the coupled verifier the position's
noise chooses them.

Cost per level: one top-k over V a node, one over the level.
"""

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from decoding.tree_building import child_sampling, grow, node_ranking
from models.errors import MethodError

CARD = Card(
    paper="DySpec, arXiv 2410.11744",
    guarantee=base.LAW,
    family="dynamic tree",
    data=("threshold",),
    needs=("draw",),
    draws=(base.NO_REPLACE, base.POINT, base.COUPLED),
    examples={"nodes": 6, "depth": 3, "width": 3, "threshold": 0.05},
    sources=("xiong2024dyspec",),
)


@struct.dataclass
class Growth:
    """Logarithms of values; -inf if there is no node."""

    slot: Array  # float32[B, N]: value of every node's slot; the root's is 0
    value: Array  # float32[B, W]: value of the drafts to grow next, if >= the threshold


def topology(
    nodes: int = 64,
    depth: int = 8,
    width: int = 16,
    threshold: float = 0.0,
    draw: str = base.NO_REPLACE,
) -> base.Topology:
    """Grow the slots of greatest value.

    Args:
        nodes: nodes to verify, root included.
        depth: levels of drafts at most.
        width: slots per level at most.
        threshold: least value of a slot, about 1 / nodes; 0 is the greedy form.
        draw: one of `CARD.draws`.
    """
    if min(depth, width) < 1 or not 2 <= nodes <= 1 + depth * width:
        raise MethodError(
            f"nodes={nodes}: for {depth} levels of {width} slots use 2 to "
            f"{1 + depth * width} nodes"
        )
    if not 0 <= threshold <= 1:
        raise MethodError(f"threshold={threshold}: use a probability, 0 to 1")
    child_sampling.check(draw, CARD.draws)
    widths = (1, *(width,) * depth)

    def init(batch: int) -> base.State:
        empty = Growth(jnp.zeros((batch, sum(widths))), jnp.zeros((batch, width)))
        return base.State((empty, jnp.full((batch,), threshold, jnp.float32)))

    def expand(keys, state, tree: base.TokenTree, logits, noise, level: int):
        growth, least = state.row
        size = logits.shape[1]
        value = growth.value if level else jnp.zeros_like(growth.value[:, :1])
        logq = vocab.log_softmax(logits)
        noisy = child_sampling.perturbed(draw, keys, logits, noise(level))
        order, tokens = node_ranking.children(noisy, min(width, logits.shape[-1]))
        draft_values = vocab.gather(logq, tokens)
        draft_values = (
            jnp.where(order > -jnp.inf, draft_values, -jnp.inf) + value[:, :size, None]
        )
        slot = draft_values
        if draw != base.POINT:
            q = jnp.exp(vocab.gather(logq, tokens))
            remaining = 1 - (jnp.cumsum(q, -1) - q)
            slot = value[:, :size, None] + jnp.log(jnp.maximum(remaining, 0.0))
            slot = jnp.where(draft_values > -jnp.inf, slot, -jnp.inf)
        slot = jnp.where(slot >= jnp.log(least)[:, None, None], slot, -jnp.inf)
        local, rank, chosen = node_ranking.best(slot, width)
        rows = jnp.arange(tokens.shape[0])[:, None]
        live = chosen > -jnp.inf
        # Rounding must not lift a draft above its slot: a parent is kept first.
        drawn = jnp.minimum(draft_values[rows, local, rank], chosen)
        drawn = jnp.where(drawn >= jnp.log(least)[:, None], drawn, -jnp.inf)
        begin = sum(widths[: level + 1])
        slots = growth.slot.at[:, begin : begin + width].set(chosen)
        tokens_of_level = tokens[rows, local, rank]
        tree = grow.put(tree, widths, level, tokens_of_level, local, live, logits)
        return tree, base.State((Growth(slots, drawn), least))

    def more(state: base.State, level: int) -> Array:
        values = state.row[0].value
        return (values > -jnp.inf).any(1) | jnp.full(values.shape[:1], level == 0)

    def prune(state: base.State, tree: base.TokenTree) -> Array:
        slots = jnp.where(tree.kind == base.CANDIDATE, state.row[0].slot, -jnp.inf)
        return node_ranking.best_nodes(slots, nodes)

    def adapt(state: base.State, outcome: base.Outcome) -> base.State:
        return state

    return base.Topology(
        init, expand, adapt, widths, draw, more=more, prune=prune, kept=nodes
    )
