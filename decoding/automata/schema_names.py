"""The names of an object's members: declared ones in order, and free ones.

A free name is none of the declared ones, and the patterns that hold of it matter.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from decoding.automata.byte_machine import BODY, HEX1, HEX2, HEX3, HEX4
from decoding.automata.pushdown import string_moves
from decoding.automata.schema_formulas import FALSE, TRUE, Formula, Logic, atoms
from decoding.automata.schema_strings import automaton
from decoding.automata.string_automata import LOST, among
from decoding.automata.string_spelling import SLASH_BYTE, spelled, together

Formulas = tuple[Formula, ...]
Classes = frozenset[Formula]  # the patterns that hold of a free name
_STRING = string_moves()
HEXES = (HEX4, HEX3, HEX2, HEX1)


class Node(NamedTuple):
    """A node of the trie of names: what follows it, and the names below it."""

    inside: int  # STRING's state there
    children: dict[int, int]
    below: list[int]  # sorted
    name: list[int]  # that ends here, if one does
    has_slash: bool  # a name goes on with "/", of which "\\/" is another spelling


def trie(names: tuple[str, ...]) -> list[Node]:
    """Return the spelled `names` as a trie, the root first.

    A name that UTF-8 cannot spell is left out: no text has it.
    """
    nodes = [Node(BODY, {}, [], [], False)]
    for index, name in enumerate(names):
        at = 0
        path = [0]
        for byte in spelled(name) or b"":
            here = nodes[at]
            if byte not in here.children:
                here.children[byte] = len(nodes)
                has_slash = byte == SLASH_BYTE and ord("/") in here.children
                nodes.append(Node(_STRING[here.inside][byte], {}, [], [], has_slash))
                if byte == ord("/") and SLASH_BYTE in here.children:
                    behind_slash = here.children[SLASH_BYTE]
                    nodes[behind_slash] = nodes[behind_slash]._replace(has_slash=True)
            at = here.children[byte]
            path.append(at)
        if spelled(name) is not None:
            nodes[at].name.append(index)
            for node in path:
                nodes[node].below.append(index)
    return nodes


class Patterned:
    """The automaton of names of which patterns matter; it starts in state 0.

    A state in which what follows does not matter has no moves.
    """

    def __init__(self, logic: Logic, names: tuple[str, ...], patterns: Formulas):
        self.logic, self.patterns = logic, patterns
        self.atoms = atoms(patterns)
        dfas = [among(names), *map(automaton, self.atoms)]
        self.characters, columns = together(dfas)
        start = (0,) * len(dfas)
        number, queue = {start: 0}, [start]
        self.moves: list[list[int]] = []
        self.settled: list[Classes | None] = []
        self.closed: list[int | Classes] = []  # what the name is if it ends here
        for states in queue:  # grows while it is read
            fates = [d.fate[s] if s != LOST else False for d, s in zip(dfas, states)]
            accepts = [s != LOST and d.accept[s] for d, s in zip(dfas, states)]
            settled = self._classes(fates[1:]) if states[0] == LOST else None
            self.settled.append(settled)
            closed = self._classes(accepts[1:])
            assert closed is not None
            self.closed.append(closed)
            row: list[int] = []
            if settled is None:
                for kind in range(len(self.characters.classes)):
                    after = tuple(
                        LOST if s == LOST else dfa.moves[s].get(column[kind], LOST)
                        for s, dfa, column in zip(states, dfas, columns)
                    )
                    if after not in number:
                        number[after] = len(queue)
                        queue.append(after)
                    row.append(number[after])
            self.moves.append(row)
        self.below: list[list[int]] = [[] for _ in queue]  # names, sorted
        self.last = len(names)
        for index, name in enumerate(names):
            state = 0
            self.below[0].append(index)
            for char in name:
                point = ord(char)
                kind = next(
                    k
                    for k, spans in enumerate(self.characters.classes)
                    if any(low <= point < high for low, high in spans)
                )
                state = self.moves[state][kind]
                self.below[state].append(index)
            self.closed[state] = index

    def _classes(self, values: Sequence[bool | None]) -> Classes | None:
        """Return the patterns that hold; None while it is open."""
        constants = {
            atom: self.logic.atom(atom) if value is None else (TRUE if value else FALSE)
            for atom, value in zip(self.atoms, values)
        }
        decided = [self.logic.replaced(p, constants.__getitem__) for p in self.patterns]
        if any(value is not TRUE and value is not FALSE for value in decided):
            return None
        return frozenset(p for p, v in zip(self.patterns, decided) if v is TRUE)

    def place(self, state: int, first: int) -> tuple[int, int]:
        """Return (state, the least equivalent of `first`).

        Names before `first` cannot stand; those below the state matter alone.
        """
        below = self.below[state]
        at = bisect_left(below, first)
        return state, below[at] if at < len(below) else self.last

    def step(self, at: tuple[int, int], kind: int) -> tuple[int, int]:
        """Return the place behind a character of the class `kind`."""
        return self.place(self.moves[at[0]][kind], at[1])


class Order:
    """The declared names of formulas, in their order, and the patterns of free ones."""

    def __init__(self, logic: Logic, formulas: Formulas):
        names: dict[str, None] = {}
        patterns: dict[Formula, None] = {}
        every = atoms(formulas)
        for atom in every:
            if atom[0] == "members":
                names.update(dict.fromkeys(name for name, _ in atom[1].declared))
                patterns.update(dict.fromkeys(p for p, _ in atom[1].patterns))
        for atom in every:
            if atom[0] == "required":
                names.update(dict.fromkeys(atom[1]))
        self.logic = logic
        self.names, self.patterns = tuple(names), tuple(patterns)
        self.index = {name: i for i, name in enumerate(self.names)}

    @cached_property
    def trie(self) -> list[Node]:
        """The names as a trie of bytes."""
        return trie(self.names)

    @cached_property
    def patterned(self) -> Patterned:
        """The automaton of names and patterns."""
        return Patterned(self.logic, self.names, self.patterns)
