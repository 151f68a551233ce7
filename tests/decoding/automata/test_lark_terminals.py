"""Terminals against `re`, and the common ones against examples."""

import re

import numpy as np
import pytest

from decoding.automata import lark_terminals
from models.errors import ConstraintError


def accepts(terminal, text: bytes) -> bool:
    state = 0
    for byte in text:
        state = int(terminal.next[state, byte])
        if state < 0:
            return False
    return bool(terminal.accept[state])


@pytest.mark.parametrize("pattern", ["[a-cé€]+x", "(?i:if)|[^ab]", r"\d{2,3}(\.\d)?"])
def test_patterns_are_those_of_re(pattern):
    terminal = lark_terminals.pattern("T", pattern)
    rng = np.random.default_rng(0)
    letters = list("abcxéI€fF12.😀")
    verdicts = []
    for _ in range(400):
        text = "".join(rng.choice(letters, rng.integers(1, 5)))
        verdicts.append(re.fullmatch(pattern, text, re.ASCII) is not None)
        assert accepts(terminal, text.encode()) == verdicts[-1]
    assert 3 < sum(verdicts) < 397


COMMON = {
    "INT": (["0", "017"], ["", "+1", "1.0"]),
    "SIGNED_INT": (["-3", "3"], ["--3"]),
    "DECIMAL": (["1.", ".5", "1.5"], ["15", "."]),
    "FLOAT": (["1e5", "1.", ".5E-3"], ["15", "e5"]),
    "SIGNED_NUMBER": (["-1", "+.5e1", "7"], ["-", "1e"]),
    "ESCAPED_STRING": (['""', r'"a\"b"', r'"\\"'], ['"a', '"a"b"', '"\n"', r'"\"']),
    "CNAME": (["_a1", "B"], ["1a", ""]),
    "WS": (["\t \r\n\f"], ["a"]),
    "NEWLINE": (["\n", "\r\n\n"], ["\r"]),
    "CPP_COMMENT": (["//", "// x"], ["//\n", "/x"]),
    "C_COMMENT": (["/**/", "/* a\n* */"], ["/* */ */", "/*/"]),
    "SQL_COMMENT": (["-- x"], ["- x"]),
}


@pytest.mark.parametrize("name", COMMON)
def test_common_terminals(name):
    terminal = lark_terminals.pattern(name, lark_terminals.COMMON[name])
    good, bad = COMMON[name]
    assert [accepts(terminal, text.encode()) for text in good] == [True] * len(good)
    assert [accepts(terminal, text.encode()) for text in bad] == [False] * len(bad)


def test_every_common_terminal_compiles():
    for name, pattern in lark_terminals.COMMON.items():
        assert lark_terminals.pattern(name, pattern).accept.any()


def test_a_lazy_pattern_ends_at_its_first_end():
    lazy = lark_terminals.pattern("T", r"a(.|\n)*?b")
    greedy = lark_terminals.pattern("T", r"a(.|\n)*b")
    assert accepts(lazy, b"axb") and not accepts(lazy, b"axbb")
    assert accepts(greedy, b"axbb")  # planted: the lazy mark overlooked


def test_literals():
    word = lark_terminals.literal("é=".encode())
    assert word.is_literal
    assert accepts(word, "é=".encode()) and not accepts(word, "é".encode())


def test_an_empty_match_is_refused():
    with pytest.raises(ConstraintError, match="terminal SPACE matches the empty text"):
        lark_terminals.pattern("SPACE", " *")
