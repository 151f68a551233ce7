"""Every filter and change of a text, by hand; tables as files and as mappings."""

import itertools

import numpy as np
import pytest

from decoding.automata import vocabulary_filters as filters_
from models.errors import ConstraintError

SPOKEN = {
    "light": "L AY1 T",
    "night": "N AY1 T",
    "knight": "N AY1 T",
    "delight": "D IH0 L AY1 T",
    "open": "OW1 P AH0 N",
    "alone": "AH0 L OW1 N",
    "read": ["R EH1 D", "R IY1 D"],
    "bead": "B IY1 D",
}
VECTORS = {"cat": [1.0, 0.1], "dog": [1.0, 0.0], "stone": [-0.1, 1.0]}
TABLES = filters_.tables(SPOKEN, VECTORS)

# name, argument, texts that pass, texts that fail
CASES = [
    ("banned", ("e", "th"), ["a", "tah"], ["me", "math"]),
    ("any_banned", ("b", "t"), ["bee", "tee", "x"], ["bat"]),
    ("required", ("a", "bc"), ["abc", "bca"], ["acb", "bc"]),
    ("any_required", ("a", "bc"), ["a", "bc"], ["b", "cb"]),
    ("at", ((0, "a"), (-1, "b")), ["ab", "axb"], ["ba", "a", ""]),
    ("starts", "ab", ["ab", "abc"], ["a", "cab"]),
    ("ends", "ab", ["ab", "cab"], ["b", "abc"]),
    ("near", ("kitten", 3), ["sitting", "kitten", "mitt"], ["sit", "knitwear"]),
    ("length", 3, ["abc"], ["ab", "abcd"]),
    ("longer", 2, ["abc"], ["ab"]),
    ("shorter", 3, ["ab", ""], ["abc"]),
    ("sounds_like", "night", ["knight", "Night"], ["light", "thing"]),
    ("means", ("cat", 0.9), ["dog", "cat"], ["stone", "bird"]),
    ("syllables", 2, ["open", "delight"], ["light", "other"]),
    ("meter", "alone", ["delight", "alone"], ["open", "night", "other"]),
    ("rhymes", "light", ["night", "delight"], ["light", "open", "other"]),
    ("palindrome", True, ["abba", "a"], ["ab"]),
    ("anagram", "listen", ["silent"], ["listens", "tin"]),
    ("partial_anagram", "listen", ["silent", "tin", ""], ["tint", "x"]),
    ("isogram", 1, ["abc", ""], ["aba"]),
    ("reverse_isogram", 2, ["abab", ""], ["aab"]),
]


def passes(text: str, **filters) -> bool:
    return all(filters_.passes(text, filters, (), TABLES))


@pytest.mark.parametrize(("name", "argument", "good", "bad"), CASES)
def test_filter(name, argument, good, bad):
    """Planted: with the texts that fail every case fails."""
    filters_.check({name: argument}, (), TABLES)
    assert all(passes(text, **{name: argument}) for text in good)
    assert not any(passes(text, **{name: argument}) for text in bad)


def test_all_filters_are_tested():
    assert [case[0] for case in CASES] == list(filters_.FILTERS)
    assert len(filters_.FILTERS) == 21 and len(filters_.TEXTS) == 12


def test_a_word_rhymes_in_any_pronunciation():
    assert passes("read", rhymes="bead")
    first = filters_.tables({**SPOKEN, "read": "R EH1 D"})  # planted: the first alone
    assert not all(filters_.passes("read", {"rhymes": "bead"}, (), first))


@pytest.mark.parametrize(
    ("text", "changes", "want"),
    [
        ("aé1 b", ("upper",), "AÉ1 B"),
        ("Ab C", ("lower", "no_spaces"), "abc"),
        (" a ", ("lstrip",), "a "),
        (" a ", ("rstrip",), " a"),
        (" a ", ("strip",), "a"),
        ("aB", ("capitalize",), "Ab"),
        ("a-1 é", ("alnum",), "a1é"),
        ("a-1 é", ("alpha",), "aé"),
        ("a-1 é", ("digit",), "1"),
        ("a-1 é", ("ascii",), "a-1 "),
        ("A", ("lower", "upper"), "a"),  # in the order of TEXTS
    ],
)
def test_changes(text, changes, want):
    sees = {"near": (want, 0)}
    assert filters_.passes(text, sees, changes, filters_.NONE) == [True]
    planted = {"near": (want + "x", 0)}
    assert filters_.passes(text, planted, changes, filters_.NONE) == [False]


def test_blank_texts_are_dropped_where_asked():
    either = [
        filters_.passes("-", {"banned": ("e",)}, texts, filters_.NONE)
        for texts in (("alpha",), ("alpha", "not_blank"))
    ]
    assert either == [[True], [False]]


def test_distance_is_a_metric():
    words = ["", "a", "ab", "ba", "abc", "kitten", "sitting"]
    far = {pair: filters_.distance(*pair) for pair in itertools.product(words, words)}
    assert far["kitten", "sitting"] == 3 and far["", "abc"] == 3
    for a, b, c in itertools.product(words, repeat=3):
        assert far[a, b] == far[b, a] and (far[a, b] == 0) == (a == b)
        assert far[a, c] <= far[a, b] + far[b, c]


def test_files_give_the_tables(tmp_path):
    spoken, vectors = tmp_path / "dict", tmp_path / "vectors"
    spoken.write_text(
        ";;; notes\nLIGHT  L AY1 T\nread R EH1 D # now\nread(2) R IY1 D\n"
    )
    vectors.write_text("2 2\ncat 1 0.5\nDog 0 1\n")
    tables = filters_.tables(str(spoken), str(vectors))
    assert tables.phones == {
        "light": [("L", "AY1", "T")],
        "read": [("R", "EH1", "D"), ("R", "IY1", "D")],
    }
    assert sorted(tables.vectors) == ["cat", "dog"]
    np.testing.assert_array_equal(tables.vectors["cat"], [1, 0.5])
    spoken.write_text("light\n")
    with pytest.raises(ConstraintError, match="line 1"):
        filters_.tables(str(spoken))


@pytest.mark.parametrize(
    ("filters", "texts", "words"),
    [
        ({"baned": ("e",)}, (), "did you mean 'banned'"),
        ({"banned": ("e",)}, ("stripped",), "no text 'stripped'"),
        ({}, (), "no filter"),
        ({"banned": "e"}, (), "use a list of strings"),
        ({"required": ("",)}, (), "none of them empty"),
        ({"rhymes": "zzz"}, (), "no entry 'zzz'"),
        ({"means": ("zzz", 0.5)}, (), "no entry 'zzz'"),
    ],
)
def test_refuses(filters, texts, words):
    with pytest.raises(ConstraintError, match=words):
        filters_.check(filters, texts, TABLES)


@pytest.mark.parametrize("name", sorted(filters_.NEEDS))
def test_a_missing_table_is_named(name):
    argument = {name: x for name, x, *_ in CASES}[name]
    with pytest.raises(ConstraintError, match=f"'{name}' needs"):
        filters_.check({name: argument}, (), filters_.NONE)
