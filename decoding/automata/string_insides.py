"""The insides of JSON strings, read from any place of any token, once a vocabulary.

A name that an object declares may go on as any other name does, so in each state of a
declared name nearly every token may follow. All of these read the rest of a token from
the state BODY, whatever the schema is.
"""

from typing import NamedTuple

import numpy as np

from decoding.automata.byte_machine import BODY, DEAD, OVER, STRING, ByteMachine
from decoding.automata.token_trie import Trie, expand


class Insides(NamedTuple):
    """What BODY makes of each token from each of its bytes on."""

    offset: np.ndarray  # int64[N + 1]: of a token's places, in the sorted order
    whole: np.ndarray  # bool[places]: the string is still open at the token's end
    every: np.ndarray  # bool[N]: `whole` of a token's first place; by token
    level: np.ndarray  # int64[D + 1]: of the endings at a depth
    rank: np.ndarray  # int32[E]: tokens in which a string ends that was entered there
    end: np.ndarray  # int32[E]: bytes before the string's end
    cost: int  # bytes that finishing an open string takes, at most

    def endings(self, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the ascending `rank` and the `end` of strings entered at a depth."""
        at = slice(*self.level[depth : depth + 2])
        return self.rank[at], self.end[at]

    def tokens(self, vocabulary: Trie, ranges: np.ndarray) -> np.ndarray:
        """Return the tokens bool[N] that end inside strings which they enter.

        Args:
            vocabulary: the tokens.
            ranges: low, high and depth of [E, 3] or more: tokens by their place in the
                sorted order, and the bytes before their string's.
        """
        at_once = ranges[ranges[:, 2] == 0]
        covered = int((at_once[:, 1] - at_once[:, 0]).sum())
        if 2 * covered > len(vocabulary.order):
            # Nearly every token: what is not in the ranges takes fewer steps.
            found = self.every.copy()
            at_once = at_once[np.argsort(at_once[:, 0])]
            lows = np.append(at_once[:, 0], len(vocabulary.order))
            for low, high in zip([0, *at_once[:, 1].tolist()], lows.tolist()):
                found[vocabulary.order[low:high]] = False
            ranges = ranges[ranges[:, 2] > 0]
        else:
            found = np.zeros(len(vocabulary.order), bool)
        for low, high, depth in ranges[:, :3].tolist():
            is_whole = self.whole[self.offset[low:high] + depth]
            found[vocabulary.order[low:high][is_whole]] = True
        return found


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
    place = place[np.argsort(depth[place], kind="stable")]
    level = np.searchsorted(depth[place], np.arange(depth.max(initial=-1) + 2))
    rank = rank[place]
    end = (end[place] - offset[rank]).astype(np.int32)
    every, is_some = np.zeros(len(ranked), bool), lengths > 0
    every[vocabulary.order[is_some]] = whole[offset[:-1][is_some]]
    cost = int(machine.cost[:STRING].max())
    return Insides(offset, whole, every, level, rank.astype(np.int32), end, cost)
