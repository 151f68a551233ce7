"""Online training of a draft model while it serves, across a switch of domain.

The question of Liu et al. (*Online Speculative Decoding*, 2024, arXiv 2310.07177,
section 5.3): requests change from one domain to another, and the target accepts fewer
drafts. How much acceptance returns when the draft trains on its rejected tokens? Three
drafts serve the same requests: `learning` trains throughout, `stopped` until the
switch, and `never` not at all.

    lost       learning before the switch - stopped after it
    recovered  (learning at the end - stopped on the same requests) / lost
"""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import optax

import models
from decoding import Method
from experiments import console
from experiments.measurement import bootstrap
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common
from models import storage
from models.checkpoints import hub
from models.errors import ConfigError
from training.data import documents, sources
from training.runs.online_draft_run import Online

LEARNING, STOPPED, NEVER = ARMS = ("learning", "stopped", "never")
DRAWS = 2000

Served = list[dict[str, Any]]


def serve(own: Online, calls: Sequence, config: Any, first: int, say: Any) -> Served:
    """Decode every call; its seed is its number in the stream, equal in all arms.

    `first` is the number of the first call; `say` prints tokens per call.
    """
    served = []
    for i, prompts in enumerate(calls):
        out = own.generate(
            prompts,
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            seed=config.seed + first + i,
        )
        served.append(
            {
                "new": out.stats.new_tokens.tolist(),
                "calls": out.stats.target_calls.tolist(),
                "tokens": [list(map(int, text)) for text in out.tokens],
            }
        )
        say(out.stats.tokens_per_call)
    return served


def run(
    config: Any, store: RunFolder, lm: Any = None, draft: Any = None
) -> dict[str, Any]:
    """Serve missing streams, return all of them; load models that are not passed."""
    domains = {"first": config.first, "second": config.second}
    for name, source in domains.items():
        if not source:
            raise ConfigError(
                f"config.{name} is empty: give the texts of that domain, as "
                f"--config.{name}=texts.jsonl"
            )
    if not 0 < config.settled <= min(config.before, config.after):
        raise ConfigError(
            f"config.settled={config.settled}: average over at least 1 call, and at "
            f"most the {config.before} before and {config.after} after the switch"
        )
    if lm is None:
        lm, draft = models.load(config.model), models.load(config.draft)
    folder = config.directory or store.path / "data"
    count = {"first": config.before, "second": config.after}
    streams = []
    for number, (name, source) in enumerate(domains.items()):
        whole = hub.is_data(source) or storage.path(source).is_file()
        split = sources.EVERY if whole else "validation"
        texts = documents.read(lm, source, split, storage.path(folder), store.path)
        every, sizes = config.every, (config.prompt_tokens, config.max_new_tokens)
        prompts = documents.requests(
            lm, texts, count[name] * every, *sizes, (config.seed, number)
        )
        streams.append([prompts[i : i + every] for i in range(0, len(prompts), every)])
    with console.bar(2 * config.before + 3 * config.after, "requests") as bar:

        def say(rate: float) -> None:
            bar.done(f"{rate:5.2f} tokens/call")

        def computed() -> dict[str, Any]:
            return _served(config, lm, draft, streams, say)

        served = store.make("parts", "served", computed)
    levels = summary(served, config.settled)
    return common.study(
        store,
        online=[{**levels, "served": _short(served)}],
        tables=[table(served, levels, config)],
        plots=[plot(served, config.settled)],
    )


def _served(
    config: Any, lm: Any, draft: Any, streams: Sequence, say: Any
) -> dict[str, dict[str, Served]]:
    """Serve both streams in all arms: {arm: {"first" or "second": calls}}."""
    method = Method.from_config(config.method.to_dict())
    online = Online(
        lm, draft, method, optax.adam(config.rate), config.every, config.steps
    )
    never = Online(lm, draft, method, every=config.every, steps=0)
    learned = serve(online, streams[0], config, 0, say)
    stopped = copy.copy(online)
    stopped.steps = 0
    served = {
        LEARNING: {"first": learned},
        STOPPED: {"first": learned},
        NEVER: {"first": serve(never, streams[0], config, 0, say)},
    }
    for name, arm in ((LEARNING, online), (STOPPED, stopped), (NEVER, never)):
        served[name]["second"] = serve(arm, streams[1], config, config.before, say)
    return served


