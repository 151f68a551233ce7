"""The finished texts of a search, best first.

A text is a node of the request's tree and a last token behind it that was never run,
such as EOS. So a pool is a few numbers, and texts share what they have in common.
"""

import jax.numpy as jnp
from flax import struct
from jax import Array, lax

NONE = -1e9  # the score of an empty place; finite, as in HF transformers


@struct.dataclass
class Pool:
    """The `P` best finished texts; all functions are ★ (of one request)."""

    node: Array  # int32[P]: -1: no text
    last: Array  # int32[P]: the token behind the node; -1: the node ends the text
    given: Array  # float32[P]: raw log-probability of `last`; 0 without one
    score: Array  # float32[P]: best first, older first among equals; NONE: no text

    @property
    def full(self) -> Array:
        """Whether every place has a text, bool[]."""
        return (self.node >= 0).all()


def empty(size: int) -> Pool:
    """Make a pool of `size` places without a text."""
    none = jnp.full(size, -1, jnp.int32)
    return Pool(none, none, jnp.zeros(size), jnp.full(size, NONE))


def merged(pool: Pool, more: Pool) -> Pool:
    """Keep the best texts of both, in as many places as `pool` has."""
    score = jnp.concatenate([pool.score, more.score])
    best, at = lax.top_k(score, pool.score.shape[0])  # of equals the first
    pick = lambda a, b: jnp.concatenate([a, b])[at]
    node = jnp.where(best > NONE / 2, pick(pool.node, more.node), -1)
    return Pool(node, pick(pool.last, more.last), pick(pool.given, more.given), best)
