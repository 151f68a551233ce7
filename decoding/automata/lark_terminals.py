"""Terminals of Lark grammars: automata over bytes from regular expressions.

The patterns are Python's, with ASCII classes (`regex_syntax`). A pattern with a lazy
repetition ends at its first possible end, as `/\\*(.|\\n)*?\\*/` should.
"""

from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

import numpy as np

from decoding.automata import regex_syntax
from decoding.automata.grammar_rules import Form, Terminal, byte_ranges
from models.errors import ConstraintError

_EXPONENT = "[eE][+-]?[0-9]+"
_DECIMAL = r"(?:[0-9]+\.[0-9]*|\.[0-9]+)"
_FLOAT = f"(?:[0-9]+{_EXPONENT}|{_DECIMAL}(?:{_EXPONENT})?)"

# The terminals of `%import common`, as patterns.
COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": _DECIMAL,
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": f"[+-]?{_FLOAT}",
    "NUMBER": f"(?:{_FLOAT}|[0-9]+)",
    "SIGNED_NUMBER": f"[+-]?(?:{_FLOAT}|[0-9]+)",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
    "C_COMMENT": r"/\*(?:.|\n)*?\*/",
    "SQL_COMMENT": r"--[^\n]*",
}


def literal(data: bytes) -> Terminal:
    """Return the terminal whose only text is `data`."""
    step = np.full((len(data) + 1, 256), -1, np.int32)
    step[np.arange(len(data)), list(data)] = np.arange(1, len(data) + 1)
    return Terminal(step, np.arange(len(data) + 1) == len(data), is_literal=True)


def pattern(name: str, source: str, is_literal: bool = False) -> Terminal:
    """Return the terminal of a regular expression.

    Raises:
        ConstraintError: the pattern is invalid, unsupported, too large, or matches the
            empty text.
    """
    characters = regex_syntax.automaton(source)
    if characters.accept[0]:
        raise ConstraintError(
            f"lark grammar: the terminal {name} matches the empty text: make it "
            "optional where it is used instead"
        )
    step, accept = _over_bytes(characters)
    if _is_lazy(_parser.parse(source)):
        step[accept] = -1
    return Terminal(step, accept, is_literal)


def _is_lazy(parsed: Any) -> bool:
    """Return whether a parsed pattern has a lazy repetition."""
    if isinstance(parsed, tuple) and parsed and parsed[0] is op.MIN_REPEAT:
        return True
    inside = parsed if isinstance(parsed, list | tuple | _parser.SubPattern) else ()
    return any(map(_is_lazy, inside))


def _spans(key: np.ndarray) -> dict[int, list[tuple[int, int]]]:
    """Return the runs of code points of each class."""
    edges = np.flatnonzero(np.diff(key)) + 1
    lows = [0, *edges.tolist()]
    spans: dict[int, list[tuple[int, int]]] = {}
    for low, high in zip(lows, [*lows[1:], len(key)]):
        spans.setdefault(int(key[low]), []).append((low, high))
    return spans


def _over_bytes(characters: regex_syntax.CharacterDFA) -> tuple[np.ndarray, np.ndarray]:
    """Return the moves int32[S, 256] and ends bool[S] over UTF-8.

    A state is a set of (byte ranges still to be read, state of `characters` behind
    them); between characters it is one pair without ranges.
    """
    spans = _spans(characters.key)
    start: frozenset[tuple[Form, int]] = frozenset([((), 0)])
    number, queue, rows = {start: 0}, [start], []
    for state in queue:  # grows while it is read
        forms = set(state)
        for ranges, at in state:
            if not ranges:
                forms = {
                    (form, after)
                    for kind, after in characters.moves[at].items()
                    for low, high in spans[kind]
                    for form in byte_ranges(low, high)
                }
        targets: dict[int, set] = {}
        for form, after in forms:
            for byte in range(form[0][0], form[0][1] + 1):
                targets.setdefault(byte, set()).add((form[1:], after))
        row = np.full(256, -1, np.int32)
        for byte, target in targets.items():
            key = frozenset(target)
            if key not in number:
                number[key] = len(queue)
                queue.append(key)
            row[byte] = number[key]
        rows.append(row)
    accept = [
        any(not ranges and characters.accept[at] for ranges, at in state)
        for state in queue
    ]
    return np.stack(rows), np.array(accept)
