"""Walk through a program's final bundles, and count what it issues.

Loops and branches follow the scalars that the program computes from constants, its grid
steps among them. Values that come from data are unknown. A branch by an unknown value
goes on: a stretch that it could skip is counted, and a loop that it could repeat ends.
The walk notes each such branch.

Only what branches and copies depend on is computed, so that millions of bundles take
seconds.
"""

import bisect
import collections
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernels import bundle_text
from kernels.bundle_text import DELAY_SLOTS, Branch, Bundle, BundlesError

GRANULE = 32  # bytes: the unit of a copy's size
MOST = 50_000_000  # bundles and operations of a walk: minutes
_NAME = r"%[sp]\d+_[sp]\d+"
_DEFINED = re.compile(rf"({_NAME}) = ([\w.]+)(.*)", re.DOTALL)
_STORED = re.compile(
    rf"%\d+ = sst (\[smem:\[#\w+\]\])(?: \((!?)(%p\w+)\),)? ({_NAME})$"
)
_LOADED = re.compile(r" *(\[smem:\[#\w+\]\])(?: \((!?)(%p\w+)\))?")
_COPY = re.compile(r"%\d+ = dma\.(\w+)_to_(\w+)(?: \[[^\]]*\])?(?: +\((!?)(%\w+)\))?")
_SIZE = re.compile(r"/\*size_in_granules=\*/(%?\w+)")
_GUARD = re.compile(r" *\((!?)(%p\w+)\),")
_CHOICE = re.compile(r" *\((!?)(%p\w+), (%\w+)\), *(.*)")
_ADDRESS = 1 << 40  # between the addresses of two buffers
_HALF = 1 << 31


@dataclass(frozen=True)
class Count:
    """What a program issues, once through."""

    bundles: int = 0
    copies: int = 0  # from or to HBM
    copied: int = 0  # bytes of these whose size is a constant
    unsized: int = 0  # copies of another size
    guesses: int = 0  # branches by unknown values

    def __add__(self, other: "Count") -> "Count":
        return Count(*(getattr(self, x) + getattr(other, x) for x in FIELDS))

    def __mul__(self, times: int) -> "Count":
        return Count(*(getattr(self, x) * times for x in FIELDS))


FIELDS = tuple(Count.__dataclass_fields__)


def count(text: str) -> Count:
    """Count what a program issues.

    Args:
        text: its final bundles, without calls of others.

    Raises:
        BundlesError: it has no bundles, or its walk does not end.
    """
    bundles = bundle_text.parse(text)
    if not bundles:
        raise BundlesError("no bundles")
    return _Walk(bundles).count()


def copies(bundle: Bundle) -> Count:
    """Count the copies of one bundle; sizes that are no constants are unknown."""
    total = Count()
    for operation in bundle.operations():
        copy, size = _COPY.match(operation), _SIZE.search(operation)
        if copy and "hbm" in (copy[1], copy[2]):
            granules = int(size[1]) if size and size[1].isdigit() else 0
            total += Count(0, 1, GRANULE * granules, int(granules == 0))
    return total


def signed(value: int) -> int:
    """Return a value as a signed number of 32 bits; addresses stay."""
    if buffer(value):
        return value
    return (value + _HALF) % (2 * _HALF) - _HALF


