"""Strings of a schema: which of them are free, words, or an automaton's."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from decoding.automata import string_automata
from decoding.automata.byte_machine import BODY
from decoding.automata.schema_formulas import (
    CONSTANTS,
    FALSE,
    TRUE,
    Formula,
    Logic,
    atoms,
)
from decoding.automata.string_automata import LOST
from decoding.automata.string_spelling import (
    Settled,
    StringWriter,
    together,
    width,
    write_words,
)

if TYPE_CHECKING:
    from decoding.automata.json_schema import Compiler

MOST_COUNTED = 4_000  # states of a pattern beside a counter of characters
LEAST_COUNTED = 64
LEAST_WIDE = 128
Outcome = tuple[bool, ...]
Formulas = tuple[Formula, ...]


class Free(NamedTuple):
    """All strings of `low` to `high` characters, with one outcome."""

    low: int
    high: int
    outcome: Outcome


class Words(NamedTuple):
    """Finitely many strings, each with the values of the tracked formulas."""

    outcomes: dict[str, Outcome]


def automaton(atom: Any) -> string_automata.StringDFA:
    """Return the automaton of an atom of strings."""
    if atom[0] == "words":
        return string_automata.among(atom[1])
    if atom[0] == "pattern":
        return string_automata.searching(atom[1])
    return string_automata.measuring(*atom[1:])


def holds(logic: Logic, formula: Formula, text: str) -> bool:
    """Return whether `formula` holds of the string `text`."""

    def value(atom: Any) -> Formula:
        if atom[0] == "words":
            is_true = text in atom[1]
        elif atom[0] == "pattern":
            is_true = string_automata.matches(automaton(atom), text)
        else:
            is_true = (
                atom[1] <= len(text) <= (len(text) if atom[2] is None else atom[2])
            )
        return TRUE if is_true else FALSE

    return logic.replaced(formula, value) is TRUE


def plan(logic: Logic, formulas: Formulas) -> Free | Words | None:
    """Return how to read the strings of which the first formula holds; else None."""
    wanted = formulas[0]
    lengths = [atom[1:] for atom in atoms(formulas)]
    if all(atom[0] == "length" for atom in atoms(formulas)):
        low = max((least for least, _ in lengths), default=0)
        high = min((most for _, most in lengths if most is not None), default=2**30)
        all_hold = tuple(logic.replaced(f, lambda _: TRUE) for f in formulas)
        parts = wanted.args if wanted.kind == "and" else (wanted,)
        is_exact = all(f in CONSTANTS for f in formulas[1:]) and all(
            part is TRUE or part.kind == "atom" for part in parts
        )
        # Tracked bounds that are wide: strings that none of them forbids are enough.
        is_wide = LEAST_WIDE <= high < 2**30 and low <= 1
        if low <= high and all_hold[0] is TRUE and (is_exact or is_wide):
            return Free(low, high, tuple(f is TRUE for f in all_hold[1:]))
        if is_exact:
            return Words({})
    listed = [atom for atom in atoms([wanted]) if atom[0] == "words"]
    rest = logic.replaced(
        wanted, lambda atom: FALSE if atom[0] == "words" else logic.atom(atom)
    )
    if rest is not FALSE:
        return None
    words = sorted({word for atom in listed for word in atom[1]})
    return Words(
        {
            word: tuple(holds(logic, f, word) for f in formulas[1:])
            for word in words
            if holds(logic, wanted, word)
        }
    )


def _shortened(logic: Logic, formulas: Formulas) -> tuple[Formulas, bool]:
    """Bound the length of strings whose automaton is too large.

    A counter beside a pattern takes their product of states. Long strings are then
    refused, rather than the schema.

    Returns:
        The formulas, and whether all but ASCII's characters must be refused as well.
    """
    names = atoms(formulas)
    lengths = [atom for atom in names if atom[0] == "length"]
    dfas = [automaton(atom) for atom in names if atom[0] != "length"]
    widths = [width(dfa) for dfa in dfas] or [width(string_automata.measuring(0, 1))]
    size, wide = math.prod(len(dfa.moves) for dfa in dfas), max(widths)
    low = max((atom[1] for atom in lengths), default=0)
    high = max((atom[2] for atom in lengths if atom[2] is not None), default=low)
    most = max(2 * low, MOST_COUNTED // (size * wide), LEAST_COUNTED)
    if high <= most:
        return formulas, False
    is_ascii = size * wide * most > 4 * MOST_COUNTED
    if is_ascii:
        most = max(2 * low, MOST_COUNTED // size, LEAST_COUNTED)

    def cut(atom: Any) -> Formula:
        if atom[0] != "length" or atom[2] is None or atom[2] < most:
            return logic.atom(atom)
        return logic.atom(("length", atom[1], None)) if atom[1] else TRUE

    first, *rest = (logic.replaced(f, cut) for f in formulas)
    bounded = logic.all([first, logic.atom(("length", 0, most))])
    return (bounded, *rest), is_ascii


def write(
    compiler: "Compiler",
    how: Free | Words | None,
    formulas: Formulas,
    follow: Callable[[Outcome], int | None] | None,
) -> int | None:
    """Write the states inside a string; return the first, None if there is no string.

    With `follow` the text goes on where it leads. Without, the string is a value of
    its own, with no tracked formula: it may end in STRING's states.
    """
    logic, builder = compiler.logic, compiler.builder

    def behind(outcome: Outcome) -> int | None:
        return compiler.ended(0) if follow is None else follow(outcome)

    if isinstance(how, Words):
        targets = {word: behind(outcome) for word, outcome in how.outcomes.items()}
        return write_words(
            builder, {word: to for word, to in targets.items() if to is not None}
        )
    formulas, is_ascii = _shortened(logic, formulas)
    names = atoms(formulas)
    dfas = [automaton(atom) for atom in names]
    known: dict[tuple, Formulas] = {}

    def decide(values: tuple[bool | None, ...]) -> Formulas:
        if values not in known:
            constants = {
                atom: logic.atom(atom) if value is None else (TRUE if value else FALSE)
                for atom, value in zip(names, values)
            }
            known[values] = tuple(
                logic.replaced(f, constants.__getitem__) for f in formulas
            )
        return known[values]

    def settle(states: tuple[int, ...]) -> Settled | None:
        fates = [d.fate[s] if s >= 0 else False for d, s in zip(dfas, states)]
        decided = decide(tuple(fates))
        if decided[0] is FALSE:
            return Settled(None)
        outcome = compiler.decided(decided)
        if outcome is None:
            return None
        if follow is None:
            return Settled(BODY)
        to = follow(outcome)
        return Settled(None if to is None else compiler.anything(to))

    def close(states: tuple[int, ...]) -> int | None:
        values = [s >= 0 and d.accept[s] for d, s in zip(dfas, states)]
        outcome = compiler.decided(decide(tuple(values)))
        return None if outcome is None else behind(outcome)

    characters, columns = together(dfas)

    def step(states: tuple[int, ...], kind: int) -> tuple[int, ...]:
        return tuple(
            LOST if s == LOST else dfa.moves[s].get(column[kind], LOST)
            for s, dfa, column in zip(states, dfas, columns)
        )

    writer = StringWriter(builder, characters, step, settle, close, is_ascii)
    first = writer.state((0,) * len(dfas))
    writer.finish()
    return first
