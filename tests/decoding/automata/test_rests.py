"""Rests of tokens, and what calling states make of them."""

import numpy as np

from decoding.automata import byte_machine, rests, token_trie
from decoding.automata.byte_machine import Config
from tests.decoding.automata import machines
from tests.decoding.automata.machines import TOKENS


def collected(built):
    every = np.flatnonzero(built.ends < 0).astype(np.int32)
    follow = rests.following(built)[1]
    walk = token_trie.Walk(built, machines.TRIE, every, follow)
    return rests.collect(built, machines.TRIE, walk)


def test_rests_are_what_callers_go_on_with():
    endings = collected(machines.json_values())
    assert endings.strings[0] == b""
    assert {b"}", b"},", b',"', b"]]", b":", b':"', b':["'[:2], b",1]"[:1]} <= set(
        endings.strings
    )
    # `},` ends two values, or one and goes on; no caller goes on with `ab`.
    assert not {b"ab", b"e", b"12"} & set(endings.strings)
    # Each place of a rest inside a token has its number.
    token = TOKENS.index(b"]}]}")
    numbers = endings.places.rest(np.full(5, token), np.arange(5))
    assert [endings.strings[i] for i in numbers] == [b"]}]}", b"}]}", b"]}", b"}", b""]


def test_codes_are_runs_of_bytes():
    """Planted: a rest that its state reads whole is dead."""
    built = machines.json_values()
    endings = collected(built)
    codes = rests.codes(built, endings)

    def differing(table) -> int:
        wrong = 0
        for state in rests.following(built)[0].tolist():
            for code, rest in zip(table[codes.row[state]].tolist(), endings.strings):
                at = byte_machine.read(built, Config(state), rest)
                is_over = at.state >= 0 and built.ends[at.state] >= 0
                is_whole = at.state >= 0 and not is_over
                # Of a value that is over inside the rest, bytes alone see the end.
                wrong += (code in (rests.WHOLE, rests.PUSHES)) != is_whole
                wrong += code == rests.NONE and is_over
        return wrong

    assert differing(codes.code) == 0
    dead = np.where(codes.code == rests.WHOLE, rests.NONE, codes.code)
    assert differing(dead) > 0
