"""decoding/automata/string_automata.py against Python's `re` and sets of words."""

import random
import re
from itertools import pairwise

import pytest

from decoding.automata.ecma_syntax import DIGIT, POINTS, WORD, parse
from decoding.automata.string_automata import (
    LOST,
    among,
    matches,
    measuring,
    partition,
    searching,
)
from models.errors import ConstraintError

PATTERNS = [
    "abc", "^a", "b$", "^ab?c*$", "a|b$|^c", "(^|,)a", "[^a]", "^(ab|c)+$", "a{2,3}",
    "^$", r"\bab\b", r"\Ba", r"^\w+\b", "(a|ab)(c|bcd)", "^(a?){3}$", "", "a$|^b",
]  # fmt: skip


def _texts(count, seed=0):
    rng = random.Random(seed)
    return ["".join(rng.choices("abc,é", k=rng.randrange(6))) for _ in range(count)]


def _wrong(pattern, search) -> int:
    dfa = searching(parse(pattern))
    return sum(matches(dfa, text) != bool(search(text)) for text in _texts(400))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_searching_agrees_with_re(pattern):
    assert _wrong(pattern, re.compile(pattern, re.ASCII).search) == 0


def test_fault_a_match_of_the_beginning_alone():
    """Planted: the pattern must match where the string begins."""
    assert _wrong("b$", re.compile("b$").match) > 0


def test_end_is_the_very_end():
    dfa = searching(parse("a$"))
    assert matches(dfa, "a") and not matches(dfa, "a\n")


def test_fates():
    dfa = searching(parse("^ab"))
    assert dfa.state("b") == LOST
    assert dfa.fate[dfa.state("ab")] is True
    assert dfa.fate[dfa.state("a")] is None


def test_measuring_counts_characters():
    for low, high in ((0, 0), (2, 3), (2, None)):
        dfa = measuring(low, high)
        for count in range(6):
            wanted = low <= count and (high is None or count <= high)
            assert matches(dfa, "é" * count) == wanted


def test_among_accepts_the_words_alone():
    words = ["", "ab", "abc", "é", "b😀"]
    dfa = among(words)
    tried = [*words, "a", "abcd", "e", "b", *_texts(100)]
    assert all(matches(dfa, text) == (text in words) for text in tried)


def test_partition_covers_all_points_once():
    characters, of_set = partition([DIGIT, WORD])
    spans = sorted(span for spans in characters.classes for span in spans)
    assert spans[0][0] == 0 and spans[-1][1] == POINTS
    assert all(a[1] == b[0] for a, b in pairwise(spans))
    assert set(of_set[0]) < set(of_set[1])


@pytest.mark.parametrize("pattern", ["(a|b)*a(a|b){16}$", "((a{100}){100}){100}"])
def test_automata_that_are_too_large(pattern):
    with pytest.raises(ConstraintError, match=r"too many|lower"):
        searching(parse(pattern))


def test_length_that_is_too_large():
    with pytest.raises(ConstraintError, match="20001"):
        measuring(0, 20_000)
