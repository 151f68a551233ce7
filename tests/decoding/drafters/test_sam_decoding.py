"""SAM-Decoding's copies against a suffix automaton, walked as in the paper."""

import numpy as np
import pytest

from decoding import base
from decoding.drafters import sam_decoding
from models.errors import MethodError
from tests.decoding.drafters import kit

VOCAB = 4


class Automaton:
    """States of a text's suffixes: successors, link, length and first end."""

    def __init__(self, text: list[int]):
        self.text = [-1, *text]
        self.next: list[dict[int, int]] = [{}]
        self.link, self.length, self.end = [-1], [0], [0]
        last = 0
        for place, token in enumerate(text, 1):
            last = self._add(last, token, place)

    def _state(self, successors, link: int, length: int, end: int) -> int:
        self.next.append(dict(successors))
        self.link.append(link)
        self.length.append(length)
        self.end.append(end)
        return len(self.next) - 1

    def _add(self, last: int, token: int, place: int) -> int:
        new = self._state({}, -1, place, place)
        p = last
        while p != -1 and token not in self.next[p]:
            self.next[p][token] = new
            p = self.link[p]
        if p == -1:
            self.link[new] = 0
            return new
        q = self.next[p][token]
        if self.length[p] + 1 == self.length[q]:
            self.link[new] = q
            return new
        clone = self._state(self.next[q], self.link[q], self.length[p] + 1, self.end[q])
        while p != -1 and self.next[p].get(token) == q:
            self.next[p][token] = clone
            p = self.link[p]
        self.link[q] = self.link[new] = clone
        return new


def by_hand(text: list[int], size: int, least: int) -> list[int] | None:
    """Follow the text and the root through the automaton of what stands before it.

    Each token is read before it is added, as in the authors' code, so that the state is
    of an earlier place.
    """
    state = length = 0
    for n in range(len(text)):
        known = Automaton(text[:n])
        # The state of the suffix so far, in the automaton that now has one token more.
        state, length = locate(known, text[:n], length)
        while state and text[n] not in known.next[state]:
            state = known.link[state]
            length = known.length[state]
        if text[n] in known.next[state]:
            state, length = known.next[state][text[n]], length + 1
        else:
            state = length = 0
    known = Automaton(text[:-1])
    if length < least:
        return None
    left = lambda s: len(text) - 1 - known.end[s]
    while known.link[state] != 0 and size + 1 > left(state):
        state = known.link[state]
    at = known.end[state]
    return text[at : at + size]


def locate(known: Automaton, text: list[int], length: int) -> tuple[int, int]:
    state = 0
    for token in text[len(text) - length :]:
        state = known.next[state][token]
    return state, length


def drafted(drafter: base.Drafter, texts: list[list[int]]) -> list[list[int] | None]:
    """The copied chains; None: the tree, which begins with zeros here."""
    ctx = kit.context(texts, size=64)
    nodes, _, _ = drafter.draft(kit.keys(len(texts)), ctx, drafter.init(ctx))
    rows: list[list[int] | None] = []
    for b in range(len(texts)):
        live = np.asarray(nodes.kind[b]) == base.CANDIDATE
        chain = np.asarray(nodes.parents[b]) == np.arange(-1, nodes.tokens.shape[1] - 1)
        copied = chain[live].all()
        rows.append(np.asarray(nodes.tokens[b])[live][1:].tolist() if copied else None)
    return rows


@pytest.mark.parametrize(("size", "least"), [(3, 2), (6, 3), (30, 1)])
def test_copies_are_the_automaton_s(size, least):
    """Planted: a match one token longer is asked for."""
    rng = np.random.default_rng(size)
    texts = [rng.integers(0, VOCAB, int(n)).tolist() for n in rng.integers(1, 50, 24)]
    texts += [(t * 3)[:50] for t in texts[:8]]
    wanted = [by_hand(t, size, least) for t in texts]
    found = drafted(sam_decoding.drafter(VOCAB, size, least, k=4, choices=TREE), texts)
    assert found == wanted and None in wanted and any(wanted)
    other = sam_decoding.drafter(VOCAB, size, least + 1, k=4, choices=TREE)
    assert drafted(other, texts) != wanted


TREE = ((0,), (1,), (0, 0))


@pytest.mark.parametrize("wrong", [{"size": 0}, {"least": 0}, {"longest": 3}])
def test_numbers_that_copy_nothing(wrong):
    with pytest.raises(MethodError, match=next(iter(wrong))):
        sam_decoding.drafter(VOCAB, **wrong)
