"""Transition networks: each rule as a nondeterministic automaton that calls others.

`network_building` makes them from the rules of a grammar; two steps follow.

1. No rule reads the empty text: a call of one that may is also passed over. So a call
   at a network's start is left recursion, and nothing else is.
2. Left recursion becomes a loop. The rules that begin with each other are copied into
   one network; where one of them ends, it goes on behind each of its left calls:
   A = A α | β is β α*.
"""

from collections.abc import Iterable

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
    may not, state, literals that win over it); literal[s]: the literal that ends in s;
    longer[s]: the bytes by which a terminal reads more and may end: before them no
    other one ends.
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


def without_empty(net: Network) -> Network:
    """Return the network without empty values.

    Each state is twice there: where nothing has been read yet, and behind a byte.
    """
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


def loops(net: Network) -> Network:
    """Make left recursion loops, in place: no rule calls itself before a byte."""
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
