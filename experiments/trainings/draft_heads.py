"""The stage `draft_heads`: train draft heads, then decode with them, side by side.

Every recipe of a comparison trains on the same data, for the same number of tokens, by
its own optimiser. It decodes the same prompts beside plain decoding.
"""

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import ml_collections

import decoding
import models
from configs.base import training
from decoding import Method, base, noise, recipes
from decoding.loops import decode, engines
from experiments import console
from experiments.measurement import machine, measured_row, paired_difference
from experiments.measurement.measured_row import Cell
from experiments.measurement.workbench import Bench, Case
from experiments.preflight import programs
from experiments.prompts import builtin_tasks
from experiments.recipes import settings
from experiments.reporting import training_curves
from experiments.run_folder import RunFolder
from experiments.stage import Preflight, Stage, Trial
from experiments.studies import common
from experiments.trainings import head_tables, ppd_tree_budgets
from models.distributed import processes, sharding
from models.heads.formats import native
from models.surgery import lora
from training.runs import draft_head_run, scaffold


def run(config: Any, store: RunFolder, lm: Any = None) -> dict[str, Any]:
    """Train and measure missing pieces, and return all of them."""
    if lm is None:
        lm = models.load(config.model, mesh=config.mesh, rules=config.rules)
    listed = plan(config)
    hardware, versions = common.provenance(store)
    report: dict[str, Any] = {"hardware": hardware, "versions": versions}
    prompts = builtin_tasks.build(
        lm, config.tasks, config.prompts, config.prompt_tokens
    )
    with console.bar(1 + 2 * len(listed), "read bandwidth") as bar:
        report["bandwidth"] = store.make("parts", "bandwidth", machine.bandwidth)
        bar.done()
        report["rows"], report["samples"], report["heads"] = [], {}, []
        trainings, timed, confidence = [], [], []
        for seed, name, recipe in listed:
            bar.doing(f"training {name}, seed {seed}")
            training_config, folder = one_training(config, store, name, recipe, seed)
            trained = folder / "figures.json"
            if not processes.agreed(trained.exists()):
                draft_head_run.run(training_config, folder, lm, bar.say)
            figures = scaffold.read_figures(folder)
            bar.done(head_tables.line(name, figures))
            bar.doing(f"decoding with {name}, seed {seed}")
            piece = _Piece(config, store, lm, name, training_config, figures)
            if training_config.get("tree_budgets"):
                timed.append((name, seed, piece.fastest(figures["hits"], prompts)))
            rows = piece.rows(prompts, report["bandwidth"]["gb_s"])
            for row, samples in rows:
                if row["key"] not in report["samples"]:
                    report["rows"].append(row)
                report["samples"][row["key"]] = samples
            drafted = [row for row, _ in rows if row["method"] != piece.plain]
            own = [row for row in drafted if row["method"] == name]
            flops = store.make("flops", f"{name}-s{seed}", piece.flops)
            report["heads"].append(head_tables.summary(name, seed, figures, own, flops))
            if rated := figures.get("confidence"):
                confidence.append((f"{name}, seed {seed}", rated))
            trainings.append(_trained(f"{name}, seed {seed}", figures))
            bar.done("\n".join(common.line(row) for row in drafted))
    report["tables"] = [head_tables.table(report["heads"])]
    if config.directions:
        report["tables"].append(
            paired_difference.table(report["rows"], config.directions)
        )
    if confidence:
        report["tables"].append(head_tables.confidence(confidence))
    if timed:
        report["tables"].append(ppd_tree_budgets.table(timed))
    report["plots"] = training_curves.plots(trainings)
    return report


def _trained(name: str, figures: dict[str, Any]) -> training_curves.Trained:
    tokens = figures["seen_tokens"] / figures["steps"]
    measured = figures["untrained"], figures["trained"]
    return training_curves.Trained(name, figures, tokens, *measured)


def one_training(
    config: Any, store: RunFolder, name: str, recipe: Any, seed: int
) -> tuple[Any, pathlib.Path]:
    """Return (config, folder) of one training."""
    training_config = ml_collections.ConfigDict(recipe.to_dict())
    training_config.seed = seed
    folder = store.path / "heads" / f"{recipe.get('weights', name)}-s{seed}"
    training_config.export = str(folder / "export")
    training_config.data.directory = config.data.directory or str(store.path / "data")
    return training_config, folder


