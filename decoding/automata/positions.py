"""Positions in a transition network whose calls are inlined, all but those that push.

A position is a state and the position behind its rule's call; END is behind the rule
that was pushed for. What a position can do next is its `Step`. Sets of bytes are sets
of classes here, as bits of an integer: bytes of a class are read alike everywhere. The
last class is the end of the text.
"""

from collections.abc import Iterable
from typing import NamedTuple

from decoding.automata import call_sites, networks

END = 0

# Literals that have just been read, and bytes by which a terminal reads more.
Lexed = tuple[frozenset[str], int]
BETWEEN: Lexed = (frozenset(), 0)  # no terminal is being read


class Step(NamedTuple):
    """What a position can do, with the bytes before which it can."""

    reads: tuple[tuple[int, int], ...]  # (classes, position)
    pushes: tuple[tuple[int, int, int], ...]  # (classes, position behind, callee's)
    over: int  # classes before which the pushed rule may end
    readable: int  # union of `reads`


class Classes:
    """Classes of bytes that no set of a network tells apart."""

    def __init__(self, net: networks.Network) -> None:
        masks = {mask for reads in net.reads for mask, _ in reads}
        masks |= set(net.longer.values())
        masks |= {longer for guards in net.guards for longer, _, _ in guards}
        kinds: dict[tuple, int] = {}
        ordered = sorted(masks)
        self.of_byte = [
            kinds.setdefault(tuple(mask >> byte & 1 for mask in ordered), len(kinds))
            for byte in networks.BYTES
        ]
        self.end = len(kinds)  # the class of the end of the text
        self.all = (1 << self.end + 1) - 1
        self.bytes: list[list[int]] = [[] for _ in kinds]
        for byte, kind in enumerate(self.of_byte):
            self.bytes[kind].append(byte)
        self.known: dict[int, int] = {}
        self.listed: dict[int, tuple[int, ...]] = {}

    def of(self, mask: int) -> int:
        """Return the classes of a set of bytes of the network."""
        if mask not in self.known:
            classes = 0
            for kind, members in enumerate(self.bytes):
                classes |= (mask >> members[0] & 1) << kind
            self.known[mask] = classes
        return self.known[mask]

    def members(self, classes: int) -> tuple[int, ...]:
        """List a set of classes."""
        if classes not in self.listed:
            self.listed[classes] = tuple(
                kind for kind in range(self.end + 1) if classes >> kind & 1
            )
        return self.listed[classes]


class Positions:
    """Positions by number, made where they are reached."""

    def __init__(
        self, sites: call_sites.CallSites, pushed: set[call_sites.Site]
    ) -> None:
        self.net, self.pushed = sites.net, pushed
        self.classes = Classes(self.net)
        self.pairs: list[tuple[int, int]] = [(-1, -1)]
        self.number: dict[tuple[int, int], int] = {}
        self.steps: dict[tuple[int, Lexed], Step] = {}
        self.sites_behind: dict[int, set[call_sites.Site]] = {}
        self.last = [sites.is_last(state) for state in range(len(self.net.owner))]
        self.ends = set(self.net.end)

    def enter(self, state: int, behind: int) -> int:
        """Return the position of `state` in a rule with `behind` behind its call."""
        net = self.net
        while not self.last[state]:
            silent = net.silent[state]
            if len(silent) != 1 or net.reads[state] or net.calls[state]:
                break
            if net.guards[state] or state in net.literal or silent[0] == state:
                break
            state = silent[0]
        if self.last[state]:
            return behind
        if (state, behind) not in self.number:
            self.number[state, behind] = len(self.pairs)
            self.pairs.append((state, behind))
        return self.number[state, behind]

    def start(self, rule: int) -> int:
        return self.enter(self.net.start[rule], END)

    def name(self, position: int) -> str:
        """Return the name of a position's rule."""
        if position == END:
            return "its end"
        return self.net.names[self.net.owner[self.pairs[position][0]]]

    def lexed(self, positions: Iterable[int]) -> Lexed:
        """Return what the terminals that are read at the positions bring about."""
        net = self.net
        states = [self.pairs[p][0] for p in positions if p != END]
        ended = frozenset(net.literal[s] for s in states if s in net.literal)
        longer = 0
        for state in states:
            longer |= net.longer.get(state, 0)
        return ended, longer

    def step(self, position: int, lexed: Lexed) -> Step:
        """Return what `position` can do next."""
        key = (position, lexed)
        if key not in self.steps:
            self.steps[key] = self._step(position, *lexed)
        return self.steps[key]

    def _step(self, first: int, ended: frozenset[str], outlasting: int) -> Step:
        net, of = self.net, self.classes.of
        reads: dict[int, int] = {}
        pushes: dict[tuple[int, int], int] = {}
        over = 0
        open_at: dict[int, int] = {}  # position -> classes before which it is reached
        todo = [(first, self.classes.all)]
        while todo:
            position, mask = todo.pop()
            mask &= ~open_at.get(position, 0)
            if not mask:
                continue
            open_at[position] = open_at.get(position, 0) | mask
            if position == END:
                over |= mask
                continue
            state, behind = self.pairs[position]
            if state in self.ends:
                todo.append((behind, mask))
            todo += [(self.enter(to, behind), mask) for to in net.silent[state]]
            for longer, to, words in net.guards[state]:
                if not words & ended:
                    shut = of(longer) | of(outlasting)
                    todo.append((self.enter(to, behind), mask & ~shut))
            for read, to in net.reads[state]:
                if some := of(read) & mask:
                    after = self.enter(to, behind)
                    reads[after] = reads.get(after, 0) | some
            for i, (callee, to) in enumerate(net.calls[state]):
                after = self.enter(to, behind)
                if (state, i) in self.pushed:
                    pair = (after, self.start(callee))
                    pushes[pair] = pushes.get(pair, 0) | mask
                    self.sites_behind.setdefault(after, set()).add((state, i))
                else:
                    todo.append((self.enter(net.start[callee], after), mask))
        readable = 0
        for some in reads.values():
            readable |= some
        return Step(
            tuple((some, after) for after, some in reads.items()),
            tuple((some, *pair) for pair, some in pushes.items()),
            over,
            readable,
        )
