"""Regular expressions as automata over classes of characters.

Python's own `re` parses the pattern, so its syntax and meaning are exactly those of
`re.fullmatch(pattern, text, re.ASCII)`. The parse tree becomes a nondeterministic
automaton (Thompson's construction), then a deterministic one (subset construction).
Sets of characters are intervals of code points, so a wide range costs no more than a
letter.
"""

import re
from collections.abc import Callable, Iterable
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

import numpy as np

from models.errors import ConstraintError

POINTS = 0x110000  # number of code points
MOST_STATES = 20_000

Intervals = tuple[tuple[int, int], ...]  # [low, high), of code points

_DIGIT: Intervals = ((48, 58),)
_SPACE: Intervals = ((9, 14), (32, 33))
_WORD: Intervals = ((48, 58), (65, 91), (95, 96), (97, 123))
_NEWLINE: Intervals = ((10, 11),)


class CharacterDFA(NamedTuple):
    """A deterministic automaton over classes of characters; it starts in state 0."""

    key: np.ndarray  # int32[0x110000]: the class of each code point
    moves: list[dict[int, int]]  # of each state: class -> state
    accept: list[bool]


def refuse(pattern: str, what: str, remedy: str) -> ConstraintError:
    """Make the error of a pattern: `what` is wrong, and its remedy."""
    return ConstraintError(f"regex {pattern!r} {what}: {remedy}")


def outside(spans: Iterable[tuple[int, int]]) -> Intervals:
    """Return the complement of `spans`."""
    gaps, at = [], 0
    for low, high in sorted(spans):
        if low > at:
            gaps.append((at, low))
        at = max(at, high)
    return tuple(gaps + [(at, POINTS)] if at < POINTS else gaps)


_CATEGORIES = {
    op.CATEGORY_DIGIT: _DIGIT,
    op.CATEGORY_NOT_DIGIT: outside(_DIGIT),
    op.CATEGORY_SPACE: _SPACE,
    op.CATEGORY_NOT_SPACE: outside(_SPACE),
    op.CATEGORY_WORD: _WORD,
    op.CATEGORY_NOT_WORD: outside(_WORD),
}


