"""Types of lines: by hand, and the lift to tokens against the bytes, however cut."""

import random

import numpy as np
import pytest

from decoding.automata import line_types

LEXER = line_types.lexer()


def lines(text: str) -> list[int]:
    return line_types.hashes(LEXER, text.encode())[0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("if x == 1:\n", "if  long_name==23 :\n"),
        ("    y = 'a'\n", 'z = "b\\"c"\n'),
        ("a[1, (2)] # x\n", "b[] # 'quoted\n"),
        ("f(x1)\n", "iff(ifx)\n"),
        ("x = ''\n", "x = 'a'\n"),
        ("x = 'open\n", "x = 'closed'\n"),
        ('"""a\nb"c\n"""\n', "'''one'''\n"),
        ("m = [1,\n 2]\n", "m = [']\n"),
        ("é = 1\n", "e = 1\n"),
    ],
)
def test_lines_of_one_type(one, other):
    assert len(lines(one)) == len(lines(other)) == 1
    assert lines(one) == lines(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("if x:\n", "elif x:\n"),
        ("f(x)\n", "f(1)\n"),
        ("f(x)\n", "f('x')\n"),
        ("f(x)\n", "f[x]\n"),
        ("f(x\n", "f(x)\n"),
        ("a + b\n", "a - b\n"),
        ("a b\n", "ab\n"),
        ("f()\n", "# f()\n"),
        ("x = 1\n", "x == 1\n"),
    ],
)
def test_lines_of_other_types(one, other):
    """Planted: a line's beginning, or one without its order, has another type."""
    assert lines(one) != lines(other)
    assert lines("a = 1\n") != lines("1 = a\n")


def test_blank_lines_have_no_type():
    assert lines("\n  \n\t\r\n") == [0, 0, 0]
    assert line_types.hashes(LEXER, b"x = ")[1] != 0


PIECES = [
    *"if elif else for in return name x1 23 4.5 = == ( ) : [ ] , + # ' \" \\ é".split(),
    *("\n", "\n    ", " ", '"""', "'''", "''", ")\n}\n", "a\nb\nc"),
]


def text_of(seed: int) -> str:
    rng = random.Random(seed)
    return "".join(rng.choice(PIECES) for _ in range(60))


def walk(lifted: line_types.LineTypes, ids: list[int]) -> tuple[list[int], int]:
    """The whole lines that the tokens end, and the hash of the rest."""
    state, hash_, lines_ = 0, 0, []
    for token in ids:
        move = state, lifted.classes[token]
        hash_ = (hash_ * int(lifted.power[move]) + int(lifted.add[move])) % 2**32
        if lifted.ends[move]:
            lines_.append(hash_)
            hash_ = int(lifted.rest[move])
        state = lifted.next[move]
    return lines_, hash_


def cut(text: bytes, seed: int) -> list[bytes]:
    """Pieces of 1 to 4 bytes, of which none holds two newlines."""
    rng, pieces, at = random.Random(seed), [], 0
    while at < len(text):
        size = rng.randint(1, 4)
        while text[at : at + size].count(b"\n") > 1:
            size -= 1
        pieces.append(text[at : at + size])
        at += size
    return pieces


@pytest.mark.parametrize("seed", range(6))
def test_tokens_give_the_hashes_of_their_bytes(seed):
    text = text_of(seed).encode()
    pieces = cut(text, seed)
    vocabulary = sorted({*pieces, b""})
    lifted = line_types.lift(LEXER, vocabulary, len(vocabulary) + 1)
    ids = [vocabulary.index(piece) for piece in pieces]
    padding = [len(vocabulary), vocabulary.index(b"")]  # without bytes: no effect
    for tokens in (ids, [*padding, *ids[:9], *padding, *ids[9:]]):
        assert walk(lifted, tokens) == line_types.hashes(LEXER, text)


def test_fault_states_that_are_forgotten_between_tokens():
    """Planted: every token is read from white space, so that strings end with it."""
    tokens = [b"x = '", b"(", b"'\n"]
    lifted = line_types.lift(LEXER, tokens, 3)
    want = line_types.hashes(LEXER, b"".join(tokens))
    assert walk(lifted, [0, 1, 2]) == want
    forgetful = lifted._replace(next=np.zeros_like(lifted.next))
    assert walk(forgetful, [0, 1, 2]) != want


def test_lines_inside_one_token_count_with_the_line_before():
    lifted = line_types.lift(LEXER, [b"a\n", b"b\nc\nd", b"\n", b"\n\n  \n"], 4)
    whole, rest = walk(lifted, [0, 1, 2, 3])
    a, bc, d, blank = whole
    assert (a, d, blank, rest) == (*lines("a\n"), *lines("d\n"), 0, 0)
    assert bc not in (0, a)
