"""What finishing takes, against a search over texts."""

import itertools

import numpy as np

from decoding.automata import byte_machine, json_schema
from decoding.automata.byte_machine import CALL, DEAD, Config
from decoding.automata.pushdown import Builder


def nested():
    """a, or b…b around c or dd: a call in a call, with ends of two lengths."""
    built = Builder()
    start, over = built.state(), built.state(ends=0)
    inner, inner_over = built.state(), built.state(ends=0)
    other, close = built.state(), built.state()
    built.read(inner, b"c", inner_over)
    built.read(inner, b"d", other)
    built.read(other, b"d", inner_over)
    built.read(start, b"a", over)
    opened = built.state()
    built.read(start, b"b", opened)
    built.read(opened, b"b", CALL + start)
    built.read(opened, b"cd", CALL + inner)
    built.back[opened] = {0: close}
    built.read(close, b"b", over)
    return built.machine(start)


def least(machine, at: Config) -> int:
    """The bytes of the shortest text that finishes all that is open."""
    for size in range(8):
        for text in itertools.product(b"abcd", repeat=size):
            end = byte_machine.read(machine, at, bytes(text))
            if end.state != DEAD and byte_machine.is_final(machine, end):
                return size
    raise AssertionError("no text ends")


def owed(machine, at: Config) -> int:
    return int(machine.cost[at.state]) + sum(
        max(int(machine.cost[r]) for r in machine.back[q] if r != DEAD)
        for q in at.stack
    )


def test_costs_are_those_of_the_shortest_texts():
    machine = nested()
    texts = (b"", b"b", b"bb", b"bbd", b"bbdd", b"bdd", b"bc")
    ats = [byte_machine.read(machine, Config(machine.start), text) for text in texts]
    assert [owed(machine, at) for at in ats] == [least(machine, at) for at in ats]
    # Planted: calls that cost nothing.
    wrong = [int(machine.cost[at.state]) for at in ats]
    assert wrong != [least(machine, at) for at in ats]


def test_needs_count_open_calls():
    machine = nested()
    assert machine.need[machine.start] == 0  # `a`
    at = byte_machine.read(machine, Config(machine.start), b"b")
    assert machine.need[at.state] == 1
    assert len(byte_machine.read(machine, at, b"bd").stack) == 2


SCHEMA = {
    "type": "object",
    "properties": {
        "ab": {"enum": ["x", "yy"]},
        "abc": {"type": "integer", "minimum": 10},
        "d": {"type": "array", "items": {"type": "boolean"}, "minItems": 2},
    },
    "required": ["ab", "d"],
    "additionalProperties": {"type": "string"},
}


def is_finished(machine, exits, text: bytes) -> bool:
    """Whether the open value ends after as many exits as it costs."""
    at = byte_machine.read(machine, Config(machine.start), text)
    depth = len(at.stack)
    for _ in range(int(machine.cost[at.state])):
        at = byte_machine.read(machine, at, bytes([exits[at.state] & 255]))
    is_over = max(machine.ends[at.state], machine.final[at.state]) >= 0
    return at.state != DEAD and (len(at.stack) < depth or bool(is_over))


def test_exits_finish_the_value_that_is_open():
    """Inside names that go on as others do, calls of strings lack bytes.

    Planted: the exit of the state before.
    """
    machine = json_schema.compile_schema(SCHEMA, "compact", False)
    text = b'{"ab":"x","d":[true,false],"e":"f"}'
    texts = [text[:size] for size in range(len(text))]
    assert all(is_finished(machine, machine.exit, text) for text in texts)
    wrong = np.roll(machine.exit, 1)
    assert not all(is_finished(machine, wrong, text) for text in texts)