def summary(served: dict[str, dict[str, Served]], settled: int) -> dict[str, Any]:
    """Compute tokens per call by arm, the loss, and the share recovered.

    The interval is 95 %, bootstrapped over requests; `settled` calls are averaged.
    """
    before = bootstrap.pooled(served[LEARNING]["first"][-settled:])
    after = {arm: bootstrap.pooled(served[arm]["second"][-settled:]) for arm in ARMS}
    rng = np.random.default_rng(0)
    draws = []
    for draw in range(DRAWS + 1):  # the first is the sample itself
        i, j = (
            slice(None) if draw == 0 else rng.integers(len(x[0]), size=len(x[0]))
            for x in (before, after[LEARNING])
        )
        low = _rate(after[STOPPED], j)
        draws.append((_rate(before, i) - low, _rate(after[LEARNING], j) - low))
    lost, gained = np.array(draws).T
    recovery: dict[str, Any] = {"lost": float(lost[0]), "gained": float(gained[0])}
    recovery |= {"recovered": None, "recovered_ci95": None}
    if (lost > 0).all():
        shares = gained / lost
        ends = np.quantile(shares[1:], [0.025, 0.975])
        recovery |= {"recovered": float(shares[0]), "recovered_ci95": ends.tolist()}
    return {
        "before": _rate(before),
        **{f"after_{arm}": _rate(after[arm]) for arm in ARMS},
        **recovery,
        "texts": sum(1 for _ in _texts(served, LEARNING)),
        "equal": sum(
            a == b for a, b in zip(_texts(served, LEARNING), _texts(served, NEVER))
        ),
    }


def _texts(served: dict[str, dict[str, Served]], arm: str) -> Any:
    for domain in ("first", "second"):
        for call in served[arm][domain]:
            yield from call["tokens"]


def _rate(parts: tuple[np.ndarray, np.ndarray], at: Any = slice(None)) -> float:
    new, calls = parts
    return float(new[at].sum() / calls[at].sum())


def _short(served: dict[str, dict[str, Served]]) -> dict[str, Any]:
    """Drop the texts."""
    return {
        arm: {
            domain: [{"new": c["new"], "calls": c["calls"]} for c in calls]
            for domain, calls in parts.items()
        }
        for arm, parts in served.items()
    }


def table(served: Any, found: dict[str, Any], config: Any) -> dict[str, Any]:
    """Make a line for each draft: tokens a call at the ends of both domains."""
    last = config.settled
    columns = {
        "begun": lambda arm: served[arm]["first"][:last],
        "before the switch": lambda arm: served[arm]["first"][-last:],
        "after it": lambda arm: served[arm]["second"][:last],
        "at the end": lambda arm: served[arm]["second"][-last:],
    }
    lines = []
    for arm in ARMS:
        cells = []
        for part in columns.values():
            new, calls = bootstrap.pooled(part(arm))
            low, high = bootstrap.tokens_per_call_interval(new.tolist(), calls.tolist())
            cells.append(f"{_rate((new, calls)):.2f} ({low:.2f}–{high:.2f})")
        lines.append([arm, *cells])
    recovery = "no more than the draws of requests change"
    if found["recovered"] is not None:
        low, high = (100 * x for x in found["recovered_ci95"])
        share = f"{100 * found['recovered']:.0f} % ({low:.0f} to {high:.0f})"
        recovery = f"of which the draft that goes on learning recovers {share}"
    notes = [
        f"tokens a target call over {last} calls of {config.every} requests; in "
        "brackets 95 % over requests. stopped: as learning until the switch.",
        f"lost: {found['lost']:.2f} tokens a call, {recovery}.",
        f"texts of the learning draft that are those of the one that never learns: "
        f"{found['equal']} of {found['texts']}.",
    ]
    heads = ["draft", *columns]
    title = "A switch of domain"
    return {"title": title, "heads": heads, "lines": lines, "notes": notes}


def plot(served: Any, settled: int) -> dict[str, Any]:
    """Plot tokens a call along the stream, each point over `settled` calls."""
    series = []
    for arm in ARMS:
        x, y, errors, begun = [], [], [], 0
        for domain in ("first", "second"):
            calls = served[arm][domain]
            for end in range(settled, len(calls) + 1, max(1, settled // 2)):
                new, used = bootstrap.pooled(calls[end - settled : end])
                low, high = bootstrap.tokens_per_call_interval(
                    new.tolist(), used.tolist()
                )
                x.append(begun + end)
                y.append(_rate((new, used)))
                errors.append((high - low) / 3.92)
            begun += len(calls)
        series.append({"name": arm, "x": x, "y": y, "error": errors})
    return {
        "name": "online",
        "title": "tokens a call",
        "x": "calls served",
        "series": series,
    }


STAGE = Stage(run, "Decoding with {}", parts=("online",))
