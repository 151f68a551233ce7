"""Patterns of whole words against the filters, over all short words."""

import itertools
import re

import pytest

from decoding.automata import vocabulary_filters, word_patterns
from models.errors import ConstraintError

LETTERS = "abe"
WORDS = ["".join(w) for n in range(1, 7) for w in itertools.product(LETTERS, repeat=n)]
CASES = [
    {"banned": ("e",)},
    {"starts": "ab"},
    {"ends": "ba"},
    {"length": 3},
    {"longer": 2},
    {"shorter": 4},
    {"at": ((1, "b"), (3, "a"))},
    {"starts": "ab", "ends": "ba"},
    {"starts": "ab", "ends": "ba", "shorter": 4},
    {"starts": "ab", "ends": "ba", "length": 3},
    {"at": ((2, "e"),), "ends": "ae", "longer": 3, "shorter": 6},
    {"banned": ("e",), "at": ((0, "a"),), "ends": "b", "longer": 1},
    {"starts": "a", "at": ((0, "a"), (1, "e")), "length": 5, "longer": 4},
]


def wrong(pattern: str, filters: dict) -> list[str]:
    """Words that the pattern takes and the filters do not, or the other way round."""
    judge = lambda word: all(
        vocabulary_filters.passes(word, filters, (), vocabulary_filters.NONE)
    )
    return [w for w in WORDS if bool(re.fullmatch(pattern, w)) != judge(w)]


@pytest.mark.parametrize("filters", CASES, ids=str)
def test_words_are_those_that_pass(filters):
    pattern = word_patterns.word_pattern(filters, LETTERS)
    assert wrong(pattern, filters) == []
    assert len(wrong(pattern, {})) > 0  # planted: no filter


def test_every_word_of_a_text_passes():
    pattern = word_patterns.word_pattern({"length": 3, "banned": ("e",)})
    for text, is_one in (
        ("the cat", False),
        ("dog cat", True),
        ("dog", True),
        ("dog  cat", False),
        ("dog cats", False),
        ("", False),
    ):
        assert bool(re.fullmatch(pattern, text)) == is_one, text
    several = word_patterns.word_pattern({"length": 1}, ".-", "[ ,]+")
    assert re.fullmatch(several, ".,, -") and not re.fullmatch(several, "a")


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ({"rhymes": "light"}, "'rhymes' has no regular expression"),
        ({"banned": ("th",)}, "ban single letters"),
        ({"at": ((-1, "a"),)}, "count places from 0"),
        ({"starts": "ab", "at": ((0, "b"),)}, "each one letter"),
        ({"length": 2, "longer": 2}, "no word passes"),
        ({"length": 5, "shorter": 5}, "no word passes"),
        ({"starts": "e", "banned": ("e",)}, "no word passes"),
        ({"starts": "ab", "ends": "ba", "length": 2}, "no word passes"),
    ],
)
def test_refuses(filters, words):
    with pytest.raises(ConstraintError, match=words):
        word_patterns.word_pattern(filters, LETTERS)
