"""Bounds of string lengths as states: the same texts."""

import itertools

import numpy as np
import pytest

from decoding.automata import byte_machine, string_copies
from decoding.automata.byte_machine import ANY_LENGTH, Config
from models.errors import ConstraintError
from tests.decoding.automata import machines

PIECES = [b'"', b"a", b"\\n", "é".encode(), b'"a"', b"[", b",", b"]"]
TEXTS = [
    b"".join(parts)
    for size in range(1, 6)
    for parts in itertools.product(PIECES, repeat=size)
]


def accepts(machine, text: bytes) -> bool:
    return byte_machine.accepts(machine, text)


@pytest.mark.parametrize("span", [(0, 1), (1, 2), (2, ANY_LENGTH[1]), (3, 3)])
def test_the_same_texts(span):
    """Planted: the bounds left out."""
    machine = machines.json_values(span)
    copied = string_copies.without_spans(machine)
    assert (copied.span == ANY_LENGTH).all()
    texts = TEXTS[:: 1 if span == (1, 2) else 7]
    expected = [accepts(machine, text) for text in texts]
    assert [accepts(copied, text) for text in texts] == expected
    unbounded = machine._replace(span=copied.span[: len(machine.ends)])
    assert [accepts(unbounded, text) for text in texts] != expected


def test_texts_in_the_middle_of_a_string():
    """States of a string called by another one than the value's."""
    copied = string_copies.without_spans(machines.json_values((1, 2)))
    at = byte_machine.read(copied, Config(copied.start), b'{"abc":"a')
    ends = [
        byte_machine.read(copied, at, text).state >= 0
        for text in (b'"', b'b"', b'bc"', b'\\u00e9"', b'\\u00e9b"')
    ]
    assert ends == [True, True, False, True, False]


def test_without_bounds_nothing_is_copied():
    machine = machines.json_values()
    copied = string_copies.without_spans(machine)
    assert np.array_equal(copied.moves, machine.moves)


def test_bounds_that_no_text_passes_cost_nothing():
    """Planted: a limit that some texts pass."""
    machine = machines.json_values((2, 5000))
    short = string_copies.without_spans(machine, 7)
    texts = [b'"' + b"a" * size + b'"' for size in range(6)]
    assert [accepts(short, text) for text in texts] == [False] * 2 + [True] * 4
    assert len(short.ends) == len(machine.ends) + 3 * byte_machine.STRING
    impossible = string_copies.without_spans(machines.json_values((900, 5000)), 7)
    assert not any(accepts(impossible, text) for text in texts)
    bounded = string_copies.without_spans(machines.json_values((2, 4)), 4)
    assert accepts(bounded, texts[-1]) != accepts(
        machines.json_values((2, 4)), texts[-1]
    )


def test_refuses_bounds_of_too_many_counts():
    with pytest.raises(ConstraintError, match="5001 counts"):
        string_copies.without_spans(machines.json_values((0, 5000)))
    few = machines.json_values((0, 100))
    assert len(string_copies.without_spans(few).ends) > len(few.ends)
