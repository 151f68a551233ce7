"""decoding/automata/schema_numbers.py against exact decimals."""

import random
from decimal import Decimal

import pytest

from decoding.automata import schema_numbers
from decoding.automata.schema_formulas import Logic
from decoding.automata.schema_numbers import number_automaton
from models.errors import ConstraintError

_BOUNDS = [
    Decimal(text) for text in ("0", "1", "-1", "10", "99", "12.5", "-3.75", "0.05")
]


def _holds(atom, value) -> bool:
    if atom[0] == "integer":
        return value == value.to_integral_value()
    if atom[0] == "compare":
        return (value > atom[1]) - (value < atom[1]) in atom[2]
    if atom[0] == "multiple":
        return value * 10 ** atom[2] % atom[1] == 0
    return value in atom[1]


def _atom(rng):
    return rng.choice(
        [
            ("integer", False),
            ("compare", rng.choice(_BOUNDS), frozenset(rng.sample([-1, 0, 1], 2))),
            ("multiple", rng.choice([1, 3, 25]), rng.choice([0, 1, 2])),
            ("numbers", frozenset(rng.sample(_BOUNDS, 3))),
        ]
    )


def _text(rng) -> str:
    if rng.random() < 0.3:
        return f"{rng.choice(_BOUNDS):.{rng.randrange(2, 5)}f}"
    text = rng.choice(["", "-"]) + str(rng.randrange(10 ** rng.randrange(1, 4)))
    if rng.random() < 0.5:
        text += "." + "".join(rng.choices("00125", k=rng.randrange(1, 4)))
    return text + (f"e{rng.randrange(-2, 3)}" if rng.random() < 0.2 else "")


def _accepts(logic, formula, text) -> bool:
    return _reads(*number_automaton(logic, (formula,), 10_000), text)


def _reads(moves, outcomes, text) -> bool:
    state = 0
    for char in text:
        if char not in moves[state]:
            return False
        state = moves[state][char]
    return outcomes[state] is not None


def _wrong() -> tuple[int, int]:
    """Return counts of numbers: wrong verdicts, refused since there is an exponent."""
    rng = random.Random(0)
    wrong = refused = 0
    for _ in range(200):
        logic, atoms = Logic(), [_atom(rng), _atom(rng)]
        formula = logic.all([logic.atom(atoms[0]), logic.no(logic.atom(atoms[1]))])
        automaton = number_automaton(logic, (formula,), 10_000)
        for text in [_text(rng) for _ in range(20)]:
            value = Decimal(text)
            valid = _holds(atoms[0], value) and not _holds(atoms[1], value)
            read = _reads(*automaton, text)
            if "e" in text and valid and not read:
                refused += 1
            else:
                wrong += valid != read
    return wrong, refused


def test_verdicts_are_those_of_decimals():
    wrong, refused = _wrong()
    assert wrong == 0 and refused > 0


def test_fault_zeros_that_change_a_number(monkeypatch):
    """Planted: 1.50 is not taken for 1.5."""
    monkeypatch.setattr(schema_numbers, "_canonical", lambda text: text)
    assert _wrong()[0] > 0


@pytest.mark.parametrize("text", ["-0", "1e5", "1E-3", "0.10", "-1.5e+10"])
def test_free_numbers_are_those_of_json(text):
    logic = Logic()
    assert _accepts(logic, logic.all([]), text)
    assert not _accepts(logic, logic.all([]), f"{text}.")
    assert not _accepts(logic, logic.all([]), f"+{text}")


def test_signs_hold_whatever_the_exponent():
    logic = Logic()
    positive = logic.atom(("compare", Decimal(0), frozenset([0, 1])))
    assert _accepts(logic, positive, "1e-7") and not _accepts(logic, positive, "-1e-7")


def test_bounds_of_64_bits_take_few_states():
    logic = Logic()
    low = logic.atom(("compare", Decimal(-(2**63)), frozenset([0, 1])))
    high = logic.atom(("compare", Decimal(2**63 - 1), frozenset([0, -1])))
    both = logic.all([low, high])
    assert len(number_automaton(logic, (both,), 1_000)[0]) < 200
    assert _accepts(logic, both, str(2**63 - 1)) and not _accepts(
        logic, both, str(2**63)
    )


@pytest.mark.parametrize(
    "atom", [("multiple", 10**6, 0), ("compare", Decimal("1e500"), {0})]
)
def test_too_large(atom):
    logic = Logic()
    atom = tuple(frozenset(part) if isinstance(part, set) else part for part in atom)
    with pytest.raises(ConstraintError):
        number_automaton(logic, (logic.atom(atom),), 1_000)
