"""Blocks and runs that the model tests share."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from models import base


@functools.cache
def call(lm: base.LanguageModel, taps: tuple = ()):
    """The jitted model call, compiled in half the time: tests run each but once."""
    return jax.jit(
        lambda params, cache, block: lm(params, cache, block, taps),
        compiler_options={"xla_backend_optimization_level": 0},
    )


causal = jax.jit(base.causal_block, static_argnums=(3, 4))


@jax.jit
def keep(cache, path, count):
    """The cache after a commit."""
    return cache.commit(path, count)


def ints(values) -> jax.Array:
    return jnp.asarray(values, jnp.int32)


def commit(cache, count):
    """Declare `count[b]` more slots committed."""
    return cache.replace(length=cache.length + ints(count))


def prefill(lm, params, tokens, counts, size, logits_at=base.ALL, cache=None):
    """Rows `tokens[b, :counts[b]]` appended as one causal block; (output, cache)."""
    tokens = ints(tokens)
    cache = lm.init_cache(tokens.shape[0], size) if cache is None else cache
    block = causal(tokens, cache.length, ints(counts), size, logits_at)
    out, cache = call(lm)(params, cache, block)
    return out, commit(cache, counts)


WIDTH = 20  # blocks of up to this many nodes are padded to it: one compilation


def whole(lm, params, tokens, size):
    """Logits[B, N, V] of complete rows in one block."""
    batch, nodes = np.shape(tokens)
    padded = np.zeros((batch, max(nodes, WIDTH)), np.int32)
    padded[:, :nodes] = tokens
    out, _ = prefill(lm, params, padded, [nodes] * batch, size)
    return np.asarray(out.logits)[:, :nodes]


def numpy_params(lm, seed=0):
    """Normal params of the right shapes, with no compilation; norms near 1."""
    rng = np.random.default_rng(seed)

    def draw(shape):
        noise = rng.standard_normal(shape.shape, np.float32)
        if len(shape.shape) == 1:
            return jnp.asarray(1 + 0.1 * noise)
        return jnp.asarray(1.4 * noise / shape.shape[-1] ** 0.5)

    return jax.tree.map(draw, jax.eval_shape(lm.init, jax.random.key(0)))


def stepwise(lm, params, tokens, size):
    """Logits[B, N, V] by one-node blocks."""
    tokens = np.asarray(tokens)
    batch, nodes = tokens.shape
    cache = lm.init_cache(batch, size)
    outs = []
    for i in range(nodes):
        one = tokens[:, i : i + 1]
        out, cache = prefill(lm, params, one, [1] * batch, cache.size, cache=cache)
        outs.append(np.asarray(out.logits))
    return np.concatenate(outs, 1)


def random_tree(rng, batch, nodes):
    """parents int32[batch, nodes], parents[i] < i, root -1."""
    parents = np.full((batch, nodes), -1, np.int32)
    for i in range(1, nodes):
        parents[:, i] = rng.integers(0, i, batch)
    return parents


def path_of(parents, node):
    """Nodes from the root (excluded) down to `node`."""
    path = []
    while node > 0:
        path.append(int(node))
        node = parents[node]
    return path[::-1]


def tree_block(tokens, parents, length, logits_at=base.ALL):
    """A whole tree behind `length[b]` committed slots; node i is in slot length + i."""
    batch, nodes = parents.shape
    depth = np.zeros((batch, nodes), np.int32)
    seen = np.zeros((batch, nodes, nodes), bool)
    for b in range(batch):
        for i in range(nodes):
            for j in [0, *path_of(parents[b], i)]:
                seen[b, i, j] = True
            depth[b, i] = seen[b, i].sum() - 1
    length = np.asarray(length)[:, None]
    visibility = base.Visibility(ints(length[:, 0]), base.pack_bits(jnp.asarray(seen)))
    return base.Block(
        ints(tokens),
        ints(length + depth),
        ints(length + np.arange(nodes)),
        visibility,
        logits_at=logits_at,
    )
