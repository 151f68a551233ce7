"""The block width that pays on this machine: measured times, running acceptance.

Chen et al., *Sequoia*, 2024, arXiv 2402.12374 (hardware-aware tree optimizer); Chen et
al., *Hardware-Aware Parallel Prompt Decoding*, 2024, arXiv 2405.18628. Of a static tree
the n best nodes are drafted and verified, with

    a(d, r)  = how often the r-th child of an accepted node of depth d is accepted
    value(v) = product of a over the path of v        (the root's is 1)
    E(n)     = sum of the n greatest values           tokens a round
    n        = argmax of  E(n) / (t(n) + c depth(n))  over the measured widths

t → `times`: milliseconds of a target call by block width, of 1 too; c → `draft_ms`:
those of a draft call; a → the running counts `Record.hits` / `Record.tries`, over all
rows. Where no width pays n = 1, which is plain decoding: a block of one node and no
draft call.

Deviations from the papers: they choose once, from a measurement; here a round's counts
weigh `forget` times the next one's, and what was not tried for long returns to its
prior, 2^-(r+1), and is tried again if with that it would pay. Every measured width is a
program of its own.

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
)


@struct.dataclass
class Record:
    """What was measured so far, and the plan that follows from it; for all rows."""

    hits: Array  # float32[D, R]: children of rank r that were accepted, by depth
    tries: Array  # float32[D, R]: such children below accepted nodes
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
    """`times`: (block width, milliseconds) of the target, as measured; `choices`: the
    largest tree, as in `static`, cut to the greatest width."""
    shape = tree_code.shape(choices)
    curve = {int(n): float(ms) for n, ms in times if int(n) <= shape.nodes}
    if 1 not in curve or min(curve) < 1 or min(curve.values()) <= 0:
        raise MethodError(
            f"times={times}: give (width, milliseconds > 0) of a block of 1 and others"
        )
    if not 0 <= forget <= 1 or not draft_ms >= 0:
        raise MethodError(
            f"forget={forget}, draft_ms={draft_ms}: use 0 to 1, and a time"
        )
    child_sampling.check(draw)
    widths = tuple(len(level) for level in shape.levels)
    sizes = np.array(sorted(curve), np.int32)
    cost = jnp.asarray([curve[n] for n in sizes.tolist()], jnp.float32)
    kept = int(sizes.max())
    rank, depth = jnp.asarray(shape.ranks), jnp.asarray(np.maximum(shape.depths - 1, 0))
    prior = 0.5 ** (jnp.arange(shape.width) + 1.0)
    starts = np.cumsum([0, *widths])

    def values(record: Record) -> Array:
        """float32[N], falling along paths and along siblings."""
        rates = (record.hits + prior) / (record.tries + 1)
        least = [rates[:, 0]]
        for r in range(1, shape.width):
            least.append(jnp.minimum(least[-1], rates[:, r]))
        own = jnp.stack(least, 1)[depth, rank]
        found = jnp.ones((shape.nodes,))
        for level in shape.levels[1:]:
            found = found.at[level].set(found[shape.parents[level]] * own[level])
        return found

    def plan(record: Record) -> Array:
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
        found = child_sampling.candidates(
            draw, keys, logits, int(ranks.max()) + 1, noise(level)
        )
        tokens = found[:, local, ranks]
        there = jnp.broadcast_to(state.shared.planned[below], tokens.shape)
        nodes = grow.put(
            nodes, widths, level, tokens, jnp.asarray(local), there, logits
        )
        return nodes, state

    def more(state: base.State, level: int) -> Array:
        below = slice(int(starts[level + 1]), int(starts[level + 2]))
        return state.shared.planned[below].any()[None]

    def drafted(record: Record) -> Array:
        """int32[kept]: the planned nodes, in rising order, -1 past the last."""
        found = jnp.nonzero(record.planned, size=kept, fill_value=-1)[0]
        return found.astype(jnp.int32)

    def prune(state: base.State, nodes: base.TokenTree) -> Array:
        batch = nodes.tokens.shape[0]
        return jnp.broadcast_to(drafted(state.shared), (batch, kept))

    def adapt(state: base.State, outcome: base.Outcome) -> base.State:
        record: Record = state.shared
        nodes, path = outcome.tree, outcome.verdict.path
        index = jnp.arange(path.shape[1], dtype=jnp.int32)
        at = jnp.where(index < outcome.verdict.count[:, None], path, 0)
        batch = jnp.arange(path.shape[0])[:, None]
        reached = jnp.zeros(nodes.tokens.shape, bool).at[batch, at].set(True)
        reached = reached.at[:, 0].set(True) & outcome.active[:, None]
        child = (nodes.kind == base.CANDIDATE) & (nodes.parents >= 0)
        tried = child & jnp.take_along_axis(reached, jnp.maximum(nodes.parents, 0), 1)
        grown = jnp.maximum(drafted(record), 0)
        cell = (depth[grown], rank[grown])
        keep = jnp.where(outcome.active.any(), record.forget, 1.0)

        def count(old: Array, new: Array) -> Array:
            return (keep * old).at[cell].add(new.sum(0).astype(jnp.float32))

        record = replace(
            record,
            hits=count(record.hits, tried & reached),
            tries=count(record.tries, tried),
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
        kept=kept,
        blocks=tuple(sizes.tolist()),
    )
