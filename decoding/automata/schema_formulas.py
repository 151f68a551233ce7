"""Formulas over atoms, simplified as they are built.

A JSON schema is a formula over atoms: `allOf`, `anyOf`, `oneOf`, `not` and their kin
are its connectives, all other keywords its atoms. While a value is read, atoms become
true or false, and the formula that remains is the state.

A third constant, UNKNOWN, stands for what a text leaves open (a repeated key may or may
not undo a violation). It is neither true nor false, and a value that depends on it is
not accepted.
"""

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any


class Formula:
    """A node of a formula; `Logic` makes each but once, so that `is` compares."""

    __slots__ = ("args", "atom", "kind")

    def __init__(self, kind: str, args: tuple["Formula", ...] = (), atom: Any = None):
        self.kind, self.args, self.atom = kind, args, atom

    def __repr__(self) -> str:
        inner = repr(self.atom) if self.kind == "atom" else repr(list(self.args))
        return self.kind + (inner if self.args or self.atom else "")


TRUE, FALSE, UNKNOWN = Formula("true"), Formula("false"), Formula("unknown")
CONSTANTS = (TRUE, FALSE, UNKNOWN)
_NEGATED = {TRUE: FALSE, FALSE: TRUE, UNKNOWN: UNKNOWN}

Values = Callable[[Any], Formula]  # of an atom


class Logic:
    """The formulas of one schema."""

    def __init__(self) -> None:
        self.atoms: dict[Hashable, Formula] = {}
        self.nodes: dict[tuple, Formula] = {}

    def atom(self, atom: Hashable) -> Formula:
        """Return the formula that is `atom`."""
        if atom not in self.atoms:
            self.atoms[atom] = Formula("atom", (), atom)
        return self.atoms[atom]

    def _node(self, kind: str, args: Collection[Formula]) -> Formula:
        key = (kind, *args)
        if key not in self.nodes:
            self.nodes[key] = Formula(kind, tuple(args))
        return self.nodes[key]

    def _joined(self, kind: str, args: Iterable[Formula], unit: Formula) -> Formula:
        parts: dict[Formula, None] = {}
        for arg in args:
            if arg is _NEGATED[unit]:
                return arg
            if arg.kind == kind:
                parts.update(dict.fromkeys(arg.args))
            elif arg is not unit:
                parts[arg] = None
        if any(part.kind == "not" and part.args[0] in parts for part in parts):
            return _NEGATED[unit]
        if len(parts) == 1:
            return next(iter(parts))
        return self._node(kind, parts) if parts else unit

    def all(self, args: Iterable[Formula]) -> Formula:
        """Return the conjunction of `args`, in their order."""
        return self._joined("and", args, TRUE)

    def any(self, args: Iterable[Formula]) -> Formula:
        """Return the disjunction of `args`, in their order."""
        return self._joined("or", args, FALSE)

    def no(self, arg: Formula) -> Formula:
        """Return the negation of `arg`; it stands before atoms and `one` alone."""
        if arg in _NEGATED:
            return _NEGATED[arg]
        if arg.kind == "not":
            return arg.args[0]
        if arg.kind == "and":
            return self.any(self.no(part) for part in arg.args)
        if arg.kind == "or":
            return self.all(self.no(part) for part in arg.args)
        return self._node("not", (arg,))

    def one(self, args: Iterable[Formula]) -> Formula:
        """Return the formula that holds where exactly one of `args` does."""
        parts: dict[Formula, int] = {}
        for arg in args:
            if arg is not FALSE:
                parts[arg] = parts.get(arg, 0) + 1
        if parts.get(TRUE, 0) > 1:
            return FALSE
        if parts.get(UNKNOWN, 0) > 1:
            return UNKNOWN
        twice = [part for part, count in parts.items() if count > 1]
        once = [part for part, count in parts.items() if count == 1]
        if twice:
            return self.all([*map(self.no, twice), self.one(once)])
        if TRUE in parts:
            return self.all(self.no(part) for part in once if part is not TRUE)
        if len(once) == 1:
            return once[0]
        return self._node("one", once) if once else FALSE

    def replaced(self, formula: Formula, values: Values) -> Formula:
        """Return `formula` with its atoms replaced by `values`, simplified."""
        if formula.kind == "atom":
            return values(formula.atom)
        if not formula.args:
            return formula
        parts = [self.replaced(part, values) for part in formula.args]
        if all(a is b for a, b in zip(parts, formula.args)):
            return formula
        if formula.kind == "and":
            return self.all(parts)
        if formula.kind == "or":
            return self.any(parts)
        return self.no(parts[0]) if formula.kind == "not" else self.one(parts)

    def relaxed(self, formula: Formula, values: Values) -> Formula:
        """Return what must hold if `formula` is to hold later.

        `values` are bounds from above of its atoms; a negated atom may still fail.
        """
        if formula.kind == "atom":
            return values(formula.atom)
        if formula.kind == "not":
            return TRUE
        if formula.kind in ("or", "one"):
            return self.any(self.relaxed(part, values) for part in formula.args)
        if formula.kind == "and":
            return self.all(self.relaxed(part, values) for part in formula.args)
        return FALSE if formula is UNKNOWN else formula

    def certain(self, formula: Formula) -> Formula:
        """Return `formula` without what cannot become true since it is UNKNOWN."""
        if formula is UNKNOWN:
            return FALSE
        if formula.kind == "and":
            return self.all(self.certain(part) for part in formula.args)
        if formula.kind == "or":
            return self.any(self.certain(part) for part in formula.args)
        return formula


def atoms(formulas: Iterable[Formula]) -> list[Any]:
    """Return the atoms of `formulas`, in the order in which they first occur."""
    ordered: dict[Any, None] = {}
    seen: set[Formula] = set()
    todo = list(formulas)[::-1]
    while todo:
        formula = todo.pop()
        if formula in seen:
            continue
        seen.add(formula)
        if formula.kind == "atom":
            ordered[formula.atom] = None
        todo.extend(formula.args[::-1])
    return list(ordered)
