"""What a byte machine does within one token, known or open.

A *language* is a set of byte strings: a token has one string, an open position has
those of the vocabulary. Languages are nodes of one acyclic automaton over the byte
classes of the machine, and equal ones are one node. So an open position costs no loop
over the vocabulary: its strings share the prefixes and the suffixes.

Reading a language from a state has outcomes of two kinds.

    a target    the string is read; the value is open still, below calls that the string
                made: a state, or a calling state above another target
    an exit     the value ended with a label before the string did; the rest of the
                string, again a language, is read where the caller goes on

The end of the text is a language as well: a value that may end there exits.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from decoding.automata.byte_machine import CALL, DEAD, POP, ByteMachine

END_OF_TEXT = -1  # the language of what stands behind a whole text
NO_CALLER = -1
NOTHING = 0  # the reading without outcomes


class Target(NamedTuple):
    """Where a value is between two tokens."""

    caller: int  # a state that goes on when the value of `inside` ends; or NO_CALLER
    inside: int  # the target of the callee; without a caller: the state


class Reading(NamedTuple):
    """The outcomes of a language from a state."""

    exits: frozenset[tuple[int, int]]  # label, language of the rest
    targets: frozenset[int]


def _reachable(machine: ByteMachine) -> list[int]:
    """Return the states of the machine that some text reaches."""
    states = [machine.start]
    seen = set(states)
    for q in states:
        row = np.unique(machine.moves[q])
        row = row[(row != DEAD) & (row & POP == 0)] & ~CALL
        back = machine.back[q]
        after = {*row.tolist(), *back[back != DEAD].tolist()} - seen
        states.extend(after)
        seen |= after
    return sorted(seen)


class TokenOutcomes:
    """The outcomes of languages from the states of a machine, each computed once."""

    def __init__(self, machine: ByteMachine) -> None:
        """Prepare the tables of `machine`, whose strings have no bounds of length.

        Two states are added. `root` calls the text's value; behind it stands a state
        that reads nothing and may end the text.
        """
        read = machine.moves[_reachable(machine)]
        _, first, classes = np.unique(
            read, axis=1, return_index=True, return_inverse=True
        )
        columns = machine.moves[:, first]
        self._classes = bytes(classes.reshape(-1).tolist())
        over, self.root = len(machine.ends), len(machine.ends) + 1
        width = columns.shape[1]
        labels = 1 + max(machine.final.max(), machine.back.shape[1] - 1)
        back = np.full((over, labels), DEAD)
        back[:, : machine.back.shape[1]] = machine.back
        self._moves = [*columns.tolist(), *[[DEAD] * width] * 2]
        self._ends = [*machine.ends.tolist(), -1, -1]
        self._final = [*machine.final.tolist(), 0, -1]
        self._back = [*back.tolist(), [DEAD] * labels, [over] * labels]
        # The states in which some caller goes on, by label.
        self._behind = [
            [int(q) for q in np.unique(column) if q != DEAD] + [over]
            for column in back.T
        ]
        self._nodes: list[tuple[bool, tuple[tuple[int, int], ...]]] = []
        self._node_ids: dict[tuple[bool, tuple[tuple[int, int], ...]], int] = {}
        self.targets: list[Target] = []
        self._target_ids: dict[Target, int] = {}
        self.readings = [Reading(frozenset(), frozenset())]
        self._reading_ids = {self.readings[0]: NOTHING}
        self._read: dict[tuple[int, int], int] = {}
        self.kinds: list[tuple[int, int]] = []  # an exit of each kind
        self._kind_ids: dict[tuple[int, ...], int] = {}
        self._kind_of: dict[tuple[int, int], int] = {}

    def target(self, caller: int, inside: int) -> int:
        """Return the number of a target; those inside others have lower ones."""
        key = Target(caller, inside)
        number = self._target_ids.setdefault(key, len(self.targets))
        if number == len(self.targets):
            self.targets.append(key)
        return number

    def _node(self, is_end: bool, edges: tuple[tuple[int, int], ...]) -> int:
        key = (is_end, edges)
        number = self._node_ids.setdefault(key, len(self._nodes))
        if number == len(self._nodes):
            self._nodes.append(key)
        return number

    def language(self, strings: Iterable[bytes]) -> int:
        """Return the language of `strings`."""
        spelled = sorted({string.translate(self._classes) for string in strings})
        return self._sorted_language(spelled, 0)

    def _sorted_language(self, strings: Sequence[bytes], depth: int) -> int:
        """Return the language of what follows the first `depth` classes."""
        if len(strings) == 1:
            only = self._node(True, ())
            for byte in reversed(strings[0][depth:]):
                only = self._node(False, ((byte, only),))
            return only
        is_end = len(strings[0]) == depth if strings else False
        edges, low = [], int(is_end)
        while low < len(strings):
            first, high = strings[low][depth], low + 1
            while high < len(strings) and strings[high][depth] == first:
                high += 1
            edges.append((first, self._sorted_language(strings[low:high], depth + 1)))
            low = high
        return self._node(is_end, tuple(edges))

    def reading(self, state: int, language: int) -> int:
        """Return the number of the reading of `language` from `state`."""
        key = (state, language)
        if key not in self._read:
            exits, targets = self._outcomes(state, language)
            reading = Reading(frozenset(exits), frozenset(targets))
            number = self._reading_ids.setdefault(reading, len(self.readings))
            if number == len(self.readings):
                self.readings.append(reading)
            self._read[key] = number
        return self._read[key]

    def _outcomes(
        self, state: int, language: int
    ) -> tuple[set[tuple[int, int]], set[int]]:
        exits: set[tuple[int, int]] = set()
        targets: set[int] = set()
        if self._ends[state] >= 0:
            exits.add((self._ends[state], language))
            return exits, targets
        if language == END_OF_TEXT:
            if self._final[state] >= 0:
                exits.add((self._final[state], language))
            return exits, targets
        is_end, edges = self._nodes[language]
        while not is_end and len(edges) == 1:  # long tokens without recursion
            to = self._moves[state][edges[0][0]]
            if to == DEAD or to & (CALL | POP) or self._ends[to] >= 0:
                break
            state, (is_end, edges) = to, self._nodes[edges[0][1]]
        if is_end:
            targets.add(self.target(NO_CALLER, state))
        for edge in edges:
            to = self._moves[state][edge[0]]
            if to == DEAD:
                continue
            if not to & (CALL | POP):
                reading = self.readings[self.reading(to, edge[1])]
                exits |= reading.exits
                targets |= reading.targets
                continue
            # The byte decides on the call or the return, and is read behind it.
            again = self._node(False, (edge,))
            if to & POP:
                exits.add((to - POP, again))
                continue
            called = self.readings[self.reading(to - CALL, again)]
            targets.update(self.target(state, inside) for inside in called.targets)
            for label, rest in called.exits:
                reading = self.readings[self.behind(state, label, rest)]
                exits |= reading.exits
                targets |= reading.targets
        return exits, targets

    def behind(self, caller: int, label: int, rest: int) -> int:
        """Return the reading of a `rest` where `caller` goes on behind `label`."""
        state = self._back[caller][label]
        return NOTHING if state == DEAD else self.reading(state, rest)

    def kind(self, label: int, rest: int) -> int:
        """Return the kind of an exit; -1: no caller goes on.

        Exits are of one kind if every caller goes on alike.
        """
        key = (label, rest)
        if key not in self._kind_of:
            readings = [self.reading(state, rest) for state in self._behind[label]]
            number = -1
            if any(readings):
                signature = (label, *readings)
                number = self._kind_ids.setdefault(signature, len(self.kinds))
                if number == len(self.kinds):
                    self.kinds.append(key)
            self._kind_of[key] = number
        return self._kind_of[key]
