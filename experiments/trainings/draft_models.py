"""The stage `draft_models`: align draft models with a target, then decode with them.

Every variant starts from the same weights and trains on the same text of the target.
All decode the same prompts, beside plain decoding and the draft before alignment.
"""

import functools
import pathlib
from collections.abc import Iterator, Sequence
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
from experiments.stage import Preflight, Stage, Trial
from experiments.studies import common
from models import transformer
from models.distributed import processes, sharding
from models.errors import ConfigError
from training.objectives.language_models import next_token
from training.runs import draft_model_run, scaffold

BEFORE = "before"


def run(config: Any, store: RunFolder, lm: Any = None) -> dict[str, Any]:
    """Train and measure missing pieces, and return all of them."""
    names = [_at(path) for path, _ in config.get("targets", ())]
    if len(names) > len(set(names)):
        raise ConfigError(
            f"config.targets: folders name the rows, and two are the same in {names}: "
            "rename one"
        )
    if lm is None:
        lm = models.load(config.model, mesh=config.mesh, rules=config.rules)
    hardware, versions = common.provenance(store)
    report: dict[str, Any] = {"hardware": hardware, "versions": versions}
    targets: list[tuple[str, Any, dict[str, Any]]] = [("", lm, {})]
    for path, fields in config.get("targets", ()):
        target = models.load(path, mesh=config.mesh, rules=config.rules)
        targets.append((_at(path), target, dict(fields)))
    sizes = (config.tasks, config.prompts, config.prompt_tokens)
    prompts = {at: builtin_tasks.build(target, *sizes) for at, target, _ in targets}
    with console.bar(len(config.variants) + 3, "read bandwidth") as bar:
        report["bandwidth"] = store.make("parts", "bandwidth", machine.bandwidth)
        bar.done()
        bar.doing("training")
        folder, file = store.path / "drafts", store.path / "drafts" / "figures.json"
        if not processes.agreed(file.exists()):
            draft_model_run.run(config, folder, lm, bar.say)
        figures = scaffold.read_figures(folder)
        bar.done("\n".join(lines(figures)))
        report["rows"], report["samples"] = [], {}
        training = draft_model_run.Training(config, folder, lm)
        drafts = {BEFORE: training.loaded(training.pretrained())}
        for name in config.variants:
            # In float32: the dtype of shipped weights is the caller's choice.
            drafts[name] = models.load(folder / name / "export", dtype=jnp.float32)
        for name, draft in drafts.items():
            bar.doing(f"decoding with {name}")
            for at, target, fields in targets:
                shared = (config, store, target, name, draft, prompts[at], report)
                for row, samples in _rows(*shared, at, fields):
                    if row["key"] not in report["samples"]:
                        report["rows"].append(row)
                    report["samples"][row["key"]] = samples
            bar.done()
    report["tables"] = [_table(figures)]
    if config.directions:
        report["tables"].append(
            paired_difference.table(report["rows"], config.directions)
        )
    report["plots"] = training_curves.plots(_trainings(figures))
    return report


def _at(path: str) -> str:
    """Return the suffix of the row names of another target: @folder."""
    return f"@{pathlib.Path(path).name}"


def _trainings(figures: dict[str, Any]) -> list[training_curves.Trained]:
    """List the variants' alignments, for the plots of trainings."""
    return [
        training_curves.Trained(
            name, v, v["seen_tokens"] / v["steps"], figures["before"], v["after"]
        )
        for name, v in figures["variants"].items()
    ]


def _rows(
    config, store, lm, name, draft, prompts, report, at, fields
) -> list[tuple[dict, dict]]:
    """Measure (row, texts) of plain decoding and of one draft, on every task.

    Args:
        config: the recipe.
        store: the run's folder.
        lm: the target.
        name: the draft's name in the report.
        draft: the draft model.
        prompts: task -> token prompts.
        report: the report so far, with the read bandwidth.
        at: suffix of the row names of another target; "" for the recipe's.
        fields: fields of the drafter that this target overrides.
    """
    sizes = (config.prompt_tokens, config.max_new_tokens, config.batch)
    bench = Bench(lm, {"draft": draft}, *sizes)
    plain = recipes.method("plain")
    drafting = draft_model_run.method(config, name).with_drafter(**fields)
    rows = []
    for task in config.tasks:
        for temperature in config.temperatures:
            for label, method in (("plain", plain), (name, drafting)):
                cell = Cell(
                    *(f"{label}{at}", method, task, float(temperature)),
                    *(config.seed, config.batch),
                )

                def compute(cell: Cell = cell) -> Any:
                    rate = report["bandwidth"]["gb_s"]
                    texts = prompts[cell.task]
                    return measured_row.row(
                        bench, cell, plain, texts, config.repeats, rate
                    )

                piece = store.make("rows", cell.key, compute)
                row = {**piece["row"], "expected": {}, "tolerance": {}, "within": {}}
                rows.append((row, piece["samples"]))
    return rows


