"""UTF-8 forms and sets of characters, by enumeration."""

import itertools

import numpy as np

from decoding.automata import grammar_rules, regex_syntax
from decoding.automata.grammar_rules import Call, Choice, Repeat, Sequence, Text


def _texts(low: int, high: int) -> list[bytes]:
    forms = grammar_rules.byte_ranges(low, high)
    spelled = [
        itertools.product(*(range(first, last + 1) for first, last in form))
        for form in forms
    ]
    return sorted(bytes(text) for texts in spelled for text in texts)


def _expected(low: int, high: int) -> list[bytes]:
    points = (p for p in range(low, high) if not 0xD800 <= p < 0xE000)
    return sorted(chr(point).encode() for point in points)


def test_byte_ranges_spell_each_character_once():
    rng = np.random.default_rng(0)
    edges = [(0, 0x900), (0x7F0, 0x810), (0xD7F0, 0xE010), (0xFFF0, 0x10020)]
    edges += [(0xD900, 0xDA00), (0x10FFF0, 0x110000), (5, 5)]
    edges += [
        (low, low + int(size))
        for low, size in zip(
            rng.integers(0, 0x12000, 20).tolist(), rng.integers(1, 3000, 20)
        )
    ]
    for low, high in edges:
        assert _texts(low, high) == _expected(low, high), (low, high)


def test_fault_surrogates_are_spelled():
    """Planted: the range over them, as if they were characters."""
    broken = grammar_rules._ranges(0xD7F0, 0xE00F, 3, 0xE0)
    assert broken != grammar_rules.byte_ranges(0xD7F0, 0xE010)


def test_outside_is_the_complement():
    spans = [(65, 91), (70, 80), (0, 3), (91, 92)]
    inside = {p for low, high in spans for p in range(low, high)}
    gaps = regex_syntax.outside(spans)
    for point in (0, 2, 3, 64, 65, 90, 91, 92, 0x10FFFF):
        assert any(low <= point < high for low, high in gaps) == (point not in inside)


def test_calls_are_found_at_any_depth():
    part = Sequence((Text(b"a"), Choice((Call("b"), Repeat(Call("c"), 0, None)))))
    assert sorted(grammar_rules.calls(part)) == ["b", "c"]
