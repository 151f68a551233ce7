"""The stage `prompt_set`: many prompts decoded into a JSONL file, rows refilled.

Writes workdir/texts.jsonl (`decoding/serving/prompt_set.py`: in order, every line once,
byte-identical after any kill) and workdir/timings.jsonl, a line for each finished text.
With `config.compare` the same prompts are then decoded twice more on the clock,
refilled and batch by batch, with all programs compiled.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

import models
from decoding import compose, recipes
from decoding.loops import engines
from decoding.serving import continuous_batching, prompt_set
from experiments import console
from experiments.measurement import machine
from experiments.preflight import programs
from experiments.prompts import builtin_tasks
from experiments.run_folder import RunFolder
from experiments.stage import Preflight, Stage
from experiments.studies import common
from models.distributed import sharding
from models.errors import ConfigError

SHOWN = (50, 90, 99)  # percentiles of latency
HEADS = (
    "rows are",
    "requests",
    "new tokens",
    "tokens/s",
    "tokens/call",
    "rounds",
    "occupancy",
    *(f"p{p} s" for p in SHOWN),
)
NOTES = (
    "occupancy: of rounds × rows, the share in which the row had a request. p50, p90, "
    "p99: seconds from a request's admission, after its prompt was prefilled, to its "
    "last token. Times are without compilation.",
    "written: what texts.jsonl was made by, all sittings together. The other two lines "
    "are the same requests again, one after the other, in one process.",
)


def run(config: Any, store: RunFolder, lm: Any = None) -> dict[str, Any]:
    """Write missing texts, measure missing pieces, and return all of them."""
    check(config)
    method = recipes.method(config.recipe)
    common.provenance(store)
    needs = method.needs
    drafts = {n: models.load(d) for n, d in config.drafts.items() if n in needs}
    if lm is None:
        lm = models.load(config.model, mesh=config.mesh, rules=config.rules)
    parts = compose.compose(method, lm, float(config.temperature), drafts)
    params = compose.params(lm, drafts)
    prompts = requests(config, lm)
    prompt_set.check(lm, prompts, config.batch)
    with console.bar(len(prompts) + 1, "read bandwidth") as bar:
        store.make("parts", "bandwidth", machine.bandwidth)
        bar.done()
        bar.doing(f"{len(prompts)} prompts in {config.batch} rows")
        journal = Journal(store)

        def observe(text: continuous_batching.Finished) -> None:
            journal.note(text)
            bar.done()

        about = {"temperature": float(config.temperature), "method": config.recipe}
        written = prompt_set.write(
            lm,
            prompts,
            store.path / "texts.jsonl",
            parts,
            params,
            about=about,
            seed=config.seed,
            batch=config.batch,
            usage=journal.usage,
            observe=observe,
        )
        rows = [["written", *journal.cells()]]
        if config.compare:
            rows += _compared(config, store, parts, params, prompts)
    table = {"title": "Rows", "heads": HEADS, "lines": rows, "notes": NOTES}
    return common.study(store, tables=[table], written=written)


def check(config: Any) -> None:
    """Raise ConfigError for impossible settings, before anything is loaded."""
    for name in ("prompts", "prompt_tokens", "max_new_tokens", "batch"):
        if config[name] < 1:
            raise ConfigError(f"config.{name}={config[name]}: use at least 1")
    if not config.spread >= 0:
        raise ConfigError(f"config.spread={config.spread}: use at least 0")


def requests(config: Any, lm: Any) -> list[prompt_set.Prompt]:
    """Build prompts with their lengths, from `config.data` or the built-in tasks.

    With `config.spread` above 0 lengths are log-normal around a quarter of
    `config.max_new_tokens`, which bounds them.
    """
    most = config.max_new_tokens
    if config.data:
        prompts = prompt_set.read(lm, config.data, most)
    else:
        built = builtin_tasks.build(
            lm, config.tasks, config.prompts, config.prompt_tokens
        )
        prompts = [prompt_set.Prompt(p, most) for t in config.tasks for p in built[t]]
    if not config.spread:
        return prompts
    rng = np.random.default_rng(config.seed)
    drawn = rng.lognormal(np.log(most / 4), config.spread, len(prompts))
    sizes = np.clip(np.ceil(drawn), 1, most).astype(int).tolist()
    return [p._replace(new=min(p.new, n)) for p, n in zip(prompts, sizes)]


class Journal:
    """workdir/timings.jsonl: a line for every text; a sitting is one process's part."""

    def __init__(self, store: RunFolder):
        self.store, self.usage = store, continuous_batching.Usage()
        self.sitting = 1 + max((t["sitting"] for t in self.lines()), default=-1)

    def lines(self) -> list[dict[str, Any]]:
        return self.store.lines("timings")

    def note(self, text: continuous_batching.Finished) -> None:
        """Append a line for a finished text."""
        self.store.append(
            "timings",
            sitting=self.sitting,
            request=text.request,
            tokens=len(text.tokens),
            calls=text.calls,
            latency=round(text.done - text.admitted, 6),
            rows=self.usage.rows,
            rounds=self.usage.rounds,
            used=self.usage.used,
            seconds=round(self.usage.seconds, 6),
        )

    def cells(self) -> list[str]:
        """Sum all sittings; the time of a text lost in a kill counts twice."""
        lines = self.lines()
        last = {t["sitting"]: t for t in lines}.values()
        seconds = sum(t["seconds"] for t in last)
        rounds = sum(t["rounds"] for t in last)
        places = sum(t["rounds"] * t["rows"] for t in last)
        texts = list({t["request"]: t for t in lines}.values())
        occupancy = sum(t["used"] for t in last) / max(places, 1)
        return _cells(texts, seconds, rounds, occupancy)


