"""Networks of a grammar's rules: Thompson's construction over bytes.

Repetitions, and what stands between two literals, become rules of their own where they
call one: so that a later choice of calls (`call_sites`) can push at a bracket and
return before its other half. Each terminal of Lark is a rule, with what is ignored
behind it.
"""

from decoding.automata.grammar_rules import (
    Call,
    Chars,
    Choice,
    Expression,
    Form,
    Grammar,
    Lexeme,
    Repeat,
    Sequence,
    Text,
    byte_ranges,
)
from decoding.automata.networks import BYTES, Network, loops, mask_of, without_empty


def network_of(grammar: Grammar) -> Network:
    """Build the network; rule 0 is the whole text.

    Raises:
        ConstraintError: it is too large.
    """
    thompson = _Thompson(grammar)
    return loops(without_empty(thompson.net))


class _Thompson:
    """Step 1. Rule 0 calls the grammar's start."""

    def __init__(self, grammar: Grammar) -> None:
        self.net, self.grammar = Network(), grammar
        self.net.rule("the text")
        self.rules = {name: self.net.rule(name) for name in grammar.rules}
        self.inner: dict[Expression, int] = {}
        self.lexemes: dict[str, int] = {}
        self.ignored: int | None = None
        first = self.net.start[0]
        if grammar.ignored:
            first = self.pass_over(first, 0)
        self.net.calls[first].append((self.rules[grammar.start], self.net.end[0]))
        for name, rule in self.rules.items():
            self.fill(rule, grammar.rules[name])

    def fill(self, rule: int, expression: Expression) -> None:
        net = self.net
        net.silent[self.add(expression, net.start[rule], rule)].append(net.end[rule])

    def add(self, part: Expression, at: int, rule: int) -> int:
        """Append `part` to the state `at`; return the state behind it."""
        net = self.net
        if isinstance(part, Text):
            for byte in part.data:
                after = net.state(rule)
                net.reads[at].append((1 << byte, after))
                at = after
            return at
        if isinstance(part, Chars):
            return self.characters(part, at, rule)
        if isinstance(part, Call):
            return self.call(self.rules[part.name], at, rule)
        if isinstance(part, Lexeme):
            return self.lexeme(part.name, at, rule)
        if isinstance(part, Choice):
            end = net.state(rule)
            for item in part.items:
                start = net.state(rule)
                net.silent[at].append(start)
                net.silent[self.add(item, start, rule)].append(end)
            return end
        if isinstance(part, Repeat):
            return self.repeat(part, at, rule)
        for item in _runs(part):
            at = self.nested(item, at, rule)
        return at

    def call(self, callee: int, at: int, rule: int) -> int:
        after = self.net.state(rule)
        self.net.calls[at].append((callee, after))
        return after

    def nested(self, part: Expression, at: int, rule: int) -> int:
        """Append `part`, as a rule of its own if it calls one."""
        if not isinstance(part, Sequence | Choice | Repeat) or not _is_calling(part):
            return self.add(part, at, rule)
        if part not in self.inner:
            self.inner[part] = self.net.rule(self.net.names[rule])
            self.fill(self.inner[part], part)
        return self.call(self.inner[part], at, rule)

    def repeat(self, part: Repeat, at: int, rule: int) -> int:
        net = self.net
        for _ in range(part.low):
            at = self.nested(part.item, at, rule)
        if part.high is None:
            loop = net.state(rule)
            net.silent[at].append(loop)
            net.silent[self.nested(part.item, loop, rule)].append(loop)
            after = net.state(rule)  # so that a later loop is not entered from here
            net.silent[loop].append(after)
            return after
        end = net.state(rule)
        net.silent[at].append(end)
        for _ in range(part.high - part.low):
            at = self.nested(part.item, at, rule)
            net.silent[at].append(end)
        return end

    def characters(self, part: Chars, at: int, rule: int) -> int:
        net, end = self.net, self.net.state(rule)
        behind: dict[Form, int] = {
            (): end
        }  # the bytes that are still to be read -> state
        edges: dict[tuple[int, int], int] = {}

        def put(state: int, low: int, high: int, after: int) -> None:
            edges[state, after] = edges.get((state, after), 0) | (
                (1 << high + 1) - (1 << low)
            )

        for low, high in part.spans:
            for form in byte_ranges(low, high):
                for i in range(len(form) - 1, 0, -1):
                    if form[i:] not in behind:
                        behind[form[i:]] = net.state(rule)
                        put(behind[form[i:]], *form[i], behind[form[i + 1 :]])
                put(at, *form[0], behind[form[1:]])
        for (state, after), mask in edges.items():
            net.reads[state].append((mask, after))
        return end

    def lexeme(self, name: str, at: int, rule: int) -> int:
        """Append a call of the terminal `name`, with what is ignored behind it."""
        if name not in self.lexemes:
            self.lexemes[name] = lexeme = self.net.rule(name)
            self.net.lexemes.add(lexeme)
            end = self.terminal(name, self.net.start[lexeme], lexeme)
            if self.grammar.ignored:
                end = self.pass_over(end, lexeme)
            self.net.silent[end].append(self.net.end[lexeme])
        return self.call(self.lexemes[name], at, rule)

    def terminal(self, name: str, at: int, rule: int) -> int:
        """Append the terminal's automaton; it ends where no byte extends it.

        A pattern's states count the literals that its text may still become.
        """
        net, terminals = self.net, self.grammar.terminals
        terminal, end = terminals[name], self.net.state(rule)
        words = (
            []
            if terminal.is_literal
            else [other for other, t in terminals.items() if t.is_literal]
        )
        first = (0, tuple((word, 0) for word in words))
        states, todo = {first: net.state(rule)}, [first]
        net.silent[at].append(states[first])
        for key in todo:  # grows while it is read
            state, rest = key
            going: dict[tuple, int] = {}
            row = terminal.next[state]
            for byte in BYTES:
                if row[byte] >= 0:
                    alive = (
                        (word, int(terminals[word].next[at_word, byte]))
                        for word, at_word in rest
                    )
                    after = (int(row[byte]), tuple(w for w in alive if w[1] >= 0))
                    going[after] = going.get(after, 0) | 1 << byte
            for after, mask in going.items():
                if after not in states:
                    states[after] = net.state(rule)
                    todo.append(after)
                net.reads[states[key]].append((mask, states[after]))
            if terminal.accept[state]:
                longer = sum(going.values())
                equal = {w for w, at_word in rest if terminals[w].accept[at_word]}
                net.guards[states[key]].append((longer, end, frozenset(equal)))
                if terminal.is_literal:
                    net.literal[states[key]] = name
            net.longer[states[key]] = mask_of(
                byte for byte in BYTES if row[byte] >= 0 and terminal.accept[row[byte]]
            )
        return end

    def pass_over(self, at: int, rule: int) -> int:
        """Append a call of what is ignored, any number of times."""
        if self.ignored is None:
            self.ignored = self.net.rule("what is ignored")
            first = self.net.start[self.ignored]
            for name in self.grammar.ignored:
                end = self.terminal(name, first, self.ignored)
                self.net.silent[end].append(first)
            self.net.silent[first].append(self.net.end[self.ignored])
        return self.call(self.ignored, at, rule)


def _is_calling(part: Expression) -> bool:
    if isinstance(part, Sequence | Choice):
        return any(map(_is_calling, part.items))
    return isinstance(part, Call) or (
        isinstance(part, Repeat) and _is_calling(part.item)
    )


def _runs(part: Sequence) -> list[Expression]:
    """Join the items that stand between two literals into one."""
    runs: list[Expression] = []
    run: list[Expression] = []
    for item in part.items:
        is_fixed = isinstance(item, Text | Chars | Lexeme)
        if not is_fixed:
            run.append(item)
            continue
        runs += [Sequence(tuple(run))] if len(run) > 1 and runs else run
        runs.append(item)
        run = []
    return runs + run
