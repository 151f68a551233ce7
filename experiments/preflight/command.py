"""Compile a config's programs for a slice that is not here.

python -m experiments.preflight --config=configs/pods/hydra_llama3_8b.py
    --topology=v5e:4x4 [--config.field=value ...] [--only=decode] [--report=FILE.md]
    [--compile_only] [--list_fields]

A training is run first, on this machine's CPU with small widths: two steps, and a
decoding with what they trained (`first_steps`). --compile_only leaves that out.
A recipe's mesh is its own slice's: on other numbers of chips "auto" stands in for it.
The real compiler of the slice's chips compiles the config's programs. It needs the
extra `tpu`; `cpu:N` needs nothing. The command prints for each program: a device's
memory against its HBM, operations, bytes, the compiler's time estimate, our own
(`estimate`) with its parts on the links and in attention kernels, the collectives of a
step, upper bounds of speed, and the tokens that a decoding verifies for nothing. A
config that does not fit is an error, which names the smallest change that fits. For a
training of heads the parameters and operations are printed first. --only selects the
programs whose names begin with NAME (train, prefill, decode). --report adds the rows to
FILE.json and writes FILE.md from all of its rows. --list_fields prints the config's
fields.
"""

import contextlib
import functools
import shlex
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from experiments import console
from experiments.measurement import machine
from experiments.preflight import estimate, first_steps, programs, report, topologies
from experiments.recipes import command_fields, settings
from kernels import block_traffic, hlo
from kernels.chips import GIB, Chip
from models import cpu_host, storage
from models.distributed import device_mesh
from models.errors import ConfigError, DecodaxError
from training import command_line

MODULE = "experiments.preflight"


def measure(program: programs.Program, chip: Chip) -> dict[str, Any]:
    """Compile one program and return its costs. Bytes are of one device."""
    with block_traffic.compiling_for("" if chip.name == "cpu" else chip.name):
        try:
            compiled = program.compile()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            # Far beyond its memory the compiler gives up instead of counting.
            raise ConfigError(
                f"It does not fit: the compiler cannot place {program.name} into "
                f"{chip.hbm / GIB:.0f} GiB ({str(error).split(': ', 1)[-1]}). Use "
                "fewer rows at once, a larger slice, or chips with more memory"
            ) from error
    memory: Any = compiled.memory_analysis()
    cost: Any = compiled.cost_analysis() or {}
    temporary = memory.temp_size_in_bytes + memory.generated_code_size_in_bytes
    unshared = memory.output_size_in_bytes - memory.alias_size_in_bytes
    text = compiled.as_text()
    row: dict[str, Any] = {
        "program": program.name,
        "rows": program.rows,
        "tokens": program.tokens,
        **({"wide": program.wide} if program.wide else {}),
        "parts": program.parts,
        "temporaries": temporary + max(unshared, 0),
        "need": memory.argument_size_in_bytes
        + temporary
        + max(unshared, 0)
        + program.parts.get(programs.WAITING, 0),
        "hbm": chip.hbm,
        "flops": float(cost.get("flops", 0.0)),
        "bytes": float(cost.get("bytes accessed", 0.0)),
        "seconds": max(float(cost.get("optimal_seconds", 0.0)), 0.0),
        "collectives": hlo.summary(text),
    }
    if chip.bandwidth:
        at = estimate.coordinates(program.mesh)
        times = estimate.times(text, row["flops"], row["bytes"], chip, at)
        row |= {"times": times._asdict(), "roofline": times.step}
        row |= ceilings(program, chip, row, times) if program.read else {}
    return row


def ceilings(
    program: programs.Program, chip: Chip, row: dict[str, Any], times: estimate.Times
) -> dict[str, Any]:
    """Compute bounds on decoding, from the bytes that one call cannot avoid.

    Returns:
        plain: tokens/s of one text at one token a call, which reads the weights.
        free: tokens of a call that cost no more than one.
        at_free: tokens/s if all `free` tokens are accepted.
        least: seconds of a step that moves no other bytes.
        beside: rows of a call beside each copy of the weights, in decoding.
        mbu: share of the bandwidth that weights and cache use in the estimated time.
        by_tokens: bytes of weights by the tokens of a call, of a mixture of experts.
    """
    least = program.read / chip.bandwidth
    alone = program.by_tokens.get(1, program.read) / chip.bandwidth
    must = program.read + row["parts"]["cache"]
    longest = max(row["seconds"], row["roofline"], must / chip.bandwidth)
    return {
        "plain": 1 / alone,
        "free": chip.free,
        "at_free": chip.free / least,
        "least": times._replace(memory=must / chip.bandwidth).step,
        "beside": program.beside,
        "mbu": must / chip.bandwidth / longest,
        "by_tokens": program.by_tokens,
    }


