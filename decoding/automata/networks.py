"""Transition networks: each rule as a nondeterministic automaton that calls others.

From the rules of a grammar, in three steps:

1. Thompson's construction over bytes. Repetitions, and what stands between two
   literals, become rules of their own where they call one: so that a later choice of
   calls (`call_sites.py`) can push at a bracket and return before its other half.
2. No rule reads the empty text: a call of one that may is also passed over. So a call
   at a network's start is left recursion, and nothing else is.
3. Left recursion becomes a loop. The rules that begin with each other are copied into
   one network; where one of them ends, it goes on behind each of its left calls:
   A = A α | β is β α*.
"""

from collections.abc import Iterable

from decoding.automata.grammar_rules import (
    Call,
    Chars,
    Choice,
    Expression,
    Grammar,
    Lexeme,
    Repeat,
    Sequence,
    Text,
    byte_ranges,
)
from models.errors import ConstraintError

MOST_STATES = 200_000
BYTES = range(256)


def mask_of(read: Iterable[int]) -> int:
    """Return a set of bytes as the bits of an integer."""
    mask = 0
    for byte in read:
        mask |= 1 << byte
    return mask


class Network:
    """States of all rules; rule i lies between `start[i]` and `end[i]`.

    silent[s]: states that s goes on to without a byte; calls[s]: (rule, state behind);
    reads[s]: (set of bytes, state). A lexeme ends by guards[s]: (bytes before which it
    may not, state, literals that win over it); literal[s]: the literal that ends in s; longer[s]: the
    bytes by which a terminal reads more and may end: no other one ends before them.
    """

    def __init__(self) -> None:
        self.silent: list[list[int]] = []
        self.reads: list[list[tuple[int, int]]] = []
        self.calls: list[list[tuple[int, int]]] = []
        self.guards: list[list[tuple[int, int, frozenset[str]]]] = []
        self.literal: dict[int, str] = {}
        self.longer: dict[int, int] = {}
        self.names: list[str] = []
        self.start: list[int] = []
        self.end: list[int] = []
        self.owner: list[int] = []  # the rule of each state
        self.lexemes: set[int] = set()  # rules that read one terminal

    def state(self, rule: int) -> int:
        if len(self.owner) >= MOST_STATES:
            raise ConstraintError(
                f"the grammar's rules need more than {MOST_STATES} states: lower the "
                "counts of its repetitions"
            )
        self.silent.append([])
        self.reads.append([])
        self.calls.append([])
        self.guards.append([])
        self.owner.append(rule)
        return len(self.owner) - 1

    def rule(self, name: str) -> int:
        self.names.append(name)
        index = len(self.names) - 1
        self.start.append(self.state(index))
        self.end.append(self.state(index))
        return index

    def silently(self, state: int) -> set[int]:
        """Return `state` and all that it goes on to without a byte."""
        seen, todo = {state}, [state]
        while todo:
            for after in self.silent[todo.pop()]:
                if after not in seen:
                    seen.add(after)
                    todo.append(after)
        return seen


def network_of(grammar: Grammar) -> Network:
    """Build the network; rule 0 is the whole text.

    Raises:
        ConstraintError: it is too large.
    """
    thompson = _Thompson(grammar)
    return _loops(_without_empty(thompson.net))


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
        behind = {(): end}  # the bytes that are still to be read -> state
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


def _without_empty(net: Network) -> Network:
    """Step 2: a state for "nothing read yet" and one for "something read"."""
    nullable: set[int] = set()
    changed = True
    while changed:
        changed = False
        for rule in range(len(net.names)):
            if rule not in nullable and net.end[rule] in _passed(net, rule, nullable):
                nullable.add(rule)
                changed = True
    plain = Network()
    plain.lexemes = net.lexemes
    for name in net.names:
        plain.rule(name)
    states: dict[tuple[int, bool], int] = {}
    todo: list[tuple[int, bool]] = []

    def visit(state: int, has_read: bool) -> int:
        key = (state, has_read)
        if key not in states:
            rule = net.owner[state]
            if not has_read and state == net.start[rule]:
                states[key] = plain.start[rule]
            elif has_read and state == net.end[rule]:
                states[key] = plain.end[rule]
            else:
                states[key] = plain.state(rule)
            todo.append(key)
        return states[key]

    for rule in range(len(net.names)):
        visit(net.start[rule], False)
    while todo:
        old, has_read = todo.pop()
        new = states[old, has_read]
        _name(plain, new, net, old)
        plain.silent[new] += [visit(to, has_read) for to in net.silent[old]]
        plain.reads[new] += [(mask, visit(to, True)) for mask, to in net.reads[old]]
        plain.guards[new] += [
            (longer, visit(to, True), words) for longer, to, words in net.guards[old]
        ]
        for callee, to in net.calls[old]:
            plain.calls[new].append((callee, visit(to, True)))
            if callee in nullable:
                plain.silent[new].append(visit(to, has_read))
    if 0 in nullable:  # the empty text is the whole text's alone
        plain.silent[plain.start[0]].append(plain.end[0])
    return plain