def plan(config: Any) -> list[tuple[int, str, Any]]:
    """List (seed, name, recipe) of every training, seed by seed.

    The recipes are `config.recipes`, or the config itself. `config.full` adds
    `config.full_recipes`, for the first seed alone.
    """
    names, more = tuple(config.get("recipes", ())), ()
    seeds = tuple(config.seeds or (config.seed,))
    if not names:
        ppd_tree_budgets.check(config)
        return [(seed, config.name, config) for seed in seeds]
    if config.full:
        more, seeds = tuple(config.full_recipes), tuple(config.full_seeds)
    each_recipe = {name: _recipe(config, name) for name in (*names, *more)}
    for recipe in each_recipe.values():
        ppd_tree_budgets.check(recipe)
    return [
        (seed, name, each_recipe[name])
        for i, seed in enumerate(seeds)
        for name in (names if i else each_recipe)
    ]


def _recipe(config: Any, name: str) -> Any:
    """Put a recipe of configs/heads on the data of the comparison, for as many tokens.

    A head trains as its recipe says: its optimiser and rows of a step are its own. What
    the comparison sets other than usual holds for all heads; a rate keeps a recipe's
    ratio to the usual one, since PPD's few params train at ten times it.
    """
    base, fields = name, {}
    if name in config.variants:
        fields = config.variants[name].to_dict()
        base = fields.pop("recipe")
    recipe = settings.head(base, config.target)
    usual = training.get_config(config.target)
    recipe.model, recipe.export_dtype = config.model, config.export_dtype
    recipe.mesh, recipe.rules = config.mesh, config.rules
    recipe.teacher = config.teacher
    recipe.features.update(config.features)
    rows = recipe.data.batch
    recipe.data.update(config.data)
    if config.data.batch == usual.data.batch:
        recipe.data.batch = rows
    if config.full:
        recipe.data.tokens = config.full_tokens
    for field, value in config.train.items():
        if value != usual.train[field]:
            if field in ("rate", "muon_rate"):
                value = value * recipe.train[field] / usual.train[field]
            recipe.train[field] = value
    recipe.evaluate.update(config.evaluate)
    if name in config.variants:
        recipe.name = recipe.weights = name
        recipe.update(fields)
    return recipe


class _Piece:
    """One trained head as a method, on the comparison's prompts."""

    def __init__(self, config, store, lm, name, recipe, figures):
        self.config, self.store, self.name = config, store, name
        self.recipe, self.seed = recipe, recipe.seed
        self.method = draft_head_run.method(recipe, figures["hits"])
        changed, params = lora.model(lm, native.load(recipe.export, lm))
        # A model that was changed with its heads has another plain text.
        self.plain = "plain" if changed.params is lm.params else f"plain-{name}"
        self.bench = Bench(
            changed,
            {"heads": params},
            config.prompt_tokens,
            config.max_new_tokens,
            config.batch,
        )
        self.first: list[int] = []

    def fastest(
        self, hits: Sequence[Sequence[float]], prompts: dict[str, list]
    ) -> dict[str, Any]:
        """Measure tree budgets, and decode with the fastest from here on.

        The export's method becomes the fastest too. Returns the measurements.
        """
        c = self.config
        first = prompts[c.tasks[0]][: c.batch]

        def compute() -> Any:
            repeats = max(c.repeats, 5)
            return ppd_tree_budgets.measure(
                self.bench, self.recipe, hits, first, repeats
            )

        budgets = self.store.make("budgets", f"{self.name}-s{self.seed}", compute)
        self.method = ppd_tree_budgets.method(self.recipe, hits, budgets["budget"])
        method_config = self.method.to_config()
        processes.written(lambda: native.decode_with(self.recipe.export, method_config))
        return budgets

    def rows(self, prompts: dict[str, list], rate: float) -> list[tuple[dict, dict]]:
        """Measure (row, texts) of plain decoding and the head, on every task.

        Each method of the recipe's `beside` has a row of the head beside them, greedily
        those alone whose drafts are others: what lossless verifiers accept is the same.
        """
        c = self.config
        self.first = prompts[c.tasks[0]][0]
        plain = recipes.method("plain")
        methods = {self.plain: plain, self.name: self.method}
        for further, method in draft_head_run.others(self.recipe).items():
            methods[f"{self.name}_{further}"] = method
        measured = []
        for task in c.tasks:
            for temperature in c.temperatures:
                for name, method in _distinct(methods, temperature).items():
                    cell = Cell(
                        name, method, task, float(temperature), self.seed, c.batch
                    )

                    def compute(cell: Cell = cell) -> Any:
                        return measured_row.row(
                            self.bench, cell, plain, prompts[cell.task], c.repeats, rate
                        )

                    piece = self.store.make("rows", cell.key, compute)
                    row = {**piece["row"], "expected": {}, "tolerance": {}}
                    measured.append(({**row, "within": {}}, piece["samples"]))
        return measured

    def flops(self) -> float:
        """Count the operations of one round's draft, by the compiler's analysis."""
        parts = self.bench.compose(Case(self.method, max(self.config.temperatures)))
        engine, params = engines.engine(parts), self.bench.params(self.bench.lm)
        keys = engines.request_keys(self.seed, 1, 1)
        limits = [len(self.first) + self.bench.new_tokens]
        state = engine.start(
            params, parts, [self.first], limits, keys, self.bench.size, None
        )

        def draft(params: Any, state: Any) -> Any:
            key = noise.for_role(state.key, noise.DRAFT, state.length)
            ctx = decode.context(parts.program, params, state)
            return parts.program.drafter.draft(key, ctx, state.drafter)[:2]

        compiled = jax.jit(draft).lower(params, state).compile()
        cost: Any = compiled.cost_analysis()
        return float(cost["flops"])


