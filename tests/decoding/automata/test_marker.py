"""Any text until a marker, then the grammar's."""

import itertools

from decoding.automata import byte_machine, marker
from tests.decoding.automata import machines

MARK = b"aab"


def wanted(text):
    at = text.find(MARK)
    rest = text[at + len(MARK) :]
    return at >= 0 and byte_machine.accepts(machines.even_and_odd(), rest)


def test_begins_behind_the_first_marker():
    built = marker.after(machines.even_and_odd(), MARK)
    heads = [bytes(t) for n in range(6) for t in itertools.product(b"ab", repeat=n)]
    for head in heads:
        for tail in (b"(x)o", b"(x)e", b"", b"b(xx)e"):
            text = head + tail
            assert byte_machine.accepts(built, text) == wanted(text), text
    # Planted: the state behind a byte that does not match is the first one.
    plain = built._replace(moves=built.moves.copy())
    second = built.start + 2
    plain.moves[second, ord("a")] = built.start
    assert any(
        byte_machine.accepts(plain, h + b"(x)o") != wanted(h + b"(x)o") for h in heads
    )


def test_costs():
    built = marker.after(machines.even_and_odd(), MARK)
    rest = machines.even_and_odd()
    assert built.cost[built.start] == len(MARK) + rest.cost[rest.start]
    assert bytes(built.exit[-3:].tolist()) == MARK
