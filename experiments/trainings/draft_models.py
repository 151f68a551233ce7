"""The stage `draft_models`: draft models aligned with a target, then decoded with.

Every variant starts from the same weights and sees the same text of the target; all
decode the same prompts beside plain decoding and beside the draft before alignment.
"""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

import models
from decoding import recipes
from experiments import console
from experiments.measurement import machine, measured_row, paired_difference
from experiments.measurement.measured_row import Cell
from experiments.measurement.workbench import Bench
from experiments.preflight import programs
from experiments.prompts import builtin_tasks
from experiments.reporting import training_curves
from experiments.run_folder import RunFolder
from experiments.stage import Preflight, Stage
from experiments.studies import common
from models import transformer
from models.distributed import processes, sharding
from models.errors import ConfigError
from training.objectives.language_models import draft_model, next_token
from training.runs import draft_model_run, scaffold

BEFORE = "before"


def run(config: Any, store: RunFolder, lm: Any = None) -> dict[str, Any]:
    """Train what is missing, measure what is missing, and return everything."""
    names = [_at(path) for path, _ in config.get("targets", ())]
    if len(names) > len(set(names)):
        raise ConfigError(
            f"config.targets: rows are named by folders, and of {names} two are the "
            "same: rename one"
        )
    if lm is None:
        lm = models.load(config.model, mesh=config.mesh, rules=config.rules)
    hardware, versions = common.provenance(store)
    found: dict[str, Any] = {"hardware": hardware, "versions": versions}
    targets: list[tuple[str, Any, dict[str, Any]]] = [("", lm, {})]
    for path, fields in config.get("targets", ()):
        own = models.load(path, mesh=config.mesh, rules=config.rules)
        targets.append((_at(path), own, dict(fields)))
    asked = (config.tasks, config.prompts, config.prompt_tokens)
    prompts = {at: builtin_tasks.build(own, *asked) for at, own, _ in targets}
    with console.bar(len(config.variants) + 3, "read bandwidth") as bar:
        found["bandwidth"] = store.make("parts", "bandwidth", machine.bandwidth)
        bar.done()
        bar.doing("training")
        folder, file = store.path / "drafts", store.path / "drafts" / "figures.json"
        if not processes.agreed(file.exists()):
            draft_model_run.run(config, folder, lm, bar.say)
        figures = json.loads(file.read_text())
        bar.done("\n".join(lines(figures)))
        found["rows"], found["samples"] = [], {}
        training = draft_model_run.Training(config, folder, lm)
        every = {BEFORE: training.loaded(training.pretrained())}
        for name in config.variants:
            # In float32: the shipped form of the weights is the caller's choice.
            every[name] = models.load(folder / name / "export", dtype=jnp.float32)
        for name, draft in every.items():
            bar.doing(f"decoding with {name}")
            for at, own, fields in targets:
                given = (config, store, own, name, draft, prompts[at], found)
                for row, samples in _rows(*given, at, fields):
                    if row["key"] not in found["samples"]:
                        found["rows"].append(row)
                    found["samples"][row["key"]] = samples
            bar.done()
    found["tables"] = [_table(figures)]
    if config.directions:
        found["tables"].append(
            paired_difference.table(found["rows"], config.directions)
        )
    found["plots"] = training_curves.plots(_trainings(figures))
    return found


def _at(path: str) -> str:
    """What marks the rows of another target."""
    return f"@{pathlib.Path(path).name}"


def _trainings(figures: dict[str, Any]) -> list[training_curves.Trained]:
    """The variants' alignments."""
    return [
        training_curves.Trained(
            name, v, v["seen_tokens"] / v["steps"], figures["before"], v["after"]
        )
        for name, v in figures["variants"].items()
    ]


def _rows(
    config, store, lm, name, draft, prompts, found, at, fields
) -> list[tuple[dict, dict]]:
    """A row and its texts for plain decoding and one draft, on every task.

    `at` marks the rows of another target, where the drafter is given `fields`.
    """
    sizes = (config.prompt_tokens, config.max_new_tokens, config.batch)
    bench = Bench(lm, {"draft": draft}, *sizes)
    plain = recipes.method("plain")
    own = draft_model_run.method(config).with_drafter(**fields)
    rows = []
    for task in config.tasks:
        for temperature in config.temperatures:
            for label, method in (("plain", plain), (name, own)):
                cell = Cell(
                    *(f"{label}{at}", method, task, float(temperature)),
                    *(config.seed, config.batch),
                )

                def compute(cell: Cell = cell) -> Any:
                    rate = found["bandwidth"]["gb_s"]
                    texts = prompts[cell.task]
                    return measured_row.row(
                        bench, cell, plain, texts, config.repeats, rate
                    )

                piece = store.make("rows", cell.key, compute)
                row = {**piece["row"], "expected": {}, "tolerance": {}, "within": {}}
                rows.append((row, piece["samples"]))
    return rows


