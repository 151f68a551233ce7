"""Tries of strings, and walks over them."""

import numpy as np
import pytest

from decoding.automata import byte_machine, rests, token_trie
from decoding.automata.byte_machine import Config
from models.errors import ConstraintError
from tests.decoding.automata import machines
from tests.decoding.automata.machines import TOKENS


def strings_at(built, node):
    low = built.low[node]
    return [built.strings[i] for i in built.order[low : low + built.here[node]]]


def test_nodes_are_prefixes():
    strings = [b"ab", b"", b"a", b"abc", b"b", b"ab", b"\xff\x00"]
    built = token_trie.trie(strings)
    prefixes = {s[:i] for s in strings for i in range(len(s) + 1)}
    assert len(built.byte) == len(prefixes)
    spelled = [b""] * len(built.byte)
    for node in range(len(built.byte)):
        children = range(built.first[node], built.first[node + 1])
        read = [int(built.byte[child]) for child in children]
        assert read == sorted(set(read))
        for child in children:
            spelled[child] = spelled[node] + bytes([built.byte[child]])
        below = built.order[built.low[node] : built.high[node]]
        wanted = sorted(s for s in strings if s.startswith(spelled[node]))
        assert [strings[i] for i in below] == wanted
        if node:
            assert set(strings_at(built, node)) <= {spelled[node]}
    assert set(spelled) == prefixes
    assert strings_at(built, 0) == []
    assert strings_at(token_trie.trie(strings, has_empty=True), 0) == [b""]


def test_bytes_have_their_first_string():
    built = token_trie.trie([b"", b"ab", b"b", b"b", b"\xff", b"a\x00"])
    single = token_trie.bytes_of(built)
    assert single.shape == (256,)
    assert {b: int(single[b]) for b in np.flatnonzero(single >= 0)} == {98: 2, 255: 4}


def whole(built, states, walk):
    """The pairs of state and token that a walk reads whole."""
    ends, pairs = walk.ends(), set()
    for origin, node in zip(ends.origin.tolist(), ends.node.tolist()):
        tokens = strings_at(machines.TRIE, node)
        pairs |= {(int(states[origin]), token) for token in tokens}
    return pairs


def test_walk_reads_what_bytes_read():
    built = machines.even_and_odd()
    states, follow = rests.origins(built), rests.following(built)[1]
    walk = token_trie.Walk(built, machines.TRIE, states, follow)
    wanted = set()
    for state in states.tolist():
        for token in filter(None, TOKENS):
            # A caller that goes on with nothing: what returns to it is dead.
            after = byte_machine.read(built, Config(state), token)
            is_over = built.ends[after.state] >= 0 and not after.stack
            if after.state != byte_machine.DEAD and not is_over:
                wanted.add((state, token))
    assert whole(built, states, walk) == wanted
    # Planted: a byte is read from the wrong state.
    moved = built._replace(moves=np.roll(built.moves, 1, 0))
    walk = token_trie.Walk(moved, machines.TRIE, states, follow)
    assert whole(moved, states, walk) != wanted


def test_expand():
    source, place = token_trie.expand(np.array([3, 0, 7]), np.array([5, 0, 8]))
    assert source.tolist() == [0, 0, 2]
    assert place.tolist() == [3, 4, 7]


def test_a_walk_is_bounded():
    """Planted: with a bound that is not kept, the walk would read on."""
    built = machines.even_and_odd()
    states, follow = rests.origins(built), rests.following(built)[1]
    about = (built, machines.TRIE, states, follow, False)
    with pytest.raises(ConstraintError, match=r"more than 2 steps.*engine='host'"):
        token_trie.Walk(*about, 2)
    assert len(token_trie.Walk(*about, 10_000).ends().node)
