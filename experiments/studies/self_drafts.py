"""Self-speculation by modelled time: drafts that run a part of a model's layers.

Every round commits a token, so that tokens a call cannot fall below plain decoding's.
The time of a text can exceed it. In target calls of one node, with C rounds, D draft
calls, and a drafting model of L layers whose whole call costs `ratio` target calls,

    time     = C block + ratio (layers + head D) / (L + head)
    speed-up = new tokens / time

    layers   DEL: l of every draft call, l the round's exit
             SWIFT: L (D + trials) (share of the sublayers that run)
             EasySpec: L C + (D - C) (2 + spans a + (L - 2) (1 - a)), the first call of
             a round being exact; a group's layers run at once, and their share a that
             does so costs one layer's
    block    1, as the papers count; or the cost of as many nodes, `block_costs`
    head     0, as DEL counts; or the head's weights in layers

The latter is DEL's tokens per layer, times L. `View` holds what a column assumes.
"""

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from decoding import Method
from decoding.catalogue import Spec
from decoding.loops import engines
from experiments import console
from experiments.measurement import (
    bootstrap,
    measured_row,
    paired_difference,
    workbench,
)
from experiments.measurement.measured_row import Cell
from experiments.measurement.workbench import Bench, Case, Model, Run
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common, tree_budget
from models.errors import ConfigError

PLAIN = Spec("drafters/plain")
DEL, SWIFT, EASYSPEC = (f"drafters/{n}" for n in ("del_exit", "swift", "easyspec"))
DEPTHS = 3  # columns of acceptance

Row = dict[str, Any]


class View(NamedTuple):
    """The assumptions of a modelled time."""

    ratio: float = 1.0  # a whole call of the drafting model, in target calls
    heads: bool = False  # whether heads cost, by their weights
    blocks: bool = False  # whether a block costs more than a node: `block_costs`
    attention: float = 1.0  # EasySpec: share of a layer that its group runs at once
    keep: float = 0.0  # SWIFT: share of the sublayers that run; 0: the drafter's own
    search: bool = True  # SWIFT: whether trials of sets cost


def modelled(
    rounds: Any,
    layers: Any,
    heads: Any,
    depth: int,
    head: float = 0.0,
    ratio: float = 1.0,
    block: float = 1.0,
) -> Any:
    """Model the time of a text, in target calls of one node.

    Args:
        rounds: C, target calls.
        layers: layers of the drafting model whose time the text waited for.
        heads: calls of the drafting model's head.
        depth: L, its layers.
        head: a head's cost in layers; 0: DEL's count.
        ratio: cost of a whole call of the drafting model.
        block: cost of a round's verification.
    """
    return rounds * block + ratio * (layers + head * heads) / (depth + head)


def fuzzy(depth: int, group: int, attention: float = 1.0) -> float:
    """Model EasySpec's layer-parallel call, in layers.

    Args:
        depth: L; the first and the last layer stand alone.
        group: layers of a group.
        attention: share of a layer's time in which its group runs at once.
    """
    inner = max(depth - 2, 0)
    return depth - inner * attention + math.ceil(inner / group) * attention


def time_of(row: Row, view: View, costs: Callable[[int], float]) -> np.ndarray:
    """Model every prompt's time, float[P], from a row's counts.

    `costs(n)` is the cost of a target call of n nodes.
    """
    cost = costs if view.blocks else lambda nodes: 1.0
    calls, drafts = (np.asarray(row[name], float) for name in ("calls", "draft_calls"))
    depth, layers, heads = row["depth"], np.asarray(row["layers"], float), drafts
    if row["drafter"] == SWIFT:
        trials = np.asarray(row["trials"]) * cost(row["context"]) * view.search
        heads = drafts + trials
        layers = heads * depth * (view.keep or row["keep"])
    elif row["drafter"] == EASYSPEC:
        each = fuzzy(depth, row["group"], view.attention)
        exact = calls * cost(row["nodes"])  # reads what the last round committed
        layers, heads = depth * exact + each * (drafts - calls), exact + drafts - calls
    elif row["adapts"]:
        heads = drafts + calls  # one product reads the states of all exits
    head = row["head"] if view.heads else 0.0
    block = cost(row["nodes"])
    return modelled(calls, layers, heads, depth, head, view.ratio, block)


def perturbed(lm: Any, noise: float, seed: int = 0) -> Model:
    """Add Gaussian noise to every matrix of a model, `noise` of its own rms."""
    leaves, form = jax.tree.flatten(lm.params)
    keys = jax.random.split(jax.random.key(seed), len(leaves))

    def add(key: jax.Array, x: jax.Array) -> jax.Array:
        rms = jax.numpy.sqrt((x * x).mean())
        return x + noise * rms * jax.random.normal(key, x.shape, x.dtype)

    moved = [
        add(k, x) if noise and x.ndim > 1 else x
        for k, x in zip(keys, leaves, strict=True)
    ]
    return Model(lm.model, jax.tree.unflatten(form, moved), lm.tokenizer)


