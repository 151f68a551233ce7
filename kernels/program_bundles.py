"""Instruction bundles of a whole XLA program, from the TPU compiler's final programs.

The compiler writes the bundles of each operation of the schedule, and of the program
that calls one after the other. `bundle_walk` counts an operation, with the turns of its
loops. How often an operation runs follows from the program's while loops: XLA's text
has the constant that a counter is compared with. A loop without one runs as often as
the data say; its turns are counted apart.

A core issues a bundle a cycle, so bundles and copied bytes bound the time from below.
No count has the waits of a bundle, for a copy or for an earlier result. Nothing runs.
Needs the extra `tpu`.
"""

import collections
import functools
import pathlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.export

from kernels import aot, bundle_text, bundle_walk, chips, compiler_dumps, hlo
from kernels.bundle_text import DELAY_SLOTS, Bundle, BundlesError
from kernels.bundle_walk import Count

FLAGS = ("--xla_jf_hlo_deduplication_all_unique=true",)  # a dump for every operation
CALLER = "TLP"  # the program that calls the operations
_FILE = re.compile(r"\d+-(.+)-\d+-final_bundles\.txt")
_CALL = re.compile(r"inlined_call [^/]*/\* (?:%([\w.-]+) = |(<[\w-]+>))")
_WHILE = re.compile(r" while\(.*condition=%([\w.-]+), body=%([\w.-]+)")
_NAMED = re.compile(r"^\s*(?:ROOT )?%([\w.-]+) = (.*)")
_LIMIT = re.compile(r"s32\[\]\S* constant\((\d+)\)")
_COMPARED = re.compile(r"ROOT .* compare\(.*direction=LT")
_ESTIMATE = re.compile(r'"estimated_cycles":"(\d+)"')


@dataclass(frozen=True)
class Operation:
    """One operation of a program, all its runs together."""

    name: str
    runs: int
    count: Count
    estimate: int  # cycles, by the compiler's own cost model; 0: it has none


@dataclass(frozen=True)
class Part:
    """What runs as often as the program does, or a turn of a loop does."""

    count: Count
    operations: tuple[Operation, ...]  # the most bundles first

    @property
    def runs(self) -> int:
        """Operations that are run."""
        return sum(operation.runs for operation in self.operations)

    @property
    def estimate(self) -> int:
        """Cycles of the operations for which the compiler has an estimate."""
        return sum(operation.estimate for operation in self.operations)


@dataclass(frozen=True)
class Program:
    """The bundles of a compiled program."""

    once: Part
    turn: Part  # of loops that run as the data say

    def seconds(self, chip: str, turns: int = 1) -> float:
        """Return a lower bound of the time with so many turns; 0: an unknown clock."""
        tpu = chips.TPUS[chip]
        whole = self.once.count + self.turn.count * turns
        if not tpu.clock:
            return 0.0
        return max(whole.bundles / tpu.clock, whole.copied / tpu.bandwidth)


def compiled(chip: str, function: Callable, *shapes: Any) -> Program:
    """Compile a function for one chip and count its bundles.

    Args:
        chip: a key of `aot.TOPOLOGIES`.
        function: of arrays; another process reads it as StableHLO.
        shapes: its arguments, trees of ShapeDtypeStruct.

    Raises:
        BundlesError: no final bundles; the message has the compiler's last lines.
    """
    with compiler_dumps.folder() as folder:
        asked, written = folder / "asked.stablehlo", folder / "program.txt"
        asked.write_bytes(_exported(function, *shapes))
        paths = str(asked), str(written)
        done = compiler_dumps.compile_in(
            folder, "kernels.program_bundles", chip, *paths, flags=FLAGS
        )
        texts = final_programs(folder)
        if done.returncode or CALLER not in texts:
            raise BundlesError(
                f"{chip}: {len(texts)} dumps of final bundles, or none of {CALLER} "
                f"(exit code {done.returncode}). Needs a libtpu that knows "
                f"{' '.join((*compiler_dumps.FLAGS, *FLAGS))}. {done.stderr[-2000:]}"
            )
        return assembled(texts, written.read_text())


def _exported(function: Callable, *shapes: Any) -> bytes:
    leaves, tree = jax.tree.flatten(shapes)
    flat = lambda *given: jax.tree.leaves(function(*jax.tree.unflatten(tree, given)))
    exported = jax.export.export(jax.jit(flat), platforms=["tpu"])(*leaves)
    return bytes(exported.serialize())


