"""The insides of JSON strings, read from any place of any token, once a vocabulary.

A name that an object declares may go on as any other name does, so in each state of a
declared name nearly every token may follow. All of these read the rest of a token from
the state BODY, whatever the schema is.
"""

from typing import NamedTuple

import numpy as np

from decoding.automata.byte_machine import BODY, DEAD, OVER, STRING, ByteMachine
from decoding.automata.token_levels import Levels, levels
from decoding.automata.token_trie import Trie, expand


class Insides(NamedTuple):
    """What BODY makes of each token from each of its bytes on."""

    offset: np.ndarray  # int64[N + 1]: of a token's places, in the sorted order
    whole: np.ndarray  # bool[places]: the string is still open at the token's end
    every: np.ndarray  # bool[N]: `whole` of a token's first place
    ends: Levels  # of strings entered inside tokens: bytes before the string's end
    cost: int  # bytes that finishing an open string takes, at most

    def mark(self, found: np.ndarray, ranges: np.ndarray) -> None:
        """Mark the tokens that end inside strings which they enter.

        Args:
            found: bool[N], in the sorted order; changed in place.
            ranges: low, high and depth of [E, 3] or more: tokens by their place in the
                sorted order, and the bytes before their string's.
        """
        for low, high, depth in ranges[:, :3].tolist():
            some = found[low:high]
            if depth:
                some |= self.whole[self.offset[low:high] + depth]
            else:
                some |= self.every[low:high]


def read(machine: ByteMachine, vocabulary: Trie) -> Insides:
    """Read every token from each of its bytes on."""
    ranked = [vocabulary.strings[i] for i in vocabulary.order]
    lengths = np.array([len(string) for string in ranked], np.int64)
    offset = np.append(0, np.cumsum(lengths))
    flat = np.frombuffer(b"".join(ranked), np.uint8)
    rank, first = expand(offset[:-1], offset[1:])
    whole, end = np.zeros(len(flat), bool), np.full(len(flat), -1, np.int64)
    place, at = np.arange(len(flat)), first.copy()
    state = np.full(len(flat), BODY, np.int32)
    while len(place):
        state = machine.moves[state, flat[at]]
        at = at + 1
        over = state == OVER
        end[place[over]] = at[over]
        is_last = at == offset[rank[place] + 1]
        whole[place[is_last & ~over & (state != DEAD)]] = True
        live = ~over & ~is_last & (state != DEAD)
        place, at, state = place[live], at[live], state[live]
    depth = np.arange(len(flat)) - offset[rank]
    place = np.flatnonzero(end >= 0)
    rank, depth = rank[place], depth[place]
    ends = levels(depth, rank, end[place] - offset[rank])
    every, is_some = np.zeros(len(ranked), bool), lengths > 0
    every[is_some] = whole[offset[:-1][is_some]]
    cost = int(machine.cost[:STRING].max())
    return Insides(offset, whole, every, ends, cost)
