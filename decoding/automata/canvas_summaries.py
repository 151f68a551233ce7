"""Whether a canvas with holes can become a whole text of a byte machine.

This is the intersection of a pushdown automaton with an acyclic one, a construction of
Bar-Hillel, Perles and Shamir, by summaries at equal height:

    value[i][target]    the exits that a value may take which is at `target` in front
                        of position i: pairs of a kind (a label and the rest of a token)
                        and the position j in whose token it ends

A set of exits is one integer with a bit for each pair. Values are computed from the
right, for the targets that reading from the left reaches (`canvas_reader.py`). A
calling state composes the exits of its callee with what it reads behind each.
`value[i]` depends on positions from i on alone: after a commit at p only those up to p
are computed anew.

Every hole is exactly one token. The published code of constrained diffusion
(eth-sri/constrained-diffusion, commit 2682359) by default lets a gap be of any length,
and so admits canvases that nothing fills. The stack has no bound here: a filling may be
deeper than a device's stack.

Cost: at most C² / 2 unions of sets for each target and caller. Few take place: the
exits behind one position mostly hold those behind the next ones; then a union ends.
At C = 128 and V = 4,096, in blocks of 32 from the left, a commit of a JSON text took 3
to 7 ms at the median and 17 to 33 ms at p90; the first check of open canvases 0.1 to
0.5 s. Grammars with many calling states, or counted strings, take seconds for it.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from decoding.automata.canvas_reader import NO_TOKEN, CanvasReader, Numbers
from decoding.automata.token_outcomes import END_OF_TEXT, NO_CALLER, NOTHING

MOST = 2**12  # plans that are remembered, and joins of each


class _Plan(NamedTuple):
    """How to compute the values of a set of targets, whatever the position."""

    behind: list[int]  # the targets behind a token
    # The readings of a token and of the text's end, and the states that share them.
    readings: list[tuple[int, int, list[int]]]
    calls: list[tuple[int, int, int]]  # target, calling state, target inside
    # By which targets of `behind` have equal values: exits, unequal ones, states.
    joins: dict[tuple[int, ...], list[tuple[int, list[int], list[int]]]]


class _Returns(NamedTuple):
    """How a calling state goes on behind exits of the first `known` kinds."""

    known: int
    passed: int  # bits of the kinds with which its own value ends likewise
    # Of the other kinds: first byte, first bits of its own exits, targets.
    others: list[tuple[int, int, tuple[int, ...]]]


class CanvasSummaries:
    """The values of one canvas after the other, of one length."""

    def __init__(self, reader: CanvasReader, length: int) -> None:
        """Prepare for canvases of `length` tokens."""
        self.reader, self.length = reader, length
        self._room = length // 8 + 1  # bytes of the positions of a kind
        self._patterns: dict[int, int] = {}
        self._returns: dict[int, _Returns] = {}
        self._plans: dict[tuple[Numbers, int, bool], _Plan] = {}
        self._canvas = np.full(length, -1)
        self._stale = length + 1  # positions in front of which values are unknown
        self._reached: list[Numbers] = [frozenset()] * (length + 1)
        self._values: list[dict[int, int]] = [{} for _ in range(length + 1)]
        # Of each target, the union of its values from a position on.
        self._above: list[dict[int, int]] = [{} for _ in range(length + 2)]

    def possible(self, canvas: np.ndarray) -> bool:
        """Return whether some filling of `canvas` int32[C] is a whole text."""
        reader, canvas = self.reader, np.asarray(canvas, np.int64)
        changed = np.flatnonzero(canvas != self._canvas)
        last = max(self._stale, int(changed.max(initial=-1)) + 1) - 1
        languages = [reader.language(token) for token in canvas.tolist()]
        reached, tails = reader.reach(languages), reader.tails(canvas)
        for i in range(self.length, last, -1):
            if not reached[i] <= self._reached[i]:
                last = i
                break
        self._canvas, self._stale = canvas.copy(), 0
        for i in range(last, -1, -1):
            language = languages[i] if i < self.length else NO_TOKEN
            self._reached[i] = reached[i]
            self._summarise(i, self._plan(reached[i], language, tails[i]))
        return self._values[0][reader.whole] != 0

    def fillings(
        self, canvas: np.ndarray, position: int, candidates: np.ndarray
    ) -> np.ndarray:
        """Return with which tokens at a position the canvas is possible, bool[K].

        Args:
            canvas: int32[C]; its entry at `position` does not count.
            position: in [0, C).
            candidates: int32[K]; one check serves all that are read alike.
        """
        answers = self._answers(canvas, position, candidates)
        return np.fromiter(answers, bool, len(candidates))

    def first(self, canvas: np.ndarray, position: int, candidates: np.ndarray) -> int:
        """Return the first of `candidates` that may fill a position; -1: none may.

        Args:
            canvas: int32[C]; its entry at `position` does not count.
            position: in [0, C).
            candidates: int32[K]; those behind the one returned are not checked.
        """
        answers = self._answers(canvas, position, candidates)
        pairs = zip(np.asarray(candidates).tolist(), answers)
        return next((token for token, may in pairs if may), -1)

    def _answers(
        self, canvas: np.ndarray, position: int, candidates: np.ndarray
    ) -> Iterator[bool]:
        """Yield with which tokens at a position the canvas is possible."""
        outcomes, filled = self.reader.outcomes, np.array(canvas, np.int64)
        filled[position] = -1
        tokens = np.asarray(candidates).tolist()
        if not self.possible(filled):
            yield from (False for _ in tokens)
            return
        targets = [outcomes.targets[i] for i in self._before(filled, position)]
        states = [at.inside for at in targets if at.caller == NO_CALLER]
        base = self._canvas, self._reached, self._values, self._above
        answers: dict[tuple[int, ...], bool] = {}
        for token in tokens:
            key = self._alike(token, states)
            if key not in answers:
                self._reached, self._values = base[1].copy(), base[2].copy()
                self._above = base[3].copy()
                filled[position] = token
                answers[key] = any(key) and self.possible(filled)
                self._canvas, self._reached, self._values, self._above = base
            yield answers[key]

    def _before(self, canvas: np.ndarray, position: int) -> list[int]:
        """Return the targets in front of a position."""
        languages = map(self.reader.language, canvas[:position].tolist())
        return sorted(self.reader.reach(list(languages))[-1])

    def _alike(self, token: int, states: list[int]) -> tuple[int, ...]:
        """Return what the answer about a token depends on; all 0: it is no."""
        if token in self.reader.behind_eos:
            return (1 + (token in self.reader.eos),)
        language = self.reader.language(token)
        if language == NO_TOKEN:
            return (0,)
        reading = self.reader.outcomes.reading
        return (0, *(reading(state, language) for state in states))

    def _plan(self, targets: Numbers, language: int, is_tail: bool) -> _Plan:
        key = (targets, language, is_tail)
        if key in self._plans:
            return self._plans[key]
        if len(self._plans) >= MOST:
            self._plans.clear()
        outcomes, calls = self.reader.outcomes, []
        states: dict[tuple[int, int], list[int]] = {}
        for number in sorted(targets):  # what is inside comes first
            caller, inside = outcomes.targets[number]
            if caller != NO_CALLER:
                calls.append((number, caller, inside))
                continue
            has_token = language != NO_TOKEN
            read = outcomes.reading(inside, language) if has_token else NOTHING
            over = outcomes.reading(inside, END_OF_TEXT) if is_tail else NOTHING
            states.setdefault((read, over), []).append(number)
        after = (outcomes.readings[read].targets for read, _ in states)
        behind = sorted(frozenset().union(*after))
        readings = [(*pair, numbers) for pair, numbers in states.items()]
        self._plans[key] = _Plan(behind, readings, calls, {})
        return self._plans[key]

    def _joins(
        self, plan: _Plan, after: dict[int, int]
    ) -> list[tuple[int, list[int], list[int]]]:
        """Return which values behind a token the states join, equal ones once.

        Few of them differ, and which are equal seldom changes between positions.
        """
        ids: dict[int, int] = {}
        signature = tuple(
            [ids.setdefault(id(after[number]), len(ids)) for number in plan.behind]
        )
        if signature not in plan.joins:
            if len(plan.joins) >= MOST:
                plan.joins.clear()
            place = dict(zip(plan.behind, signature))
            alike: dict[tuple[int, tuple[int, ...]], list[int]] = {}
            for read, over, numbers in plan.readings:
                targets = self.reader.outcomes.readings[read].targets
                parts = tuple(sorted({place[number] for number in targets}))
                exits = self._pattern(read) | self._pattern(over)
                alike.setdefault((exits, parts), []).extend(numbers)
            first = {part: number for number, part in reversed(place.items())}
            plan.joins[signature] = [
                (exits, [first[part] for part in parts], numbers)
                for (exits, parts), numbers in alike.items()
            ]
        return plan.joins[signature]

    def _summarise(self, i: int, plan: _Plan) -> None:
        """Compute the values in front of position i; those behind are there."""
        after = self._values[i + 1] if i < self.length else {}
        values: dict[int, int] = {}
        equal: dict[int, int] = {}  # equal values become identical
        for exits, parts, numbers in self._joins(plan, after):
            exits <<= i
            for number in parts:
                exits |= after[number]
            values.update(dict.fromkeys(numbers, equal.setdefault(exits, exits)))
        composed: dict[tuple[int, int], int] = {}
        for number, caller, inside in plan.calls:
            key = (caller, id(values[inside]))
            if key not in composed:
                exits = self._composed(caller, values[inside])
                composed[key] = equal.setdefault(exits, exits)
            values[number] = composed[key]
        above = self._above[i + 1].copy()
        for number, exits in values.items():
            above[number] = above.get(number, 0) | exits
        self._values[i], self._above[i] = values, above

    def _pattern(self, reading: int) -> int:
        """Return the first bits of the kinds of a reading's exits."""
        if reading not in self._patterns:
            outcomes = self.reader.outcomes
            kinds = {outcomes.kind(*pair) for pair in outcomes.readings[reading].exits}
            bits = (1 << 8 * self._room * kind for kind in kinds if kind >= 0)
            self._patterns[reading] = sum(bits)
        return self._patterns[reading]

    def _returning(self, caller: int) -> _Returns:
        """Return how a calling state goes on behind exits of every kind so far."""
        outcomes = self.reader.outcomes
        known, passed, others = self._returns.get(caller, _Returns(0, 0, []))
        while known < len(outcomes.kinds):
            reading = outcomes.behind(caller, *outcomes.kinds[known])
            pattern = self._pattern(reading)
            targets = tuple(outcomes.readings[reading].targets)
            first = self._room * known
            if not targets and pattern == 1 << 8 * first:
                passed |= ((1 << 8 * self._room) - 1) << 8 * first
            elif targets or pattern:
                others.append((first, pattern, targets))
            known += 1
        self._returns[caller] = _Returns(known, passed, others)
        return self._returns[caller]

    def _composed(self, caller: int, exits: int) -> int:
        """Return the exits of a caller whose callee takes `exits`."""
        returns, room = self._returning(caller), self._room
        composed = exits & returns.passed
        going: dict[int, int] = {}
        spread = exits.to_bytes(-(-exits.bit_length() // 8), "little")
        for first, pattern, targets in returns.others:
            places = int.from_bytes(spread[first : first + room], "little")
            if not places:
                continue
            # A pattern has one bit in a kind's room: the product is a union of shifts.
            composed |= pattern * places
            for number in targets:
                going[number] = going.get(number, 0) | places
        for number, places in going.items():
            composed |= self._union(number, places)
        return composed

    def _union(self, number: int, places: int) -> int:
        """Return the union of a target's values behind the tokens at `places`."""
        first = (places & -places).bit_length()
        union, most = 0, self._above[first][number]
        while places and union != most:
            union |= self._values[(places & -places).bit_length()][number]
            places &= places - 1
        return union