def lines(figures: dict[str, Any]) -> Sequence[str]:
    """The trained drafts in the terminal."""
    before = figures["before"]["tau"]
    return [
        f"{name:12} {v['seen_tokens']} tokens in {v['seconds']:.0f} s; "
        f"tau {before:.2f} -> {v['after']['tau']:.2f}"
        for name, v in figures["variants"].items()
    ]


def _table(figures: dict[str, Any]) -> dict[str, Any]:
    """The variants side by side, in the form of `report.markdown`."""
    heads = ("draft", "tokens", "nats a token", "α", "first guess right", "τ")
    rows = [(BEFORE, figures["pretraining_tokens"], figures["before"])]
    rows += [(n, v["seen_tokens"], v["after"]) for n, v in figures["variants"].items()]
    cells = [
        [
            name,
            f"{seen}",
            f"{f['nats']:.3f}",
            f"{f['alpha_0']:.3f}",
            f"{100 * f['hit_0']:.1f} %",
            f"{f['tau']:.2f}",
        ]
        for name, seen, f in rows
    ]
    notes = (
        f"Drafts of {figures['parameters'] / 1e6:.2f} M parameters for a target of "
        f"{figures['target_parameters'] / 1e6:.2f} M, on "
        f"{figures['written_tokens']} tokens that the target wrote.",
        "On held-out text of the target: nats, the cross-entropy; α, how often a draft "
        "is accepted by rejection sampling; first guess right, how often it is the "
        "target's likeliest token. τ: tokens per call of the real decode loop.",
    )
    return {"title": "Alignment", "heads": heads, "lines": cells, "notes": notes}


def programs_of(config: Any, mesh: Any, dtype: Any) -> list[programs.Program]:
    """Return every training of a draft, and the loop with one."""
    plan = sharding.on(mesh, "decode", config.get("rules", ""))
    assert plan is not None
    lm = programs.abstract(programs.shape_of(config), dtype, plan)
    if config.draft.start:
        shape = programs.shape_at(config.draft.start)
    else:
        shape = draft_model_run.shape(config.draft, lm.config)
    train = sharding.on(mesh, "train", config.get("rules", ""))
    trained = _train_programs(config, lm, shape, train)
    given = {"draft": programs.abstract(shape, dtype, plan)}
    method = draft_model_run.method(config)
    return trained + programs.decoding(config.name, method, lm, given, config)


def _train_programs(
    config: Any, lm: Any, shape: Any, plan: Any
) -> list[programs.Program]:
    """Training on raw text, where there is some, and of every variant.

    The text is written by plain decoding, a smaller program than the draft's own loop.
    """
    model = transformer.transformer(shape)
    params = jax.eval_shape(model.init, jax.random.key(0))
    c = config.data
    target, told = programs.teacher(config, lm, (), True)
    raw: dict[str, tuple] = {"tokens": (c.batch, c.window + 1), "row": (c.batch,)}
    written = {**raw, "loss_mask": raw["tokens"]}

    def one(name: str, own: Any, tokens: int, batch: Any, *frozen: Any) -> Any:
        optimizer = scaffold.optimizer(config.train, scaffold.num_steps(c, tokens))
        learned = (own, optimizer, params, batch, *frozen)
        return programs.training(f"train, {name}", config, plan, *learned)

    found = []
    if c.pretraining_tokens:
        own = next_token.objective(shape)
        found.append(one("raw text", own, c.pretraining_tokens, raw))
    for name, fields in config.variants.items():
        own = draft_model.objective(model, part=config.train.part, **fields.to_dict())
        found.append(one(name, own, c.tokens, written, target, lm.params, told))
    return found


STAGE = Stage(
    run,
    "Decoding with {}",
    ("tasks", "temperatures", "targets", "directions", "mesh", "rules"),
    preflight=Preflight(programs_of, programs.shape_of),
)
