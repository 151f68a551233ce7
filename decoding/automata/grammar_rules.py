"""Rules of a grammar: the common form of GBNF, EBNF and Lark.

A rule is an expression over characters, texts, lexemes and calls of rules. What is
written as `[^"\\]`, `x{2,4}` or `"a" | b` in one of the notations is the same tree in
all of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from decoding.automata.regex_syntax import POINTS

Spans = tuple[tuple[int, int], ...]  # [low, high), of code points
Form = tuple[tuple[int, int], ...]  # [low, high], of bytes: one range a byte


@dataclass(frozen=True)
class Text:
    """The bytes of a literal."""

    data: bytes


@dataclass(frozen=True)
class Chars:
    """One character of `spans`."""

    spans: Spans


@dataclass(frozen=True)
class Sequence:
    """All items, one behind the other; none: the empty text."""

    items: tuple["Expression", ...]


@dataclass(frozen=True)
class Choice:
    """One of the items."""

    items: tuple["Expression", ...]


@dataclass(frozen=True)
class Repeat:
    """The item `low` to `high` times; `high` None: without a bound."""

    item: "Expression"
    low: int
    high: int | None


@dataclass(frozen=True)
class Call:
    """The value of a rule."""

    name: str


@dataclass(frozen=True)
class Lexeme:
    """A terminal of Lark, by name: read greedily."""

    name: str


Expression = Text | Chars | Sequence | Choice | Repeat | Call | Lexeme
EMPTY = Sequence(())


@dataclass(frozen=True)
class Terminal:
    """The automaton of a terminal over bytes; it starts in state 0, never final.

    A literal wins over a pattern that reads the same text.
    """

    next: np.ndarray  # int32[S, 256]; -1: the terminal does not go on so
    accept: np.ndarray  # bool[S]
    is_literal: bool = False


@dataclass(frozen=True)
class Grammar:
    """Rules by name; `ignored` terminals may stand behind every other one."""

    rules: dict[str, Expression]
    start: str
    terminals: dict[str, Terminal] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


def calls(expression: Expression) -> Iterator[str]:
    """Yield the names of the rules that `expression` calls."""
    todo = [expression]
    while todo:
        part = todo.pop()
        if isinstance(part, Call):
            yield part.name
        elif isinstance(part, Sequence | Choice):
            todo.extend(part.items)
        elif isinstance(part, Repeat):
            todo.append(part.item)


# Lead bytes of each length, with what their forms may hold.
_FORMS = ((0x80, 1, 0), (0x800, 2, 0xC0), (0x10000, 3, 0xE0), (POINTS, 4, 0xF0))


def byte_ranges(low: int, high: int) -> list[Form]:
    """Return the UTF-8 forms of the code points [low, high): a range for each byte.

    Surrogates have no form.
    """
    if low < 0xD800 < high:
        return byte_ranges(low, 0xD800) + byte_ranges(0xD800, high)
    if 0xD800 <= low < 0xE000:
        return byte_ranges(0xE000, high) if high > 0xE000 else []
    forms: list[Form] = []
    first = 0
    for last, length, lead in _FORMS:
        if low < min(high, last) and high > first:
            begin, end = max(low, first), min(high, last) - 1
            forms += _ranges(begin, end, length, lead)
        first = last
    return forms


def _ranges(low: int, high: int, length: int, lead: int) -> list[Form]:
    """Split [low, high] of one length where a byte's range would not be whole."""
    if length == 1:
        return [((lead | low, lead | high),)]
    unit = 1 << 6 * (length - 1)
    tail = ((0x80, 0xBF),) * (length - 1)
    if low // unit == high // unit:
        top = lead | low // unit
        rest = _ranges(low % unit, high % unit, length - 1, 0x80)
        return [((top, top), *form) for form in rest]
    forms: list[Form] = []
    if low % unit:
        edge = (low // unit + 1) * unit
        forms += _ranges(low, edge - 1, length, lead)
        low = edge
    last = high // unit
    if high % unit != unit - 1:
        if low < last * unit:
            forms.append(((lead | low // unit, lead | last - 1), *tail))
        return forms + _ranges(last * unit, high, length, lead)
    return [*forms, ((lead | low // unit, lead | last), *tail)]
