"""The fastest block width on this machine: measured times, running acceptance rates.

Chen et al., *Sequoia*, 2024, arXiv 2402.12374 (hardware-aware tree optimizer); Chen et
al., *Hardware-Aware Parallel Prompt Decoding*, 2024, arXiv 2405.18628. Of a static tree
the n best nodes are drafted and verified, with

    a(d, r)  = how often the r-th child of an accepted node of depth d is accepted
    value(v) = product of a over the path of v        (the root's is 1)
    E(n)     = sum of the n greatest values           tokens a round
    n        = argmax of  E(n) / (t(n) + c depth(n))  over the measured widths

t → `times`: milliseconds of a target call by block width, width 1 included; c →
`draft_ms`: milliseconds of a draft call; a → the running counts `Record.hits` /
`Record.tries`, over all rows. If no wider block pays, n = 1. That is plain decoding: a
block of one node and no draft call.

Deviations from the papers: they choose once, from a measurement. Here a round's counts
weigh `forget` times the next round's. The rate of a rank that was not tried for long
returns to its prior, 2^-(r+1), and the rank is tried again if it would then pay. Every
measured width has a program of its own.

Cost per level: as `static`; a choice sorts the values of the tree's nodes.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from decoding import base
from decoding.catalogue import Card
from decoding.topologies import static
from decoding.tree_building import child_sampling, grow
from decoding.tree_design import tree_code
from models.errors import MethodError

CARD = Card(
    paper="Sequoia's optimizer, arXiv 2402.12374",
    guarantee=base.LAW,
    family="dynamic tree",
    data=("draft_ms", "forget"),
    needs=("draw",),
    examples={
        "times": ((1, 1.0), (3, 1.1), (5, 1.5), (7, 1.6)),
        "choices": ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)),
    },
    sources=("chen2024sequoia", "chen2024hardware"),
)


@struct.dataclass
class Record:
    """The running counts, and the next round's plan; shared by all rows."""

    hits: Array  # float32[D, R]: children of rank r that were accepted, by depth
    tries: Array  # float32[D, R]: children of rank r below accepted nodes, by depth
    planned: Array  # bool[N]: the nodes of the next round
    draft_ms: Array  # float32[]
    forget: Array  # float32[]


