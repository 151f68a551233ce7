"""What lies inside strings, sorted by how many bytes are before it."""

from typing import NamedTuple

import numpy as np

from decoding.automata.token_trie import expand


class Levels(NamedTuple):
    """What lies inside strings, by the bytes before it and the string's rank."""

    first: np.ndarray  # int64[D + 1]: of the entries of a depth
    rank: np.ndarray  # int32[E]: strings by their place in the sorted order
    value: np.ndarray  # int32[E]

    def at(self, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the ascending ranks of a depth, and their values."""
        if depth + 1 >= len(self.first):
            return self.rank[:0], self.value[:0]
        own = slice(*self.first[depth : depth + 2])
        return self.rank[own], self.value[own]

    def within(
        self, low: np.ndarray, high: np.ndarray, depth: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the entries of ranks [low, high) at depths: the range, rank, value."""
        none = np.zeros(0, np.int64)
        found = [(none, none, none)]
        for level in np.unique(depth).tolist():
            ranks, values = self.at(level)
            own = np.flatnonzero(depth == level)
            bounds = (np.searchsorted(ranks, x[own]) for x in (low, high))
            source, place = expand(*bounds)
            found.append((own[source], ranks[place], values[place]))
        of, rank, value = (np.concatenate(leaves) for leaves in zip(*found))
        return of, rank, value


def levels(depth: np.ndarray, rank: np.ndarray, value: np.ndarray) -> Levels:
    """Sort entries of the same lengths by depth, and rank."""
    order = np.lexsort((rank, depth))
    depth = depth[order]
    first = np.searchsorted(depth, np.arange(depth.max(initial=-1) + 2))
    return Levels(first, rank[order].astype(np.int32), value[order].astype(np.int32))
