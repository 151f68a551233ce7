"""The stage `diffusion`: schedules and caches of a diffusion model, row by row.

A row is a schedule under a cache, on a task at a temperature, with some texts at once.
The autoregressive target that the model was made from has rows of its own, and gives
the bits of every text.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import decoding
import models
from decoding import Method, Spec, catalogue
from decoding.denoising import composed
from decoding.loops import initial_state, stats
from decoding.serving import scoring
from experiments import console
from experiments.benchmarks import infilling
from experiments.prompts import builtin_tasks
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common, diffusion_tables
from models.errors import ConfigError

Row = dict[str, Any]
Texts = Sequence[Sequence[int]]
PROMPTED = ("code", "copy")  # tasks without a suffix
TASKS = (*PROMPTED, "infilling")
AUTOREGRESSIVE = diffusion_tables.AUTOREGRESSIVE
FIRST = diffusion_tables.NONE  # the cache of an arm that names none


class Problem(NamedTuple):
    """A text to write, in tokens."""

    prompt: list[int]
    new: int  # tokens of the text, at most
    suffix: Sequence[int] = ()
    wanted: tuple[int, ...] = ()  # the right text; (): there is none


class Cell(NamedTuple):
    """The settings of a row."""

    arm: str
    cache: str  # "" of the target
    task: str
    temperature: float
    batch: int

    @property
    def key(self) -> str:
        name = f"{self.arm} {self.cache} {self.task} t{self.temperature:g}"
        return re.sub("[^a-z0-9.]+", "-", f"{name} b{self.batch}".lower())


class Given(NamedTuple):
    """The models and the problems of a run."""

    model: Any
    target: Any
    problems: Mapping[str, list[Problem]]


def run(config: Any, store: RunFolder, given: Given | None = None) -> dict[str, Any]:
    """Measure the rows that are missing and return all; load what is not passed."""
    check(config)
    load = functools.cache(lambda: given or loaded(config))
    rows: dict[Cell, Row] = {}
    every = cells(config)
    with console.bar(len(every), "diffusion") as bar:
        for cell in every:
            bar.doing(cell.key)

            def compute(cell: Cell = cell) -> Row:
                return written(config, cell, load())

            rows[cell] = store.make("rows", cell.key, compute)
            bar.done(cell.key)
    return common.study(store, tables=diffusion_tables.made(config, rows))


def loaded(config: Any) -> Given:
    """Load the models, and make the problems of all tasks."""
    model, target = models.load(config.model), models.load(config.target)
    if not composed.is_canvas(model):
        raise ConfigError(
            f"config.model={config.model!r} has no mask token: name a diffusion model"
        )
    if composed.is_canvas(target):
        raise ConfigError(
            f"config.target={config.target!r} is a diffusion model: name the "
            "autoregressive one of the same tokenizer"
        )
    return Given(model, target, {t: problems(config, target, t) for t in config.tasks})


def problems(config: Any, lm: Any, task: str) -> list[Problem]:
    """Make the problems of a task, in the tokens of `lm`."""
    if task == "infilling":
        sources = builtin_tasks.held_out()
        about = (config.prompts, config.around, config.most, config.seed)
        holes = infilling.identifiers(lm, sources, *about)
        return [Problem([*h.prompt], len(h.middle), h.suffix, h.middle) for h in holes]
    sizes = (config.prompts, config.prompt_tokens)
    prompts = builtin_tasks.build(lm, [task], *sizes)[task]
    if task != "copy":
        return [Problem(prompt, config.new_tokens) for prompt in prompts]
    found = []
    for prompt in prompts:
        wanted = edited(lm, prompt)[: config.new_tokens]
        found.append(Problem(prompt, len(wanted) or config.new_tokens, (), wanted))
    return found


def edited(lm: Any, prompt: Sequence[int]) -> tuple[int, ...]:
    """Return the rest of the edited copy that a prompt of `builtin_tasks.copy` begins.

    () where the prompt begins it in other tokens than the whole copy has.
    """
    encode = lm.tokenizer.encode
    passage, old, new, begun = re.split(
        r"\n# The same, with (\w+) renamed to (\w+):\n\n",
        lm.tokenizer.decode(list(prompt)),
        maxsplit=1,
    )
    whole = encode(re.sub(rf"\b{old}\b", new, passage))
    head = whole[: builtin_tasks.RETYPED]
    return tuple(whole[len(head) :]) if lm.tokenizer.decode(head) == begun else ()


def cells(config: Any) -> list[Cell]:
    """List all rows; those of one program come together."""
    pairs = [(AUTOREGRESSIVE, "")]
    for arm in config.arms:
        pairs += [(arm["name"], cache) for cache in arm.get("caches", (FIRST,))]
    return [
        Cell(*pair, task, temperature, batch)
        for pair in pairs
        for temperature in config.temperatures
        for batch in config.batches
        for task in config.tasks
    ]


def method(config: Any, cell: Cell) -> Method:
    """Return the method of a row."""
    if cell.arm == AUTOREGRESSIVE:
        return Method()
    schedule = next(arm["schedule"] for arm in config.arms if arm["name"] == cell.arm)
    parts = {"schedule": list(schedule), "policy": f"caches/{cell.cache}"}
    return Method.from_config(parts)


def written(config: Any, cell: Cell, given: Given) -> Row:
    """Write a task's texts, none of which may end early.

    Returns:
        Lists by text: `texts`, their tokens; `calls`, `nodes` and
        `wide`, forwards of the whole canvas; `canvas`, positions of prompt, text and
        suffix; `bits` under the target; `loop`, the share inside one repetition; and
        `hits`, the share of the right tokens in their place, where there are any. And
        `seconds`, of all texts, without compilation.
    """
    is_canvas = cell.arm != AUTOREGRESSIVE
    lm = given.model if is_canvas else given.target
    every = given.problems[cell.task][: None if cell.batch > 1 else config.alone]
    ends = tuple(lm.config.eos)
    lists = ("texts", "calls", "nodes", "wide", "canvas", "bits", "loop", "hits")
    row: Row = {name: [] for name in lists} | {"seconds": 0.0}
    settings: dict[str, Any] = {"method": method(config, cell)}
    if ends:
        settings["transforms"] = [Spec("transforms/ban_tokens", bans=ends)]
    for begin in range(0, len(every), cell.batch):
        part = every[begin : begin + cell.batch]
        if is_canvas and cell.task not in PROMPTED:
            settings["suffix"] = [list(problem.suffix) for problem in part]
        out = decoding.generate(
            lm,
            [problem.prompt for problem in part],
            max_new_tokens=[problem.new for problem in part],
            temperature=cell.temperature,
            seed=[config.seed + begin + i for i in range(len(part))],
            width="paper",
            **settings,
        )
        texts = [[*map(int, tokens)] for tokens in out.tokens]
        calls = out.stats.target_calls.tolist()
        nodes, wide = out.stats.nodes_run, out.stats.wide_calls
        row["texts"] += texts
        row["calls"] += calls
        row["nodes"] += calls if nodes is None else nodes.tolist()
        row["wide"] += [0] * len(calls) if wide is None else wide.tolist()
        row["canvas"] += [len(p.prompt) + p.new + len(p.suffix) for p in part]
        row["loop"] += [float(stats.loop_share(text)) for text in texts]
        row["seconds"] += out.stats.seconds
    row["bits"] = bits(given.target, [p.prompt for p in every], row["texts"])
    row["hits"] = [hits(p.wanted, t) for p, t in zip(every, row["texts"]) if p.wanted]
    return row


def hits(wanted: Sequence[int], text: Sequence[int]) -> float:
    """Return the share of the wanted tokens that stand in their place."""
    return sum(a == b for a, b in zip(wanted, text)) / len(wanted)


def bits(target: Any, prompts: Texts, texts: Texts) -> list[float]:
    """Return -log2 p of each text behind its prompt under the target."""
    rows = [[*prompt, *text] for prompt, text in zip(prompts, texts)]
    size = initial_state.bucket(max(map(len, rows)))
    tokens = np.zeros((len(rows), size), np.int32)
    for line, row in zip(tokens, rows):
        line[: len(row)] = row
    lengths = jnp.asarray([len(row) for row in rows], jnp.int32)
    about = (target.model, target.params, jnp.asarray(tokens), lengths, 0)
    logprobs = np.asarray(scoring.score(*about).logprobs, np.float64)
    spans = [slice(len(p), len(row)) for p, row in zip(prompts, rows)]
    return [-float(x[s].sum() / np.log(2)) for x, s in zip(logprobs, spans)]


def check(config: Any) -> None:
    """Raise for what would fail later, before anything is loaded.

    Raises:
        ConfigError: sizes, tasks or arms that do not fit.
        MethodError: a part that does not exist.
    """
    unknown = [task for task in config.tasks if task not in TASKS]
    if unknown or not config.tasks:
        raise ConfigError(f"config.tasks={config.tasks}: use some of {TASKS}")
    sizes = ("prompts", "alone", "prompt_tokens", "new_tokens", "around", "most")
    for name in sizes:
        if config[name] < 1:
            raise ConfigError(f"config.{name}={config[name]}: use at least 1")
    for batch in config.batches:
        if batch < 1 or config.prompts % batch:
            raise ConfigError(
                f"config.batches={config.batches}: each divides config.prompts="
                f"{config.prompts}"
            )
    names = [arm["name"] for arm in config.arms]
    if len({*names, AUTOREGRESSIVE}) <= len(names) or config.reference not in names:
        raise ConfigError(
            f"config.arms: the names {names} must differ, none is {AUTOREGRESSIVE!r}, "
            f"and config.reference={config.reference!r} is one of them"
        )
    by_name = {arm["name"]: arm for arm in config.arms}
    for arm in config.arms:
        rule = by_name.get(arm.get("texts_of", arm["name"]))
        caches = arm.get("caches", (FIRST,))
        if rule is None or not {*caches} <= {*rule.get("caches", (FIRST,))}:
            raise ConfigError(
                f"config.arms: {arm['texts_of']!r} is not measured under all of "
                f"{caches}: name an arm that is"
            )
    if FIRST not in by_name[config.reference].get("caches", (FIRST,)):
        raise ConfigError(f"config.reference={config.reference!r} needs {FIRST}")
    for cell in cells(config):
        for part in method(config, cell).parts:
            catalogue.load(part.name)


STAGE = Stage(run, "Diffusion with {}", ("arms", "tasks", "temperatures", "batches"))