def drafter_of(method: Method) -> Spec:
    """Return a method's drafter; one without is plain decoding's."""
    return method.drafter if isinstance(method.drafter, Spec) else PLAIN


def argument(spec: Spec, name: str) -> Any:
    """Return an argument of a spec, or its default."""
    default = inspect.signature(spec.factory).parameters[name].default
    return spec.arguments.get(name, default)


def head_in_layers(lm: Any) -> float:
    """Return the weights of the head over those of a layer."""
    config = lm.model.config
    layer = sum(x.size for x in jax.tree.leaves(lm.params["layer_0"]))
    return config.vocab_size * config.d_model / layer


def counted(bench: Bench, case: Case, prompts: Sequence, seed: int) -> tuple[Run, Row]:
    """Decode all prompts; return the run, and counts by prompt."""
    parts, run, memory = bench.compose(case), Run(), None
    engine, params = engines.engine(parts), bench.params(bench.lm)
    counts: Row = {"draft_calls": [], "layers": [], "trials": []}
    made, keep = 0, 1.0
    for part, keys in bench.batches(prompts, seed):
        limits = [len(prompt) + bench.new_tokens for prompt in part]
        state = engine.start(params, parts, part, limits, keys, bench.size, memory)
        state = engine.advance(params, state)
        workbench.record(run, part, state)
        memory = state.drafter.shared
        counts["draft_calls"] += np.asarray(state.counters.draft_calls).tolist()
        layers = getattr(state.drafter.row, "layers", np.zeros(len(part), int))
        counts["layers"] += np.asarray(layers).tolist()
        if drafter_of(case.method).name == SWIFT:  # one search for all rows of a batch
            sublayers = 2 * bench.lm.model.config.n_layers
            keep = 1 - int(memory.size) / sublayers
            counts["trials"] += [int(memory.made) - made] * len(part)
            made = int(memory.made)
    return run, {**counts, "keep": keep}


def row(bench: Bench, cell: Cell, prompts: Sequence[list[int]]) -> Row:
    """Measure a cell; its lists, `new` to `trials`, are by prompt."""
    case, reference = (Case(m, cell.temperature) for m in (cell.method, Method()))
    run, counts = counted(bench, case, prompts, cell.seed)
    plain = bench.once(reference, prompts, cell.seed)
    same = measured_row.identical(bench, cell, reference, run, plain, prompts)
    spec, fields = drafter_of(cell.method), {}
    if spec.name == SWIFT:
        fields["context"] = argument(spec, "context")
    if spec.name == EASYSPEC:
        fields["group"] = argument(spec, "group")
    drafting = bench.drafts["draft"] if spec.name == EASYSPEC else bench.lm
    return {
        "method": cell.name,
        "drafter": spec.name,
        "task": cell.task,
        "temperature": cell.temperature,
        "depth": drafting.model.config.n_layers,
        "head": head_in_layers(drafting),
        "nodes": bench.compose(case).program.drafter.nodes,
        "adapts": spec.name == DEL and argument(spec, "threshold") is None,
        **fields,
        "new": [len(text) for text in run.tokens],
        "calls": run.calls,
        **counts,
        "accepted_by_depth": workbench.by_depth(run)[0],
        "loop_share": float(np.mean(workbench.loops(run))),
        "identical_to_plain": same["identical_to_plain"],
    }


def check(config: Any, named: dict[str, Method]) -> None:
    """Raise ConfigError for methods whose time has no model, and for wrong views."""
    known = (DEL, SWIFT, EASYSPEC, PLAIN.name)
    for name, method in named.items():
        if (drafter := drafter_of(method).name) not in known:
            raise ConfigError(
                f"config.methods has {name!r}, whose drafter is {drafter}: time "
                f"is modelled of {known}"
            )
    for title, fields in config.views:
        if unknown := set(fields) - set(View._fields):
            raise ConfigError(
                f"config.views: {title!r} has {sorted(unknown)}: use {View._fields}"
            )


