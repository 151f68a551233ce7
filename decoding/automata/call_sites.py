"""The choice of calls that push: at least one of each cycle of a grammar's rules.

Other calls are inlined. A call in last place pushes nothing: what is behind it is what
is behind its caller. Of the calls of a cycle those are best whose value is followed by
a byte by which it could not have gone on, as `]` behind the items of a list.
"""

from typing import NamedTuple

from decoding.automata import networks

Site = tuple[int, int]  # a state of a network, and which of its calls


class _Edge(NamedTuple):
    site: Site
    caller: int
    callee: int
    is_last: bool


class CallSites:
    """The calls of a network, and how well each can push."""

    def __init__(self, net: networks.Network) -> None:
        self.net = net
        self.behind = [net.silently(s) for s in range(len(net.owner))]
        self.edges = self._reached()
        self.risky = self._risky()
        self.bracketed = self._bracketed()

    def is_over(self, state: int) -> bool:
        """Return whether the rule of `state` may end there."""
        return self.net.end[self.net.owner[state]] in self.behind[state]

    def is_last(self, state: int) -> bool:
        """Return whether nothing but the end of its rule is behind `state`."""
        net = self.net
        end = net.end[net.owner[state]]
        return end in self.behind[state] and not any(
            net.reads[s] or net.calls[s] or net.guards[s] for s in self.behind[state]
        )

    def _reached(self) -> list[_Edge]:
        """Return the calls in rules that the whole text reaches."""
        edges, rules, seen = [], [0], {0}
        for rule in rules:  # grows while it is read
            states, todo = {self.net.start[rule]}, [self.net.start[rule]]
            while todo:
                state = todo.pop()
                after = [to for _, to in self.net.reads[state]]
                after += [to for _, to, _ in self.net.guards[state]]
                after += self.net.silent[state]
                for i, (callee, to) in enumerate(self.net.calls[state]):
                    edges.append(_Edge((state, i), rule, callee, self.is_last(to)))
                    after.append(to)
                    if callee not in seen:
                        seen.add(callee)
                        rules.append(callee)
                fresh = set(after) - states
                states |= fresh
                todo += fresh
        return edges

    def _bracketed(self) -> set[Site]:
        """Return the calls between two bytes, or terminals, of their own rule."""
        net = self.net
        read = {s for reads in net.reads for _, to in reads for s in self.behind[to]}
        for calls in net.calls:
            for callee, to in calls:
                if callee in net.lexemes:
                    read |= self.behind[to]
        sites = set()
        for (state, i), _, _, _ in self.edges:
            to = net.calls[state][i][1]
            behind = self.behind[to]
            is_reading = [
                bool(net.reads[s]) or callee in net.lexemes
                for s in behind
                for callee, _ in net.calls[s] or [(-1, -1)]
                if net.reads[s] or net.calls[s]
            ]
            is_closed = all(is_reading) and not self.is_over(to)
            if is_closed and state in read:
                sites.add((state, i))
        return sites

    def _risky(self) -> set[Site]:
        """Return the calls whose value might end or go on at the same byte.

        This reads each rule by itself, so it is a guess: alternatives that share a
        beginning may yet conflict.
        """
        net = self.net
        rules = range(len(net.names))
        begins = [0] * len(rules)
        extends, follows = begins[:], begins[:]  # bytes behind an end, in and out
        own = [0] * len(net.owner)
        for state, reads in enumerate(net.reads):
            for mask, _ in reads:
                own[state] |= mask

        def first(state: int) -> int:
            mask = 0
            for s in self.behind[state]:
                mask |= own[s]
                for callee, _ in net.calls[s]:
                    mask |= begins[callee]
            return mask

        changed = True
        while changed:
            changed = False
            for rule in rules:
                if begins[rule] != (mask := first(net.start[rule]) | begins[rule]):
                    begins[rule], changed = mask, True
        firsts = [first(state) for state in range(len(net.owner))]
        for state in range(len(net.owner)):
            if self.is_over(state):
                extends[net.owner[state]] |= firsts[state]
        changed = True
        while changed:
            changed = False
            for (state, i), caller, callee, _ in self.edges:
                to = net.calls[state][i][1]
                mask = firsts[to] | (follows[caller] if self.is_over(to) else 0)
                if mask | follows[callee] != follows[callee]:
                    follows[callee] |= mask
                    changed = True
                if self.is_over(to) and extends[callee] & ~extends[caller]:
                    extends[caller] |= extends[callee]
                    changed = True
        risky = set()
        for (state, i), caller, callee, _ in self.edges:
            to = net.calls[state][i][1]
            mask = firsts[to] | (follows[caller] if self.is_over(to) else 0)
            if mask & extends[callee]:
                risky.add((state, i))
        return risky

    def pushing(self, avoided: set[Site], sharing: int) -> set[Site]:
        """Choose the calls that push.

        Args:
            avoided: calls of which a push led to a conflict.
            sharing: 0: push at as few calls as possible; 1: at every call within a
                cycle that is not risky; 2: at those between two bytes, and also at such
                calls of rules that lead to a cycle. So alternatives that open the same
                brackets push alike.

        Returns:
            The calls; they hold some of `avoided` only where a cycle has no other.
        """
        within = self._within(set())
        if sharing == 2:
            within = self._towards(within)
        pushed = {e.site for e in within if not e.is_last}

        def badness(edge: _Edge) -> tuple:
            site = edge.site
            is_open = site not in self.bracketed
            return (site in avoided, site in self.risky, is_open, -site[0], -site[1])

        for edge in sorted(within, key=badness, reverse=True):
            is_good = not (edge.site in avoided or edge.site in self.risky)
            is_good &= sharing == 1 or edge.site in self.bracketed
            if edge.site not in pushed or (sharing and is_good):
                continue
            rest = pushed - {edge.site}
            if all(e.is_last or e.site in rest for e in self._within(rest)):
                pushed = rest
        return pushed

    def _towards(self, within: list[_Edge]) -> list[_Edge]:
        """Return the calls of rules that lead to a call of `within`."""
        leading = {edge.caller for edge in within}
        size = 0
        while size < len(leading):
            size = len(leading)
            leading |= {e.caller for e in self.edges if e.callee in leading}
        return [edge for edge in self.edges if edge.callee in leading]

    def _within(self, pushed: set[Site]) -> list[_Edge]:
        """Return the calls within cycles of rules without the calls `pushed`."""
        graph: dict[int, set[int]] = {}
        for edge in self.edges:
            graph.setdefault(edge.caller, set())
            graph.setdefault(edge.callee, set())
            if edge.site not in pushed:
                graph[edge.caller].add(edge.callee)
        component = networks.components(graph)
        return [
            e
            for e in self.edges
            if e.site not in pushed and component[e.caller] == component[e.callee]
        ]
