"""Static trees as text.

The code of a tree lists, level by level, the nodes' numbers of children. The root
comes first, then the nodes of depth 1, of depth 2, ..., each level in the order of its
paths and without trailing zeros. `2 | 2,1` is the tree (0), (1), (0 0), (0 1), (1 0).
"""

from collections.abc import Callable

from decoding.tree_design import tree_shape
from models.errors import MethodError

Choices = tuple[tuple[int, ...], ...]


def shape(choices: Choices | str) -> tree_shape.Shape:
    """Build the shape of a tree from its choices or its code."""
    read: Callable = decode if type(choices) is str else tuple
    return tree_shape.Shape(read(choices))


def decode(code: str) -> Choices:
    """Decode a tree's code into choices, in the notation of Medusa's trees.

    Raises:
        MethodError: a level is no list of numbers, or does not fit the level above.
    """
    level: list[tuple[int, ...]] = [()]
    choices: list[tuple[int, ...]] = []
    for text in code.split("|"):
        try:
            counts = [int(count) for count in text.split(",")]
        except ValueError as error:
            raise MethodError(
                f"tree {code!r}: {text.strip()!r} is no list of numbers; write numbers "
                "of children: of the root | of the nodes of depth 1, in order | ..."
            ) from error
        if len(counts) > len(level) or min(counts) < 0:
            raise MethodError(
                f"tree {code!r}: {text.strip()!r} names {len(counts)} nodes and the "
                f"level has {len(level)}: give each at most one number, 0 or more"
            )
        pairs = zip(level, counts)
        level = [(*path, rank) for path, count in pairs for rank in range(count)]
        choices += level
    return tuple(choices)


def encode(choices: Choices) -> str:
    """Encode a tree whose siblings have the ranks 0, 1, 2, ..."""
    level: list[tuple[int, ...]] = [()]
    parts: list[str] = []
    while True:
        below = [sorted(c for c in choices if c[:-1] == p and c) for p in level]
        counts = [len(children) for children in below]
        while counts and counts[-1] == 0:
            counts.pop()
        if not counts:
            return " | ".join(parts)
        parts.append(",".join(map(str, counts)))
        level = [child for children in below for child in children]
