"""Entries of ranges at depths, against a loop over all entries."""

import numpy as np

from decoding.automata import token_levels

DEPTH = np.array([2, 0, 0, 4, 2, 0])
RANK = np.array([5, 9, 1, 3, 2, 4])
LEVELS = token_levels.levels(DEPTH, RANK, 10 * np.arange(6))


def found(low, high, depth) -> list[tuple[int, int, int]]:
    arrays = LEVELS.within(*(np.array(x, int) for x in (low, high, depth)))
    return sorted(zip(*(leaf.tolist() for leaf in arrays)))


def test_entries_of_ranges():
    """Planted: a range that begins one later."""
    low, high, depth = [1, 2, 0, 0, 3], [9, 6, 9, 9, 4], [0, 2, 1, 9, 4]

    def looped(low) -> list[tuple[int, int, int]]:
        return sorted(
            (i, int(RANK[e]), 10 * e)
            for i, (a, b, d) in enumerate(zip(low, high, depth))
            for e in range(6)
            if a <= RANK[e] < b and DEPTH[e] == d
        )

    assert found(low, high, depth) == looped(low)
    assert found([2, *low[1:]], high, depth) != looped(low)
    assert found([], [], []) == []


def test_levels_are_sorted():
    """Planted: a depth behind the last has the last's entries."""
    ranks, values = LEVELS.at(0)
    assert ranks.tolist() == [1, 4, 9] and values.tolist() == [20, 50, 10]
    assert LEVELS.at(4)[0].tolist() == [3]
    assert [len(LEVELS.at(depth)[0]) for depth in (1, 3, 5, 60)] == [0] * 4
    none = token_levels.levels(*np.zeros((3, 0), int))
    assert len(none.at(0)[0]) == 0
