"""Strings of characters as bytes of JSON text: UTF-8 forms and escapes.

An automaton over characters becomes states of a machine that read the inside of a JSON
string and its closing quote. A character has one spelling there: itself, or its short
escape where JSON demands one. Control characters without a short escape are read only
in words and where anything may follow; there STRING's own states go on.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from decoding.automata.byte_machine import BODY, CALL, Moves
from decoding.automata.pushdown import Builder
from decoding.automata.string_automata import Characters, StringDFA, partition
from models.errors import ConstraintError

_ESCAPES = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
QUOTE_BYTE, SLASH_BYTE = b'"'[0], b"\\"[0]
NO_CLASS = -1
MOST_STEPS = 300_000  # by characters of an automaton: a second or two


def spelled(text: str) -> bytes | None:
    """Return the inside of the JSON string `text`; None if UTF-8 has no form of it."""
    try:
        return json.dumps(text, ensure_ascii=False)[1:-1].encode()
    except UnicodeEncodeError:  # a lone surrogate
        return None


class _Form(NamedTuple):
    """Runs of continuation bytes: (first, last, a `_Form` or a class)."""

    runs: tuple[tuple[int, int, Any], ...]
    classes: tuple[int, ...]


class Spelling(NamedTuple):
    """The bytes of each class of characters."""

    single: list[tuple[int, bytes]]  # class -> bytes that stand for themselves
    escaped: list[tuple[int, int]]  # class, the letter behind the backslash
    leads: dict[int, _Form]  # lead byte -> the rest of the form


@lru_cache(maxsize=256)
def spelling(characters: Characters) -> Spelling:
    """Return how the classes of `characters` are spelled."""
    spans = sorted(
        (low, high, kind)
        for kind, intervals in enumerate(characters.classes)
        for low, high in intervals
    )
    single: dict[int, list[int]] = {}
    for low, high, kind in spans:
        for point in range(max(low, 0x20), min(high, 0x80)):
            if chr(point) not in _ESCAPES:
                single.setdefault(kind, []).append(point)
    kinds = {
        char: next(kind for low, high, kind in spans if low <= ord(char) < high)
        for char in _ESCAPES
    }
    escaped = [(kinds[char], ord(letter)) for char, letter in _ESCAPES.items()]
    forms: dict[tuple, _Form] = {}

    def form(level: int, base: int, spans: list[tuple[int, int, int]]) -> Any:
        """Return the form of 64 ** level points from `base`, or their one class."""
        size = 64**level
        inside = [s for s in spans if s[0] < base + size and s[1] > base]
        if not inside:
            return NO_CLASS
        low, high, kind = inside[0]
        is_uniform = len(inside) == 1 and low <= base and base + size <= high
        if level == 0:
            return kind
        runs: list[tuple[int, int, Any]] = []
        if is_uniform:
            runs = [(0x80, 0xBF, form(level - 1, base, inside))]
        else:
            for i in range(64):
                child = form(level - 1, base + i * size // 64, inside)
                if child == NO_CLASS:
                    continue
                if runs and runs[-1][2] == child and runs[-1][1] == 0x7F + i:
                    runs[-1] = (runs[-1][0], 0x80 + i, child)
                else:
                    runs.append((0x80 + i, 0x80 + i, child))
        if not runs:
            return NO_CLASS
        classes: set[int] = set()
        for _, _, child in runs:
            classes.update(child.classes if isinstance(child, _Form) else (child,))
        built = _Form(tuple(runs), tuple(sorted(classes)))
        return forms.setdefault(built.runs, built)

    leads = {}
    for first, level, limits in (
        (0xC0, 1, ((0x80, 0x800),)),
        (0xE0, 2, ((0x800, 0xD800), (0xE000, 0x10000))),
        (0xF0, 3, ((0x10000, 0x110000),)),
    ):
        cut = [
            (max(low, a), min(high, b), kind)
            for low, high, kind in spans
            for a, b in limits
            if max(low, a) < min(high, b)
        ]
        for i in range(limits[-1][1] - 1 >> 6 * level):
            built = form(level, i << 6 * level, cut)
            if isinstance(built, _Form):
                leads[first + i] = built
        last = (limits[-1][1] - 1) >> 6 * level
        built = form(level, last << 6 * level, cut)
        if isinstance(built, _Form):
            leads[first + last] = built
    return Spelling([(k, bytes(b)) for k, b in single.items()], escaped, leads)


def width(dfa: StringDFA) -> int:
    """Return about how many states read one character of `dfa`."""
    leads = spelling(dfa.characters).leads.values()
    wide = {kind for form in leads for kind in form.classes}
    todo, forms = list(leads), set()
    while todo:
        form = todo.pop()
        if form not in forms:
            forms.add(form)
            todo.extend(c for _, _, c in form.runs if isinstance(c, _Form))
    reads_wide = any(kind in row for row in dfa.moves for kind in wide)
    return 1 + len(forms) if reads_wide else 1


def together(dfas: list[StringDFA]) -> tuple[Characters, list[list[int]]]:
    """Return the partition that all `dfas` share, and its classes' classes in each."""
    if len(dfas) == 1:
        return dfas[0].characters, [list(range(len(dfas[0].characters.classes)))]
    sets = [spans for dfa in dfas for spans in dfa.characters.classes]
    characters, of_set = partition(sets)
    columns, at = [], 0
    for dfa in dfas:
        column = [NO_CLASS] * len(characters.classes)
        for kind in range(len(dfa.characters.classes)):
            for joint in of_set[at + kind]:
                column[joint] = kind
        at += len(dfa.characters.classes)
        columns.append(column)
    return characters, columns


