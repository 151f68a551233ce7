"""Whether a canvas with holes can become a whole text of a byte machine.

A canvas is int32[C] of tokens; a negative entry is a *hole*, which one token fills. A
filling is a whole text and then, up to the canvas's end, EOS or pads. So every hole is
exactly one token, where Mundler, Dekoninck, Vechev, "Constrained Decoding of Diffusion
LLMs with Context-Free Grammars", 2025, lets a gap be of any length and admits canvases
that nothing fills.

This is the intersection of a pushdown automaton with an acyclic one (Bar-Hillel, Perles,
Shamir 1961), by summaries at equal height:

    value[i][target]    the exits that a value may take which is at `target` in front of
                        token i: pairs of a kind (label and rest of a token) and the
                        token j inside which it ends

A set of exits is one integer, with a bit for each pair. Values are computed from the
right, for the targets that reading from the left can reach; a calling state composes
the exits of its callee with what it reads behind each. `value[i]` depends on tokens from
i on alone: after a commit at p only those up to p are computed anew.

The stack has no bound here: a filling may be deeper than a device's stack.
"""

from collections.abc import Sequence

import numpy as np

from decoding.automata import string_copies
from decoding.automata.byte_machine import DEAD, ByteMachine
from decoding.automata.token_outcomes import (
    END_OF_TEXT,
    NO_CALLER,
    NOTHING,
    TokenOutcomes,
)
from models.errors import ConstraintError

Targets = frozenset[int]
NO_TOKEN = -2  # the language of a position that only an EOS or a pad fills


