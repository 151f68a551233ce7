"""Acceptance of recent drafts by depth and sibling rank, and the worth of nodes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import base, tree

RANKS = 4  # siblings counted apart; the last rank pools the higher ones
PRIOR = 0.6  # rate of a first child that was never seen; each sibling has a third
FAITH = 2.0  # rounds that a prior weighs


@struct.dataclass
class Rates:
    """Decayed counts of one row's drafts by depth and rank."""

    hits: Array  # float32[B, D, R]
    tries: Array  # float32[B, D, R]


def estimated(row: Rates) -> Array:
    """Estimate how often a child is accepted, float32[B, D, R], falling by rank."""
    prior = PRIOR * (1 / 3) ** jnp.arange(RANKS)
    hits, tries = row.hits.sum((0, 1)), row.tries.sum((0, 1))
    anywhere = (hits + FAITH * prior) / (tries + FAITH)
    hits, tries = row.hits.sum(0), row.tries.sum(0)
    batch = (hits + FAITH * anywhere) / (tries + FAITH)
    rates = (row.hits + FAITH * batch) / (row.tries + FAITH)
    return lax.cummin(rates, 2)


def _ranks(nodes: base.TokenTree) -> Array:
    """Return every node's rank among its siblings, int32[B, N]."""
    if nodes.linear:
        return jnp.zeros(nodes.tokens.shape, jnp.int32)
    size = nodes.tokens.shape[1]
    same = nodes.parents[:, :, None] == nodes.parents[:, None]
    older = jnp.tril(jnp.ones((size, size), bool), -1)
    there = (nodes.kind == base.CANDIDATE)[:, None]
    return (same & older & there).sum(2, dtype=jnp.int32)


def _values(row: Rates, nodes: base.TokenTree) -> tuple[Array, Array, Array]:
    """Return depth, value and number of block nodes of every node, each [B, N].

    A candidate's number counts its AUX nodes. Other nodes have the value 0.
    """
    depth = tree.depths(nodes)
    rank = jnp.minimum(_ranks(nodes), RANKS - 1)
    rates = estimated(row)
    most = rates.shape[1] - 1
    pick = lambda rates, depth, rank: rates[jnp.clip(depth - 1, 0, most), rank]
    value = jnp.where(depth > 0, jax.vmap(pick)(rates, depth, rank), 1.0)
    at, reach = jnp.maximum(nodes.parents, 0), 1
    while reach < nodes.depth + 1:
        value = value * jnp.take_along_axis(value, at, 1)
        at = jnp.take_along_axis(at, at, 1)
        reach *= 2
    candidate = nodes.kind == base.CANDIDATE
    weight = candidate.astype(jnp.int32)
    if nodes.aux:
        aux = (nodes.kind == base.AUX).astype(jnp.int32)
        add = lambda weight, owner, aux: weight.at[owner].add(aux)
        weight = jax.vmap(add)(weight, owners(nodes), aux)
    return depth, jnp.where(candidate, value, 0), weight


def owners(nodes: base.TokenTree) -> Array:
    """Return each node's nearest ancestor or self that is no AUX node, int32[B, N]."""
    index = jnp.arange(nodes.tokens.shape[1], dtype=jnp.int32)
    at = jnp.where(nodes.kind == base.AUX, jnp.maximum(nodes.parents, 0), index)
    reach = 1
    while reach < nodes.depth + 1:
        at = jnp.take_along_axis(at, at, 1)
        reach *= 2
    return at


def counted(
    row: Rates,
    nodes: base.TokenTree,
    verdict: base.Verdict,
    forget: Array | float,
    active: Array,
) -> Rates:
    """Add a round's drafts to the counts; only rows that are active forget."""
    path = verdict.path
    rows = jnp.arange(path.shape[0])[:, None]
    index = jnp.arange(path.shape[1], dtype=jnp.int32)
    size = nodes.tokens.shape[1]
    at = jnp.where(index < verdict.count[:, None], path, size)
    hit = jnp.zeros(nodes.tokens.shape, bool).at[rows, at].set(True, mode="drop")
    reached = hit.at[:, 0].set(True) & active[:, None]
    child = (nodes.kind == base.CANDIDATE) & (nodes.parents >= 0)
    above = jnp.take_along_axis(reached, jnp.maximum(nodes.parents, 0), 1)
    tested = child & above
    level = jnp.clip(tree.depths(nodes) - 1, 0, row.hits.shape[1] - 1)
    rank = jnp.minimum(_ranks(nodes), RANKS - 1)
    decay = jnp.where(active, forget, 1.0)[:, None, None]

    def count(old: Array, new: Array) -> Array:
        return (decay * old).at[rows, level, rank].add(new.astype(jnp.float32))

    return Rates(count(row.hits, tested & hit), count(row.tries, tested))


class Expected(NamedTuple):
    """What a draft's nodes are expected to commit, the most valuable nodes first."""

    order: Array  # int32[B, N]: the nodes by falling value
    value: Array  # float32[B, N], in this order
    used: Array  # int32[B, N]: block nodes up to each node, of the whole draft
    tokens: Array  # float32[D, W]: a row's tokens by levels and width, the mean


def expected(
    row: Rates, nodes: base.TokenTree, widths: tuple[int, ...], active: Array
) -> Expected:
    """Expect tokens of the best nodes of every depth in blocks of every width."""
    depth, value, weight = _values(row, nodes)
    order = jnp.argsort(-value, axis=1, stable=True)  # parents come first
    value, depth, weight = (
        jnp.take_along_axis(x, order, 1) for x in (value, depth, weight)
    )
    limits = jnp.arange(1, nodes.depth + 1)
    inside = depth[:, None] <= limits[:, None]  # [B, D, N]
    used = jnp.cumsum(jnp.where(inside, weight[:, None], 0), 2)
    fits = (used[:, :, None] <= jnp.asarray(widths)[:, None]) & inside[:, :, None]
    tokens = jnp.where(fits, value[:, None, None], 0).sum(3)  # [B, D, W]
    tokens = jnp.where(active[:, None, None], tokens, 0).sum(0)
    tokens = tokens / jnp.maximum(active.sum(), 1)
    return Expected(order, value, used[:, -1], tokens)
