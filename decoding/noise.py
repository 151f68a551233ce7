"""Random keys. No other module of the project makes any.

A request's key is `fold_in(key(seed), request)`. `request` is its index in `prompts`,
never its row. Sample `j > 0` of a request folds in `SAMPLE + j` as well. The Gumbel
noise of the token at an absolute position is `gumbel(fold_in(request key, position))`.
Every other use folds in its role and the row's length, which grows every round, and
consumes its key once. So a text depends on neither its row, its batch nor the time of
its admission.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

ROLE, SAMPLE = 1 << 31, 1 << 30
DRAFT, VERIFY, EXIT = ROLE, ROLE + 1, ROLE + 2


def request_keys(seed: ArrayLike, requests: Array, samples: Array) -> Array:
    """Make keys [B] for `requests` int32[B] and their `samples` int32[B] (0: first)."""
    seeds = jnp.broadcast_to(jnp.asarray(seed, jnp.uint32), requests.shape)

    def one(seed: Array, request: Array, sample: Array) -> Array:
        key = jax.random.fold_in(jax.random.key(seed), request)
        other = jax.random.fold_in(key, SAMPLE + sample.astype(jnp.uint32))
        return jnp.where(sample > 0, other, key)

    return jax.vmap(one)(seeds, requests, samples)


def at_position(key: Array, position: Array, size: int) -> Array:
    """★ Draw the Gumbel noise float32[size] of the token at an absolute position."""
    return jax.random.gumbel(jax.random.fold_in(key, position), (size,), jnp.float32)


def for_role(keys: Array, role: int, length: Array) -> Array:
    """Make the keys [B] of a role in the round that starts at `length` int32[B]."""
    fold = jax.vmap(jax.random.fold_in, in_axes=(0, 0))
    roles = jnp.full(length.shape, role, jnp.uint32)
    return fold(fold(keys, roles), length)