def topology(
    times: tuple[tuple[int, float], ...],
    choices: tuple[tuple[int, ...], ...] | str = static.CHOICES,
    draft_ms: float = 0.0,
    forget: float = 0.98,
    draw: str = base.POINT,
) -> base.Topology:
    """Draft the best nodes of a static tree, as many as pay.

    Args:
        times: measured (block width, milliseconds) pairs of the target.
        choices: the largest tree, as in `static`; cut to the greatest width.
        draft_ms: milliseconds of a draft call.
        forget: weight of the earlier counts in each round, 0 to 1.
        draw: one of `base.DRAWS`.
    """
    shape = tree_code.shape(choices)
    curve = {int(n): float(ms) for n, ms in times if int(n) <= shape.nodes}
    if 1 not in curve or min(curve) < 1 or min(curve.values()) <= 0:
        raise MethodError(
            f"times={times}: give (width, milliseconds > 0) of a block of 1 and of "
            "wider blocks"
        )
    if not 0 <= forget <= 1 or not draft_ms >= 0:
        raise MethodError(
            f"forget={forget}, draft_ms={draft_ms}: use forget from 0 to 1 and "
            "draft_ms >= 0"
        )
    child_sampling.check(draw)
    widths = tuple(len(level) for level in shape.levels)
    sizes = np.array(sorted(curve), np.int32)
    cost = jnp.asarray([curve[n] for n in sizes.tolist()], jnp.float32)
    most_nodes = int(sizes.max())
    rank, depth = jnp.asarray(shape.ranks), jnp.asarray(np.maximum(shape.depths - 1, 0))
    prior = 0.5 ** (jnp.arange(shape.width) + 1.0)
    starts = np.cumsum([0, *widths])

    def values(record: Record) -> Array:
        """Estimate every node's value, float32[N], falling along paths and siblings."""
        rates = (record.hits + prior) / (record.tries + 1)
        least = [rates[:, 0]]
        for r in range(1, shape.width):
            least.append(jnp.minimum(least[-1], rates[:, r]))
        accepted = jnp.stack(least, 1)[depth, rank]
        node_values = jnp.ones((shape.nodes,))
        for level in shape.levels[1:]:
            node_values = node_values.at[level].set(
                node_values[shape.parents[level]] * accepted[level]
            )
        return node_values

    def plan(record: Record) -> Array:
        """Choose the nodes of the next round, bool[N]."""
        value = values(record)
        order = jnp.argsort(-value, stable=True)  # among equals, parents come first
        tokens = jnp.cumsum(value[order])[sizes - 1]
        deepest = jnp.asarray(shape.depths)[order]
        calls = jnp.stack([deepest[:n].max() for n in sizes.tolist()])
        pays = tokens / (cost + record.draft_ms * calls)
        best = jnp.asarray(sizes)[jnp.argmax(pays)]
        place = jnp.zeros((shape.nodes,), jnp.int32)
        place = place.at[order].set(jnp.arange(shape.nodes, dtype=jnp.int32))
        return place < best

    def init(batch: int) -> base.State:
        none = jnp.zeros((shape.depth, shape.width))
        numbers = (jnp.float32(draft_ms), jnp.float32(forget))
        record = Record(none, none, jnp.zeros((shape.nodes,), bool), *numbers)
        return base.State(shared=replace(record, planned=plan(record)))

    def expand(keys, state, nodes: base.TokenTree, logits, noise, level: int):
        here, below = shape.levels[level], shape.levels[level + 1]
        local, ranks = shape.parents[below] - here[0], shape.ranks[below]
        ranked_tokens = child_sampling.candidates(
            draw, keys, logits, int(ranks.max()) + 1, noise(level)
        )
        tokens = ranked_tokens[:, local, ranks]
        planned = jnp.broadcast_to(state.shared.planned[below], tokens.shape)
        nodes = grow.put(
            nodes, widths, level, tokens, jnp.asarray(local), planned, logits
        )
        return nodes, state

    def more(state: base.State, level: int) -> Array:
        below = slice(int(starts[level + 1]), int(starts[level + 2]))
        return state.shared.planned[below].any()[None]

    def drafted(record: Record) -> Array:
        """List the planned nodes in rising order, padded with -1."""
        planned_nodes = jnp.nonzero(record.planned, size=most_nodes, fill_value=-1)[0]
        return planned_nodes.astype(jnp.int32)

    def prune(state: base.State, nodes: base.TokenTree) -> Array:
        batch = nodes.tokens.shape[0]
        return jnp.broadcast_to(drafted(state.shared), (batch, most_nodes))

    def adapt(state: base.State, outcome: base.Outcome) -> base.State:
        record: Record = state.shared
        nodes, path = outcome.tree, outcome.verdict.path
        index = jnp.arange(path.shape[1], dtype=jnp.int32)
        at = jnp.where(index < outcome.verdict.count[:, None], path, 0)
        batch = jnp.arange(path.shape[0])[:, None]
        reached = jnp.zeros(nodes.tokens.shape, bool).at[batch, at].set(True)
        reached = reached.at[:, 0].set(True) & outcome.active[:, None]
        child = (nodes.kind == base.CANDIDATE) & (nodes.parents >= 0)
        tested = child & jnp.take_along_axis(reached, jnp.maximum(nodes.parents, 0), 1)
        grown = jnp.maximum(drafted(record), 0)
        cell = (depth[grown], rank[grown])
        keep = jnp.where(outcome.active.any(), record.forget, 1.0)

        def count(old: Array, new: Array) -> Array:
            return (keep * old).at[cell].add(new.sum(0).astype(jnp.float32))

        record = replace(
            record,
            hits=count(record.hits, tested & reached),
            tries=count(record.tries, tested),
        )
        return base.State(state.row, replace(record, planned=plan(record)))

    return base.Topology(
        init,
        expand,
        adapt,
        widths,
        draw,
        more=more,
        prune=prune,
        kept=most_nodes,
        blocks=tuple(sizes.tolist()),
    )
