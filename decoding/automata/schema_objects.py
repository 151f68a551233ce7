"""Objects of a schema: a state is the next name and the formulas that remain.

Declared names come in order, each at most once; then come free names, which may repeat.
A free name is read through a trie of the declared ones, so that it is none of them, and
leaves it for the states of STRING.
"""

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from decoding.automata.byte_machine import BODY, CALL, ESCAPE, QUOTE
from decoding.automata.schema_formulas import FALSE, TRUE, UNKNOWN, Formula, atoms
from decoding.automata.schema_keywords import Count, Members
from decoding.automata.schema_members import GONE, behind, tracking
from decoding.automata.schema_names import HEXES, Classes, Node, Order
from decoding.automata.schema_strings import holds
from decoding.automata.string_spelling import (
    QUOTE_BYTE,
    SLASH_BYTE,
    Settled,
    StringWriter,
)

if TYPE_CHECKING:
    from decoding.automata.json_schema import Compiler, Rule

Formulas = tuple[Formula, ...]


class ObjectRule:
    """Writes the states of one kind of objects."""

    def __init__(self, compiler: "Compiler", rule: "Rule", formulas: Formulas):
        self.compiler, self.rule = compiler, rule
        self.logic, self.builder = compiler.logic, compiler.builder
        self.order = Order(compiler.logic, formulas)
        self.known: dict[tuple, int] = {}
        self.after: dict[tuple, Formulas] = {}
        self.demands: dict[tuple, Formula] = {}
        self.needs: dict[Formulas, list[int]] = {}
        self.lasts: dict[Formulas, int] = {}
        self.writers: dict[Formulas, StringWriter] = {}
        self.escapes: dict[tuple, int] = {}
        opened = compiler.spaced(self.builder.state())
        self.builder.moves[rule.start][ord("{")] = opened
        self._close(opened, formulas)
        self._name(opened, 0, formulas)

    # What remains of the formulas.

    def _demand(self, members: Members, key: int | Classes) -> Formula:
        """Return what `members` demands of the value of a name, over nodes."""
        known = (id(members), key)
        if known not in self.demands:
            logic, reader = self.logic, self.compiler.reader
            nodes = []
            if isinstance(key, int):
                name = self.order.names[key]
                nodes = [node for word, node in members.declared if word == name]
                nodes += [n for p, n in members.patterns if holds(logic, p, name)]
            else:
                nodes = [node for p, node in members.patterns if p in key]
            parts = []
            for node in nodes or [members.rest]:
                if node is reader.false:
                    parts.append(FALSE)
                elif node is not reader.true:
                    parts.append(logic.atom(node))
            self.demands[known] = logic.all(parts)
        return self.demands[known]

    def _seen(self, formulas: Formulas, key: int | Classes) -> Formulas:
        """Return what remains behind a name: a declared one, or one of free classes."""
        known = (formulas, key)
        if known in self.after:
            return self.after[known]
        logic = self.logic
        name = self.order.names[key] if isinstance(key, int) else None
        is_free = name is None

        def value(atom: Any) -> Formula:
            if atom[0] == "members":
                fails = self._demand(atom[1], key) is FALSE
                return FALSE if fails else logic.atom(atom)
            if atom[0] == "required":
                if name not in atom[1]:
                    return logic.atom(atom)
                left = tuple(word for word in atom[1] if word != name)
                return logic.atom(("required", left)) if left else TRUE
            if atom == GONE:
                return UNKNOWN if is_free else logic.atom(atom)
            return self._counted(atom[1], is_free)

        first, *rest = (logic.replaced(f, value) for f in formulas)
        self.after[known] = (logic.certain(first), *rest)
        return self.after[known]

    def _counted(self, count: Count, is_free: bool) -> Formula:
        low, high, least, most, was_free = count
        # A free name may repeat one before it.
        least += not (is_free and was_free)
        most += 1
        if high is not None and least > high:
            return FALSE
        if high is None and least >= low:
            return TRUE
        if high is not None and most > high:
            most, least = high + 1, min(least, high)
        elif high is None:
            most = min(most, low)
        return self.logic.atom(
            ("count", Count(low, high, least, most, is_free or was_free))
        )

    def _passed(self, formulas: Formulas, last: int) -> Formulas:
        """Return what remains if no declared name before `last` can follow."""
        for index in self._needed(formulas):
            if index >= last:
                break
            formulas = self._missed(formulas, index)
            if formulas[0] is FALSE:
                break
        return formulas

    def _needed(self, formulas: Formulas) -> list[int]:
        if formulas not in self.needs:
            names = {n for a in atoms(formulas) if a[0] == "required" for n in a[1]}
            self.needs[formulas] = sorted(self.order.index[name] for name in names)
        return self.needs[formulas]

    def _missed(self, formulas: Formulas, index: int) -> Formulas:
        known = (formulas, ~index)
        if known not in self.after:
            name, logic = self.order.names[index], self.logic
            self.after[known] = tuple(
                logic.replaced(
                    f,
                    lambda a: (
                        FALSE if a[0] == "required" and name in a[1] else logic.atom(a)
                    ),
                )
                for f in formulas
            )
        return self.after[known]

    def _without_spent(self, formulas: Formulas, first: int) -> Formulas:
        """Return `formulas` without what no name from `first` on can violate.

        Alternatives that differ in names before `first` alone are equal from there.
        What must hold on its own stays: without it, states would be shared less.
        """
        known = ("spent", formulas, first)
        if known not in self.after:
            parts = [p for f in formulas for p in (f.args if f.kind == "and" else (f,))]
            alone = {part.atom for part in parts if part.kind == "atom"}
            spent = {
                atom
                for atom in atoms(formulas)
                if atom[0] == "members"
                and atom not in alone
                and not atom[1].patterns
                and atom[1].rest is self.compiler.reader.true
                and all(self.order.index[name] < first for name, _ in atom[1].declared)
            }
            self.after[known] = tuple(
                self.logic.replaced(
                    f, lambda a: TRUE if a in spent else self.logic.atom(a)
                )
                if spent
                else f
                for f in formulas
            )
        return self.after[known]

    def _close(self, state: int, formulas: Formulas) -> None:
        """Let `state` read the closing brace, if the object may end there."""

        def value(atom: Any) -> Formula:
            if atom[0] == "members":
                return TRUE
            if atom[0] != "count":
                return FALSE  # a name that is missing, a violation that lasts
            low, high, least, most, _ = atom[1]
            if least >= low and (high is None or most <= high):
                return TRUE
            return UNKNOWN if most >= low else FALSE

        outcome = self.compiler.decided(
            tuple(self.logic.replaced(f, value) for f in formulas)
        )
        if outcome is not None:
            label = self.compiler.outcome(self.rule, outcome)
            self.builder.moves[state][ord("}")] = self.compiler.ended(label)

    # States.

    def _behind(self, first: int, formulas: Formulas) -> int:
        """Return the state behind a member; names before `first` cannot follow."""
        formulas = self._without_spent(formulas, first)
        key = ("behind", first, formulas)
        if key not in self.known:
            builder, compiler = self.builder, self.compiler
            state = self.known[key] = compiler.spaced(builder.state())
            self._close(state, formulas)

            def more() -> None:
                comma = compiler.spaced(builder.state())
                builder.moves[state][ord(",")] = comma
                self._name(comma, first, formulas)

            compiler.later(more)
        return self.known[key]

    def _named(self, key: int | Classes, formulas: Formulas) -> int | None:
        """Return the state behind a name, before its colon; None: it cannot stand."""
        last = key if isinstance(key, int) else len(self.order.names)
        formulas = self._without_spent(self._passed(formulas, last), last)
        formulas = self._seen(formulas, key)
        if formulas[0] is FALSE:
            return None
        known = ("named", key, formulas)
        if known not in self.known:
            builder, compiler = self.builder, self.compiler
            self.known[known] = compiler.spaced(builder.state())

            def more() -> None:
                state = compiler.spaced(builder.state())
                builder.moves[self.known[known]][ord(":")] = state
                self._value(state, key, formulas)

            compiler.later(more)
        return self.known[known]

    def _value(self, state: int, key: int | Classes, formulas: Formulas) -> None:
        demands = tracking(
            self.logic, formulas, "members", lambda atom: self._demand(atom[1], key)
        )
        is_free = not isinstance(key, int)
        first = key + 1 if isinstance(key, int) else len(self.order.names)

        def follow(outcome: tuple[bool, ...]) -> int | None:
            left = behind(self.logic, formulas, demands, outcome, is_free)
            return None if left[0] is FALSE else self._behind(first, left)

        self.compiler.value(state, demands.wanted, demands.tracked, follow)

    def _name(self, state: int, first: int, formulas: Formulas) -> None:
        """Let `state` read a name of `first` on, or a free one."""
        row = self.builder.moves[state]
        if self.order.patterns:
            to = self._by_patterns(first, formulas)
            if to is not None:
                row[QUOTE_BYTE] = to
            return
        free = self._named(frozenset(), formulas)
        if not self.order.names:
            if free is not None:
                row[QUOTE_BYTE] = CALL + QUOTE
                self.builder.back[state][0] = free
            return
        to = self._in_trie(0, first, formulas, free)
        if to is not None:
            row[QUOTE_BYTE] = to

    def _last(self, formulas: Formulas) -> int:
        """Return the first name that must not be missed: the last that may follow."""
        if formulas not in self.lasts:
            self.lasts[formulas] = next(
                (
                    i
                    for i in self._needed(formulas)
                    if self._missed(formulas, i)[0] is FALSE
                ),
                len(self.order.names),
            )
        return self.lasts[formulas]

    def _in_trie(
        self, place: int, first: int, formulas: Formulas, free: int | None
    ) -> int | None:
        """Return the state inside a name; None if none can follow.

        `free` is the state behind a free name.
        """
        node = self.order.trie[place]
        at = bisect_left(node.below, first)
        if free is None or node.inside in HEXES:
            if at == len(node.below) or node.below[at] > self._last(formulas):
                return None
        key = ("trie", place, at, formulas)
        if key not in self.known:
            state = self.known[key] = self.builder.state()
            self.compiler.later(
                lambda: self._write_node(state, node, first, formulas, free)
            )
        return self.known[key]

    def _write_node(
        self, state: int, node: Node, first: int, formulas: Formulas, free: int | None
    ) -> None:
        row = self.builder.moves[state]
        if free is not None and node.inside not in HEXES:
            # What no name goes on with leaves the trie: STRING reads it.
            self.builder.back[state][0] = free
            row.update(
                dict.fromkeys(self.builder.moves[node.inside], CALL + node.inside)
            )
            if node.inside == BODY:
                row[QUOTE_BYTE] = free
                row[SLASH_BYTE] = self._escape(ord("/") not in node.children, free)
            elif node.inside == ESCAPE:
                for byte in b"u/" if node.has_slash else b"u":
                    row.pop(byte, None)
        if node.name:
            to = self._named(node.name[0], formulas) if node.name[0] >= first else None
            row.pop(QUOTE_BYTE, None)
            if to is not None:
                row[QUOTE_BYTE] = to
        for byte, child in node.children.items():
            row.pop(byte, None)
            to = self._in_trie(child, first, formulas, free)
            if to is not None:
                row[byte] = to

    def _escape(self, has_slash: bool, free: int) -> int:
        """Return the state behind the backslash of a character of no name.

        Escapes by number are not read: they may spell a character of a name.
        """
        key = (has_slash, free)
        if key not in self.escapes:
            state = self.escapes[key] = self.builder.state()
            letters = b'"\\bfnrt/' if has_slash else b'"\\bfnrt'
            self.builder.read(state, letters, CALL + ESCAPE)
            self.builder.back[state][0] = free
        return self.escapes[key]

    def _by_patterns(self, first: int, formulas: Formulas) -> int | None:
        """Return the state inside a name of which patterns matter."""
        automaton = self.order.patterned
        if formulas not in self.writers:
            self.writers[formulas] = StringWriter(
                self.builder,
                automaton.characters,
                automaton.step,
                lambda at: self._settled(automaton.settled[at[0]], formulas),
                lambda at: self._closed(at, formulas),
            )
        writer = self.writers[formulas]
        state = writer.state(automaton.place(0, first))
        writer.finish()
        return state

    def _settled(self, kind: Classes | None, formulas: Formulas) -> Settled | None:
        if kind is None:
            return None
        to = self._named(kind, formulas)
        return Settled(None if to is None else self.compiler.anything(to))

    def _closed(self, at: tuple[int, int], formulas: Formulas) -> int | None:
        state, first = at
        key = self.order.patterned.closed[state]
        if isinstance(key, int) and key < first:
            return None
        return self._named(key, formulas)
