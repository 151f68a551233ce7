"""Static trees as data on the host: their shape, chains and full trees."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

from decoding import base
from models.errors import MethodError


class Shape:
    """A static tree as data: parents, depths and sibling ranks of every node.

    `choices` are in the notation of Medusa's released trees: each node is the tuple of
    sibling ranks on its path, e.g. `(0,), (1,), (0, 0)`. Nodes are ordered by depth,
    then by path, so that a level is a contiguous range.

    Raises:
        MethodError: a choice lacks its parent or an earlier sibling.
    """

    def __init__(self, choices: Sequence[Sequence[int]]):
        paths = sorted({tuple(c) for c in choices}, key=lambda p: (len(p), p))
        known: dict[tuple[int, ...], int] = {(): 0}
        for path in paths:
            if not path or path[:-1] not in known:
                raise MethodError(
                    f"tree choice {path} has no parent {path[:-1]} in the list: add it"
                )
            if path[-1] and path[:-1] + (path[-1] - 1,) not in known:
                raise MethodError(
                    f"tree choice {path} skips sibling rank {path[-1] - 1}: ranks of "
                    "siblings must be 0, 1, 2, ..."
                )
            known[path] = len(known)
        self.choices = tuple(paths)
        self.parents = np.array([-1] + [known[p[:-1]] for p in paths], np.int32)
        self.ranks = np.array([0] + [p[-1] for p in paths], np.int32)
        self.depths = np.array([0] + [len(p) for p in paths], np.int32)
        self.depth = int(self.depths.max())
        self.width = int(self.ranks.max()) + 1 if paths else 0
        self.linear = bool((self.parents == np.arange(-1, len(paths))).all())
        self.levels = [
            np.flatnonzero(self.depths == d).astype(np.int32)
            for d in range(self.depth + 1)
        ]

    @property
    def nodes(self) -> int:
        return len(self.parents)

    def tree(self, tokens: Array, draw: str, **fields) -> base.TokenTree:
        """Build a TokenTree of this shape from `tokens` int32[B, N]."""
        return base.TokenTree(
            tokens.astype(jnp.int32),
            jnp.broadcast_to(jnp.asarray(self.parents), tokens.shape),
            jnp.full(tokens.shape, base.CANDIDATE, jnp.int32),
            draw=draw,
            depth=self.depth,
            linear=self.linear,
            **fields,
        )

    def __hash__(self) -> int:
        return hash(self.choices)

    def __eq__(self, other: object) -> bool:
        return self.choices == getattr(other, "choices", None)


def path_choices(length: int) -> tuple[tuple[int, ...], ...]:
    """List the choices of a chain of `length` drafts."""
    return tuple((0,) * (i + 1) for i in range(length))


def full_choices(branching: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """List the choices of the tree with `branching[d]` children per node of depth d."""
    levels: list[list[tuple[int, ...]]] = [[()]]
    for count in branching:
        levels.append([(*path, i) for path in levels[-1] for i in range(count)])
    return tuple(path for level in levels[1:] for path in level)