def fits(row: dict[str, Any]) -> bool:
    """Test whether a program fits into the usable share of a device's HBM."""
    return row["need"] <= topologies.SHARE * row["hbm"]


class Preflight:
    """The programs of a config on a topology."""

    def __init__(self, config: ConfigDict, topology: str, memory: int | None = None):
        self.config, self.topology = config, topology
        self.chip, self.devices = topologies.devices(topology, memory)
        self.dtype = jnp.float32 if self.chip.name == "cpu" else jnp.bfloat16

    def mesh(self, config: ConfigDict) -> Any:
        """Make the config's mesh on the topology's devices.

        Sizes for another number of devices are of another slice: they are as "auto".
        """
        sizes, count = config.get("mesh", device_mesh.AUTO), len(self.devices)
        if sizes in ("", device_mesh.AUTO) or not device_mesh.covers(sizes, count):
            preflight = programs.of(config)
            shape = preflight.target(config)
            size = device_mesh.weights(shape)
            heads = device_mesh.heads_of(preflight.preset, shape)
            axes = device_mesh.preset(preflight.preset, size, heads, count)
        else:
            axes = device_mesh.parse(sizes)
        return device_mesh.mesh_of(axes, self.devices)

    def programs(self, config: ConfigDict) -> list[programs.Program]:
        """List the programs of a config on its mesh."""
        preflight = programs.of(config)
        return list(preflight.programs(config, self.mesh(config), self.dtype))

    @functools.cached_property
    def own(self) -> list[Any]:
        """List the programs of the config, without changes."""
        return self.programs(self.config)

    def bills(self) -> list[str]:
        """Describe each training of heads from sizes alone: uncut params, cost."""
        lines = []
        for program in self.own:
            if program.whole:
                names = [f"{n} {b / 1e6:.0f} MB" for n, b in program.whole.items()]
                lines.append(
                    f"{program.name}: whole on every device: {', '.join(names)}."
                )
            bill = program.bill
            if bill is None:
                continue
            line = (
                f"{program.name}: {bill.heads:,} parameters beside a target of "
                f"{bill.target:,}; {bill.steps:,} steps of {bill.tokens:,} tokens, "
                f"{bill.operations / bill.tokens / bill.steps:.3g} operations a token "
                f"or more, {bill.operations:.3g} in all"
            )
            if self.chip.flops:
                rate = self.chip.flops * len(self.devices)
                hours = bill.operations / rate / 3600
                line += f": {hours:.1f} hours at the chips' full rate"
            lines.append(line + ".")
        return lines

    def rows(self, only: str = "") -> Iterator[dict[str, Any]]:
        """Compile the programs whose names begin with `only`; yield a row for each."""
        for program in self.own:
            if program.name.startswith(only):
                yield measure(program, self.chip)

    def remedy(self, row: dict[str, Any]) -> str:
        """Find the smallest change that makes a program fit; each try is compiled."""
        for change in self._changes(row):
            config = ConfigDict(self.config.to_dict())
            try:
                config = settings.override(config, change)
                candidates = self.programs(config)
                program = next(p for p in candidates if p.name == row["program"])
                if fits(measure(program, self.chip)):
                    return " ".join(change)
            except DecodaxError:
                continue
        return "a larger slice, or chips with more memory"

    def _changes(self, row: dict[str, Any]) -> Iterator[list[str]]:
        """Yield candidate overrides, smallest first; those that keep results lead."""
        room = topologies.SHARE * row["hbm"]
        if row["program"].startswith("train"):
            t = self.config.train
            batch = row["rows"]
            rows_at_once = t.rows_at_once or batch
            for rows in range(rows_at_once - 1, 0, -1):
                if (
                    batch % rows == 0
                    and row["temporaries"] * rows / rows_at_once < room
                ):
                    yield [f"--config.train.rows_at_once={rows}"]
        else:
            fixed = row["parts"]["params"] + row["parts"]["drafts"]
            row_bytes = (row["need"] - fixed) / row["rows"]
            most = int(max(room - fixed, 0) / row_bytes)
            ways = self.mesh(self.config).shape["data"]
            for rows in (most // ways * ways, most // 2 // ways * ways, most):
                if 0 < rows < row["rows"]:
                    yield [f"--config.batch={rows}"]
        shape = dict(self.mesh(self.config).shape)
        for axis in ("data", "fsdp"):
            while shape[axis] % 2 == 0:
                shape[axis] //= 2
                shape["tensor"] *= 2
                sizes = ",".join(f"{a}={n}" for a, n in shape.items())
                yield [f"--config.mesh={sizes}"]


def run(
    config: ConfigDict,
    topology: str,
    command: Sequence[str] = (),
    report_file: str = "",
    only: str = "",
    compile_only: bool = False,
) -> dict[str, Any]:
    """Run first steps, compile a config's programs, print rows, write the report.

    Args:
        config: the recipe.
        topology: as in `topologies`.
        command: the command line, for the report.
        report_file: a Markdown file; "": write none.
        only: first letters of the names of programs; "": all.
        compile_only: run no steps.

    Raises:
        ConfigError: a program does not fit; the message names a remedy.
        TrainingError: the first steps fail.
    """
    flight, out = Preflight(config, topology), console.terminal()
    mesh = ",".join(f"{a}={n}" for a, n in flight.mesh(config).shape.items())
    count = len(flight.devices)
    out.print(f"{topology}: {count} devices, mesh {mesh}", markup=False)
    sizes = config.get("mesh", device_mesh.AUTO)
    if not device_mesh.covers(sizes, count):
        line = f"The recipe's mesh {sizes} is of another slice: auto stands in for it."
        out.print(line, markup=False, highlight=False)
    rows, refused = [], []
    for bill in flight.bills():
        out.print(bill, markup=False, highlight=False, soft_wrap=True)
    seconds = None if compile_only else first_steps.run(config)
    if seconds is not None:
        line = f"Two steps and a decoding on shrunk widths: fine, {seconds:.0f} s."
        out.print(line, markup=False, highlight=False)
    for row in flight.rows(only):
        rows.append(row)
        for line in report.lines([row])[2 if len(rows) > 1 else 0 :]:
            out.print(line, markup=False, highlight=False, soft_wrap=True)
        if not fits(row):
            refused.append(row)
    for line in report.bounds(rows):
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    verdict = "It fits."
    if refused:
        worst = max(refused, key=lambda row: row["need"])
        verdict = (
            f"It does not fit: {worst['program']} needs {worst['need'] / GIB:.2f} GiB "
            f"a device of {worst['hbm'] / GIB:.0f} GiB. The smallest change that makes "
            f"it fit: {flight.remedy(worst)}"
        )
    name = next((a.split("=", 1)[1] for a in command if a.startswith("--config=")), "")
    entry = {
        "config": name,
        "topology": topology,
        "command": shlex.join(command),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": machine.commit(),
        "devices": count,
        "mesh": mesh,
        "versions": machine.versions(),
        "rows": rows,
        "verdict": verdict,
    }
    if report_file:
        report.write(storage.path(report_file), entry)
    if refused:
        raise ConfigError(verdict)
    out.print(verdict)
    return entry


def body(arguments: list[str]) -> int:
    """Compile the programs of a command line."""
    parser = command_line.Parser(MODULE, __doc__)
    parser.add_argument("--topology", help="as in v5e:4x4")
    parser.add_argument("--only", default="", help="train, prefill or decode")
    parser.add_argument("--report", default="", help="a report to add to")
    skip = "run no steps before"
    parser.add_argument("--compile_only", action="store_true", help=skip)
    options, config = command_fields.read(parser, arguments)
    topology = options.topology
    if not topology:
        raise ConfigError("no --topology: give a slice, e.g. --topology=v5e:4x4")
    cpu_host.settle()
    kind, _, count = topology.partition(":")
    if kind == "cpu" and count.isdigit():
        with contextlib.suppress(RuntimeError):  # JAX has its devices already
            jax.config.update("jax_num_cpu_devices", int(count))
    command = command_line.words(MODULE, arguments)
    if not programs.compiles(config) and not options.compile_only:
        console.terminal().print(steps_alone(config), markup=False, highlight=False)
        return 0
    flags = (options.report, options.only, options.compile_only)
    run(config, topology, command, *flags)
    return 0


def steps_alone(config: ConfigDict) -> str:
    """Run the first steps of a stage that has no program for a slice."""
    seconds = first_steps.run(config)
    if seconds is None:
        programs.of(config)  # names the stages that have one
    return (
        f"Two steps and a decoding on shrunk widths: fine, {seconds or 0:.0f} s. "
        f"stage={config.stage!r} trains on outputs that one device stored: it has no "
        "program of its own to compile for a slice."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; one message explains a mistake in it."""
    return command_line.call(MODULE, body, arguments)
