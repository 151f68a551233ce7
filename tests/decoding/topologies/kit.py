"""A tree grown and verified without a loop, `N` rows at once, on a table of laws.

The next token's law depends on the last token alone: `P[x]` is the target's after token
x and `Q[x]` the draft's, the root being token 0. Both are laws at temperature `T`: the
draft's raw logits are `T` log Q. `texts` gives the first `LENGTH` tokens of every row,
whose law is enumerated in `LAW`.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from decoding import base, tree
from decoding.conformance import laws
from decoding.transforms import temperature
from decoding.tree_building import grow, tables
from models.base import ModelOutput

V, LENGTH, T = 4, 3, 0.9
N = 20_000  # rows of a law test; seed 0
LEVEL, FAULT = 1e-4, 1e-6  # p-values: a sound build fails 1 time in 10^4


def _table(seed: int) -> np.ndarray:
    table = np.random.default_rng(seed).dirichlet(np.full(V, 0.7), V)
    return (table + 0.02) / (1 + 0.02 * V)


P, Q = _table(1), _table(2)
LAW = np.zeros((V,) * LENGTH)
for path in itertools.product(range(V), repeat=LENGTH):
    LAW[path] = np.prod([P[a, b] for a, b in zip((0, *path), path)])


@struct.dataclass
class Cache:
    """As much of a cache as `grow` reads."""

    length: jax.Array


def model(params, cache, block, taps=()):
    """The draft: raw logits from `params`; a node's state is its token, one-hot."""
    hidden = {tap: jax.nn.one_hot(block.tokens, V) for tap in taps}
    return ModelOutput(params[block.tokens], hidden), cache


def grown(topology: base.Topology, rows: int, q, seed, params=None) -> base.TokenTree:
    """Trees that the draft `q` [V, V] grows after token 0; `params` for a `watch`."""
    return grown_from(topology, rows, raw(q), seed, params)


def raw(q: np.ndarray) -> jax.Array:
    """float32: logits that temperature `T` makes those of the laws `q` [..., V]."""
    with np.errstate(divide="ignore"):
        return jnp.asarray(T * np.log(q), jnp.float32)


@functools.partial(jax.jit, static_argnums=(0, 1))
def grown_from(topology, rows, logits, seed, params=None) -> base.TokenTree:
    """`grown` by raw logits [V, V], and so in one program for all drafts."""
    keys, gumbel = noise(topology, rows, seed)
    length = jnp.ones((rows,), jnp.int32)
    tokens = jnp.zeros((rows, 4), jnp.int32)
    law = temperature.transform(T)
    ctx = base.Context(
        params=params or {},
        tokens=tokens,
        length=length,
        cache=None,
        law=law,
        transform=jax.vmap(law.init)(tokens, length),
        noise=lambda position: gumbel[position[0] - 1],
        active=length > 0,
    )
    root = jnp.broadcast_to(logits[0], (rows, V))
    state = topology.init(rows)
    own = (
        () if topology.watch is None else jnp.broadcast_to(jnp.eye(1, V), (rows, 1, V))
    )
    if topology.tabled is not None:
        return of_table(ctx, topology, keys, logits)
    args = (model, logits, Cache(length - 1), ctx, topology, keys, state, root, own)
    return grow.grow(*args)[0]


def of_table(ctx, topology, keys, logits) -> base.TokenTree:
    """The tree of a table with the laws after every token, but the root's at first."""
    rows, depth = ctx.length.shape[0], topology.depth
    above = jnp.broadcast_to(jnp.arange(V, dtype=jnp.int32), (rows, depth, V))
    above = above.at[:, 0].set(0)
    ways = topology.tabled
    table = tables.table(
        ctx, keys, above, logits[above], ways.children, topology.draw, False
    )
    return tables.grown(ctx, topology, table)


def noise(topology: base.Topology, rows: int, seed: int) -> tuple[jax.Array, jax.Array]:
    """The drafts' keys [rows], and the positions' noise float32[depth + 1, rows, V]."""
    keys = jax.random.split(jax.random.key(seed), rows + 1)
    return keys[1:], jax.random.gumbel(keys[0], (topology.depth + 1, rows, V))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _texts(topology, verifier, p, logits, seed, params=None):
    nodes = grown_from(topology, N, logits, seed, params)
    logits = jnp.log(jnp.asarray(p, jnp.float32))  # warped
    keys = jax.random.split(jax.random.key(seed + 1), N)

    def one(key, nodes):
        keys = jax.random.split(key)
        at = base.Target(logits[nodes.tokens], {}, lambda depth: jnp.zeros(V))
        return verifier.verify(keys[0], base.State(), nodes, at), keys[1]

    nodes = nodes.replace(calls=jnp.zeros((N,)))
    verdict, keys = jax.vmap(one)(keys, nodes)
    tokens, count = tree.committed(nodes, verdict)
    tokens = jnp.pad(tokens, ((0, 0), (0, LENGTH)))
    last = jnp.zeros((N,), jnp.int32)
    for i in range(LENGTH):  # what the round left open comes from p
        fold = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, i)
        fresh = jax.vmap(jax.random.categorical)(fold, logits[last])
        last = jnp.where(i < count, tokens[:, i], fresh)
        tokens = tokens.at[:, i].set(last)
    return tokens[:, :LENGTH], verdict.count


def accepted_and_fit(topology, verifier, p=P, q=Q, params=None) -> tuple[float, float]:
    """Drafts accepted a round, and the p-value of the texts' law."""
    tokens, count = _texts(topology, verifier, p, raw(q), 0, params)
    counts = np.zeros((V,) * LENGTH, np.int64)
    np.add.at(counts, tuple(np.asarray(tokens).T), 1)
    return float(count.mean()), laws.chi_square(counts, LAW)


def paths(nodes: base.TokenTree, row: int = 0) -> list[tuple[int, ...]]:
    """The text from the root to every node that is no padding."""
    parents, tokens = np.asarray(nodes.parents[row]), np.asarray(nodes.tokens[row])
    found = {0: ()}
    for i in range(1, len(tokens)):
        if nodes.kind[row, i] == base.CANDIDATE:
            assert parents[i] < i
            found[i] = (*found[parents[i]], int(tokens[i]))
    return list(found.values())[1:]


def value(path: tuple[int, ...], q: np.ndarray = Q) -> float:
    """The draft's probability of a text after token 0."""
    return float(np.prod([q[a, b] for a, b in zip((0, *path), path)]))