class Settled(NamedTuple):
    """What follows does not matter: the text goes on in `state` (None: nowhere)."""

    state: int | None


class StringWriter:
    """The states of an automaton inside a JSON string.

    Args:
        builder: gets the states.
        characters: the classes of characters.
        step: the state behind a character of a class.
        settle: returns `Settled` where what follows does not matter, else None.
        close: where the closing quote leads, or None.
        is_ascii: whether characters of several bytes are refused.
    """

    def __init__(
        self,
        builder: Builder,
        characters: Characters,
        step: Callable[[Any, int], Any],
        settle: Callable[[Any], Settled | None],
        close: Callable[[Any], int | None],
        is_ascii: bool = False,
    ):
        self.builder, self.step = builder, step
        self.settle, self.close = settle, close
        self.kinds = range(len(characters.classes))
        self.spelling = spelling(characters)
        if is_ascii:
            self.spelling = self.spelling._replace(leads={})
        self.known: dict[Any, int | None] = {}
        self.shared: dict[tuple, int] = {}  # of escapes and forms, by their targets
        self.todo: list[Any] = []
        self.steps = 0
        # Classes of characters whose forms have several bytes, and moves by theirs.
        self.wide = sorted({k for f in self.spelling.leads.values() for k in f.classes})
        self.leads: dict[tuple, Moves] = {}

    def state(self, at: Any) -> int | None:
        """Return the machine's state of `at`; `finish` writes its moves."""
        if at not in self.known:
            settled = self.settle(at)
            if settled is not None:
                self.known[at] = settled.state
            else:
                self.known[at] = self.builder.state()
                self.todo.append(at)
        return self.known[at]

    def finish(self) -> None:
        """Write the moves of all states."""
        while self.todo:
            self._write(self.todo.pop())

    def _write(self, at: Any) -> None:
        here = self.known[at]
        assert here is not None
        targets: dict[int, int] = {}
        self.steps += len(self.kinds)
        if self.steps > MOST_STEPS:
            raise ConstraintError(
                "a string's keywords need too many states: make its patterns and "
                "lengths fewer or smaller"
            )
        for kind in self.kinds:
            to = self.state(self.step(at, kind))
            if to is not None:
                targets[kind] = to
        row = self.builder.moves[here]
        for kind, read in self.spelling.single:
            if kind in targets:
                row.update(dict.fromkeys(read, targets[kind]))
        over = self.close(at)
        if over is not None:
            row[QUOTE_BYTE] = over
        letters = tuple(
            (letter, targets[kind])
            for kind, letter in self.spelling.escaped
            if kind in targets
        )
        if letters:
            row[SLASH_BYTE] = self._shared(("escape", *letters), letters)
        row.update(self._leads(targets))

    def _leads(self, targets: dict[int, int]) -> Moves:
        """Return the moves at the first bytes of forms."""
        goals = tuple(map(targets.get, self.wide))
        if goals not in self.leads:
            row = self.leads[goals] = {}
            for lead, form in self.spelling.leads.items():
                to = self._form(form, targets)
                if to is not None:
                    row[lead] = to if to >= 0 else self.builder.moves[BODY][lead]
        return self.leads[goals]

    def _shared(self, key: tuple, moves: Iterable[tuple[int, int]]) -> int:
        if key not in self.shared:
            self.shared[key] = self.builder.state()
            self.builder.moves[self.shared[key]].update(moves)
        return self.shared[key]

    def _form(self, form: _Form, targets: dict[int, int]) -> int | None:
        """Return the state that reads the rest of a form; -1: STRING's own does."""
        goals = tuple(targets.get(kind) for kind in form.classes)
        if all(goal is None for goal in goals):
            return None
        if all(goal == BODY for goal in goals) and NO_CLASS not in form.classes:
            return -1
        key = (id(form), goals)
        if key in self.shared:
            return self.shared[key]
        moves: list[tuple[int, int]] = []
        for first, last, child in form.runs:
            to = (
                self._inner(child, targets)
                if isinstance(child, _Form)
                else targets.get(child)
            )
            if to is not None:
                moves.extend((byte, to) for byte in range(first, last + 1))
        return self._shared(key, moves)

    def _inner(self, form: _Form, targets: dict[int, int]) -> int | None:
        to = self._form(form, targets)
        if to != -1:
            return to
        key = (id(form), "body")
        if key in self.shared:
            return self.shared[key]
        moves: list[tuple[int, int]] = []
        for first, last, child in form.runs:
            after = (
                BODY if not isinstance(child, _Form) else self._inner(child, targets)
            )
            assert after is not None
            moves.extend((byte, after) for byte in range(first, last + 1))
        return self._shared(key, moves)


