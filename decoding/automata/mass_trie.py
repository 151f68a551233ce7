"""A trie of visited texts with bounds on the mass of a constraint's texts behind each.

With p the law without the constraint, Z(u) the mass of the tokens that it allows behind
the prefix u, and v the tokens that a visited text has there:

    c(u) = Z(u) - sum_v p(v | u) (1 - c(uv)),    c = 1 where no text goes on

c(u) is at least the probability that a text which begins with u is a whole one of the
constraint, and a further text never raises it. Values are logs, in float64; shares of
Z are summed, so that no mass underflows.
"""

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

ROOM = 256  # tokens of a node that `Arrays` hold
LEAST = -1e4  # log of the smallest bound: a text that was visited is never forbidden
FEWEST = 4096  # nodes and entries of `Arrays`, so that few programs exist
NOWHERE = 0  # the node of a prefix that no text has


class Arrays(NamedTuple):
    """The bounds below 1, by node, for the host or the device.

    Lengths are powers of two, and `ROOM` more.
    """

    first: Any  # int32[N + 1]: where each node's entries begin
    token: Any  # int32[E]
    child: Any  # int32[E]: node behind the token
    bound: Any  # float32[E]: log c of that node


class MassTrie:
    """Visited texts of several prompts, each below a root of its own."""

    def __init__(self) -> None:
        """Begin without a text."""
        self.children: list[dict[int, int]] = [{}]
        self.logprob: list[float] = [0.0]  # of a node's token
        self.mass: list[float] = [np.nan]  # log Z; NaN where no text goes on
        self.bound: list[float] = [0.0]  # log c
        self.roots: dict[int, int] = {}

    def copy(self) -> "MassTrie":
        """Return a trie of the same texts that can grow apart."""
        return copy.deepcopy(self)

    @property
    def size(self) -> int:
        """The nodes of all texts."""
        return len(self.children) - 1

    def root(self, prompt: int) -> int:
        """Return the root of a prompt; `NOWHERE` if it has no text."""
        return self.roots.get(prompt, NOWHERE)

    def node(self, prompt: int, prefix: Sequence[int]) -> int:
        """Return the node of a prefix; `NOWHERE` if no text has it."""
        at = self.root(prompt)
        for token in prefix:
            at = self.children[at].get(int(token), NOWHERE)
        return at

    def log_bound(self, prompt: int, prefix: Sequence[int] = ()) -> float:
        """Return log c of a prefix."""
        return float(self.bound[self.node(prompt, prefix)])

    def add(
        self,
        prompt: int,
        tokens: Sequence[int],
        logprobs: Sequence[float] | np.ndarray,
        masses: Sequence[float] | np.ndarray,
    ) -> None:
        """Add a text, and lower the bounds along it.

        Numbers that an earlier text gave to a prefix stay, so that no bound rises by
        rounding.

        Args:
            prompt: of the text.
            tokens: int[M], EOS included; one that the limit cut has none.
            logprobs: float[M], log p of each token.
            masses: float[M], log Z where it was drawn.
        """
        if prompt not in self.roots:
            self.roots[prompt] = self._new(0.0)
        path = [self.roots[prompt]]
        for token, logprob, mass in zip(tokens, logprobs, masses, strict=True):
            at = path[-1]
            if np.isnan(self.mass[at]):
                self.mass[at] = float(mass)
            children = self.children[at]
            if int(token) not in children:
                children[int(token)] = self._new(float(logprob))
            path.append(children[int(token)])
        for at in reversed(path[:-1]):
            self.bound[at] = min(self.bound[at], self._bound(at))

    def _new(self, logprob: float) -> int:
        self.children.append({})
        self.logprob.append(logprob)
        self.mass.append(np.nan)
        self.bound.append(0.0)
        return len(self.children) - 1

    def _bound(self, at: int) -> float:
        nodes = list(self.children[at].values())
        share = np.array([self.logprob[node] for node in nodes]) - self.mass[at]
        bound = np.array([self.bound[node] for node in nodes])
        rest = max(1 - np.exp(share).sum(), 0.0)  # of Z, where no text goes on
        logs = np.append(share + bound, np.log(rest) if rest else -np.inf)
        return max(self.mass[at] + np.logaddexp.reduce(logs), LEAST)

    def _lost(self, entry: tuple[int, int]) -> float:
        """Return the mass that a child's bound takes away from its parent's."""
        logprob, bound = self.logprob[entry[1]], self.bound[entry[1]]
        return float(np.exp(logprob) * -np.expm1(bound))

    def arrays(self) -> Arrays:
        """Return the bounds for the device.

        A node that has more than `ROOM` children lists those whose bounds take the most
        mass away. The others have the bound 1, which is sound.
        """
        first, entries = [0], []
        for children in self.children:
            nodes = [(t, n) for t, n in children.items() if self.bound[n] < 0]
            if len(nodes) > ROOM:
                nodes = sorted(nodes, key=self._lost, reverse=True)[:ROOM]
            entries += [(t, n, self.bound[n]) for t, n in nodes]
            first.append(len(entries))
        table = np.array(entries, np.float64).reshape(-1, 3)
        nodes_size = _padded(len(first))
        entries_size = _padded(len(entries))
        starts = np.full(nodes_size + 1, len(entries), np.int32)
        starts[: len(first)] = first
        columns = np.zeros((entries_size + ROOM, 3))
        columns[: len(entries)] = table
        token, child = columns[:, :2].astype(np.int32).T
        return Arrays(starts, token, child, columns[:, 2].astype(np.float32))


def _padded(size: int) -> int:
    return max(FEWEST, 1 << (size - 1).bit_length())