def buffer(value: int) -> int:
    """Return which buffer an address points to; 0: the value is a number."""
    return (value + _ADDRESS // 2) // _ADDRESS


def _unsigned(value: int) -> int:
    return value % (2 * _HALF)


def _numbers(function: Callable[..., int]) -> Callable[..., int | None]:
    """Restrict a function to numbers."""

    def applied(*values: int) -> int | None:
        return None if any(map(buffer, values)) else function(*values)

    return applied


def _compared(test: Callable[[int, int], bool], kind: str) -> Callable[..., int | None]:
    def applied(a: int, b: int) -> int | None:
        if buffer(a) != buffer(b):
            return None
        return int(test(_unsigned(a), _unsigned(b)) if kind == "u32" else test(a, b))

    return applied


_OPERATIONS: dict[str, Callable[..., int | None]] = {
    "smov": lambda a: a,
    "pmov": lambda a: a,
    "sadd.s32": lambda a, b: a + b,
    "ssub.s32": lambda a, b: a - b,
    "smul.u32": _numbers(lambda a, b: a * b),
    "sshll.u32": _numbers(lambda a, b: a << _unsigned(b) % 32),
    "sshrl.u32": _numbers(lambda a, b: _unsigned(a) >> _unsigned(b) % 32),
    "sshra.s32": _numbers(lambda a, b: a >> _unsigned(b) % 32),
    "sand.u32": _numbers(lambda a, b: a & b),
    "sor.u32": _numbers(lambda a, b: a | b),
    "sxor.u32": _numbers(lambda a, b: a ^ b),
    "pnand": lambda a, b: int(not (a and b)),
    "pand": lambda a, b: int(bool(a and b)),
    "por": lambda a, b: int(bool(a or b)),
    "pneg": lambda a: int(not a),
    "scalar_select": lambda a, b, c: b if a else c,
    **{f"scalar_lea.{place}": lambda a, b: a + b for place in ("vmem", "smem", "hbm")},
    **{
        f"scmp.{name}.{kind}.totalorder": _compared(test, kind)
        for kind in ("s32", "u32")
        for name, test in {
            "ge": lambda a, b: a >= b,
            "gt": lambda a, b: a > b,
            "le": lambda a, b: a <= b,
            "lt": lambda a, b: a < b,
            "eq": lambda a, b: a == b,
            "ne": lambda a, b: a != b,
        }.items()
    },
}


@dataclass(frozen=True)
class _Step:
    """One operation of a walk: its name is a result, a cell of memory, or a copy."""

    kind: str  # of `_OPERATIONS`, or sphi, cell, copy, unknown
    name: Any
    operands: tuple = ()
    guard: str = ""
    negated: bool = False


class _Walk:
    """The state of one walk."""

    def __init__(self, bundles: list[Bundle]) -> None:
        self.bundles = bundles
        self.values: dict[Any, int | None] = {}
        self.times: dict[Any, int] = {}  # when each name was last defined
        self.addresses: dict[str, int] = {}
        self.clock = 0
        branches = {i: bundle_text.branch(b) for i, b in enumerate(bundles)}
        self.branches = {i: b for i, b in branches.items() if b is not None}
        self.regions = {r: i for i, b in enumerate(bundles) for r in b.regions}
        self.steps = self._relevant()
        self.stops = sorted({*self.steps, *self.branches})
        self.found: collections.Counter[str] = collections.Counter()

    def count(self) -> Count:
        at, end = 0, len(self.bundles)
        while at < end:
            index = bisect.bisect_left(self.stops, at)
            stop = self.stops[index] if index < len(self.stops) else end
            self.found["bundles"] += stop - at
            if stop < end:
                stop = self._issue(stop)
            at = stop
            if self.clock > MOST:
                raise BundlesError(f"the walk goes on after {MOST:,} operations")
        return Count(**self.found)

    def _issue(self, at: int) -> int:
        """Issue the bundle `at`; return the next one."""
        self._run(at)
        goes = self.branches.get(at)
        if goes is None or not self._is_taken(goes):
            return at + 1
        for later in range(at + 1, min(at + 1 + DELAY_SLOTS, len(self.bundles))):
            self._run(later)
        # The region of the last bundle, where the program ends, is not written.
        return self.regions.get(goes.region, len(self.bundles) - 1)

    def _run(self, at: int) -> None:
        self.found["bundles"] += 1
        self.clock += 1
        for step in self.steps.get(at, ()):
            self.clock += 1
            self._do(step)

    def _is_taken(self, goes: Branch) -> bool:
        if not goes.predicate:
            return True
        value = self.values.get(goes.predicate)
        if value is None:
            self.found["guesses"] += 1
            return False
        return bool(value) != goes.negated

    def _do(self, step: _Step) -> None:
        if step.guard:
            value = self.values.get(step.guard)
            if value is not None and bool(value) == step.negated:
                return
            is_known = value is not None
        else:
            is_known = True
        if step.kind == "copy":
            granules = self._value(step.operands[0])
            self.found["copies"] += 1
            self.found["copied"] += GRANULE * (granules or 0)
            self.found["unsized"] += granules is None
            return
        if step.kind == "sphi":
            # Of the names that meet here, the one that was defined last.
            last = max(step.operands, key=lambda name: self.times.get(name, -1))
            value = self.values.get(last)
        elif step.kind in _OPERATIONS:
            values = [self._value(operand) for operand in step.operands]
            unknown = any(value is None for value in values)
            value = None if unknown else _OPERATIONS[step.kind](*values)
        else:
            value = self._value(step.operands[0]) if step.operands else None
        self.values[step.name] = (
            signed(value) if is_known and value is not None else None
        )
        self.times[step.name] = self.clock

    def _value(self, operand: Any) -> int | None:
        return operand if isinstance(operand, int) else self.values.get(operand)

    def _relevant(self) -> dict[int, list[_Step]]:
        """Return by bundle the operations that branches and copies depend on."""
        steps: list[tuple[int, _Step]] = []
        writers = collections.defaultdict(list)
        for i, bundle in enumerate(self.bundles):
            for operation in bundle.operations():
                step = self._read(operation)
                if step is not None:
                    steps.append((i, step))
                    writers[step.name].append(step)
        wanted: list[Any] = [b.predicate for b in self.branches.values()]
        wanted += ["copy"]
        seen = set()
        while wanted:
            name = wanted.pop()
            if name not in seen:
                seen.add(name)
                for step in writers[name]:
                    wanted += [x for x in step.operands if isinstance(x, str)]
                    wanted += [step.guard] if step.guard else []
        kept = collections.defaultdict(list)
        # A phi comes before what reads it in the same bundle.
        for i, step in sorted(steps, key=lambda s: (s[0], s[1].kind != "sphi")):
            if step.name in seen:
                kept[i].append(step)
        return dict(kept)

    def _read(self, operation: str) -> _Step | None:
        """Read an operation that defines a scalar, a cell of memory, or copies."""
        copy = _COPY.match(operation)
        if copy:
            size = _SIZE.search(operation)
            if "hbm" not in (copy[1], copy[2]):
                return None
            granules = self._operand(size[1]) if size else ""
            return _Step("copy", "copy", (granules,), copy[4] or "", bool(copy[3]))
        operation = bundle_text.without_comments(operation)
        stored = _STORED.match(operation)
        if stored:
            guard = stored[3] or "", bool(stored[2])
            return _Step("cell", stored[1], (stored[4],), *guard)
        match = _DEFINED.match(operation)
        if match is None:
            return None
        name, kind, rest = match.groups()
        if kind.startswith("inlined_call_operand"):
            return _Step("smov", name, (self._address(name),))
        choice = _CHOICE.fullmatch(rest)
        if choice:  # the register keeps the first operand, or takes the second
            pair = [self._operand(x) for x in (choice[4], choice[3])]
            pair = pair[::-1] if choice[1] else pair
            return _Step("scalar_select", name, (choice[2], *pair))
        cell = _LOADED.fullmatch(rest) if kind == "sld" else None
        if cell:
            guard = cell[3] or "", bool(cell[2])
            return _Step("cell", name, (cell[1],), *guard)
        if kind not in _OPERATIONS and kind != "sphi":
            return _Step("unknown", name)
        guarded = _GUARD.match(rest)
        rest = rest[guarded.end() :] if guarded else rest
        guard = (guarded[2], bool(guarded[1])) if guarded else ("", False)
        operands = tuple(self._operand(x) for x in _operands(rest))
        return _Step(kind, name, operands, *guard)

    def _operand(self, text: str) -> int | str:
        text = text.strip()
        if text.startswith("%"):
            return text
        if text.startswith("["):
            return self._address(text)
        return signed(int(text, 0)) if re.fullmatch(r"-?\w+", text) else text

    def _address(self, text: str) -> int:
        """Return an address of a named buffer, far from those of others."""
        name, _, offset = text.strip("[]").partition("+")
        place = self.addresses.setdefault(name.strip(), len(self.addresses) + 1)
        return place * _ADDRESS + (int(offset, 0) if offset else 0)


def _operands(text: str) -> list[str]:
    """Split operands; a buffer behind a computed address is no operand."""
    parts = [part for part in text.split(",") if part.strip()]
    return [re.sub(r"(?<=\w) \[[^\]]*\]$", "", part.strip()) for part in parts]
