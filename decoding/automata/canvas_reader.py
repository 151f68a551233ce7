"""Canvases with holes, read from the left by a byte machine.

A canvas is int32[C] of tokens; a negative entry is a *hole*, which one token fills. A
filling is a whole text and then, up to the canvas's end, EOS or pads; a text may also
end with the canvas. EOS and pads fill holes behind a text as they do elsewhere.

Reading from the left keeps a set of targets (`token_outcomes.py`), whatever lies below
them: a superset of what the stack allows, which bounds the work of
`canvas_summaries.py`.
"""

from collections.abc import Sequence

import numpy as np

from decoding.automata import string_copies
from decoding.automata.byte_machine import DEAD, ByteMachine
from decoding.automata.token_outcomes import NO_CALLER, TokenOutcomes
from models.errors import ConstraintError

Numbers = frozenset[int]
MOST = 2**14  # steps that are remembered
NO_TOKEN = -2  # the language of a position that no token of a text fills


class CanvasReader:
    """A machine and a vocabulary, for canvases of any length."""

    def __init__(
        self,
        machine: ByteMachine,
        tokens: Sequence[bytes],
        eos: Sequence[int],
        pads: Sequence[int] = (),
        longest: int = 2**20,
    ) -> None:
        """Prepare the vocabulary.

        Args:
            machine: a machine over bytes.
            tokens: the bytes of each token; those without any are in no text.
            eos: the tokens that end a text; their bytes are not read.
            pads: further tokens that may stand behind an EOS, and nowhere else.
            longest: tokens of the longest canvas. A string's bounds of length that no
                such canvas can pass take no states.

        Raises:
            ConstraintError: the machine has no text, or its bounds of string lengths
                are too high.
        """
        if machine.start == DEAD:
            raise ConstraintError("the grammar has no text: give each rule an end")
        self.eos, self.behind_eos = frozenset(eos), frozenset((*eos, *pads))
        self.tokens = [
            b"" if i in self.behind_eos else token for i, token in enumerate(tokens)
        ]
        most = longest * max(map(len, self.tokens), default=0)
        self.outcomes = TokenOutcomes(string_copies.without_spans(machine, most))
        self.hole = self.outcomes.language(filter(None, self.tokens))
        self._languages: dict[int, int] = {}
        value = self.outcomes.target(NO_CALLER, int(machine.start))
        self.whole = self.outcomes.target(self.outcomes.root, value)
        self._steps: dict[tuple[Numbers, Numbers, int], tuple[Numbers, Numbers]] = {}

    def language(self, token: int) -> int:
        """Return what a token, or a hole, can be in a text."""
        if token < 0:
            return self.hole
        if token >= len(self.tokens) or not self.tokens[token]:
            return NO_TOKEN
        if token not in self._languages:
            self._languages[token] = self.outcomes.language([self.tokens[token]])
        return self._languages[token]

    def tails(self, canvas: np.ndarray) -> list[bool]:
        """Return in front of which positions the text may be over, [C + 1]."""
        tails, is_tail = [True], True
        for token in reversed(canvas.tolist()):
            tails.append(is_tail and (token < 0 or token in self.eos))
            is_tail &= token < 0 or token in self.behind_eos
        return tails[::-1]

    def reach(self, languages: Sequence[int]) -> list[Numbers]:
        """Return the targets in front of each position, and at the end, [C + 1]."""
        targets, callers = self._closed({self.whole})
        reached = [targets]
        for language in languages:
            key = (targets, callers, language)
            if key not in self._steps:
                if len(self._steps) >= MOST:
                    self._steps.clear()
                self._steps[key] = self._step(*key)
            targets, callers = self._steps[key]
            reached.append(targets)
        return reached

    def _step(
        self, targets: Numbers, callers: Numbers, language: int
    ) -> tuple[Numbers, Numbers]:
        """Read a language from `targets`; return the new ones, and calling states.

        Where a value ends, every calling state so far goes on.
        """
        if language == NO_TOKEN:
            return frozenset(), callers
        outcomes = self.outcomes
        todo = {
            outcomes.reading(target.inside, language)
            for target in (outcomes.targets[number] for number in targets)
            if target.caller == NO_CALLER
        }
        seen, kinds = set(todo), set()
        after: set[int] = set()
        while todo:
            reading = outcomes.readings[todo.pop()]
            after |= reading.targets
            for label, rest in reading.exits:
                kind = outcomes.kind(label, rest)
                if kind < 0 or kind in kinds:
                    continue
                kinds.add(kind)
                further = {outcomes.behind(caller, label, rest) for caller in callers}
                todo |= further - seen
                seen |= further
        reached, calling = self._closed(after)
        return reached, callers | calling

    def _closed(self, targets: set[int]) -> tuple[Numbers, Numbers]:
        """Return targets with those inside them, and the calling states."""
        callers, todo = set(), list(targets)
        for number in todo:
            target = self.outcomes.targets[number]
            if target.caller == NO_CALLER:
                continue
            callers.add(target.caller)
            if target.inside not in targets:
                targets.add(target.inside)
                todo.append(target.inside)
        return frozenset(targets), frozenset(callers)
