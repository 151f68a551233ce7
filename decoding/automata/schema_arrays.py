"""Arrays of a schema: a state is the items so far and the formulas that remain."""

from typing import TYPE_CHECKING, Any

from decoding.automata.schema_formulas import FALSE, TRUE, Formula, atoms
from decoding.automata.schema_members import behind, tracking

if TYPE_CHECKING:
    from decoding.automata.json_schema import Compiler, Rule

Formulas = tuple[Formula, ...]


class ArrayRule:
    """Writes the states of one kind of arrays."""

    def __init__(self, compiler: "Compiler", rule: "Rule", formulas: Formulas):
        self.compiler, self.rule = compiler, rule
        self.logic = compiler.logic
        self.known: dict[tuple[int, Formulas], int] = {}
        firsts = [a[1] for a in atoms(formulas) if a[0] == "items"]
        self.last = max(map(len, firsts), default=0)  # from here on items are alike
        builder = compiler.builder
        opened = compiler.spaced(builder.state())
        builder.moves[rule.start][ord("[")] = opened
        self._close(opened, formulas)
        self._item(opened, 0, formulas)

    def _close(self, state: int, formulas: Formulas) -> None:
        def value(atom: Any) -> Formula:
            return TRUE if atom[0] == "items" or atom[1] == 0 else FALSE

        ended = tuple(self.logic.replaced(f, value) for f in formulas)
        outcome = self.compiler.decided(ended)
        if outcome is not None:
            label = self.compiler.outcome(self.rule, outcome)
            self.compiler.builder.moves[state][ord("]")] = self.compiler.ended(label)

    def _behind(self, count: int, formulas: Formulas) -> int:
        """Return the state behind an item, `count` of which were read."""
        key = (min(count, self.last), formulas)
        if key not in self.known:
            builder = self.compiler.builder
            state = self.known[key] = self.compiler.spaced(builder.state())
            self._close(state, formulas)

            def more() -> None:
                comma = self.compiler.spaced(builder.state())
                builder.moves[state][ord(",")] = comma
                self._item(comma, key[0], formulas)

            self.compiler.later(more)
        return self.known[key]

    def _item(self, state: int, index: int, formulas: Formulas) -> None:
        """Let `state` read the item at `index`."""
        logic = self.logic

        def progressed(atom: Any) -> Formula:
            if atom[0] == "size":
                _, low, high = atom
                if high == 0:
                    return FALSE
                low, high = max(low - 1, 0), None if high is None else high - 1
                return (
                    TRUE
                    if low == 0 and high is None
                    else logic.atom(("size", low, high))
                )
            item = self._item_of(atom, index)
            return FALSE if item is FALSE else logic.atom(atom)

        after = tuple(logic.replaced(f, progressed) for f in formulas)
        if after[0] is FALSE:
            return
        demands = tracking(logic, after, "items", lambda a: self._item_of(a, index))

        def follow(outcome: tuple[bool, ...]) -> int | None:
            left = behind(logic, after, demands, outcome)
            return None if left[0] is FALSE else self._behind(index + 1, left)

        self.compiler.value(state, demands.wanted, demands.tracked, follow)

    def _item_of(self, atom: Any, index: int) -> Formula:
        _, first, rest = atom
        node = first[index] if index < len(first) else rest
        reader = self.compiler.reader
        if node is reader.true or node is reader.false:
            return TRUE if node is reader.true else FALSE
        return self.logic.atom(node)
