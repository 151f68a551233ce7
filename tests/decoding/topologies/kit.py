"""A tree grown and verified without a loop, `N` rows at once, on a table of laws.

The next token's law depends on the last token alone: `P[x]` is the target's after token
x and `Q[x]` the draft's, the root being token 0. `texts` gives the first `LENGTH`
tokens of every row, whose law is enumerated in `LAW`.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from decoding import base, tree
from decoding.tree_building import grow
from models.base import ModelOutput
from tests import oracles
from tests.decoding.drafters.kit import IDENTITY

V, LENGTH = 4, 3
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
    """The draft: a look-up in `params`; a node's state is its token, one-hot."""
    hidden = {tap: jax.nn.one_hot(block.tokens, V) for tap in taps}
    return ModelOutput(jnp.log(params)[block.tokens], hidden), cache


@functools.partial(jax.jit, static_argnums=(0, 1))
def grown(topology: base.Topology, rows: int, q, seed, params=None) -> base.TokenTree:
    """Trees that the draft `q` [V, V] grows after token 0; `params` for a `watch`."""
    keys = jax.random.split(jax.random.key(seed), rows + 1)
    gumbel = jax.random.gumbel(keys[0], (topology.depth + 1, rows, V))
    length = jnp.ones((rows,), jnp.int32)
    ctx = base.Context(
        params=params or {},
        tokens=jnp.zeros((rows, 4), jnp.int32),
        length=length,
        cache=None,
        law=IDENTITY,
        transform=base.State(),
        noise=lambda position: gumbel[position[0] - 1],
        active=length > 0,
    )
    q = jnp.asarray(q, jnp.float32)
    root = jnp.broadcast_to(jnp.log(q[0]), (rows, V))
    state = topology.init(rows)
    own = (
        () if topology.watch is None else jnp.broadcast_to(jnp.eye(1, V), (rows, 1, V))
    )
    args = (model, q, Cache(length - 1), ctx, topology, keys[1:], state, root, own)
    return grow.grow(*args)[0]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _texts(topology, verifier, p, q, seed, params=None):
    nodes = grown(topology, N, q, seed, params)
    logits = jnp.log(jnp.asarray(p, jnp.float32))
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
    tokens, count = _texts(topology, verifier, p, q, 0, params)
    counts = np.zeros((V,) * LENGTH, np.int64)
    np.add.at(counts, tuple(np.asarray(tokens).T), 1)
    return float(count.mean()), oracles.chi_square(counts, LAW)


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
