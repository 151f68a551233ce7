"""The stage `scaling_laws`: acceptance by training, size and batch, and its laws.

A point is a draft model of one size, trained on a number of tokens, which drafts chains
on the same prompts. Drafts and verifier are coupled, so all points write plain
decoding's text and differ in calls alone. The reference draft is timed by batch size.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np

import models
from decoding import Method
from experiments import console
from experiments.measurement import machine
from experiments.measurement.workbench import Bench, Case, Run
from experiments.prompts import builtin_tasks
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common, scaling_laws_report
from models.errors import ConfigError
from training.runs import draft_model_run

PLAIN = Method()


class Point(NamedTuple):
    """A draft model: its width, its layers, its training tokens, its seed."""

    width: int
    layers: int
    tokens: int
    seed: int

    @property
    def key(self) -> str:
        return f"w{self.width}-l{self.layers}-n{self.tokens}-s{self.seed}"


def points(config: Any) -> list[Point]:
    """List the points of a config, cheapest first.

    ConfigError if no law can be fitted to them, or prompts do not fill batches.
    """
    sizes, tokens = sorted({tuple(s) for s in config.sizes}), sorted({*config.tokens})
    if len(sizes) < 2 or len(tokens) < 2 or not config.seeds:
        raise ConfigError(
            f"config.sizes={config.sizes}, config.tokens={config.tokens}, config.seeds="
            f"{config.seeds}: a law needs two sizes, two numbers of tokens, a seed"
        )
    if tuple(config.reference) not in sizes:
        raise ConfigError(
            f"config.reference={config.reference}: use one of config.sizes={sizes}"
        )
    for width, layers in sizes:
        if layers < 1 or width % config.head_dim or width < config.head_dim:
            raise ConfigError(
                f"a size of config.sizes, {(width, layers)}: its width must be a "
                f"multiple of config.head_dim={config.head_dim}, its layers 1 or more"
            )
    for batch in (config.batch, *config.batches):
        if config.prompts * len(config.tasks) % batch:
            raise ConfigError(
                f"{config.prompts} prompts of {len(config.tasks)} tasks do not fill "
                f"batches of {batch}: change config.prompts or the batches"
            )
    every = itertools.product(tokens, sizes, config.seeds)
    return [Point(width, layers, n, seed) for n, (width, layers), seed in every]


class Study:
    """The points of a config on one target; drafts of a size share their programs."""

    def __init__(self, config: Any, store: RunFolder, lm: Any):
        self.config, self.store, self.lm = config, store, lm
        self.method = draft_model_run.method(config)
        named = builtin_tasks.build(
            lm, config.tasks, config.prompts, config.prompt_tokens
        )
        self.prompts = [prompt for task in config.tasks for prompt in named[task]]
        self._models: dict[tuple[int, int], Any] = {}
        self._drafts: dict[Point, models.Loaded] = {}

    def trained(self, point: Point) -> models.Loaded:
        """Train, resume or load the draft of a point; cache the last one."""
        if point not in self._drafts:
            self._drafts = {point: self._trained(point)}
        return self._drafts[point]

    def _trained(self, point: Point) -> models.Loaded:
        """Train a draft of the point's shape on its number of tokens."""
        c = ml_collections.ConfigDict(self.config.to_dict())
        heads = point.width // c.head_dim
        c.draft = {
            "start": "",
            "d_model": point.width,
            "n_layers": point.layers,
            "n_heads": heads,
            "n_kv_heads": heads // 2 if heads % 2 == 0 else heads,
            "d_ff": 5 * point.width // 2,
            "rope_theta": 10000.0,
        }
        c.seed, c.data.pretraining_tokens = point.seed, point.tokens
        c.data.directory = c.data.directory or str(self.store.path / "data")
        training = draft_model_run.Training(c, self.store.path / "drafts", self.lm)
        loaded = training.loaded(training.pretrained(point.key))
        model = self._models.setdefault(point[:2], loaded.model)
        return models.Loaded(model, loaded.params, loaded.tokenizer)

    def bench(self, draft: Any, batch: int) -> Bench:
        """Make a bench of the target with one draft."""
        c = self.config
        return Bench(
            self.lm, {"draft": draft}, c.prompt_tokens, c.max_new_tokens, batch
        )

    def plain(self, temperature: float) -> list[list[int]]:
        """Decode all prompts plainly; return the new tokens of each."""

        def compute() -> list[list[int]]:
            bench = self.bench(None, self.config.batch)
            case = Case(PLAIN, temperature)
            return bench.once(case, self.prompts, self.config.seed).tokens

        return self.store.make("parts", f"plain-t{temperature:g}", compute)

    def point(self, point: Point, temperature: float) -> dict[str, Any]:
        """Measure calls and acceptance of a point, prompt by prompt."""
        draft = self.trained(point)
        bench = self.bench(draft, self.config.batch)
        run = bench.once(Case(self.method, temperature), self.prompts, self.config.seed)
        return {
            **point._asdict(),
            "parameters": sum(int(x.size) for x in jax.tree.leaves(draft.params)),
            "temperature": temperature,
            "same": self._same(run, temperature),
            **counts(run),
        }

    def _same(self, run: Run, temperature: float) -> int:
        """Count the texts that equal plain decoding's."""
        plain = self.plain(temperature)
        return sum(a == b for a, b in zip(run.tokens, plain, strict=True))

    def batched(self, batch: int) -> dict[str, Any]:
        """Time the reference draft beside plain decoding, in turns."""
        c = self.config
        width, layers = c.reference
        whole = Point(width, layers, max(c.tokens), min(c.seeds))
        bench = self.bench(self.trained(whole), batch)
        temperature = float(max(c.temperatures))
        cases = [Case(method, temperature) for method in (self.method, PLAIN)]
        turns = [
            bench.interleaved(cases, self.prompts, c.seed) for _ in range(c.repeats)
        ]
        first = turns[0][0]
        return {
            "batch": batch,
            "temperature": temperature,
            "same": self._same(first, temperature),
            "rounds": first.rounds,
            "seconds": [drafted.seconds for drafted, _ in turns],
            "plain_seconds": [plain.seconds for _, plain in turns],
            **counts(first),
        }


