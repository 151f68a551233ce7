"""The tokens that followed a query's nearest keys, on the device.

With the keys k_i of a datastore and the tokens v_i that followed them, a query q has

    p(v) = sum over the k nearest with v_i = v of exp(-d_i) / sum over all k
    d_i = |q - k_i|^2

|q|^2 is the same for all keys, so that 2 q k_i - |k_i|^2 has their order and their
softmax. A matrix product makes it for one chunk of keys after the other and for all
queries at once; each chunk's best are merged with the best so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

CHUNK = 65_536  # keys in a product
NO_TOKEN = np.iinfo(np.int32).max  # the value of padding, beyond any vocabulary


class Piece(NamedTuple):
    """A part of a datastore on the device."""

    keys: Array  # [M, D]: float32 on CPUs, where other products are slow; as stored
    norms: Array  # float32[M], |k|^2
    values: Array  # int32[M]


def pieces(keys: np.ndarray, values: np.ndarray, chunk: int = CHUNK) -> list[Piece]:
    """Put a datastore on the device, in equal pieces of at most `chunk` keys.

    They are arrays of their own: a loop over one array would copy each piece (300,000
    keys of width 256, one query, two busy cores: 153 ms so, 49 ms in pieces).

    Args:
        keys: [N, D].
        values: int32[N].
        chunk: the greatest piece.
    """
    kind = np.float32 if jax.default_backend() == "cpu" else keys.dtype
    parts = []
    for at in np.array_split(np.arange(len(keys)), -(-len(keys) // chunk)):
        part = keys[at[0] : at[-1] + 1]
        norms = np.square(part, dtype=np.float32).sum(1)
        tokens = np.asarray(values[at[0] : at[-1] + 1], np.int32)
        parts.append(Piece(*map(jnp.asarray, (part.astype(kind), norms, tokens))))
    return parts


def nearest(store: Sequence[Piece], queries: Array, k: int) -> tuple[Array, Array]:
    """Find the `k` nearest keys, nearest first; of equals the earlier.

    Args:
        store: as `pieces` returns it.
        queries: [R, D].
        k: neighbours; those that a smaller datastore lacks are padding.

    Returns:
        |q|^2 - d float32[R, k], -inf for padding, and the keys' values int32[R, k].
    """
    queries = queries.astype(jnp.float32)
    shape = (queries.shape[0], k)
    best = jnp.full(shape, -jnp.inf)
    tokens = jnp.full(shape, NO_TOKEN, jnp.int32)
    for keys, norms, values in store:
        products = lax.dot_general(
            queries,
            keys.astype(jnp.float32),
            (((1,), (1,)), ((), ())),
            precision=lax.Precision.HIGHEST,
        )
        scores, at = lax.top_k(2 * products - norms, min(k, len(values)))
        tokens = jnp.concatenate([tokens, values[at]], 1)
        best, at = lax.top_k(jnp.concatenate([best, scores], 1), k)
        tokens = jnp.take_along_axis(tokens, at, 1)
    return best, tokens


def logprobs(scores: Array, values: Array, vocab_size: int) -> Array:
    """Make the law of the neighbours' values, float32[R, V]; -inf where none has it.

    Args:
        scores: float32[R, k], -inf for padding, as `nearest` returns them.
        values: int32[R, k].
        vocab_size: V.
    """
    weights = jax.nn.softmax(scores, -1)
    rows = jnp.arange(scores.shape[0])[:, None]
    law = jnp.zeros((scores.shape[0], vocab_size), jnp.float32)
    return jnp.log(law.at[rows, values].add(weights, mode="drop"))


@dataclass(frozen=True)
class NextTokens:
    """The law of the tokens after the nearest keys, as `base.Derived.logits`."""

    tap: Any  # the state that the keys are
    k: int
    vocab_size: int

    def __call__(self, store: Sequence[Piece], hidden: dict[Any, Array]) -> Array:
        """Return float32[B, N, V] of the nodes' states [B, N, D]."""
        states = hidden[self.tap]
        rows = states.reshape(-1, states.shape[-1])
        law = logprobs(*nearest(store, rows, self.k), self.vocab_size)
        return law.reshape(*states.shape[:-1], self.vocab_size)
