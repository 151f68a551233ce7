"""What a compiled program says to other devices, read off its text."""

import re
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
CALL = re.compile(rf"= (.+?) ({'|'.join(KINDS)})(-start)?\(")
COPY = re.compile(r"= (.+?) (copy|copy-start|transpose|pad)\(")
ARRAY = re.compile(r"(pred|[a-z]+\d+[a-z0-9]*)\[([\d,]*)\]")
BITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Collective:
    """One instruction; `shape` is that of its largest result on a device."""

    kind: str
    shape: tuple[int, ...]
    bytes: int


def collectives(text: str) -> list[Collective]:
    """Every collective of a program, each where it stands: once, loops or not."""
    found = []
    for line in text.splitlines():
        match = CALL.search(line)
        if match:
            arrays = [_array(kind, dims) for kind, dims in ARRAY.findall(match[1])]
            # A started gather names its operand before its result.
            if match[3] and match[2] != "all-reduce" and len(arrays) > 1:
                arrays = [max(arrays, key=lambda a: a[1])]
            shape = max(arrays, key=lambda a: a[1])[0] if arrays else ()
            found.append(Collective(match[2], shape, sum(n for _, n in arrays)))
    return found


def copies(text: str, sizes: Collection[int]) -> list[str]:
    """Instructions that copy, turn or pad an array of so many elements.

    Started copies too, which name both ends: to vector memory and back is two.
    """
    found = []
    for line in text.splitlines():
        match = COPY.search(line)
        if match:
            made = [int(np.prod(_array(*a)[0])) for a in ARRAY.findall(match[1])]
            if any(n in sizes for n in made):
                found.append(line.strip())
    return found


def _array(kind: str, dims: str) -> tuple[tuple[int, ...], int]:
    shape = tuple(int(n) for n in dims.split(",") if n)
    bits = BITS.search(kind)
    width = int(bits[0]) if bits else 8
    return shape, int(np.prod(shape, initial=1)) * width // 8


def summary(text: str) -> dict[str, dict[str, int]]:
    """By kind: how many, and their bytes on a device."""
    found: dict[str, dict[str, int]] = {}
    for one in collectives(text):
        at = found.setdefault(one.kind, {"count": 0, "bytes": 0})
        at["count"] += 1
        at["bytes"] += one.bytes
    return found
