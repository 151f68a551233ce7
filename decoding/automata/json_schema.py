"""JSON schemas as deterministic pushdown automata over bytes.

A value is read by a *rule*: of its kind, of the formula that must hold of it, and of
further formulas whose values its caller needs. Those values are the label with which
the rule ends. JSON's brackets fix where values begin and end, so this is exact: every
text of the machine is an instance of the schema.

Not every instance is a text. Members come in the schema's order (all `properties` in
order of appearance, then names that only `required` has, then free names), as in
llguidance's docs/json_schema.md. A declared name and a string with a pattern have one
spelling. A number with bounds has no exponent. A string whose length is counted beside
a pattern may be at most some hundred characters long, and of ASCII's where that would
still take too many states. Of the free names, which may repeat, one counts towards
`minProperties`.
"""

from collections.abc import Callable
from typing import Any

from decoding.automata import schema_arrays, schema_objects, schema_strings
from decoding.automata.byte_machine import CALL, POP, QUOTE, ByteMachine
from decoding.automata.pushdown import Builder
from decoding.automata.schema_formulas import (
    CONSTANTS,
    FALSE,
    TRUE,
    Formula,
    Logic,
    atoms,
)
from decoding.automata.schema_keywords import KINDS, Keywords
from decoding.automata.schema_numbers import number_automaton
from decoding.automata.schema_reading import Reader
from decoding.automata.string_spelling import write_free
from models.errors import ConstraintError, hint

MOST_STATES = 20_000  # some seconds; with those that contexts add, too
WHITESPACE = {"flexible": b" \t\n\r", "compact": b""}
_FIRST = {
    "null": b"n", "true": b"t", "false": b"f", "number": b"-0123456789", "string": b'"',
    "array": b"[", "object": b"{",
}  # fmt: skip

Outcome = tuple[bool, ...]  # of the tracked formulas
Follow = Callable[[Outcome], int | None]


class Rule:
    """The states that read values of one kind; who calls them, and how they end."""

    def __init__(self, start: int, labels: dict[Outcome, int] | None):
        self.start = start
        self.labels = labels  # shared by all kinds; None: the one label is 0
        self.outcomes: set[Outcome] = set()
        self.callers: list[tuple[int, Follow]] = []


