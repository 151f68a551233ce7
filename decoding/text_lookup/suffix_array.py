"""Token texts with a suffix array, on disk and on the device: REST's datastore.

A datastore is a directory of `tokens.npy` (int32[M]: texts, each followed by -1) and
`order.npy` (int32[M]: where the suffixes begin, in lexicographic order of their first
`DEPTH` tokens at least). Both are mapped into memory, not read, until they are needed.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from decoding.text_lookup import array_files
from models import storage
from models.errors import MethodError

DEPTH = 64
END = -1
BLOCK = 1024  # entries of `order` of which the least is kept
FILES = ("tokens.npy", "order.npy")
COMMAND = "python -m experiments.datastore --model=M --text=FILE --out=DIRECTORY"


class Datastore(NamedTuple):
    """The two arrays of a datastore, on the host or the device."""

    tokens: Any  # int32[M]; END after each text
    order: Any  # int32[M]


class FirstPlaces(NamedTuple):
    """A datastore in which the first of many places is found."""

    store: Datastore
    least: Any  # int32[M / BLOCK]: of each block of `order`, the least


def build(texts: Iterable[Sequence[int]]) -> Datastore:
    """Build a datastore of token lists by prefix doubling."""
    parts = [np.append(np.asarray(t, np.int32), np.int32(END)) for t in texts]
    if not any(len(part) > 1 for part in parts):
        raise MethodError(
            "the datastore would be empty: give it a text of at least one token"
        )
    tokens = np.concatenate(parts)
    size = len(tokens)
    rank = np.unique(tokens, return_inverse=True)[1].astype(np.int64)
    known = 1
    while True:
        later = np.zeros(size, np.int64)
        later[: max(size - known, 0)] = rank[known:] + 1
        both = rank * (int(rank.max()) + 2) + later
        order = np.argsort(both, kind="stable")
        steps = np.concatenate([[0], np.diff(both[order]) > 0])
        rank[order] = np.cumsum(steps)
        known *= 2
        if known >= DEPTH or rank.max() == size - 1:
            return Datastore(tokens, order.astype(np.int32))


def save(store: Datastore, directory: str | os.PathLike) -> None:
    """Write `store` to a directory, created if missing."""
    for name, array in zip(FILES, store):
        array_files.write(storage.path(directory) / name, array)


def load(directory: str | os.PathLike) -> Datastore:
    """Map a datastore into memory.

    Raises:
        MethodError: a file is missing or unreadable, or the two files do not match.
    """
    path = storage.path(directory)
    store = Datastore(*(array_files.read(path / name, COMMAND) for name in FILES))
    for name, array in zip(FILES, store):
        if array.shape != store.tokens.shape or array.ndim != 1 or not array.size:
            raise MethodError(
                f"{directory}: {name} has shape {array.shape}, not one axis of "
                "tokens.npy's length: build the datastore again"
            )
        if array.dtype != np.int32:
            raise MethodError(
                f"{directory}: {name} has type {array.dtype}, not int32: build the "
                "datastore again"
            )
    return store


def first_places(store: Datastore) -> FirstPlaces:
    """Read a datastore into memory, with the least entry of each block of `order`."""
    tokens, order = (np.asarray(array) for array in store)
    starts = np.arange(0, len(order), BLOCK)
    return FirstPlaces(Datastore(tokens, order), np.minimum.reduceat(order, starts))


def find(store: Datastore, query: Array, size: Array) -> tuple[Array, Array]:
    """★ Find the range [low, high) of `order` whose suffixes begin with a query.

    `query` int32[Q], of which the first `size` tokens count; at most DEPTH.
    """
    total = store.tokens.shape[0]
    index = jnp.arange(query.shape[0], dtype=jnp.int32)

    def compare(at: Array) -> tuple[Array, Array]:
        """Return whether a suffix is below the query, and whether it begins with it."""
        start = store.order[at]
        text = store.tokens.at[start + index].get(mode="fill", fill_value=END - 1)
        differs = (text != query) & (index < size)
        first = jnp.argmax(differs)
        return differs.any() & (text[first] < query[first]), ~differs.any()

    def bound(above: bool) -> Array:
        """Find the first suffix not below the query; with `above`, past those equal."""

        def halve(_, ends: tuple) -> tuple:
            low, high = ends
            middle = low + (high - low) // 2
            below, equal = compare(jnp.minimum(middle, total - 1))
            right = (low < high) & (below | (equal & above))
            return jnp.where(right, middle + 1, low), jnp.where(right, high, middle)

        ends = (jnp.int32(0), jnp.int32(total))
        return lax.fori_loop(0, total.bit_length() + 1, halve, ends)[0]

    return bound(False), bound(True)


def first_match(places: FirstPlaces, last: Array, bar: Array) -> tuple[Array, Array]:
    """★ Find the most of a text's last tokens that end at place `bar` or before it.

    Fewer of them end no later. So halving finds how many.

    Args:
        places: the datastore.
        last: int32[Q], the latest token first, -1 before the text; Q <= DEPTH.
        bar: int32[], a place in `tokens`.

    Returns:
        How many tokens int32[], and the first place where they end int32[]; of no
        tokens -1.
    """
    index = jnp.arange(last.shape[0], dtype=jnp.int32)

    def first_end(size: Array) -> Array:
        query = last[jnp.maximum(size - 1 - index, 0)]
        return _least(places, *find(places.store, query, size)) + size - 1

    def halve(_, ends: tuple) -> tuple:
        low, high = ends
        middle = (low + high + 1) // 2
        fits = first_end(middle) <= bar
        return jnp.where(fits, middle, low), jnp.where(fits, high, middle - 1)

    ends = (jnp.int32(0), (last >= 0).sum(dtype=jnp.int32))
    size, _ = lax.fori_loop(0, last.shape[0].bit_length(), halve, ends)
    return size, first_end(size)


def _least(places: FirstPlaces, low: Array, high: Array) -> Array:
    """★ Return the least of `order[low:high]`, int32[]; M of none."""
    order, total = places.store.order, places.store.tokens.shape[0]
    block = jnp.arange(places.least.shape[0], dtype=jnp.int32) * BLOCK
    whole = (block >= low) & (block + BLOCK <= high)
    index = jnp.arange(BLOCK, dtype=jnp.int32)
    ends = jnp.concatenate([low + index, high - 1 - index])  # of parts of blocks
    some = order[jnp.clip(ends, 0, total - 1)]
    some = jnp.where((ends >= low) & (ends < high), some, total)
    return jnp.minimum(jnp.where(whole, places.least, total).min(), some.min())
