"""The stage `evaluate`: methods on tasks beside plain decoding, row by row."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax

from decoding import Method
from decoding.catalogue import Spec
from decoding.denoising import composed
from decoding.loops import engines
from experiments import console
from experiments.measurement import (
    block_width_cost,
    machine,
    measured_row,
    paired_difference,
)
from experiments.measurement.measured_row import Cell
from experiments.measurement.workbench import Bench, Case, Run
from experiments.preflight import programs
from experiments.prompts import question_files
from experiments.run_folder import RunFolder
from experiments.stage import Preflight, Stage
from experiments.studies import common
from models import storage
from models.distributed import sharding
from models.errors import ConfigError
from models.heads.formats import native
from models.surgery import lora


def run(
    config: Any, store: RunFolder, lm: Any = None, drafts: Any = None
) -> dict[str, Any]:
    """Measure missing pieces, return all of them; load models that are not passed."""
    named = common.methods(config)
    if config.data:
        config.tasks = question_files.choose(config.data, config.tasks)
    check(config, named)
    hardware, versions = common.provenance(store)
    cells = table(config, named)
    if lm is None:
        lm, drafts = common.load(config, named)
    if composed.is_canvas(lm):
        raise ConfigError(
            f"config.model={config.model!r} is a diffusion model, whose methods "
            "configs/studies/diffusion.py measures: run that, or experiments.generate"
        )
    bench = Bench(
        lm, drafts or {}, config.prompt_tokens, config.max_new_tokens, config.batch
    )
    benches = _trained(config, bench)
    bench = bench.beside(common.enlarged(config, lm))
    for cell in cells:  # refuse impossible combinations before anything is compiled
        case = Case(cell.method, cell.temperature, width=cell.width)
        benches.get(cell.name, bench).compose(case)
    prompts = common.texts(config, lm)

    report: dict[str, Any] = {"hardware": hardware, "versions": versions}
    trees = [name for name in config.trees if name in named]
    pieces = len(cells) + len(trees) + 1 + bool(config.curve)
    with console.bar(pieces, "read bandwidth") as bar:
        bandwidth = store.make("parts", "bandwidth", machine.bandwidth)
        report["bandwidth"] = bandwidth
        bar.done()
        rows, report["samples"] = {}, {}
        order = list(named)  # by method: each one's programs are compiled once
        for cell in sorted(cells, key=lambda cell: order.index(cell.name)):
            bar.doing(cell.key)
            plain = with_task(named[common.PLAIN], config, cell.task)

            def compute(cell: Cell = cell, plain: Method = plain) -> Any:
                rate, repeats = bandwidth["gb_s"], config.repeats
                cell_bench, texts = benches.get(cell.name, bench), prompts[cell.task]
                return measured_row.row(cell_bench, cell, plain, texts, repeats, rate)

            is_new = not store.has("rows", cell.key)
            piece = store.make("rows", cell.key, compute)
            row = _expect(piece["row"], config)
            if is_new:
                store.log(kind="row", **_scalars(row))
            bar.done(common.line(row) if is_new else "")
            rows[cell.key] = row
            report["samples"][cell.key] = piece["samples"]
        report["rows"] = [rows[cell.key] for cell in cells]
        report["trees"] = {}
        for name in trees:
            bar.doing(f"trees of {name}")
            cell_bench = benches.get(name, bench)
            draw = functools.partial(_trees, cell_bench, named, config, prompts, name)
            report["trees"][name] = store.make("trees", name, draw)
            bar.done()
        if config.curve:
            bar.doing("call time by block width")
            report["curve"] = store.make(
                "parts", "curve", lambda: _curve(config, bench)
            )
            report["suggested"] = _suggest(report["curve"]["target"], report["rows"])
            bar.done()
    if config.directions:
        report["tables"] = [paired_difference.table(report["rows"], config.directions)]
    if config.profile:
        for name in named:
            case = Case(named[name], config.temperatures[0])
            folder = store.path / "profile" / name
            if not folder.exists():
                cell_bench = benches.get(name, bench)
                with storage.new_folder(folder) as local:
                    measured_row.profile(
                        cell_bench, case, prompts[config.tasks[0]], str(local)
                    )
    return report


def check(config: Any, named: dict[str, Method]) -> None:
    """Raise ConfigError for impossible settings, before anything is loaded."""
    for name in ("prompts", "prompt_tokens", "max_new_tokens", "batch", "repeats"):
        if config[name] < 1:
            raise ConfigError(f"config.{name}={config[name]}: use at least 1")
    if config.prompts % config.batch:
        raise ConfigError(
            f"config.prompts={config.prompts} is no multiple of config.batch="
            f"{config.batch}: change one of them, since a smaller batch would compile "
            "another program"
        )
    if not config.tasks or not config.temperatures:
        raise ConfigError("config.tasks and config.temperatures need an entry each")
    for task, names in config.task_methods.items():
        for name in names:
            if name not in named:
                raise ConfigError(
                    f"config.task_methods.{task} has {name!r}: use names of "
                    f"config.methods={tuple(named)}"
                )
    if not config.width or set(config.width) - {"auto", "paper"}:
        raise ConfigError(
            f'config.width={config.width}: give ("auto",), ("paper",) or both'
        )
    for name in config.trees:
        if name not in named:
            raise ConfigError(f"config.trees has {name!r}: use names of {tuple(named)}")


def table(config: Any, named: dict[str, Method]) -> list[Cell]:
    """List all rows in the order of the report."""
    cells = []
    for task in config.tasks:
        names = config.task_methods.get(task, tuple(named))
        for temperature in config.temperatures:
            for seed in config.seeds or (config.seed,):
                for name in dict.fromkeys((common.PLAIN, *names)):
                    method = with_task(named[name], config, task)
                    for width in _widths(config, name):
                        law = (float(temperature), seed, config.batch)
                        cells.append(Cell(name, method, task, *law, width))
    return cells


def _widths(config: Any, name: str) -> tuple[str, ...]:
    """Return the kinds of width to measure; plain decoding has but one block."""
    return ("paper",) if name == common.PLAIN else tuple(config.width)


def with_task(method: Method, config: Any, task: str) -> Method:
    """Add the transforms of a task to a method."""
    extra = [_spec(t) for t in config.transforms.get(task, ())]
    if not extra:
        return method
    return dataclasses.replace(method, transforms=(*method.transforms, *extra))


def _spec(value: Any) -> Spec:
    if isinstance(value, str):
        return Spec(value)
    fields = dict(value)
    return Spec(fields.pop("name"), **fields)


def _trained(config: Any, bench: Bench) -> dict[str, Bench]:
    """Make a bench with trained heads for each method of `config.trained`."""
    benches = {}
    for name in config.methods:
        if name in config.trained:
            heads = native.load(config.trained[name], bench.lm)
            lm, params = lora.model(bench.lm, heads)
            benches[name] = bench.beside(common.enlarged(config, lm), heads=params)
    return benches


def _expect(row: dict[str, Any], config: Any) -> dict[str, Any]:
    """Add the recipe's expected figures to a row, and whether the row meets them."""
    expected = dict(dict(config.expected).get(row["key"], {}))
    tolerance = {m: config.tolerance.get(m, 0.1) for m in expected}
    within = {
        m: abs(row[m] - value) <= tolerance[m] * abs(value)
        for m, value in expected.items()
    }
    return {**row, "expected": expected, "tolerance": tolerance, "within": within}


