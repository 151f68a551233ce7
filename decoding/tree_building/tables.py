"""Trees from a table of all likely steps, without a model call a level.

A drafter that has the laws of every depth at once fills a table: for each depth, `m`
tokens that may stand above (at the first only the root), and `K` children of each, with
the child's place among the tokens above the next depth, or -1 if it is none of them. A
marginal drafter has m = 1: what stands above does not matter to it.

`best_first` and `expanded` grow a tree of a table within the program, a node or a
node's children at a time. Letters: `E` depths."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from decoding import base, vocab
from decoding.tree_building import child_sampling, node_ranking
from models.errors import MethodError

FAMILY = "tree of a table"  # of the topologies' cards
DRAWS = (base.POINT, base.COUPLED)  # that they offer
NO_TABLE = (
    "the topology grows a tree of the laws of all depths at once, which this drafter "
    "does not have: use topologies/eagle2, or a head on a block without a memory or "
    "heads that guess apart (drafters/dflash, dspark, dflash2, treeflash, medusa)"
)


class Table(NamedTuple):
    """The likely steps of a round; see the module."""

    tokens: Array  # int32[B, E, m, K], best first
    logprobs: Array  # float32[B, E, m, K]: of the law after the token above
    following: Array  # int32[B, E, m, K]: the child's row at the next depth; -1: none


class Tabled(NamedTuple):
    """How a topology reads a table."""

    above: int  # m, tokens that may stand above; a marginal drafter's is 1
    children: int  # K
    grow: Callable[[Table], tuple[Array, Array, Array]]
    """table -> tokens, parents int32[B, N], there bool[B, N]"""
    marginal: bool = False  # of a block's own laws, before a head reads what is above


def topology(tabled: Tabled, nodes: int, depth: int, draw: str) -> base.Topology:
    """Return the topology of trees of `nodes` nodes, `depth` deep, of a table.

    Raises:
        MethodError: numbers that give no tree, or a draw that is none of `DRAWS`.
    """
    if min(depth, tabled.above, tabled.children) < 1 or nodes < 2:
        raise MethodError(
            f"nodes={nodes}, depth={depth}, above={tabled.above}, children="
            f"{tabled.children}: use at least 2 nodes, and 1 of the others"
        )
    child_sampling.check(draw, DRAWS)

    def expand(*arguments: Any) -> Any:
        raise MethodError(NO_TABLE)  # of drafters that have no table

    return base.Topology(
        lambda batch: base.State(),
        expand,
        lambda state, outcome: state,
        (1,) * (depth + 1),
        draw,
        kept=nodes,
        tabled=tabled,
    )


def likely(laws: Array, count: int) -> Array:
    """Return the `count` likeliest tokens of each law [B, E, V]: int32[B, E, count]."""
    return vocab.top_k(laws, min(count, laws.shape[-1]))[1]


def table(
    ctx: base.Context,
    keys: Array,
    above: Array,
    raw: Array,
    children: int,
    draw: str,
    marginal: bool,
) -> Table:
    """Make the table of a round.

    Args:
        ctx: of this round.
        keys: key[B].
        above: int32[B, E, m], the tokens above each depth.
        raw: [B, E, m, V], the laws after them, before warping.
        children: K.
        draw: POINT or COUPLED.
        marginal: the laws are the same whatever stands above; m is 1.
    """
    batch, depths, count, size = raw.shape
    laws = ctx.warp(raw.reshape(batch, depths * count, size).astype(jnp.float32))
    rows = laws.reshape(batch, depths, count, size)
    each = [
        child_sampling.perturbed(draw, keys, rows[:, e], ctx.noise(ctx.length + e))
        for e in range(depths)
    ]
    logq = vocab.log_softmax(jnp.concatenate(each, 1))
    best, tokens = node_ranking.children(logq, children)
    shape = (batch, depths, count, children)
    best, tokens = best.reshape(shape), tokens.reshape(shape)
    if marginal:
        following = jnp.zeros_like(tokens)
    else:
        same = tokens[:, :-1, ..., None] == above[:, 1:, None, None]
        place = jnp.where(same.any(-1), same.argmax(-1).astype(jnp.int32), -1)
        following = jnp.concatenate([place, jnp.full_like(tokens[:, :1], -1)], 1)
    return Table(tokens, best, following.at[:, -1].set(-1))


def best_first(table: Table, nodes: int) -> tuple[Array, Array, Array]:
    """Take the `nodes` - 1 steps of greatest probability of their paths.

    One after the other, the best that is open: a taken node opens its next sibling and
    its first child. Values fall along both, so the tree is the best of that size.

    Returns:
        tokens and parents int32[B, nodes], root first, and whether a node exists.
    """
    batch = table.tokens.shape[0]
    rows = jnp.arange(batch)
    # Of every open step: its value, parent, depth of the parent, row and rank.
    empty = jnp.zeros((batch, 2 * nodes), jnp.int32)
    value = jnp.full((batch, 2 * nodes), -jnp.inf)
    value = value.at[:, 0].set(table.logprobs[:, 0, 0, 0])
    opened = (value, empty, empty, empty, empty)
    grown = (*_root(batch, nodes), jnp.zeros((batch, nodes), jnp.float32))
    ranks = table.tokens.shape[-1]

    def take(i: Array, carry: tuple) -> tuple:
        (value, parent, depth, row, rank), grown = carry
        tokens, parents, there, reached = grown
        at = value.argmax(1)
        pick = lambda x: x[rows, at]
        v, p, d, r, k = (pick(x) for x in (value, parent, depth, row, rank))
        live = v > -jnp.inf
        tokens = tokens.at[:, i].set(table.tokens[rows, d, r, k])
        parents = parents.at[:, i].set(p)
        there = there.at[:, i].set(live)
        reached = reached.at[:, i].set(jnp.where(live, v, -jnp.inf))
        # The sibling takes the place of the step, the child a new one.
        has = live & (k + 1 < ranks)
        next_rank = jnp.minimum(k + 1, ranks - 1)
        sibling = reached[rows, p] + table.logprobs[rows, d, r, next_rank]
        value = value.at[rows, at].set(jnp.where(has, sibling, -jnp.inf))
        rank = rank.at[rows, at].set(next_rank)
        below = table.following[rows, d, r, k]
        deeper = jnp.minimum(d + 1, table.tokens.shape[1] - 1)
        child = v + table.logprobs[rows, deeper, jnp.maximum(below, 0), 0]
        new = nodes + i
        value = value.at[:, new].set(jnp.where(live & (below >= 0), child, -jnp.inf))
        parent = parent.at[:, new].set(i)
        depth = depth.at[:, new].set(deeper)
        row = row.at[:, new].set(jnp.maximum(below, 0))
        rank = rank.at[:, new].set(0)
        opened = (value, parent, depth, row, rank)
        return opened, (tokens, parents, there, reached)

    _, grown = lax.fori_loop(1, nodes, take, (opened, grown))
    return grown[:3]


def expanded(
    table: Table, nodes: int, fanout: Array | None = None
) -> tuple[Array, Array, Array]:
    """Open the most probable node again and again, with its children at once.

    Args:
        table: of the round.
        nodes: of the tree, root included.
        fanout: int32[B, E], children of a node whose children are at that depth; None:
            all K.

    Returns:
        tokens and parents int32[B, nodes], root first, and whether a node exists.
    """
    batch, depths, _, ranks = table.tokens.shape
    rows = jnp.arange(batch)
    index = jnp.arange(ranks, dtype=jnp.int32)
    tokens, parents, there = _root(batch, nodes)
    depth = jnp.zeros((batch, nodes), jnp.int32)
    row = jnp.zeros((batch, nodes), jnp.int32)
    value = jnp.full((batch, nodes), -jnp.inf).at[:, 0].set(0.0)
    # What a node is worth to open: its value, -inf once it is, or where it is a leaf.
    worth = value

    def grow(_: Array, carry: tuple) -> tuple:
        tokens, parents, there, depth, row, value, worth, count = carry
        at = worth.argmax(1)
        live = worth[rows, at] > -jnp.inf
        d, r = depth[rows, at], row[rows, at]
        most = ranks if fanout is None else fanout[rows, d][:, None]
        place = count[:, None] + index
        new = live[:, None] & (index < most) & (place < nodes)
        place = jnp.where(new, place, nodes)
        put = lambda x, y: x.at[rows[:, None], place].set(y, mode="drop")
        below = table.following[rows, d, r]
        reached = value[rows, at][:, None] + table.logprobs[rows, d, r]
        open_ = jnp.where(below >= 0, reached, -jnp.inf)
        same = jnp.broadcast_to
        return (
            put(tokens, table.tokens[rows, d, r]),
            put(parents, same(at[:, None].astype(jnp.int32), place.shape)),
            put(there, new),
            put(depth, same(jnp.minimum(d + 1, depths - 1)[:, None], place.shape)),
            put(row, jnp.maximum(below, 0)),
            put(value, reached),
            put(worth.at[rows, at].set(-jnp.inf), open_),
            count + new.sum(1),
        )

    start: Any = (tokens, parents, there, depth, row, value, worth)
    done = lax.fori_loop(0, nodes - 1, grow, (*start, jnp.ones((batch,), jnp.int32)))
    return done[:3]


def _root(batch: int, nodes: int) -> tuple[Array, Array, Array]:
    """Return the tokens, parents and existence of a tree of the root alone."""
    empty = jnp.zeros((batch, nodes), jnp.int32)
    there = jnp.zeros((batch, nodes), bool).at[:, 0].set(True)
    return empty, empty.at[:, 0].set(-1), there


def grown(ctx: base.Context, topology: base.Topology, table: Table) -> base.TokenTree:
    """Make a topology's tree of a table."""
    tokens, parents, there = topology.tabled.grow(table)
    kind = jnp.where(there, base.CANDIDATE, base.PAD).astype(jnp.int32)
    return base.TokenTree(
        tokens.at[:, 0].set(ctx.root),
        parents,
        kind,
        draw=topology.draw,
        depth=topology.depth,
        linear=topology.linear,
    )
