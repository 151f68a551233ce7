"""decoding/automata/ecma_syntax.py: trees of patterns, and what is refused."""

import re

import pytest

from decoding.automata.ecma_syntax import (
    DIGIT,
    POINTS,
    SyntaxFault,
    conjunction,
    joined,
    outside,
    parse,
)


def _holds(tree, char):
    assert tree[0] == "set"
    return any(low <= ord(char) < high for low, high in tree[1])


@pytest.mark.parametrize(
    "pattern",
    [r"[a-f\d]", r"[^a-f\d]", r"\w", r"\W", r"\D", r"[\]\-^]", r"[a\-z]", r"\x41",
     r"\u0041", r"\/", r"\.", r"[-a]", r"[a-]", r"[\w-]", r"\t", r"[.$]"],
)  # fmt: skip
def test_classes_agree_with_re(pattern):
    assert _wrong(pattern, pattern) == 0


def _wrong(pattern, other) -> int:
    tree, compiled = parse(pattern), re.compile(other, re.ASCII)
    chars = map(chr, range(128))
    return sum(_holds(tree, char) != bool(compiled.fullmatch(char)) for char in chars)


def test_fault_a_range_without_its_end():
    """Planted: the last character of a range is left out."""
    assert _wrong("[a-f]", "[a-e]") == 1


@pytest.mark.parametrize(
    ("pattern", "has", "lacks"),
    [
        (".", "a\u0085", "\n\r\u2028"),
        (r"\s", "\u00a0\ufeff\u3000", "a\u200b"),
        (r"\cJ", "\n", "J"),
        (r"[\b]", "\b", "b"),
        (r"\p{Lu}", "AÉ", "aé1"),
        (r"\P{L}", "1 ", "a"),
        (r"\ud83d\ude00", "😀", "a"),
        (r"[^]", "a\n", ""),
        ("]", "]", "["),
    ],
)
def test_classes_of_ecma_262(pattern, has, lacks):
    tree = parse(pattern)
    assert all(_holds(tree, char) for char in has)
    assert not any(_holds(tree, char) for char in lacks)


def test_repetitions():
    a = ("set", ((97, 98),))
    assert parse("a{2,3}?") == ("rep", a, 2, 3)
    assert parse("a{2,}") == ("rep", a, 2, None)
    assert parse("a{x") == ("seq", tuple(parse(re.escape(c)) for c in "a{x"))


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("(", "open group"), (")", "not open"), ("[a", "ends too early"),
        ("a**", "repetition"), ("*a", "nothing before"), (r"\1", "refers back"),
        ("(?<=a)b", "looks behind"), ("[b-a]", "out of order"), (r"\q", "escapes"),
        ("a{3,2}", "at least"), ("(?i)a", "unknown kind"), (r"\p{Qq}", "property"),
        ("a(?!b)c", "not behind"), ("a{,3}", "lower bound"), (r"\u12", "digits"),
    ],
)  # fmt: skip
def test_faults_are_named(pattern, what):
    with pytest.raises(SyntaxFault, match=what):
        conjunction(pattern)


def test_looks_ahead_become_a_conjunction():
    parts = conjunction("^(?!ab)(?=.c)d*$")
    assert [holds for holds, _ in parts] == [False, True, True]
    assert all(tree[1][0] == ("start",) for _, tree in parts)
    assert conjunction("a(?=b)") == ((True, parse("ab")),)


def test_intervals():
    assert joined([(3, 5), (1, 3), (9, 9)]) == ((1, 5),)
    assert outside(outside(DIGIT)) == DIGIT
    assert outside(()) == ((0, POINTS),)