def _name(net: Network, new: int, source: Network, old: int) -> None:
    """Give the state `new` what is known of terminals at `old` of `source`."""
    if old in source.literal:
        net.literal[new] = source.literal[old]
    if old in source.longer:
        net.longer[new] = source.longer[old]


def _passed(net: Network, rule: int, nullable: set[int]) -> set[int]:
    """Return the states of `rule` that nothing is read before."""
    seen, todo = {net.start[rule]}, [net.start[rule]]
    while todo:
        state = todo.pop()
        behind = [to for callee, to in net.calls[state] if callee in nullable]
        for to in (*net.silent[state], *behind):
            if to not in seen:
                seen.add(to)
                todo.append(to)
    return seen


def components(edges: dict[int, set[int]]) -> dict[int, int]:
    """Number the strongly connected components (Tarjan's, without recursion)."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    component: dict[int, int] = {}
    path: list[int] = []
    for root in edges:
        if root in number:
            continue
        work = [(root, iter(sorted(edges[root])))]
        number[root] = low[root] = len(number)
        path.append(root)
        while work:
            node, rest = work[-1]
            for after in rest:
                if after not in number:
                    number[after] = low[after] = len(number)
                    path.append(after)
                    work.append((after, iter(sorted(edges[after]))))
                    break
                if after not in component:
                    low[node] = min(low[node], number[after])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    while node not in component:
                        component[path.pop()] = number[node]
    return component


def _loops(net: Network) -> Network:
    """Step 3: no network calls a rule before it has read a byte, if that is itself."""
    left: dict[int, set[int]] = {}
    for rule in range(len(net.names)):
        begins = net.silently(net.start[rule])
        left[rule] = {callee for state in begins for callee, _ in net.calls[state]}
    component = components(left)
    bodies: list[list[int]] = [[] for _ in net.names]
    for state, rule in enumerate(net.owner):
        bodies[rule].append(state)
    originals = {
        rule: {callee for callee in after if component[callee] == component[rule]}
        for rule, after in left.items()
    }
    for rule, inside in originals.items():
        if inside:
            _unroll(net, rule, originals, bodies)
    return net


def _unroll(
    net: Network, rule: int, left: dict[int, set[int]], bodies: list[list[int]]
) -> None:
    """Give `rule` a network of its own copies of the rules that it begins with."""
    among, todo = {rule}, [rule]
    while todo:
        for after in left[todo.pop()]:
            if after not in among:
                among.add(after)
                todo.append(after)
    copy = {state: net.state(rule) for m in sorted(among) for state in bodies[m]}
    # The first two states of a body are its start and its end.
    starts = [bodies[m][0] for m in sorted(among)]
    begins = set().union(*map(net.silently, starts))
    ends = {m: copy[bodies[m][1]] for m in among}
    for old, new in copy.items():
        net.silent[new] = [copy[to] for to in net.silent[old]]
        net.reads[new] = [(mask, copy[to]) for mask, to in net.reads[old]]
        net.guards[new] = [(longer, copy[to], w) for longer, to, w in net.guards[old]]
        _name(net, new, net, old)
    for old, new in copy.items():
        for callee, to in net.calls[old]:
            if old in begins and callee in among:
                net.silent[ends[callee]].append(copy[to])
            else:
                net.calls[new].append((callee, copy[to]))
    net.start[rule], net.end[rule] = net.state(rule), net.state(rule)
    net.silent[net.start[rule]] = [copy[state] for state in starts]
    net.silent[ends[rule]].append(net.end[rule])
