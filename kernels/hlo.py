"""Collectives and copies of a compiled program, parsed from its text.

The TPU compiler writes the devices of a collective in four forms: as lists, as
`[2,8]<=[16]`, whose rows are groups of a range that may be transposed, as axes of a
mesh, and, of a permutation, as pairs. Devices are positions in the program's mesh.
"""

import math
import re
from collections.abc import Collection, Iterator
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
COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{$")
PARTITIONS = re.compile(r"\b(?:num_partitions|replica_count)=(\d+)")
LISTS = re.compile(r"(?:replica_groups|source_target_pairs)=\{((?:\{[\d,]*\},?)*)\}")
IOTA = r"\[([\d,]+)\](?:<=\[([\d,]+)\])?(?:T\(([\d,]+)\))?"
RANGE = re.compile(rf"replica_groups={IOTA}")
MESH = re.compile(
    rf"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\({IOTA}\))? \{{([^}}]*)\}}"
)
AXIS = re.compile(r"'([^']+)'=(\d+)")
ARRAY = re.compile(r"(pred|[a-z]+\d+[a-z0-9]*)\[([\d,]*)\]")
BITS = re.compile(r"\d+")


Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Collective:
    """One instruction; `shape` is that of its largest result on a device."""

    kind: str
    shape: tuple[int, ...]
    bytes: int  # of its results
    groups: Groups = ()  # devices that speak with each other; of a permutation, pairs
    waits: bool = True  # False: it is started, and other instructions run meanwhile

    @property
    def sent(self) -> float:
        """Bytes that a device must send, however they travel.

        With n devices a group and b bytes of results: all-reduce 2 (n - 1) / n b (a
        ring's, the least for large arrays); all-gather and all-to-all (n - 1) / n b;
        reduce-scatter (n - 1) b, whose results are an n-th; collective-permute b.
        """
        n = max(map(len, self.groups), default=1)
        if self.kind == "collective-permute":
            return float(self.bytes if any(a != b for a, b in self.groups) else 0)
        if self.kind == "reduce-scatter":
            return float(self.bytes * (n - 1))
        return self.bytes * (n - 1) / n * (2 if self.kind == "all-reduce" else 1)


def collectives(text: str) -> list[Collective]:
    """List every collective of a program; one in a loop's body counts once.

    A collective that the compiler runs in pieces inside other fusions (between an
    `AsyncCollectiveStart` and its done) stands in each of them, and counts once.

    Raises:
        ValueError: the devices of a collective are written in an unknown form.
    """
    devices = math.prod(map(int, PARTITIONS.findall(text.partition("\n")[0])))
    found = []
    for name, lines in computations(text):
        body = "\n".join(lines)
        if name.startswith("async_collective") or "AsyncCollectiveDone" in body:
            continue
        started = "AsyncCollectiveStart" in body
        for line in lines:
            match = CALL.search(line)
            if match:
                found.append(_collective(match, line, devices, started))
    return found


def computations(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the lines of each computation; "" for lines before them."""
    name, lines = "", list[str]()
    for line in text.splitlines():
        match = COMPUTATION.match(line)
        if match:
            yield name, lines
            name, lines = match[1], list[str]()
        else:
            lines.append(line)
    yield name, lines


def _collective(match: re.Match, line: str, devices: int, started: bool) -> Collective:
    kind, pieces = match[2], [_array(*a) for a in ARRAY.findall(match[1])]
    # A started gather names its operand before its result.
    if match[3] and kind != "all-reduce" and len(pieces) > 1:
        pieces = [max(pieces, key=lambda a: a[1])]
    shape = max(pieces, key=lambda a: a[1])[0] if pieces else ()
    size = sum(n for _, n in pieces)
    waits = not (match[3] or started)
    return Collective(kind, shape, size, groups(line, devices), waits)


def groups(line: str, devices: int) -> Groups:
    """Read the devices that speak with each other in one collective.

    Args:
        line: the instruction.
        devices: of the program, all of which take part where no group is named.

    Raises:
        ValueError: they are written in an unknown form.
    """
    lists, ranges, mesh = (form.search(line) for form in (LISTS, RANGE, MESH))
    if lists and lists[1]:
        return tuple(_numbers(group) for group in re.findall(r"\{([\d,]*)\}", lists[1]))
    if ranges:
        ids = _iota(ranges[2] or ranges[1], ranges[3]).reshape(_numbers(ranges[1]))
    elif mesh and ":(" not in mesh[5]:  # else a part of an axis
        ids = _along_axes(*mesh.groups())
    elif lists or not ("replica_groups" in line or "collective-permute" in line):
        ids = np.arange(devices)[None]
    else:
        raise ValueError(f"the groups of a collective are not understood: {line}")
    return tuple(tuple(map(int, group)) for group in ids)


def _along_axes(
    sizes: str, shape: str | None, _: str | None, order: str | None, axes: str
) -> np.ndarray:
    """Return groups [number, size] along `axes` of a mesh, whose ids are a range."""
    mesh = {name: int(size) for name, size in AXIS.findall(sizes)}
    ids = _iota(shape, order) if shape else np.arange(math.prod(mesh.values()))
    along = [list(mesh).index(name) for name in re.findall(r"'([^']+)'", axes)]
    rest = [axis for axis in range(len(mesh)) if axis not in along]
    ids = ids.reshape(tuple(mesh.values())).transpose(*rest, *along)
    return ids.reshape(math.prod(ids.shape[: len(rest)]), -1)


def _iota(shape: str, order: str | None) -> np.ndarray:
    """Return a range of `shape` with its dimensions in another order."""
    sizes = _numbers(shape)
    ids = np.arange(math.prod(sizes)).reshape(sizes)
    return ids.transpose(_numbers(order)) if order else ids


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


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