def counts(run: Run) -> dict[str, Any]:
    """Count by prompt: new tokens, target calls, and rounds that committed a draft of
    depth 1, 2, ..: `accepted` is [prompts][depths]."""
    accepted = np.stack(run.accepted).tolist()
    return {
        "new": [len(t) for t in run.tokens],
        "calls": run.calls,
        "accepted": accepted,
    }


def run(config: Any, store: RunFolder, lm: Any = None) -> dict[str, Any]:
    """Train and measure missing points, and return all of them."""
    listed = points(config)
    if lm is None:
        lm = models.load(config.model, mesh=config.mesh, rules=config.rules)
    common.provenance(store)
    study, rows, timed = Study(config, store, lm), [], []
    batches: Sequence[int] = sorted({*config.batches})
    temperatures = [float(t) for t in config.temperatures]
    pieces = 1 + len(listed) * len(temperatures) + len(batches)
    with console.bar(pieces, "read bandwidth") as bar:
        store.make("parts", "bandwidth", machine.bandwidth)
        bar.done()
        for point in listed:
            for temperature in temperatures:
                bar.doing(f"draft {point.key}")
                key = f"{point.key}-t{temperature:g}"
                work = functools.partial(study.point, point, temperature)
                row = store.make("points", key, work)
                rows.append(row)
                rate = sum(row["new"]) / sum(row["calls"])
                bar.done(f"{key:32} {rate:5.2f} tokens/call")
        for batch in batches:
            bar.doing(f"batch {batch}")
            work = functools.partial(study.batched, batch)
            most = f"n{max(config.tokens)}-s{min(config.seeds)}"
            key = f"b{batch}-{most}-t{max(config.temperatures):g}"
            timed.append(store.make("batches", key, work))
            bar.done()
    measured = {"points": rows, "batches": timed}
    return common.study(store, **scaling_laws_report.made(measured))


STAGE = Stage(
    run,
    "Acceptance by {} against size and training of its draft",
    ("tokens", "sizes", "seeds", "temperatures", "batches", "mesh", "rules"),
    parts=("scaling",),
)