def _scalars(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if not isinstance(v, dict | list)}


def _trees(bench: Bench, named: Any, config: Any, prompts: Any, name: str) -> list:
    """Record rounds of a task's first prompt, with memory from its second prompt."""
    task = config.tasks[0]
    case = Case(with_task(named[name], config, task), min(config.temperatures))
    key = engines.request_keys(config.seed, 1, 1)
    memory = bench.decode(case, prompts[task][1:2], key, Run())
    return measured_row.rounds(
        bench, case, prompts[task][0], key, config.tree_rounds, memory
    )


def _curve(config: Any, bench: Bench) -> dict[str, Any]:
    """Time a call by block width, of the target and of the draft model."""
    loaded: dict[str, Any] = {"target": bench.lm}
    if "draft" in bench.drafts:
        loaded["draft"] = bench.drafts["draft"]
    widths, repeats = tuple(config.widths), max(config.repeats, 5)
    size = bench.size + max(widths)
    context = config.prompt_tokens
    return {
        name: block_width_cost.call_times(lm, widths, context, size, repeats)
        for name, lm in loaded.items()
    }


def _suggest(times: Sequence[Any], rows: Sequence[dict[str, Any]]) -> list[dict]:
    """Choose the best chain width for every row whose drafts cost no model call."""
    suggestions = []
    for row in rows:
        chain = row["nodes"] == len(row["committed_by_depth"]) + 1
        is_fixed = (
            row["method"] != common.PLAIN and row.get("width", "paper") == "paper"
        )
        if not is_fixed or row["draft_calls"] or not chain:
            continue
        best = block_width_cost.suggest(
            times, row["committed_by_depth"], row["draft_share"]
        )
        suggestions.append({"key": row["key"], "nodes": row["nodes"], **best})
    return suggestions


def programs_of(config: Any, mesh: Any, dtype: Any) -> list[programs.Program]:
    """Return the prefill and loop programs of every method."""
    plan = sharding.on(mesh, "decode", config.get("rules", ""))
    assert plan is not None
    lm = programs.abstract(programs.shape_of(config), dtype, plan)
    all_programs = []
    for name, method in common.methods(config).items():
        drafts = {}
        if "heads" in method.needs:
            if name not in config.trained:
                raise ConfigError(
                    f"{name} needs heads: name their folder in config.trained, or use "
                    "the recipe that trains them"
                )
            stored = native.load(config.trained[name], dtype=dtype)
            _, params = jax.eval_shape(lora.applied, lm.params, stored)
            drafts["heads"] = programs.laid(params, plan.places(params))
        if "draft" in method.needs:
            shape = programs.shape_at(config.drafts["draft"])
            drafts["draft"] = programs.abstract(shape, dtype, plan)
        all_programs += programs.decoding(name, method, lm, drafts, config)
    return all_programs


STAGE = Stage(
    run,
    "Decoding with {}",
    (
        "methods",
        "variants",
        "trained",
        "tasks",
        "temperatures",
        "seeds",
        "task_methods",
        "trees",
        "expected",
        "tolerance",
        "curve",
        "profile",
        "mesh",
        "rules",
        "directions",
    ),
    preflight=Preflight(programs_of, programs.shape_of),
)