def _distinct(methods: dict[str, Method], temperature: float) -> dict[str, Method]:
    """Return the methods, without those that equal another one greedily."""
    if temperature > 0:
        return methods
    rows: dict[Any, str] = {}
    for name, method in methods.items():
        verifier = method.verifier
        lossy = verifier is not None and verifier.card.guarantee == base.LOSSY
        key = (method.drafter, method.topology, verifier if lossy else None)
        rows.setdefault(key, name)
    return {name: methods[name] for name in rows.values()}


def programs_of(config: Any, mesh: Any, dtype: Any) -> list[programs.Program]:
    """Return the programs of a recipe's training, and of decoding with its heads.

    Methods that differ in the verifier alone have one program.
    """
    rules = config.get("rules", "")
    plan = sharding.on(mesh, "decode", rules)
    assert plan is not None
    lm = programs.abstract(programs.shape_of(config), dtype, plan)
    shapes, _ = programs.head_shapes(config, lm, dtype)
    # A target that is changed with its heads keeps its shapes.
    _, params = jax.eval_shape(lora.applied, lm.params, shapes)
    listed = [_train_program(config, lm, sharding.on(mesh, "train", rules))]
    drafts = {"heads": programs.laid(params, plan.places(params))}
    methods = {config.name: programs.method_of(config)}
    for further, method in draft_head_run.others(config).items():
        methods[f"{config.name}_{further}"] = method
    for name, method in _distinct(methods, 0.0).items():
        listed += programs.decoding(name, method, lm, drafts, config)
    return listed


def trials(
    config: Any, folder: pathlib.Path, lm: Any, draft: Any = None
) -> Iterator[Trial]:
    """Prepare the training; its heads decode with the tree of their own hits."""
    training, c = draft_head_run.Training(config, folder, lm), config.evaluate

    def decode(params: Any) -> Any:
        hits = training.hits(params, c.temperature)
        changed, heads = lora.model(training.lm, training.heads(params))
        return decoding.generate(
            changed,
            training.prompts(c.prompts, c.prompt_tokens),
            draft_head_run.method(config, hits),
            max_new_tokens=c.new_tokens,
            temperature=c.temperature,
            drafts={"heads": heads},
            width="paper",
        )

    train = lambda: training.fit().params
    yield Trial("heads", training.params, train, decode, folder)


def _train_program(config: Any, lm: Any, plan: Any) -> programs.Program:
    """Return the training program of a recipe's heads."""
    shapes, vocabulary = programs.head_shapes(config, lm)
    kind = draft_head_run.module(config.head)
    objective = kind.objective(lm.model, **config.objective.to_dict(), **vocabulary)
    c = config.data
    steps = scaffold.num_steps(c, c.tokens)
    batch = {"tokens": (c.batch, c.window + 1), "row": (c.batch,)}
    if c.segments or c.whole:
        batch["segments"] = batch["tokens"]
    if c.whole:
        batch["loss_mask"] = batch["tokens"]
    target, cached = programs.teacher(config, lm, objective.taps, False)
    params = {n: x for n, x in shapes.items() if n not in vocabulary}
    optimizer = scaffold.optimizer(config.train, steps)
    weights = programs.count(lm.params)
    if not lm.config.tied:
        weights -= programs.count(lm.params["embedding"]["tokens"])
    bill = programs.Bill(programs.count(params), weights, c.batch * c.window, steps)
    arguments = (objective, optimizer, params, batch, target, lm.params, cached, bill)
    return programs.training("train", config, plan, *arguments)


STAGE = Stage(
    run,
    "Draft heads trained for {}",
    (
        "stage",
        "recipes",
        "seeds",
        "full",
        "tasks",
        "temperatures",
        "directions",
        "mesh",
        "rules",
    ),
    parts=("heads",),
    preflight=Preflight(programs_of, programs.shape_of),
    trials=trials,
)