def _either_case(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Add the other case of the ASCII letters in `spans` (the flags ASCII and i)."""
    letters = [(65, 91, 32), (97, 123, -32)]
    swapped = [
        (max(low, first) + shift, min(high, last) + shift)
        for low, high in spans
        for first, last, shift in letters
        if max(low, first) < min(high, last)
    ]
    return spans + swapped


class _Builder:
    """A nondeterministic automaton under construction; it starts in state 0."""

    def __init__(self, pattern: str):
        self.pattern = pattern
        self.silent: list[list[int]] = [[]]  # successors without a character
        self.edge: list[tuple[int, int] | None] = [None]  # (set, successor)
        self.sets: dict[Intervals, int] = {}

    def state(self) -> int:
        if len(self.silent) > 5 * MOST_STATES:
            raise refuse(self.pattern, "is too large", "lower its repetition counts")
        self.silent.append([])
        self.edge.append(None)
        return len(self.silent) - 1

    def character(self, spans: Iterable[tuple[int, int]], at: int) -> int:
        end = self.state()
        index = self.sets.setdefault(tuple(sorted(spans)), len(self.sets))
        # A state has one edge: a fresh state leaves that of `at` to the caller.
        before = self.state()
        self.silent[at].append(before)
        self.edge[before] = (index, end)
        return end

    def one_of(self, items: list, flags: int, at: int) -> int:
        spans: list[tuple[int, int]] = []
        for kind, arg in items:
            if kind is op.LITERAL:
                spans.append((arg, arg + 1))
            elif kind is op.RANGE:
                spans.append((arg[0], arg[1] + 1))
            elif kind is op.CATEGORY:
                spans.extend(_CATEGORIES[arg])
        if flags & re.IGNORECASE:
            spans = _either_case(spans)
        negated = items[0][0] is op.NEGATE
        return self.character(outside(spans) if negated else spans, at)

    def repeat(self, low: int, high: Any, items: Any, flags: int, at: int) -> int:
        for _ in range(low):
            at = self.sequence(items, flags, at)
        if high is op.MAXREPEAT:
            enter = self.state()
            self.silent[at].append(enter)
            self.silent[self.sequence(items, flags, enter)].append(enter)
            at, high = enter, low
        end = self.state()
        self.silent[at].append(end)
        for _ in range(high - low):
            at = self.sequence(items, flags, at)
            self.silent[at].append(end)
        return end

    def branch(self, options: list, flags: int, at: int) -> int:
        end = self.state()
        for option in options:
            start = self.state()
            self.silent[at].append(start)
            self.silent[self.sequence(option, flags, start)].append(end)
        return end

    def sequence(self, items: Any, flags: int, at: int) -> int:
        """Append parsed `items` to state `at`; return the state after them."""
        for kind, arg in items:
            if kind is op.LITERAL:
                at = self.one_of([(kind, arg)], flags, at)
            elif kind is op.NOT_LITERAL:
                at = self.one_of([(op.NEGATE, None), (op.LITERAL, arg)], flags, at)
            elif kind is op.IN:
                at = self.one_of(arg, flags, at)
            elif kind is op.ANY:
                but = () if flags & re.DOTALL else _NEWLINE
                at = self.character(outside(but), at)
            elif kind is op.BRANCH:
                at = self.branch(arg[1], flags, at)
            elif kind is op.SUBPATTERN:
                _, added, removed, inner = arg
                at = self.sequence(inner, (flags | added) & ~removed, at)
            elif kind in (op.MAX_REPEAT, op.MIN_REPEAT):
                low, high, inner = arg
                at = self.repeat(low, high, inner, flags, at)
            else:
                raise refuse(
                    self.pattern,
                    f"uses {str(kind).lower()}",
                    "inner anchors, look-around, references, atomic groups and "
                    "possessive repeats are not supported; rewrite it without them",
                )
        return at


def _strip(items: list) -> list:
    """Drop outer anchors, which are redundant when the whole text is matched."""
    first, last = (
        (op.AT_BEGINNING, op.AT_BEGINNING_STRING),
        (op.AT_END, op.AT_END_STRING),
    )
    while items and items[0][0] is op.AT and items[0][1] in first:
        items = items[1:]
    while items and items[-1][0] is op.AT and items[-1][1] in last:
        items = items[:-1]
    return items


def _keys(sets: Iterable[Intervals]) -> tuple[np.ndarray, list[list[int]]]:
    """Return the class of each code point, and the classes of each set.

    Code points of one class are in the same sets.
    """
    sets = list(sets)
    edges = sorted({0, POINTS, *(edge for spans in sets for s in spans for edge in s)})
    lows = np.array(edges[:-1])
    inside = np.zeros((len(lows), len(sets) + 1), bool)
    for i, spans in enumerate(sets):
        for low, high in spans:
            inside[:, i] |= (lows >= low) & (lows < high)
    inside, kind = np.unique(inside, axis=0, return_inverse=True)
    key = np.repeat(kind.reshape(-1).astype(np.int32), np.diff(edges))
    return key, [np.flatnonzero(inside[:, i]).tolist() for i in range(len(sets))]


def _closure(silent: list[list[int]]) -> Callable[[Iterable[int]], frozenset[int]]:
    """Make the function that adds the states reached without a character."""

    def close(states: Iterable[int]) -> frozenset[int]:
        closed, todo = set(states), list(states)
        while todo:
            for after in silent[todo.pop()]:
                if after not in closed:
                    closed.add(after)
                    todo.append(after)
        return frozenset(closed)

    return close


def automaton(pattern: str) -> CharacterDFA:
    """Build the automaton of `pattern`.

    Raises:
        ConstraintError: the pattern is invalid, unsupported or too large.
    """
    try:
        parsed = _parser.parse(pattern, re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConstraintError(f"regex {pattern!r} is invalid: {error}") from error
    builder = _Builder(pattern)
    final = builder.sequence(_strip(list(parsed)), parsed.state.flags, 0)
    key, classes = _keys(builder.sets)
    close = _closure(builder.silent)
    start = close([0])
    number, queue = {start: 0}, [start]
    moves: list[dict[int, int]] = []
    for states in queue:  # grows while it is read
        targets: dict[int, set[int]] = {}
        for edge in filter(None, (builder.edge[s] for s in states)):
            for kind in classes[edge[0]]:
                targets.setdefault(kind, set()).add(edge[1])
        after: dict[int, int] = {}
        closed: dict[frozenset[int], frozenset[int]] = {}
        for kind, reached in targets.items():
            bare = frozenset(reached)
            if bare not in closed:
                closed[bare] = close(bare)
            whole = closed[bare]
            if whole not in number:
                number[whole] = len(queue)
                queue.append(whole)
            after[kind] = number[whole]
        moves.append(after)
        if len(queue) > MOST_STATES:
            raise refuse(
                pattern,
                f"needs more than {MOST_STATES} states",
                "lower its repetition counts or avoid overlapping repeats",
            )
    return CharacterDFA(key, moves, [final in states for states in queue])
