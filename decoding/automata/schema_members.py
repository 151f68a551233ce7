"""What the values inside an array or object must be, for formulas to hold of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

from decoding.automata.schema_formulas import FALSE, TRUE, Formula, Logic, atoms

Formulas = tuple[Formula, ...]
GONE = ("gone",)  # violated by a member whose name may repeat: false if none follows


class Tracking(NamedTuple):
    """The formulas of an inner value."""

    wanted: Formula  # must hold, else the first outer formula fails
    tracked: Formulas
    users: tuple[tuple[Any, ...], ...]  # atoms that each tracked one violates


def tracking(
    logic: Logic, formulas: Formulas, name: str, inner: Callable[[Any], Formula]
) -> Tracking:
    """Return the formulas of an inner value.

    Args:
        logic: has the formulas.
        formulas: of the array or object; the first must hold.
        name: of the atoms that inner values violate.
        inner: what each such atom demands of the value, over nodes.
    """

    def bound(atom: Any) -> Formula:
        if atom == GONE:
            return FALSE
        return inner(atom) if atom[0] == name else TRUE

    wanted = logic.relaxed(formulas[0], bound)
    first = formulas[0]
    needed = {part.atom for part in (first.args if first.kind == "and" else [first])}
    sure = {TRUE, *(inner(atom) for atom in needed if atom and atom[0] == name)}
    users: dict[Formula, list[Any]] = {}
    for atom in atoms(formulas):
        if atom[0] == name:
            demand = inner(atom)
            if demand not in sure:
                users.setdefault(demand, []).append(atom)
    return Tracking(wanted, tuple(users), tuple(map(tuple, users.values())))


def behind(
    logic: Logic,
    formulas: Formulas,
    tracked: Tracking,
    outcome: tuple[bool, ...],
    is_free: bool = False,
) -> Formulas:
    """Return what remains of `formulas` behind an inner value with `outcome`.

    `is_free`: it is a member whose name may repeat, so that a violation may not last.
    """
    failed = {
        atom
        for atoms_, holds in zip(tracked.users, outcome)
        if not holds
        for atom in atoms_
    }
    if not failed:
        return formulas
    value = logic.atom(GONE) if is_free else FALSE
    first, *rest = (
        logic.replaced(f, lambda atom: value if atom in failed else logic.atom(atom))
        for f in formulas
    )
    return (_without_gone(logic, first), *rest)


def _without_gone(logic: Logic, formula: Formula) -> Formula:
    """Return `formula` with GONE false where it would have to be true."""
    if formula.kind == "atom":
        return FALSE if formula.atom == GONE else formula
    if formula.kind == "and":
        return logic.all(_without_gone(logic, part) for part in formula.args)
    if formula.kind == "or":
        return logic.any(_without_gone(logic, part) for part in formula.args)
    return formula