def run(
    config: Any, store: RunFolder, lm: Any = None, draft: Any = None
) -> dict[str, Any]:
    """Measure missing pieces, return all of them; load models that are not passed."""
    named = common.methods(config)
    check(config, named)
    if lm is None:
        lm, drafts = common.load(config, named)
        draft = drafts.get("draft")
    size, new = config.prompt_tokens, config.max_new_tokens
    prompts = common.texts(config, lm)
    rows = []
    cells = [
        (noise, float(t), name, task)
        for noise in config.noises
        for t in config.temperatures
        for name in named
        for task in config.tasks
    ]
    with console.bar(len(cells), "self-speculation") as bar:
        for noise, t, name, task in cells:
            key = f"{name}-n{noise:g}-{task}-t{t:g}"
            bar.doing(key)
            drafts = {} if draft is None else {"draft": perturbed(draft, noise)}
            bench = Bench(lm, drafts, size, new, config.batch)
            cell = Cell(name, named[name], task, t, config.seed, config.batch)
            work = functools.partial(row, bench, cell, prompts[task])
            rows.append({**store.make("rows", key, work), "noise": noise})
            bar.done(key)
    costs = _costs(config.block_costs)
    views = [(title, View(**fields)) for title, fields in config.views]
    points = dict.fromkeys((r["noise"], r["temperature"]) for r in rows)
    return common.study(
        store,
        self_drafts=rows,
        tables=[
            *(table(rows, *point, views, costs) for point in points),
            *(_directions(rows, config, title, view, costs) for title, view in views),
        ],
    )


def _costs(pairs: Sequence[tuple[int, float]]) -> Callable[[int], float]:
    """Interpolate the cost of a target call by its nodes."""
    widths, values = zip(*pairs, strict=True)
    return lambda nodes: float(np.interp(nodes, widths, values))


def table(
    rows: Sequence[Row],
    noise: float,
    t: float,
    views: Sequence[tuple[str, View]],
    costs: Callable[[int], float],
) -> dict[str, Any]:
    """Make a line for each method, over all tasks; a column for each view."""
    mine = [r for r in rows if (r["noise"], r["temperature"]) == (noise, t)]
    lines = []
    for name in dict.fromkeys(r["method"] for r in mine):
        pooled = [r for r in mine if r["method"] == name]
        new, calls = bootstrap.pooled(pooled)
        drafts = sum(sum(r["draft_calls"]) for r in pooled)
        shares = pooled[0]["accepted_by_depth"][:DEPTHS]
        accepted = [f"{100 * x:.0f} %" for x in shares] + ["–"] * DEPTHS
        loops = np.mean([r["loop_share"] for r in pooled])
        cells = [
            name,
            f"{new.sum() / calls.sum():.2f}",
            f"{pooled[0]['nodes']}",
            f"{drafts / calls.sum():.2f}",
            *accepted[:DEPTHS],
            *(_speed(pooled, view, costs) for _, view in views),
            f"{100 * loops:.0f} %",
        ]
        lines.append(cells)
    depths = [f"accepted {depth + 1}" for depth in range(DEPTHS)]
    heads = ["method", "tokens a call", "nodes", "draft calls a call", *depths]
    heads += [*(title for title, _ in views), "loop share"]
    notes = [
        "accepted d: of the rounds with a draft at depth d, the share that committed "
        "one; of several tasks, the first's.",
        *(f"{title}: modelled speed-up, {_assumed(view)}." for title, view in views),
        *tree_budget.identical(mine),
    ]
    title = f"T = {t:g}" + (f", noise {noise:g}" if noise else "")
    return {"title": title, "heads": heads, "lines": lines, "notes": notes}


def _speed(rows: Sequence[Row], view: View, costs: Callable[[int], float]) -> str:
    """Write the modelled speed-up and its interval over prompts."""
    new = np.concatenate([r["new"] for r in rows])
    times = np.concatenate([time_of(r, view, costs) for r in rows])
    at = np.random.default_rng(0).integers(len(new), size=(2000, len(new)))
    low, high = np.quantile(new[at].sum(1) / times[at].sum(1), (0.025, 0.975))
    return f"{new.sum() / times.sum():.2f}× ({low:.2f}–{high:.2f})"


def _assumed(view: View) -> str:
    """Write the fields of a view that are not the default."""
    default = View()
    fields = (
        f"{name} {value}"
        for name, value in view._asdict().items()
        if value != getattr(default, name)
    )
    return ", ".join(fields) or "layers alone, a block costs a call"


def _directions(
    rows: Sequence[Row], config: Any, title: str, view: View, costs: Any
) -> dict[str, Any]:
    """Compare modelled speed-ups of pairs on the same prompts."""
    timed = [{**r, "calls": time_of(r, view, costs)} for r in rows]
    by = {"temperature": "T"}
    if len(config.noises) > 1:
        by["noise"] = "noise"
    compared = paired_difference.table(timed, config.directions, by)
    note = compared["notes"][0].replace("tokens a call", "modelled speed-up")
    notes = [note, *compared["notes"][1:]]
    return {**compared, "title": f"Directions, {title}", "notes": notes}


STAGE = Stage(
    run,
    "Self-speculation with {}, by modelled time",
    (
        "methods",
        "variants",
        "tasks",
        "temperatures",
        "noises",
        "views",
        "block_costs",
        "directions",
    ),
    parts=("self_drafts",),
)