def final_programs(folder: pathlib.Path) -> dict[str, str]:
    """Return the final bundles of each operation that a folder has, by its name."""
    named = ((_FILE.fullmatch(path.name), path) for path in folder.iterdir())
    return {m[1]: path.read_text(errors="replace") for m, path in named if m}


def assembled(texts: dict[str, str], program: str) -> Program:
    """Count a program from the texts of its parts.

    Args:
        texts: final bundles by operation, and of the `CALLER`.
        program: XLA's text of the compiled program.

    Raises:
        BundlesError: an operation without bundles, or a loop of unknown form.
    """
    bundles = bundle_text.parse(texts[CALLER])
    bodies, estimates = _bodies(program), _estimates(program)
    runs, dynamic = _runs(bundles, bodies)
    own = {False: Count(), True: Count()}
    called: dict[bool, collections.Counter[str]] = {
        False: collections.Counter(),
        True: collections.Counter(),
    }
    for bundle, times, in_turn in zip(bundles, runs, dynamic, strict=True):
        own[in_turn] += (Count(bundles=1) + bundle_walk.copies(bundle)) * times
        for name in _calls(bundle):
            called[in_turn][name] += times
    parts = []
    for in_turn in (False, True):
        operations = []
        for name, times in called[in_turn].items():
            if name not in texts:
                raise BundlesError(f"no final bundles of {name}")
            total = _count(texts[name]) * times
            cycles = estimates.get(name, 0) * times
            operations.append(Operation(name, times, total, cycles))
            own[in_turn] += total
        operations.sort(key=lambda x: -x.count.bundles)
        parts.append(Part(own[in_turn], tuple(operations)))
    return Program(*parts)


@functools.lru_cache(64)
def _count(text: str) -> Count:
    return bundle_walk.count(text)


def _calls(bundle: Bundle) -> list[str]:
    return [name or special for name, special in _CALL.findall(bundle.text)]


def _runs(
    bundles: list[Bundle], bodies: dict[str, int | None]
) -> tuple[list[int], list[bool]]:
    """Return how often each bundle of the caller runs, and whether in a turn."""
    runs, dynamic = [1] * len(bundles), [False] * len(bundles)
    loops = _loops(bundles)
    for begin, end in loops:
        inner = {i for a, b in loops if begin < a < end for i in range(a, b)}
        own = [i for i in range(begin, end) if i not in inner]
        names = [name for i in own for name in _calls(bundles[i])]
        turns = next((bodies[name] for name in names if name in bodies), None)
        for i in range(begin, end):
            runs[i] *= turns or 1
            dynamic[i] |= turns is None
    return runs, dynamic


def _loops(bundles: list[Bundle]) -> list[tuple[int, int]]:
    """Return the stretch [begin, end) of each loop; its branch's slots are in it."""
    stretches = []
    for begin, bundle in enumerate(bundles):
        if bundle.label == "LB":
            for end in range(begin, len(bundles)):
                goes = bundle_text.branch(bundles[end])
                if goes is not None and goes.region in bundle.regions:
                    stretches.append((begin, end + 1 + DELAY_SLOTS))
                    break
            else:
                raise BundlesError("a loop without a branch to its beginning")
    return stretches


def _bodies(program: str) -> dict[str, int | None]:
    """Return the turns of the loop in whose body an operation is; None: unknown."""
    computations = dict(hlo.computations(program))
    turns: dict[str, int | None] = {}
    for lines in computations.values():
        for line in lines:
            match = _WHILE.search(line)
            if match:
                condition = "\n".join(computations.get(match[1], ()))
                limits = _LIMIT.findall(condition)
                is_counter = bool(_COMPARED.search(condition)) and len(limits) == 1
                turns[match[2]] = int(limits[0]) if is_counter else None
    return {
        match[1]: turns[body]
        for body in turns
        for line in computations.get(body, ())
        if (match := _NAMED.match(line))
    }


def _estimates(program: str) -> dict[str, int]:
    """Return the cycles that the compiler's cost model gives to operations."""
    found = {}
    for line in program.splitlines():
        match, cycles = _NAMED.match(line), _ESTIMATE.search(line)
        if match and cycles:
            found[match[1]] = int(cycles[1])
    return found


def _main(chip: str, asked: str, written: str) -> None:
    exported = jax.export.deserialize(bytearray(pathlib.Path(asked).read_bytes()))
    program = aot.compile_for(chip, exported.call, *exported.in_avals)
    pathlib.Path(written).write_text(program.as_text())


if __name__ == "__main__":
    _main(*sys.argv[1:])
