"""Random keys. No other module of the project makes any.

A request's key is `fold_in(key(seed), request)`. `request` is its index in `prompts`,
never its row. Sample `j > 0` of a request folds in `SAMPLE + j` as well. The Gumbel
noise of the token at an absolute position is `gumbel(fold_in(request key, position))`.
On a canvas it folds in the number of committed positions, too: an order of positions
that looks at drawn tokens would else condition the noise that stays. Every other use
folds in its role and the row's length (on a canvas that number), which grows every
round, and consumes its key once. So a text depends on neither its row, its batch nor
the time of its admission.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # Threefry 2x32's, in turns
LANES = 128  # noise is drawn in multiples of it: other loops are not vectorised

ROLE, SAMPLE = 1 << 31, 1 << 30
DRAFT, VERIFY, EXIT, SELECT, UNMASK = (ROLE + i for i in range(5))
TRAJECTORY, APART = ROLE + 5, ROLE + 6  # of real-valued tokens: shared, the target's


def request_keys(seed: ArrayLike, requests: Array, samples: Array) -> Array:
    """Make keys [B] for `requests` int32[B] and their `samples` int32[B] (0: first)."""
    seeds = jnp.broadcast_to(jnp.asarray(seed, jnp.uint32), requests.shape)

    def one(seed: Array, request: Array, sample: Array) -> Array:
        key = jax.random.fold_in(jax.random.key(seed), request)
        other = jax.random.fold_in(key, SAMPLE + sample.astype(jnp.uint32))
        return jnp.where(sample > 0, other, key)

    return jax.vmap(one)(seeds, requests, samples)


def samples(key: Array, sample: Array) -> Array:
    """★ Return the keys [K] of the samples int32[K] of a request's `key`."""
    other = lambda j: jax.random.fold_in(key, SAMPLE + j.astype(jnp.uint32))
    return jax.vmap(lambda j: jnp.where(j > 0, other(j), key))(sample)


def at_position(
    key: Array, position: Array, size: int, ids: Array | None = None
) -> Array:
    """★ Draw the Gumbel noise of the token at an absolute position; as `gumbel`."""
    return gumbel(jax.random.fold_in(key, position), size, ids)


def on_canvas(key: Array, position: Array, count: Array, size: int) -> Array:
    """★ Draw the noise of the token at a position where `count` are committed."""
    key = jax.random.fold_in(jax.random.fold_in(key, position), count)
    return gumbel(key, size)


def gumbel(key: Array, size: int, ids: Array | None = None) -> Array:
    """★ Return `jax.random.gumbel(key, (size,))`, bit for bit, at four times the speed.

    JAX rolls the rounds of Threefry into a loop on CPU, which passes over the array ten
    times. Here they are one expression, and a single pass. `ids` int32[M] < `size` are
    the entries wanted, all if None: each is a function of its place alone.
    """
    options: Any = jax.config
    threefry = str(jax.random.key_impl(key)) == "threefry2x32"
    if not (threefry and options.jax_threefry_partitionable):
        whole = jax.random.gumbel(key, (size,), jnp.float32)
        return whole if ids is None else whole[ids]
    words = jax.random.key_data(key)
    count = size if ids is None else ids.shape[0]
    more = -count % LANES
    if ids is None:
        index = jnp.arange(count + more, dtype=jnp.uint32)
    else:
        index = jnp.pad(ids.astype(jnp.uint32), (0, more))
    left, right = _threefry(words[0], words[1], jnp.zeros_like(index), index)
    # As `jax.random.uniform`: the mantissa of a number in [1, 2), then [tiny, 1).
    one = np.float32(1).view(np.uint32)
    fraction = ((left ^ right) >> np.uint32(9)) | one
    fraction = lax.bitcast_convert_type(fraction, jnp.float32) - 1
    tiny = jnp.finfo(jnp.float32).tiny
    uniform = jnp.maximum(tiny, fraction * (jnp.float32(1) - tiny) + tiny)
    return -jnp.log(-jnp.log(uniform))[:count]


def _threefry(key0: Array, key1: Array, x0: Array, x1: Array) -> tuple[Array, Array]:
    """Encrypt counters by Threefry 2x32 of 20 rounds (Salmon et al., 2011)."""
    keys = (key0, key1, key0 ^ key1 ^ np.uint32(0x1BD11BDA))
    x0, x1 = x0 + key0, x1 + key1
    for i in range(5):
        for turn in ROTATIONS[i % 2]:
            x0 = x0 + x1
            x1 = x0 ^ ((x1 << np.uint32(turn)) | (x1 >> np.uint32(32 - turn)))
        x0 = x0 + keys[(i + 1) % 3]
        x1 = x1 + keys[(i + 2) % 3] + np.uint32(i + 1)
    return x0, x1


def for_role(keys: Array, role: int, length: Array) -> Array:
    """Make the keys [B] of a role in the round that starts at `length` int32[B]."""
    fold = jax.vmap(jax.random.fold_in, in_axes=(0, 0))
    roles = jnp.full(length.shape, role, jnp.uint32)
    return fold(fold(keys, roles), length)


def on_canvas_for(key: Array, role: int, count: Array) -> Array:
    """★ Make the key of a role on a canvas where `count` positions are committed."""
    return jax.random.fold_in(jax.random.fold_in(key, role), count)
