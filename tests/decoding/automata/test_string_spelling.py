"""decoding/automata/string_spelling.py: characters as bytes of JSON text."""

import json
import random

import pytest

from decoding.automata.byte_machine import BODY, accepts
from decoding.automata.ecma_syntax import parse
from decoding.automata.pushdown import Builder
from decoding.automata.string_automata import LOST, matches, searching
from decoding.automata.string_spelling import (
    Settled,
    StringWriter,
    spelled,
    together,
    width,
    write_free,
    write_words,
)

CHARS = 'ab"\\/\n\x7fé\u07ff\u0800\ud7ff\ue000\uffff😀\U0010ffff\u2028'


def _machine(dfa, step=None):
    """The JSON strings that `dfa` accepts, spelled canonically."""
    step = step or (lambda state, kind: dfa.moves[state].get(kind, LOST))
    builder = Builder()
    over, start = builder.state(ends=0), builder.state()

    def settle(state):
        if state == LOST:
            return Settled(None)
        return Settled(free) if dfa.fate[state] else None

    free = write_free(builder, over)
    writer = StringWriter(
        builder,
        dfa.characters,
        step,
        settle,
        lambda state: over if dfa.accept[state] else None,
    )
    inside = writer.state(0)
    writer.finish()
    builder.moves[start][ord('"')] = inside
    return builder.machine(start)


@pytest.mark.parametrize(
    "pattern",
    ["^a*$", "^[^a]*$", "é", "^.{1,3}$", "^[\\u0800-\\uffff]*$", r'^\S"', "😀$"],
)
def test_strings_are_read_where_the_automaton_accepts(pattern):
    dfa = searching(parse(pattern))
    assert _wrong(dfa, _machine(dfa)) == 0


def _wrong(dfa, machine) -> int:
    rng, wrong = random.Random(0), 0
    for _ in range(300):
        text = "".join(rng.choices(CHARS, k=rng.randrange(5)))
        data = b'"' + spelled(text) + b'"'
        assert json.loads(data) == text
        wrong += accepts(machine, data) != matches(dfa, text)
    return wrong


def test_fault_a_class_that_is_spelled_like_another():
    """Planted: all characters move as those of the first class do."""
    dfa = searching(parse("^[^a]*$"))
    machine = _machine(dfa, lambda state, kind: dfa.moves[state].get(0, LOST))
    assert _wrong(dfa, machine) > 0


@pytest.mark.parametrize(
    "inside", [b"\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\n", b"\\"]
)
def test_bytes_that_are_no_string(inside):
    assert not accepts(_machine(searching(parse("^[^a]*$"))), b'"' + inside + b'"')


def test_words_and_their_targets():
    builder = Builder()
    over, start = builder.state(ends=0), builder.state()
    more = builder.state()
    builder.read(more, b"!", over)
    words = {"": over, "ab": over, "cab": more, "x" * 3_000: over, "é\x01": more}
    builder.moves[start][ord('"')] = write_words(builder, {**words, "\ud800": over})
    machine = builder.machine(start)
    for word, to in words.items():
        data = json.dumps(word, ensure_ascii=False).encode()
        assert accepts(machine, data) == (to == over)
        assert accepts(machine, data + b"!") == (to == more)
    assert not accepts(machine, b'"a"')
    assert spelled("\ud800") is None and write_words(builder, {}) is None


def test_words_share_equal_ends():
    builder = Builder()
    over = builder.state(ends=0)
    before = len(builder.moves)
    write_words(builder, {f"{letter}-suffix": over for letter in "abcdefgh"})
    assert len(builder.moves) - before == len("-suffix") + 2


def test_together_refines_every_partition():
    dfas = [searching(parse(pattern)) for pattern in ("^a", "^[a-z]$")]
    characters, columns = together(dfas)
    for joint, spans in enumerate(characters.classes):
        for dfa, column in zip(dfas, columns):
            classes = dfa.characters.classes[column[joint]]
            assert all(any(a <= x and y <= b for a, b in classes) for x, y in spans)


def test_width_of_ascii_is_one():
    assert width(searching(parse("^[a-z]*$"))) == 1
    assert width(searching(parse("^[^a]*$"))) > 1
    assert BODY == 1
