"""Deterministic automata over characters, that decide what holds of a string.

An automaton reads every string. A state from which all strings are accepted, or none,
has that *fate*: what follows does not matter.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from decoding.automata.ecma_syntax import POINTS, WORD, Intervals, Tree
from models.errors import ConstraintError

MOST_STATES = 10_000
MOST_STEPS = 1_000_000  # sets of states visited: a second or two
LOST = -1  # a state that accepts nothing
Rows = list[dict[int, int]]


class Characters(NamedTuple):
    """A partition of the code points: the intervals of each class."""

    classes: tuple[Intervals, ...]


class StringDFA(NamedTuple):
    """An automaton over classes of characters; it starts in state 0.

    A class without a move leads to `LOST`.
    """

    characters: Characters
    moves: Rows
    accept: list[bool]
    fate: list[bool | None]

    def state(self, text: str) -> int:
        """Return the state behind `text`."""
        at = 0
        for char in text:
            point = ord(char)
            for kind, to in self.moves[at].items():
                if any(a <= point < b for a, b in self.characters.classes[kind]):
                    at = to
                    break
            else:
                return LOST
        return at


def partition(sets: Iterable[Intervals]) -> tuple[Characters, list[list[int]]]:
    """Return the coarsest partition by `sets`, and the classes of each set."""
    sets = list(sets)
    edges = sorted({0, POINTS, *(e for spans in sets for span in spans for e in span)})
    marks = [0] * (len(edges) - 1)
    at = {edge: i for i, edge in enumerate(edges)}
    for bit, spans in enumerate(sets):
        for low, high in spans:
            for i in range(at[low], at[high]):
                marks[i] |= 1 << bit
    number: dict[int, int] = {}
    classes: list[list[tuple[int, int]]] = []
    for i, mark in enumerate(marks):
        kind = number.setdefault(mark, len(number))
        if kind == len(classes):
            classes.append([])
        last = classes[kind]
        if last and last[-1][1] == edges[i]:
            last[-1] = (last[-1][0], edges[i + 1])
        else:
            last.append((edges[i], edges[i + 1]))
    of_set = [
        [kind for mark, kind in number.items() if mark >> bit & 1]
        for bit in range(len(sets))
    ]
    return Characters(tuple(tuple(spans) for spans in classes)), of_set


def fates(moves: Rows, accept: list[bool], classes: int) -> list[bool | None]:
    """Return the fate of each state: True for all strings, False for none."""
    before: list[list[int]] = [[] for _ in moves]
    for state, row in enumerate(moves):
        for after in set(row.values()):
            before[after].append(state)

    def reaching(seed: list[int]) -> list[bool]:
        marks = [False] * len(moves)
        todo = seed[:]
        for state in todo:
            marks[state] = True
        while todo:
            for state in before[todo.pop()]:
                if not marks[state]:
                    marks[state] = True
                    todo.append(state)
        return marks

    some = reaching([s for s, yes in enumerate(accept) if yes])
    other = reaching(
        [s for s, yes in enumerate(accept) if not yes or len(moves[s]) < classes]
    )
    return [
        False if not can else (None if may_fail else True)
        for can, may_fail in zip(some, other)
    ]


class _Nondeterministic:
    """Thompson's automaton of a tree; assertions are edges that hold sometimes."""

    def __init__(self) -> None:
        self.silent: list[list[int]] = [[]]
        self.asserted: dict[int, tuple[Tree, int]] = {}
        self.edge: list[tuple[int, int] | None] = [None]
        self.sets: dict[Intervals, int] = {}

    def state(self) -> int:
        if len(self.silent) >= 10 * MOST_STATES:
            raise ConstraintError(
                "a pattern's repetitions are too many: lower their counts"
            )
        self.silent.append([])
        self.edge.append(None)
        return len(self.silent) - 1

    def add(self, tree: Tree, at: int) -> int:
        """Append `tree` to the state `at`; return the state after it."""
        kind = tree[0]
        if kind == "seq":
            for part in tree[1]:
                at = self.add(part, at)
            return at
        if kind == "rep":
            return self.repeat(tree[1], tree[2], tree[3], at)
        end = self.state()
        if kind == "alt":
            for option in tree[1]:
                start = self.state()
                self.silent[at].append(start)
                self.silent[self.add(option, start)].append(end)
            return end
        before = self.state()
        self.silent[at].append(before)
        if kind == "set":
            index = self.sets.setdefault(tree[1], len(self.sets))
            self.edge[before] = (index, end)
        else:
            self.asserted[before] = (tree, end)
        return end

    def repeat(self, tree: Tree, low: int, high: int | None, at: int) -> int:
        for _ in range(low):
            at = self.add(tree, at)
        if high is None:
            enter = self.state()
            self.silent[at].append(enter)
            self.silent[self.add(tree, enter)].append(enter)
            at, high = enter, low
        end = self.state()
        self.silent[at].append(end)
        for _ in range(high - low):
            at = self.add(tree, at)
            self.silent[at].append(end)
        return end

    def close(self, states: Iterable[int], holds) -> frozenset[int]:
        """Add the states reached without a character, where assertions `holds`."""
        closed, todo = set(states), list(states)
        while todo:
            state = todo.pop()
            nexts = self.silent[state]
            if state in self.asserted:
                tree, after = self.asserted[state]
                nexts = [after] if holds(tree) else []
            for after in nexts:
                if after not in closed:
                    closed.add(after)
                    todo.append(after)
        return frozenset(closed)