def _compared(config, store, parts, params, prompts) -> list[list[str]]:
    """Time the same requests with rows refilled, and batch by batch."""
    rows = []
    for name, free in (("refilled", 1), ("batch by batch", config.batch)):

        def timed(free: int = free) -> dict[str, Any]:
            usage = continuous_batching.Usage()
            limits = [len(p.tokens) + p.new for p in prompts]
            keys = engines.request_keys(config.seed, len(prompts), 1)
            tokens = [p.tokens for p in prompts]
            texts = continuous_batching.decode_requests(
                parts,
                params,
                tokens,
                limits,
                keys,
                config.batch,
                free=free,
                usage=usage,
            )
            lines = [
                {
                    "tokens": len(t.tokens),
                    "calls": t.calls,
                    "latency": t.done - t.admitted,
                }
                for t in texts
            ]
            return {
                "lines": lines,
                "seconds": usage.seconds,
                "rounds": usage.rounds,
                "occupancy": usage.occupancy,
            }

        key = f"{name.replace(' ', '-')}-{config.batch}"
        timing = store.make("timed", key, timed)
        cells = _cells(
            timing["lines"], timing["seconds"], timing["rounds"], timing["occupancy"]
        )
        rows.append([name, *cells])
    return rows


def _cells(
    texts: Sequence[dict[str, Any]], seconds: float, rounds: int, occupancy: float
) -> list[str]:
    """Format the cells after the first, in the order of HEADS."""
    new, calls = (sum(t[name] for t in texts) for name in ("tokens", "calls"))
    latency = np.percentile([t["latency"] for t in texts] or [0.0], SHOWN)
    return [
        f"{len(texts)}",
        f"{new}",
        f"{new / max(seconds, 1e-9):.0f}",
        f"{new / max(calls, 1):.2f}",
        f"{rounds}",
        f"{100 * occupancy:.1f} %",
        *(f"{x:.3g}" for x in latency),
    ]


def programs_of(config: Any, mesh: Any, dtype: Any) -> list[programs.Program]:
    """Return the prefill that refills rows and the loop, each beside the other's rows.

    Those rows are counted with the caches.
    """
    plan = sharding.on(mesh, "decode", config.get("rules", ""))
    assert plan is not None
    lm = programs.abstract(programs.shape_of(config), dtype, plan)
    method = recipes.method(config.recipe)
    drafts = {
        name: programs.abstract(programs.shape_at(draft), dtype, plan)
        for name, draft in config.drafts.items()
        if name in method.needs
    }
    together = continuous_batching.TOGETHER
    return programs.decoding(config.recipe, method, lm, drafts, config, together)


# No text depends on these fields.
STAGE = Stage(
    run,
    "A set of prompts decoded with {}",
    ("batch", "compare", "mesh", "rules"),
    preflight=Preflight(programs_of, programs.shape_of),
)
