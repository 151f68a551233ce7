"""decoding/automata/pushdown.py: STRING, calls, labels, and the reference run."""

import json

import numpy as np
import pytest

from decoding.automata.pushdown import (
    BODY,
    CALL,
    POP,
    QUOTE,
    STRING,
    Builder,
    Config,
    accepts,
    bytes_read,
    is_final,
    read,
    spelled,
)
from models.errors import ConstraintError


def _string(low=0, high=2**30):
    builder = Builder()
    over, start = builder.state(ends=0), builder.state()
    builder.read(start, b'"', CALL + QUOTE)
    builder.back[start][0] = over
    builder.span[start] = (low, high)
    return builder.machine(start)


def _nested():
    """Brackets around "x" (label 0) or "y" (label 1); behind "y" comes "!"."""
    builder = Builder()
    value, inner = builder.state(), builder.state()
    over = [builder.state(ends=0), builder.state(ends=1)]
    builder.read(value, b"[", inner)
    builder.read(value, b"x", over[0])
    builder.read(value, b"y", over[1])
    builder.read(inner, b"[xy", CALL + value)
    for label, text in enumerate((b"]", b"!]")):
        builder.back[inner][label] = behind = builder.state()
        last = builder.text(behind, text[:-1])
        builder.read(last, text[-1:], over[label])
    return builder.machine(value)


@pytest.mark.parametrize("text", ["", "aé€😀", 'a"b\\c/\n\t\x01', "\x7f", "퟿"])
def test_string_reads_both_spellings(text):
    machine = _string()
    assert accepts(machine, json.dumps(text).encode())
    assert accepts(machine, json.dumps(text, ensure_ascii=False).encode())


@pytest.mark.parametrize(
    "data",
    [b'"', b'"\n"', b'"\\x"', b'"\\ud800"', b'"\\udc00"', b'"\xc0\x80"',
     b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'"\\ud800\\u0041"', b'"a"b', b"a"],
)  # fmt: skip
def test_string_refuses_what_is_none(data):
    assert not accepts(_string(), data)


@pytest.mark.parametrize("count", range(6))
@pytest.mark.parametrize("char", ["a", "é", "😀", "\n"])
def test_span_counts_characters(count, char):
    for ascii_ in (True, False):
        data = json.dumps(char * count, ensure_ascii=ascii_).encode()
        assert accepts(_string(2, 4), data) == (2 <= count <= 4)


@pytest.mark.parametrize(
    ("text", "is_read"),
    [("x", 1), ("y", 1), ("[x]", 1), ("[[y!]!]", 1), ("[x!]", 0), ("[[y]!]", 0),
     ("[", 0)],
)  # fmt: skip
def test_labels_choose_where_the_caller_goes_on(text, is_read):
    assert accepts(_nested(), text.encode()) == bool(is_read)


def test_fault_labels_that_are_swapped():
    """Planted: each label returns to the state of the other."""
    machine = _nested()
    back = machine.back[:, ::-1]
    assert accepts(machine._replace(back=back), b"[x!]")


def test_value_that_ends_before_a_byte():
    builder = Builder()
    digits, rest = builder.state(final=0), builder.state()
    builder.read(digits, b"0123456789", digits)
    builder.otherwise(digits, POP)
    over = builder.state(ends=0)
    builder.read(rest, b"0123456789", CALL + digits)
    builder.back[rest][0] = builder.text(rest, b"(")
    builder.read(builder.back[rest][0], b".", over)
    machine = builder.machine(rest)
    assert accepts(machine, b"12.") and not accepts(machine, b"12")
    at = read(machine, Config(machine.start), b"12")
    assert at.stack and not is_final(machine, at)


def test_otherwise_keeps_moves():
    builder = Builder()
    state, other = builder.state(), builder.state()
    builder.read(state, b"a", other)
    builder.otherwise(state, POP + 3)
    assert builder.moves[state][ord("a")] == other
    assert len(builder.moves[state]) == 256


def test_first_states_are_the_strings():
    machine = _string()
    assert machine.moves[BODY, ord("a")] == BODY
    assert (machine.ends[:STRING] >= 0).sum() == 1


def test_too_many_states():
    builder = Builder(most=STRING + 1)
    builder.state()
    with pytest.raises(ConstraintError, match="more than 23 states"):
        builder.state()


def test_spelled_names_the_bytes_that_are_missing():
    machine = _nested()
    assert bytes_read(machine) >= set(b"[]xy!")
    used = [bytes([byte]) for byte in bytes_read(machine)]
    spelled(machine, used)
    with pytest.raises(ConstraintError, match="0x78"):
        spelled(machine, [token for token in used if token != b"x"])


def test_empty_language():
    builder = Builder()
    machine = builder.machine(builder.state())
    assert machine.start == -1 and not accepts(machine, b"")
    assert machine.moves.dtype == np.int32