@lru_cache(maxsize=512)
def searching(tree: Tree) -> StringDFA:
    """Build the automaton of the strings in which `tree` matches somewhere.

    Raises:
        ConstraintError: it needs too many states.
    """
    built = _Nondeterministic()
    final = built.add(tree, 0)
    has_words = any(t[0] == "word" for t, _ in built.asserted.values())
    sets = [*built.sets, WORD] if has_words else list(built.sets)
    characters, of_set = partition(sets)
    word = set(of_set[-1]) if has_words else set()
    kinds = range(len(characters.classes))

    def closing(kernel, is_start: bool, was_word: bool, is_end: bool, is_word: bool):
        def holds(tree: Tree) -> bool:
            if tree[0] == "start":
                return is_start
            if tree[0] == "end":
                return is_end
            return (was_word != is_word) == tree[1]

        return built.close(kernel, holds)

    # A state: states before their closure, whether it starts, a word character before.
    whole = (frozenset([-1]), False, False)
    start = (frozenset([0]), True, False)
    number, queue = {start: 0}, [start]
    moves: Rows = []
    accept = []
    steps = 0
    for state in queue:  # grows while it is read
        row: dict[int, int] = {}
        if state == whole:
            moves.append(dict.fromkeys(kinds, number[state]))
            accept.append(True)
            continue
        kernel, is_start, was_word = state
        accept.append(final in closing(kernel, is_start, was_word, True, False))
        reached: dict[int, set[int]] = {kind: {0} for kind in kinds}
        for is_word in (False, True) if has_words else (False,):
            closed = closing(kernel, is_start, was_word, False, is_word)
            steps += len(closed)
            for s in closed:
                edge = built.edge[s]
                if edge is not None:
                    for kind in of_set[edge[0]]:
                        if not has_words or (kind in word) == is_word:
                            reached[kind].add(edge[1])
            if final in closed:  # a match: what follows does not matter
                for kind in kinds:
                    if not has_words or (kind in word) == is_word:
                        reached[kind] = {-1}
        for kind, targets in reached.items():
            after = (
                whole if -1 in targets else (frozenset(targets), False, kind in word)
            )
            if after not in number:
                number[after] = len(queue)
                queue.append(after)
            row[kind] = number[after]
        moves.append(row)
        if len(queue) > MOST_STATES or steps > MOST_STEPS:
            raise ConstraintError(
                "a pattern needs too many states: lower its counts or avoid "
                "overlapping repetitions"
            )
    return _without_lost(StringDFA(characters, moves, accept, []))


def _without_lost(dfa: StringDFA) -> StringDFA:
    fate = fates(dfa.moves, dfa.accept, len(dfa.characters.classes))
    moves = [
        {kind: to for kind, to in row.items() if fate[to] is not False}
        for row in dfa.moves
    ]
    return dfa._replace(moves=moves, fate=fate)


def matches(dfa: StringDFA, text: str) -> bool:
    """Return whether `dfa` accepts `text`."""
    state = dfa.state(text)
    return state != LOST and dfa.accept[state]


@lru_cache(maxsize=512)
def measuring(low: int, high: int | None) -> StringDFA:
    """Build the automaton of the strings of `low` to `high` characters.

    Raises:
        ConstraintError: it needs too many states.
    """
    last = low if high is None else max(low, high + 1)
    if last > MOST_STATES:
        raise ConstraintError(
            f"a length of {last} beside other keywords of a string needs too many "
            "states: lower it, or drop the pattern"
        )
    moves: Rows = [{0: min(n + 1, last)} for n in range(last + 1)]
    accept = [low <= n and (high is None or n <= high) for n in range(last + 1)]
    everything = Characters((((0, POINTS),),))
    return _without_lost(StringDFA(everything, moves, accept, []))


def among(words: Iterable[str]) -> StringDFA:
    """Build the automaton of the strings that are in `words`."""
    words = sorted(words)
    characters, of_set = partition(
        [((ord(c), ord(c) + 1),) for c in sorted(set("".join(words)))]
    )
    kind = {c: k for c, (k,) in zip(sorted(set("".join(words))), of_set)}
    moves: Rows = [{}]
    accept = [False]
    for word in words:
        state = 0
        for char in word:
            if kind[char] not in moves[state]:
                moves[state][kind[char]] = len(moves)
                moves.append({})
                accept.append(False)
            state = moves[state][kind[char]]
        accept[state] = True
    return _without_lost(StringDFA(characters, moves, accept, []))