class Compiler:
    """The machine of one schema, under construction."""

    def __init__(self, schema: Any, whitespace: str, strict_formats: bool):
        self.reader = Reader(schema)
        self.logic = Logic()
        self.keywords = Keywords(self.reader, self.logic, strict_formats)
        self.builder = Builder(MOST_STATES)
        self.space = WHITESPACE[whitespace]
        self.rules: dict[tuple, Rule] = {}
        self.labels: dict[tuple[Formula, ...], dict[Outcome, int]] = {}
        self.todo: list[tuple[str, Callable[[], None]]] = []
        self.path = ""
        self.over: dict[int, int] = {}
        self.free: dict[int, int] = {}
        self.of_kind: dict[tuple[Formula, str], Formula] = {}
        self.orders: dict[Any, Any] = {}

    def compile(self) -> ByteMachine:
        """Build and trim the machine."""
        over = self.builder.state(ends=0)
        start = self.builder.state()
        self.value(start, self.logic.atom(self.reader.root), (), lambda _: over)
        while self.todo:
            self.path, build = self.todo.pop()
            build()
        self.path = ""
        return self.builder.machine(start)

    def later(self, build: Callable[[], None]) -> None:
        """Call `build` once the states under construction are complete."""
        self.todo.append((self.path, build))

    def ended(self, label: int) -> int:
        """Return the state in which a value of `label` is over."""
        if label not in self.over:
            self.over[label] = self.builder.state(ends=label)
        return self.over[label]

    def anything(self, to: int) -> int:
        """Return the state inside a string of which all may follow, and then `to`."""
        if to not in self.free:
            self.free[to] = write_free(self.builder, to)
        return self.free[to]

    def spaced(self, state: int) -> int:
        """Let `state` read white space, and return it."""
        self.builder.read(state, self.space, state)
        return state

    def specialised(self, formula: Formula, kind: str) -> Formula:
        """Return a formula over nodes as one over the atoms of `kind`."""
        key = (formula, kind)
        if key not in self.of_kind:
            self.of_kind[key] = self.logic.replaced(
                formula, lambda node: self.keywords.formula(node, kind)
            )
        return self.of_kind[key]

    def value(
        self, state: int, wanted: Formula, tracked: tuple[Formula, ...], follow: Follow
    ) -> None:
        """Let `state` read a value for which `wanted` holds.

        Args:
            state: gets the moves; it calls nothing else.
            wanted: over nodes; it must hold of the value.
            tracked: over nodes; `follow` gets their values.
            follow: where the text goes on behind the value; None: it does not.
        """
        before = self.path
        nodes = atoms([wanted, *tracked])
        self.path = next((node.path for node in nodes if node.path), before)
        labels = self.labels.setdefault(tracked, {}) if tracked else None
        for kind in KINDS:
            holds = self.specialised(wanted, kind)
            if holds is not FALSE:
                others = [self.specialised(f, kind) for f in tracked]
                others = [self._given(f, holds) for f in others]
                self._kind(state, kind, (holds, *others), labels, follow)
        self.path = before

    def _given(self, formula: Formula, holds: Formula) -> Formula:
        """Return `formula` of a value of which `holds` must be true."""
        parts = holds.args if holds.kind == "and" else (holds,)
        sure = {part.atom for part in parts if part.kind == "atom"}
        return self.logic.replaced(
            formula, lambda atom: TRUE if atom in sure else self.logic.atom(atom)
        )

    def _kind(self, state: int, kind: str, formulas, labels, follow: Follow) -> None:
        if kind == "string":
            plan = schema_strings.plan(self.logic, formulas)
            if isinstance(plan, schema_strings.Free):
                self._free_string(state, plan, follow)
                return
            if labels is not None:
                # Strings end where they are read: no label limits their number.
                inside = schema_strings.write(self, plan, formulas, follow)
                if inside is not None:
                    self.builder.moves[state][ord('"')] = inside
                return
        rule = self.rule(kind, formulas, labels)
        self.builder.read(state, _FIRST[kind], CALL + rule.start)
        rule.callers.append((state, follow))
        for outcome in rule.outcomes:
            self._connect(rule, outcome, state, follow)

    def _free_string(
        self, state: int, plan: schema_strings.Free, follow: Follow
    ) -> None:
        to = follow(plan.outcome)
        if to is not None:
            self.builder.moves[state][ord('"')] = CALL + QUOTE
            self.builder.span[state] = (plan.low, plan.high)
            self.builder.back[state][0] = to

    def rule(self, kind: str, formulas: tuple[Formula, ...], labels) -> Rule:
        """Return the rule of `kind` that reads values with these `formulas`."""
        key = (kind, formulas, id(labels) if labels is not None else 0)
        if key not in self.rules:
            self.rules[key] = rule = Rule(self.builder.state(), labels)
            self.later(lambda: self._write(rule, kind, formulas))
        return self.rules[key]

    def _write(self, rule: Rule, kind: str, formulas: tuple[Formula, ...]) -> None:
        if kind == "object":
            schema_objects.ObjectRule(self, rule, formulas)
        elif kind == "array":
            schema_arrays.ArrayRule(self, rule, formulas)
        elif kind == "number":
            self._number(rule, formulas)
        elif kind == "string":
            plan = schema_strings.plan(self.logic, formulas)
            inside = schema_strings.write(self, plan, formulas, None)
            if inside is not None:
                self.builder.moves[rule.start][ord('"')] = inside
            self.outcome(rule, ())
        else:
            label = self.outcome(rule, tuple(f is TRUE for f in formulas[1:]))
            last = self.builder.text(rule.start, kind[:-1].encode())
            self.builder.moves[last][ord(kind[-1])] = self.ended(label)

    def _number(self, rule: Rule, formulas: tuple[Formula, ...]) -> None:
        moves, outcomes = number_automaton(self.logic, formulas)
        states = [rule.start]
        for outcome in outcomes[1:]:
            label = -1
            if outcome is not None:
                label = self.outcome(rule, tuple(f is TRUE for f in outcome[1:]))
            states.append(self.builder.state(final=label))
        for state, row in zip(states, moves):
            for char, to in row.items():
                self.builder.moves[state][ord(char)] = states[to]
            if self.builder.final[state] >= 0:
                self.builder.otherwise(state, POP + self.builder.final[state])

    def outcome(self, rule: Rule, outcome: Outcome) -> int:
        """Return the label of a value of `rule` that ends with `outcome`."""
        if outcome not in rule.outcomes:
            rule.outcomes.add(outcome)
            if rule.labels is not None:
                # 0 is a free string's.
                rule.labels.setdefault(outcome, len(rule.labels) + 1)
            for state, follow in rule.callers:
                self._connect(rule, outcome, state, follow)
        return 0 if rule.labels is None else rule.labels[outcome]

    def _connect(
        self, rule: Rule, outcome: Outcome, state: int, follow: Follow
    ) -> None:
        to = follow(outcome)
        if to is not None:
            label = 0 if rule.labels is None else rule.labels[outcome]
            self.builder.back[state][label] = to

    def decided(self, formulas: tuple[Formula, ...]) -> Outcome | None:
        """Return the outcome; None if the first is not true, or any is open."""
        if formulas[0] is not TRUE or any(f not in CONSTANTS[:2] for f in formulas):
            return None
        return tuple(f is TRUE for f in formulas[1:])


def compile_schema(
    schema: Any, whitespace: str = "flexible", strict_formats: bool = False
) -> ByteMachine:
    """Build the machine of the JSON texts that are instances of `schema`.

    Args:
        schema: as `json.loads` returns it.
        whitespace: "flexible" (any, between tokens) or "compact" (none).
        strict_formats: whether a format that is not enforced is an error.

    Raises:
        ConstraintError: a keyword cannot be enforced exactly, the schema is malformed,
            or it is too large. It names the place in the schema and the remedy.
    """
    if whitespace not in WHITESPACE:
        known = " or ".join(map(repr, WHITESPACE))
        raise ConstraintError(
            f"whitespace is {whitespace!r}{hint(whitespace, WHITESPACE)}: use {known}"
        )
    compiler = None
    try:
        compiler = Compiler(schema, whitespace, strict_formats)
        return compiler.compile()
    except RecursionError:
        problem = "schemas are nested too deep: move inner ones into $defs"
    except ConstraintError as error:
        if str(error).startswith("the JSON schema"):
            raise
        problem = str(error)
    path = compiler.path if compiler else ""
    raise ConstraintError(f"the JSON schema at {path or '/'}: {problem}")