class CanvasSummaries:
    """Answers about canvases of one machine and vocabulary, and what they share."""

    def __init__(
        self,
        machine: ByteMachine,
        tokens: Sequence[bytes],
        eos: Sequence[int],
        pads: Sequence[int] = (),
    ) -> None:
        """Prepare the vocabulary.

        Args:
            machine: a machine over bytes.
            tokens: the bytes of each token; those without any fill no hole.
            eos: the tokens that end a text; their bytes are not read.
            pads: further tokens that may stand behind an EOS.

        Raises:
            ConstraintError: the machine has no text, or bounds of string lengths are
                too high.
        """
        if machine.start == DEAD:
            raise ConstraintError("the grammar has no text: give each rule an end")
        self.eos, self.behind_eos = frozenset(eos), frozenset((*eos, *pads))
        special = self.behind_eos
        self.tokens = [b"" if i in special else t for i, t in enumerate(tokens)]
        self.outcomes = TokenOutcomes(string_copies.without_spans(machine))
        self.hole = self.outcomes.language(filter(None, self.tokens))
        self._languages: dict[int, int] = {}
        inner = self.outcomes.target(NO_CALLER, int(machine.start))
        self.whole = self.outcomes.target(self.outcomes.root, inner)
        self._steps: dict[tuple, tuple[Targets, Targets]] = {}
        self._canvas = np.zeros(0, np.int64)
        self._reset(0)

    def possible(self, canvas: np.ndarray) -> bool:
        """Return whether some filling of `canvas` int32[C] is a whole text."""
        canvas = np.asarray(canvas).astype(np.int64).ravel()
        canvas = np.where(canvas < 0, -1, canvas)
        self._keep(canvas)
        languages = [self._language(token) for token in canvas.tolist()]
        reached, _ = self._reach(languages)
        tails = self._tails(canvas)
        last = len(canvas)
        while last >= 0 and self._above[last] and reached[last] <= self._reached[last]:
            last -= 1
        for i in range(last, -1, -1):
            self._reached[i] = reached[i]
            self._summarise(i, NO_TOKEN if i == len(canvas) else languages[i], tails[i])
        return self._values[0][self.whole] != 0

    def fillings(
        self, canvas: np.ndarray, position: int, candidates: np.ndarray
    ) -> np.ndarray:
        """Return with which tokens at a position the canvas stays possible, bool[K].

        Args:
            canvas: int32[C]; its entry at `position` does not count.
            position: in [0, C).
            candidates: int32[K]; tokens that all values read alike are asked once.
        """
        filled = np.array(canvas, np.int64)
        filled[position] = -1
        languages = [self._language(token) for token in filled.tolist()]
        targets = self._reach(languages)[0][position]
        states = sorted(
            t.inside
            for t in (self.outcomes.targets[i] for i in targets)
            if t.caller == NO_CALLER
        )
        answers: dict[tuple, bool] = {}
        result = np.zeros(len(candidates), bool)
        for i, token in enumerate(np.asarray(candidates).tolist()):
            key = self._alike(token, states)
            if key not in answers:
                filled[position] = token
                answers[key] = any(key) and self.possible(filled)
            result[i] = answers[key]
        return result

    def _alike(self, token: int, states: list[int]) -> tuple:
        """Return what decides on a token: what it does, and its readings."""
        if token in self.behind_eos:
            return (True, token in self.eos)
        language = self._language(token)
        if language == NO_TOKEN:
            return (False,)
        return (False, *(self.outcomes.reading(q, language) for q in states))

    def _language(self, token: int) -> int:
        if token < 0:
            return self.hole
        if token >= len(self.tokens) or not self.tokens[token]:
            return NO_TOKEN
        if token not in self._languages:
            self._languages[token] = self.outcomes.language([self.tokens[token]])
        return self._languages[token]

    def _reset(self, length: int) -> None:
        self._stride = length + 1  # bits of a kind
        self._patterns: dict[int, int] = {}
        self._reached: list[Targets] = [frozenset()] * (length + 1)
        self._values: list[dict[int, int]] = [{} for _ in range(length + 1)]
        # Of each target, the union of its values from a position on.
        self._above: list[dict[int, int]] = [{} for _ in range(length + 1)]

    def _keep(self, canvas: np.ndarray) -> None:
        """Forget the values that depend on changed tokens."""
        if len(canvas) != len(self._canvas) or not self._above[-1]:
            self._reset(len(canvas))
        else:
            changed = np.flatnonzero(canvas != self._canvas)
            for i in range(int(changed[-1]) + 1 if len(changed) else 0):
                self._values[i], self._above[i] = {}, {}
        self._canvas = canvas

    def _tails(self, canvas: np.ndarray) -> list[bool]:
        """Return in front of which positions the text may be over, [C + 1]."""
        tails, is_tail = [True], True
        for token in reversed(canvas.tolist()):
            tails.append(is_tail and (token < 0 or token in self.eos))
            is_tail &= token < 0 or token in self.behind_eos
        return tails[::-1]

    def _reach(self, languages: list[int]) -> tuple[list[Targets], Targets]:
        """Return targets in front of each position, and calling states.

        They are a superset: a value returns to every calling state so far.
        """
        targets, callers = self._closed({self.whole})
        reached = [targets]
        for language in languages:
            key = (targets, callers, language)
            if key not in self._steps:
                self._steps[key] = self._step(*key)
            targets, callers = self._steps[key]
            reached.append(targets)
        return reached, callers

    def _closed(self, targets: set[int]) -> tuple[Targets, Targets]:
        """Return targets with those inside them, and the calling states."""
        callers, todo = set(), list(targets)
        for number in todo:
            target = self.outcomes.targets[number]
            if target.caller != NO_CALLER:
                callers.add(target.caller)
                if target.inside not in targets:
                    targets.add(target.inside)
                    todo.append(target.inside)
        return frozenset(targets), frozenset(callers)

    def _step(
        self, targets: Targets, callers: Targets, language: int
    ) -> tuple[Targets, Targets]:
        """Read a language from `targets`; return the new ones, and calling states."""
        if language == NO_TOKEN:
            return frozenset(), callers
        outcomes, after = self.outcomes, set()
        todo = {
            outcomes.reading(target.inside, language)
            for target in (outcomes.targets[i] for i in targets)
            if target.caller == NO_CALLER
        }
        seen, kinds = set(todo), set()
        while todo:
            reading = outcomes.readings[todo.pop()]
            after |= reading.targets
            for label, rest in reading.exits:
                kind = outcomes.kind(label, rest)
                if kind in kinds or kind < 0:
                    continue
                kinds.add(kind)
                further = {outcomes.behind(caller, label, rest) for caller in callers}
                todo |= further - seen
                seen |= further
        reached, made = self._closed(after)
        return reached, callers | made

    def _summarise(self, i: int, language: int, is_tail: bool) -> None:
        """Compute the values in front of position i; those behind are there."""
        values = self._values[i]
        above = dict(self._above[i + 1]) if i + 1 < len(self._above) else {}
        for number in sorted(self._reached[i]):  # what is inside comes first
            if number not in values:
                target = self.outcomes.targets[number]
                if target.caller == NO_CALLER:
                    values[number] = self._of_state(i, target.inside, language, is_tail)
                else:
                    values[number] = self._composed(
                        target.caller, values[target.inside]
                    )
            above[number] = above.get(number, 0) | values[number]
        self._above[i] = above

    def _of_state(self, i: int, state: int, language: int, is_tail: bool) -> int:
        exits = 0
        if language != NO_TOKEN:
            reading = self.outcomes.reading(state, language)
            exits = self._pattern(reading) << i
            for number in self.outcomes.readings[reading].targets:
                exits |= self._values[i + 1][number]
        if is_tail:
            over = self.outcomes.reading(state, END_OF_TEXT)
            exits |= self._pattern(over) << i
        return exits

    def _pattern(self, reading: int) -> int:
        """Return the first bits of the kinds of a reading's exits."""
        if reading not in self._patterns:
            kinds = {self.outcomes.kind(*e) for e in self.outcomes.readings[reading][0]}
            self._patterns[reading] = sum(
                1 << kind * self._stride for kind in kinds if kind >= 0
            )
        return self._patterns[reading]

    def _composed(self, caller: int, exits: int) -> int:
        """Return the exits of a caller whose callee takes `exits`."""
        stride, outcomes = self._stride, self.outcomes
        composed, going = 0, {}
        while exits:
            kind = ((exits & -exits).bit_length() - 1) // stride
            places = exits >> kind * stride & (1 << stride) - 1
            exits &= ~(places << kind * stride)
            label, rest = outcomes.kinds[kind]
            reading = outcomes.behind(caller, label, rest)
            if reading == NOTHING:
                continue
            # A pattern has one bit in a kind's room: the product is a union of shifts.
            composed |= self._pattern(reading) * places
            for number in outcomes.readings[reading].targets:
                going[number] = going.get(number, 0) | places
        for number, places in going.items():
            composed |= self._union(number, places)
        return composed

    def _union(self, number: int, places: int) -> int:
        """Return the union of a target's values behind the tokens in `places`."""
        first = (places & -places).bit_length()
        union, most = 0, self._above[first][number]
        while places and union != most:
            i = (places & -places).bit_length()
            union |= self._values[i][number]
            places &= places - 1
        return union