def lines(figures: dict[str, Any]) -> Sequence[str]:
    """Format the trained drafts for the terminal, a line each."""
    before = figures["before"]["tau"]
    return [
        f"{name:12} {v['seen_tokens']} tokens in {v['seconds']:.0f} s; "
        f"tau {before:.2f} -> {v['after']['tau']:.2f}"
        for name, v in figures["variants"].items()
    ]


def _table(figures: dict[str, Any]) -> dict[str, Any]:
    """Make the table of the variants, in the form of `report.markdown`."""
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
    """Return the programs of every draft's training, and of decoding with a draft."""
    plan = sharding.on(mesh, "decode", config.get("rules", ""))
    assert plan is not None
    lm = programs.abstract(programs.shape_of(config), dtype, plan)
    if config.draft.start:
        shape = programs.shape_at(config.draft.start)
    else:
        shape = draft_model_run.shape(config.draft, lm.config)
    train = sharding.on(mesh, "train", config.get("rules", ""))
    trainings = _train_programs(config, lm, shape, train)
    drafts = {"draft": programs.abstract(shape, dtype, plan)}
    for name in ("", *config.get("drafters", ())):
        method = draft_model_run.method(config, name)
        label = name or config.name
        trainings += programs.decoding(label, method, lm, drafts, config)
    return trainings


def trials(
    config: Any, folder: pathlib.Path, lm: Any, draft: Any = None
) -> Iterator[Trial]:
    """Prepare the pre-training, if there is any, and then every variant."""
    training = draft_model_run.Training(config, folder, lm)
    if config.data.pretraining_tokens:
        raw, first = training.pretrained, training.start()
        yield Trial("raw text", first, raw, training.loaded, folder / "pretraining")
    start = training.pretrained()
    both, c = training.documents, config.distill
    written = draft_model_run.write(
        training.lm, both, c, folder / "written", config.seed
    )
    for name in config.variants:
        align = functools.partial(training.aligned, name, start, written)
        train = lambda align=align: align().params
        measure = functools.partial(training.measured, held=written.held, name=name)
        yield Trial(name, start, train, measure, folder / name)


def _train_programs(
    config: Any, lm: Any, shape: Any, plan: Any
) -> list[programs.Program]:
    """Return the programs of pre-training, if there is any, and of every variant.

    Plain decoding generates the target's text, in a smaller program than the draft's
    decode loop.
    """
    model = transformer.transformer(shape)
    params = jax.eval_shape(model.init, jax.random.key(0))
    c = config.data
    target, cached = programs.teacher(config, lm, (), True)
    raw: dict[str, tuple] = {"tokens": (c.batch, c.window + 1), "row": (c.batch,)}
    written = {**raw, "loss_mask": raw["tokens"]}

    def one(name: str, objective: Any, tokens: int, batch: Any, *frozen: Any) -> Any:
        optimizer = scaffold.optimizer(config.train, scaffold.num_steps(c, tokens))
        arguments = (objective, optimizer, params, batch, *frozen)
        return programs.training(f"train, {name}", config, plan, *arguments)

    trainings = []
    if c.pretraining_tokens:
        objective = next_token.objective(shape)
        trainings.append(one("raw text", objective, c.pretraining_tokens, raw))
    for name in config.variants:
        objective = draft_model_run.objective_of(config, name, model)
        trainings.append(
            one(name, objective, c.tokens, written, target, lm.params, cached)
        )
    return trainings


STAGE = Stage(
    run,
    "Decoding with {}",
    ("tasks", "temperatures", "targets", "directions", "mesh", "rules"),
    preflight=Preflight(programs_of, programs.shape_of),
    trials=trials,
)