def write_words(builder: Builder, words: Mapping[str, int]) -> int | None:
    """Write the words, each with where its closing quote leads; equal ends are shared.

    Returns:
        The state inside the string, or None if no word can be spelled.
    """
    known: dict[tuple, int] = {}
    spelled_words = sorted(
        (text, to)
        for text, to in ((spelled(word), to) for word, to in words.items())
        if text is not None
    )

    def written(first: int, last: int, depth: int) -> int:
        """Write words first … last - 1, which share `depth` bytes."""
        if last - first == 1:
            return ending(*spelled_words[first], depth)
        moves = []
        at = first
        if len(spelled_words[at][0]) == depth:
            moves.append((QUOTE_BYTE, spelled_words[at][1]))
            at += 1
        while at < last:
            byte, end = spelled_words[at][0][depth], at + 1
            while end < last and spelled_words[end][0][depth] == byte:
                end += 1
            moves.append((byte, written(at, end, depth + 1)))
            at = end
        return state(moves)

    def ending(text: bytes, to: int, depth: int) -> int:
        after = state([(QUOTE_BYTE, to)])
        for byte in reversed(text[depth:]):
            after = state([(byte, after)])
        return after

    def state(moves: list[tuple[int, int]]) -> int:
        key = tuple(moves)
        if key not in known:
            known[key] = builder.state()
            builder.moves[known[key]].update(moves)
        return known[key]

    if not spelled_words:
        return None
    return written(0, len(spelled_words), 0)


def write_free(builder: Builder, to: int) -> int:
    """Write a state inside a string of which anything may follow; `to` is behind it."""
    state = builder.state()
    builder.read(state, builder.moves[BODY], CALL + BODY)
    builder.moves[state][QUOTE_BYTE] = to
    builder.back[state][0] = to
    return state
