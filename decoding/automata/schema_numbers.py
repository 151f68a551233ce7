"""Automata over the text of JSON numbers that decide what holds of their values.

Each atom is a *reader* of the text. Its state is a tuple that is updated by each
character; at the end it holds, or not, of the exact decimal value. A reader that an
exponent would leave open refuses it: 1e5 is then spelled 100000.
"""

from collections.abc import Hashable
from decimal import Decimal
from typing import Any, Protocol

from decoding.automata.schema_formulas import (
    CONSTANTS,
    FALSE,
    TRUE,
    Formula,
    Logic,
    atoms,
)
from models.errors import ConstraintError

MOST_REMAINDERS = 20_000
MOST_DIGITS = 400
MOST_STATES = 10_000

# States of RFC 8259's grammar of numbers: behind the sign, "0", digits, ".", …
_START, _SIGN, _ZERO, _WHOLE, _POINT, _PLACES, _E, _E_SIGN, _POWER = range(9)
_COMPLETE = (_ZERO, _WHOLE, _PLACES, _POWER)
_DIGITS = "0123456789"
_AFTER: list[dict[str, int]] = [
    {"-": _SIGN, "0": _ZERO, **dict.fromkeys("123456789", _WHOLE)},
    {"0": _ZERO, **dict.fromkeys("123456789", _WHOLE)},
    {".": _POINT, "e": _E, "E": _E},
    {".": _POINT, "e": _E, "E": _E, **dict.fromkeys(_DIGITS, _WHOLE)},
    dict.fromkeys(_DIGITS, _PLACES),
    {"e": _E, "E": _E, **dict.fromkeys(_DIGITS, _PLACES)},
    {"+": _E_SIGN, "-": _E_SIGN, **dict.fromkeys(_DIGITS, _POWER)},
    dict.fromkeys(_DIGITS, _POWER),
    dict.fromkeys(_DIGITS, _POWER),
]


class _Reader(Protocol):
    """What an atom makes of a number's text; None: the text is not accepted."""

    start: Hashable

    def step(self, state: Any, char: str) -> Any:
        """Return the state behind `char`; None refuses the text."""

    def holds(self, state: Any) -> bool:
        """Return whether the atom holds of the number that ends here."""


class _Integer:
    """Whether the value is an integer, or spelled as one (draft 4)."""

    start = "whole"

    def __init__(self, is_spelled_so: bool):
        self.spelled = is_spelled_so

    def step(self, state: str, char: str) -> str | None:
        if char in "eE":
            return None
        if char == ".":
            return "no" if self.spelled else "zeros"
        return "no" if state == "zeros" and char != "0" else state

    def holds(self, state: str) -> bool:
        return state != "no"


class _Compare:
    """The sign of value - bound.

    States: ("whole", sign, digits read, comparison of their prefix); ("places", sign,
    digits read), equal so far; ("over", comparison of the absolute values, sign).
    """

    def __init__(self, bound: Decimal, signs: frozenset[int]):
        text = f"{abs(bound):f}"
        whole, _, places = text.partition(".")
        self.whole, self.places = whole.lstrip("0") or "0", places.rstrip("0")
        if len(self.whole) + len(self.places) > MOST_DIGITS:
            raise ConstraintError(
                f"a bound of a number has {len(text)} digits: {MOST_DIGITS} at most"
            )
        self.sign = -1 if bound < 0 else int(bound > 0)
        self.signs = signs
        self.start = ("whole", 1, 0, 0)

    def _known(self, sign: int) -> bool:
        return self.sign not in (0, sign)

    def step(self, state: tuple, char: str) -> tuple | None:
        if char == "-" and state == self.start:
            # Below a bound above 0, whatever follows.
            return ("over", 0, -1) if self._known(-1) else ("whole", -1, 0, 0)
        if state == self.start and self._known(1):
            return ("over", 0, 1)
        if state[0] == "over":
            if char in "eE" and not self._known(state[2]) and self.sign:
                return None
            return state
        if state[0] == "whole":
            _, sign, read, order = state
            return self._in_whole(sign, read, order, char)
        _, sign, read = state
        if char in "eE":
            return None if self.sign else ("over", self._rest(read), sign)
        digit = self.places[read] if read < len(self.places) else "0"
        if char == digit:
            return ("places", sign, min(read + 1, len(self.places)))
        return ("over", 1 if char > digit else -1, sign)

    def _in_whole(self, sign: int, read: int, order: int, char: str) -> tuple | None:
        length = len(self.whole)
        if char in ".eE":
            order = order if read == length else -1
            if char != ".":
                return None if self.sign else ("over", order, sign)
            return ("over", order, sign) if order else ("places", sign, 0)
        if read == length:
            return ("over", 1, sign)
        digit = self.whole[read]
        order = order or (char > digit) - (char < digit)
        return ("whole", sign, read + 1, order)

    def _rest(self, read: int) -> int:
        return -1 if read < len(self.places) else 0

    def holds(self, state: tuple) -> bool:
        if state[0] == "over":
            _, order, sign = state
            if self._known(sign):
                return sign in self.signs
        elif state[0] == "places":
            sign, order = state[1], self._rest(state[2])
        else:
            sign = state[1]
            order = state[3] if state[2] == len(self.whole) else -1
            order = self._rest(0) if order == 0 else order
        return sign * order in self.signs


