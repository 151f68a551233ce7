"""Grammars over tokens: normal form, literals and classes, refused ones."""

import jax
import numpy as np
import pytest

from decoding.automata import token_charts, token_rules
from models.errors import ConstraintError

fillings = jax.jit(jax.vmap(token_charts.fillings, (None, 0)))
TOKENS = [b"", b"a", b"b", b"ab", b"a", "é".encode(), b"\xc3"]


def read(source: str, kind: str = "gbnf") -> token_rules.TokenRules:
    return token_rules.rules(source, TOKENS, len(TOKENS), kind)


def lengths(source: str, longest: int = 6) -> list[int]:
    """Of which lengths there are texts."""
    canvases = np.tril(np.ones((longest, longest), np.int32)) - 2
    words = fillings(token_charts.tables(read(source), (0,)), canvases)[..., 0]
    last = np.diagonal(words)
    return [n for n, bits in enumerate(last, 1) if bits > 1]  # more than the end


def first_tokens(source: str) -> list[int]:
    """The tokens that are a whole text."""
    canvases = np.full((6, 6), -2, np.int32)
    canvases[0, 0] = -1
    words = fillings(token_charts.tables(read(source), (0,)), canvases)
    return [t for t in range(1, len(TOKENS)) if words[0, 0, 0] >> t & 1]


def test_literals_and_classes_are_whole_tokens():
    """All tokens of the same bytes; planted: a byte of a character is none."""
    assert first_tokens('root ::= "a"') == [1, 4]
    assert first_tokens('root ::= "ab" | "b"') == [2, 3]
    assert first_tokens("root ::= [^b]") == [1, 4, 5]
    assert first_tokens('root ::= "é"') == [5]


def test_repetitions_units_and_empty_rules():
    assert lengths('root ::= "a"{2,4}') == [2, 3, 4]
    assert len(read('root ::= "a"{2000}').head) == 16
    assert lengths('root ::= ("a" "b")+') == [2, 4, 6]
    assert lengths('root ::= x\nx ::= y | "a" x "b"\ny ::= z z\nz ::= "a"?') == [
        *(1, 2, 3, 4, 5, 6)
    ]
    assert lengths('root ::= x x\nx ::= "a" "b"') == [4]
    assert read('root ::= "a"*').empty and not read('root ::= "a"+').empty
    # Rules without a text, or that nothing calls, are dropped.
    plain, more = (
        read('root ::= "a" root | "b"'),
        (read('root ::= "a" root | "b" | x\nx ::= "a" x\ny ::= "b" "b"')),
    )
    assert all(np.array_equal(a, b) for a, b in zip(plain, more))


def test_grammars_of_like_size_share_shapes():
    shapes = [
        [np.shape(x) for x in read(source)]
        for source in ('root ::= "a" root "b" | "a"', 'root ::= ("a" | "b" "ab")*')
    ]
    assert shapes[0] == shapes[1]


def test_refused_grammars():
    for source, match in (
        ('root ::= "aa"', "no token spells the literal 'aa'"),
        ("root ::= [x-z]", "no token is one character"),
        ('root ::= "a" root', "no finite text"),
        ('root ::= "a"{2,2000}', "more than 1024 parts"),
        ('rot ::= "a"', "root"),
    ):
        with pytest.raises(ConstraintError, match=match):
            read(source)
