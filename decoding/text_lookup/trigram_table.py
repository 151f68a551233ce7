"""A table of trigrams in arrays: the likeliest successors of pairs of tokens.

A hash of pairs with linear probing, PROBES places for each. It is counted from a corpus
on the host (`table`) and learns from a text on the device (`learn`).
"""

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array, lax

from decoding.text_lookup import suffix_array

PROBES = 8


@struct.dataclass
class Trigrams:
    """The table: an entry is a pair of tokens and its likeliest successors."""

    keys: Array  # int32[H, 2]; -1: no entry
    successors: Array  # int32[H, K]; -1: none
    weights: Array  # float32[H, K]; 0: none


def table(
    texts: Iterable[Sequence[int]], size: int = 65536, successors: int = 12
) -> Trigrams:
    """Count a corpus of token lists into a table for `memory`; frequent pairs first."""
    counts: dict[tuple[int, int], Counter[int]] = {}
    for text in texts:
        for a, b, w in zip(text, text[1:], text[2:]):
            counts.setdefault((int(a), int(b)), Counter())[int(w)] += 1
    keys = np.full((size, 2), -1, np.int32)
    followers = np.full((size, successors), -1, np.int32)
    weights = np.zeros((size, successors), np.float32)
    order = sorted(counts, key=lambda pair: -counts[pair].total())
    pairs = jnp.asarray(np.array(order, np.int32).reshape(-1, 2))
    homes = np.asarray(_places(pairs[:, 0], pairs[:, 1], size))
    for pair, places in zip(order, homes):
        free = places[keys[places, 0] < 0]
        if free.size:
            total = counts[pair].total()
            best = counts[pair].most_common(successors)
            keys[free[0]] = pair
            followers[free[0], : len(best)] = [w for w, _ in best]
            weights[free[0], : len(best)] = [n / total for _, n in best]
    return Trigrams(jnp.asarray(keys), jnp.asarray(followers), jnp.asarray(weights))


@functools.cache
def of_datastore(directory: str, size: int, successors: int) -> Trigrams:
    """Count a datastore's texts into a table of numpy arrays."""
    tokens = np.asarray(suffix_array.load(directory).tokens)
    texts = np.split(tokens, np.flatnonzero(tokens == suffix_array.END))
    counted = table((t[t != suffix_array.END] for t in texts), size, successors)
    return jax.tree.map(np.asarray, counted)


def _places(a: Array, b: Array, size: int) -> Array:
    """Return the places int32[..., PROBES] where a pair may be stored."""
    a, b = jnp.asarray(a, jnp.uint32), jnp.asarray(b, jnp.uint32)
    mixed = (a * jnp.uint32(2654435761)) ^ (b * jnp.uint32(2246822519))
    mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(3266489917)
    home = (mixed ^ (mixed >> 13)) % jnp.uint32(size)
    probes = jnp.arange(PROBES, dtype=jnp.uint32)
    return ((home[..., None] + probes) % jnp.uint32(size)).astype(jnp.int32)


def place_of(shared: Trigrams, a: Array, b: Array) -> Array:
    """★ Return the place int32[] of the pair a, b in the table; -1: none."""
    places = _places(a, b, shared.keys.shape[0])
    hit = (shared.keys[places, 0] == a) & (shared.keys[places, 1] == b) & (a >= 0)
    return jnp.where(hit, places, -1).max()


def after(shared: Trigrams, a: Array, b: Array) -> tuple[Array, Array]:
    """★ Look up tokens int32[K] (-1: none) and weights float32[K] after a, b."""
    place = place_of(shared, a, b)
    tokens = jnp.where(place >= 0, shared.successors[place], -1)
    return tokens, jnp.where(tokens >= 0, shared.weights[place], 0.0)


@jax.jit
def learn(shared: Trigrams, items: list[Array]) -> Trigrams:
    """Add the trigrams of all rows to the table, one after another."""
    return lax.scan(lambda table, x: (_learn(table, *x), None), shared, items)[0]


def _learn(shared: Trigrams, a, b, w, valid, boost, cap) -> Trigrams:
    """★ Add one trigram to the table."""
    size = shared.keys.shape[0]
    places = _places(a, b, size)
    pair = jnp.stack([a, b])
    hit = (shared.keys[places] == pair).all(1)
    strength = jnp.where(
        shared.keys[places, 0] < 0, -1.0, shared.weights[places].max(1)
    )
    place = places[jnp.where(hit.any(), jnp.argmax(hit), jnp.argmin(strength))]
    tokens = jnp.where(hit.any(), shared.successors[place], -1)
    weights = jnp.where(hit.any(), shared.weights[place], 0.0)
    known = tokens == w
    at = jnp.where(known.any(), jnp.argmax(known), jnp.argmin(weights))
    weight = jnp.minimum(jnp.where(known.any(), weights[at], 0.0) + boost, cap)
    place = jnp.where(valid, place, size)
    put: Any = {"mode": "drop"}
    return Trigrams(
        shared.keys.at[place].set(pair, **put),
        shared.successors.at[place].set(tokens.at[at].set(w), **put),
        shared.weights.at[place].set(weights.at[at].set(weight), **put),
    )
