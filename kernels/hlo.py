"""Collectives and copies of a compiled program, parsed from its text."""

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
    """List every collective of a program; one in a loop's body counts once."""
    instructions = []
    for line in text.splitlines():
        match = CALL.search(line)
        if match:
            arrays = [_array(kind, dims) for kind, dims in ARRAY.findall(match[1])]
            # A started gather names its operand before its result.
            if match[3] and match[2] != "all-reduce" and len(arrays) > 1:
                arrays = [max(arrays, key=lambda a: a[1])]
            shape = max(arrays, key=lambda a: a[1])[0] if arrays else ()
            instructions.append(Collective(match[2], shape, sum(n for _, n in arrays)))
    return instructions


def copies(text: str, sizes: Collection[int]) -> list[str]:
    """List the instructions that copy, transpose or pad an array of `sizes` elements.

    Asynchronous copies count too: one to vector memory and one back are two.
    """
    instructions = []
    for line in text.splitlines():
        match = COPY.search(line)
        if match:
            elements = [int(np.prod(_array(*a)[0])) for a in ARRAY.findall(match[1])]
            if any(n in sizes for n in elements):
                instructions.append(line.strip())
    return instructions


def _array(kind: str, dims: str) -> tuple[tuple[int, ...], int]:
    shape = tuple(int(n) for n in dims.split(",") if n)
    bits = BITS.search(kind)
    width = int(bits[0]) if bits else 8
    return shape, int(np.prod(shape, initial=1)) * width // 8


def summary(text: str) -> dict[str, dict[str, int]]:
    """Count collectives and their bytes on a device, by kind."""
    totals: dict[str, dict[str, int]] = {}
    for collective in collectives(text):
        total = totals.setdefault(collective.kind, {"count": 0, "bytes": 0})
        total["count"] += 1
        total["bytes"] += collective.bytes
    return totals