class _Multiple:
    """Whether the value is a multiple of numerator / 10^places."""

    start = (0, -1)  # remainder of the digits so far, digits behind the point

    def __init__(self, numerator: int, places: int):
        if numerator * (places + 1) > MOST_REMAINDERS:
            raise ConstraintError(
                f"multipleOf needs {numerator} remainders, of {MOST_REMAINDERS} at most"
            )
        self.numerator, self.places = numerator, places

    def step(self, state: tuple, char: str) -> tuple | None:
        rest, read = state
        if char in "eE":
            return None
        if char == "-" or read == "no":
            return state
        if char == ".":
            return (rest, 0)
        if read == self.places:
            return state if char == "0" else (0, "no")
        return ((10 * rest + int(char)) % self.numerator, read + (read >= 0))

    def holds(self, state: tuple) -> bool:
        rest, read = state
        if read == "no":
            return False
        return rest * 10 ** (self.places - max(read, 0)) % self.numerator == 0


class _Numbers:
    """Whether the value is in a set; a state is the text, while it matters."""

    start = ""

    def __init__(self, values: frozenset[Decimal]):
        self.texts = {_canonical(f"{value:f}") for value in values}
        spelled = self.texts | ({"-0"} if "0" in self.texts else set())
        self.prefixes = {text[:i] for text in spelled for i in range(len(text) + 1)}
        self.prefixes |= {f"{text}." for text in spelled if "." not in text}

    def step(self, state: str, char: str) -> str | None:
        if char in "eE":
            return None
        if state == "no":
            return state
        text = state + char
        if text in self.prefixes:
            return text
        # Zeros behind the last place: nothing else may follow.
        if char == "0" and state[:1] == "=":
            return state
        if char == "0" and "." in text and _canonical(text) in self.texts:
            return f"={_canonical(text)}"
        return "no"

    def holds(self, state: str) -> bool:
        return state[:1] == "=" or _canonical(state) in self.texts


def _canonical(text: str) -> str:
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


_READERS: dict[str, Any] = {
    "integer": _Integer,
    "compare": _Compare,
    "multiple": _Multiple,
    "numbers": _Numbers,
}

Outcome = tuple[Formula, ...]  # of the formulas, TRUE or FALSE each


def number_automaton(
    logic: Logic, formulas: tuple[Formula, ...], most: int = MOST_STATES
) -> tuple[list[dict[str, int]], list[Outcome | None]]:
    """Return the automaton of the numbers for which the first of `formulas` holds.

    Returns:
        (moves, outcomes): the moves of each state by characters, from state 0, and the
        formulas' values if the number ends there, or None.

    Raises:
        ConstraintError: it needs more than `most` states.
    """
    names = atoms(formulas)
    readers = [_READERS[name[0]](*name[1:]) for name in names]
    start = (_START, tuple(reader.start for reader in readers))
    number, queue = {start: 0}, [start]
    moves: list[dict[str, int]] = []
    outcomes: list[Outcome | None] = []
    for place, states in queue:  # grows while it is read
        outcome = None
        if place in _COMPLETE:
            values = {
                name: TRUE if reader.holds(state) else FALSE
                for name, reader, state in zip(names, readers, states)
            }
            outcome = tuple(logic.replaced(f, values.__getitem__) for f in formulas)
            assert all(value in CONSTANTS for value in outcome)
            if outcome[0] is not TRUE:
                outcome = None
        outcomes.append(outcome)
        row: dict[str, int] = {}
        for char, after in _AFTER[place].items():
            nexts = []
            for reader, state in zip(readers, states):
                following = (
                    state if after in (_E_SIGN, _POWER) else reader.step(state, char)
                )
                if following is None:
                    break
                nexts.append(following)
            else:
                key = (after, tuple(nexts))
                if key not in number:
                    number[key] = len(queue)
                    queue.append(key)
                row[char] = number[key]
        moves.append(row)
        if len(queue) > most:
            raise ConstraintError(
                f"a number's keywords need more than {most} states: use bounds of "
                "fewer digits, or fewer and smaller multipleOf"
            )
    return moves, outcomes
