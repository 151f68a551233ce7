"""Cache policies by task and by the share of the prompt that they keep."""

import functools
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import decoding
import models
from decoding import Method, Spec, recipes
from experiments import console
from experiments.benchmarks import (
    far_definition,
    forced_reading,
    key_value,
    long_context,
    long_nats,
    needle,
)
from experiments.benchmarks.long_context import Case
from experiments.prompts import builtin_tasks
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common
from experiments.studies.search_tables import Row, table
from models.errors import ConfigError
from models.synthetic import recall

DENSE = "dense"
TASKS = ("needle", "key_value", "long_nats", "far_definition", "recall")
SEEN, UNSEEN = "seen", "unseen"


def run(config: Any, store: RunFolder, lms: Any = None) -> dict[str, Any]:
    """Measure what is missing and return everything; `lms` replaces the models."""
    check(config)
    loaded = lms or load(config)
    groups = {"recall": ["recall"], "model": [t for t in config.tasks if t != "recall"]}
    groups = {name: tasks for name, tasks in groups.items() if name in loaded}
    rows: dict[tuple, Row] = {}
    every = [(group, *arm) for group in groups for arm in arms(config)]
    treed = [arm for arm in every if config.tree and arm[0] == "model"]
    treed = [arm for arm in treed if arm[2] in (1.0, config.tree_kept)]
    with console.bar(len(every) + len(treed), "kv_cache") as bar:
        for group, name, kept in every:
            arm = f"{name}, {kept:.0%}, {group}"
            bar.doing(arm)
            about = (config, loaded[group], groups[group], spec(config, name, kept))
            work = functools.partial(measure, *about, draft=loaded.get("draft"))
            rows[group, name, kept] = store.make("rows", key(arm), work)
            bar.done(arm)
        for group, name, kept in treed:
            arm = f"{name}, {kept:.0%}, tree"
            bar.doing(arm)
            written = functools.partial(
                drafted,
                config,
                loaded[group],
                loaded["draft"],
                spec(config, name, kept),
            )
            rows["tree", name, kept] = store.make("rows", key(arm), written)
            bar.done(arm)
    return common.study(store, tables=tables(config, groups, rows))


def key(arm: str) -> str:
    return re.sub("[^a-z0-9]+", "-", arm.lower())


def load(config: Any) -> dict[str, Any]:
    """Load the target, the recall model and a draft model, where they are needed."""
    loaded = {}
    base = {"rope_theta": config.rope_theta} if config.rope_theta else {}
    if set(config.tasks) != {"recall"}:
        loaded["model"] = models.load(config.model, **base)
        if config.draft:
            loaded["draft"] = models.load(config.draft, **base)
    if "recall" in config.tasks:
        loaded["recall"] = recall.load()
    return loaded


def arms(config: Any) -> list[tuple[str, float]]:
    """List (policy, share kept), the dense cache first."""
    found = [(DENSE, 1.0)]
    return found + [(name, kept) for kept in config.kept for name in config.policies]


def viewed(config: Any, task: str) -> list[str]:
    """Return the views of a task; nats have no question to be unseen."""
    if task == "long_nats":
        return [SEEN]
    return list(config.views)


def spec(config: Any, name: str, kept: float) -> Spec:
    """Make a policy that keeps a share of the prompt."""
    if name == DENSE:
        return Spec("caches/dense")
    arguments = dict(config.policies[name])
    return Spec(arguments.pop("name"), **arguments, budget=float(kept))


def cases_of(config: Any, lm: Any, task: str, seed: int, place: int) -> list[Case]:
    """Make the cases of a task and seed."""
    count, length = config.cases, config.length
    if task == "recall":
        return key_value.recalled(length, config.facts, count, seed)
    if task == "far_definition":
        sources = builtin_tasks.held_out()
        most = count * len(config.seeds)
        every = far_definition.cases(lm, sources, length, config.least, most)
        return every[place * count : (place + 1) * count]
    files = long_context.files(lm, config.data)
    if task == "needle":
        depths = tuple(config.depths)
        each = -(-count // len(depths))
        made = needle.cases(lm, files, length, depths, each, seed)
        return made[:count]
    if task == "key_value":
        return key_value.cases(lm, files, length, config.pairs, count, seed)
    return long_nats.cases(files, length, count, seed, config.last)


def measure(
    config: Any, lm: Any, tasks: Sequence[str], policy: Spec, draft: Any = None
) -> Row:
    """Read the cases of all tasks, views and seeds under a policy, in one batch.

    The expected tokens are read after those before them (`forced_reading`), so that
    a case's score is the share of them that is the likeliest where it stands.
    """
    started = time.monotonic()
    dense = policy == Spec("caches/dense")
    own = {task: _cases(config, lm, task) for task in tasks}
    each = {task: [SEEN] if dense else viewed(config, task) for task in tasks}
    names = [(task, view) for task in tasks for view in each[task]]
    rows = [seen_as(case, view) for task, view in names for case in own[task]]
    found = forced_reading.read(lm, rows, policy, draft=draft)
    score: dict[str, list[float]] = {}
    slots: dict[str, float] = {}
    first = 0
    for task, view in names:
        part = slice(first, first + len(own[task]))
        first = part.stop
        last = [len(case.expected) for case in own[task]]
        nats, best = found.nats[part], found.best[part]
        name = f"{task} {view}"
        if task == "long_nats":
            score[name] = [float(np.mean(x[-n:])) for x, n in zip(nats, last)]
        else:
            right = zip(own[task], best, last)
            score[name] = [long_context.share_right(c, x[-n:]) for c, x, n in right]
        slots[name] = float(np.mean(found.slots[part]))
    new = max(len(row.expected) for row in rows)
    sizes = (config.length, new, np.float32)
    size = functools.partial(forced_reading.kv_bytes, lm, policy, *sizes, draft=draft)
    return {
        "score": score,
        "slots": slots,
        "kv_bytes": size(),
        "kv_bytes_prefill": size(read=False),
        "seconds": time.monotonic() - started,
    }


def _cases(config: Any, lm: Any, task: str) -> list[Case]:
    """Make the cases of all seeds, in the seeds' order."""
    seeds = enumerate(config.seeds)
    return [x for i, seed in seeds for x in cases_of(config, lm, task, seed, i)]


def seen_as(case: Case, view: str) -> Case:
    """Return a case whose prompt is all that the policy sees when it compresses."""
    if view == SEEN:
        return case
    question = case.prompt[case.context :]
    return Case(case.prompt[: case.context], case.context, (*question, *case.expected))


def drafted(config: Any, lm: Any, draft: Any, policy: Spec) -> Row:
    """Write texts plainly and with a draft tree under the same policy."""
    files = long_context.files(lm, config.data)
    texts = long_context.passages(files, config.prompts, config.length // 2, 0)
    prompts = [list(text) for text in texts]
    fields: dict[str, Any] = {"max_new_tokens": config.written, "width": "paper"}
    plain = decoding.generate(lm, prompts, method=Method(policy=policy), **fields)
    method = replace(recipes.method(config.tree), policy=policy)
    drafts = {"draft": draft}
    out = decoding.generate(lm, prompts, method=method, drafts=drafts, **fields)
    return {
        "tokens_per_call": out.stats.tokens_per_call,
        "same": sum(a == b for a, b in zip(out.tokens, plain.tokens)),
        "guarantee": out.guarantee,
        "seconds": [plain.stats.seconds, out.stats.seconds],
    }


def mean_error(values: Any) -> tuple[float, float]:
    """Return the mean and its standard error."""
    values = np.asarray(values, float)
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(values.mean()), float(error)


def figures(score: Sequence[float], dense: Sequence[float]) -> tuple[str, str]:
    """Write the mean score, and its paired difference from the dense cache's."""
    gap = np.asarray(score) - np.asarray(dense)
    return (
        "{:.3f} ± {:.3f}".format(*mean_error(score)),
        "{:+.3f} ± {:.3f}".format(*mean_error(gap)),
    )


def tables(config: Any, groups: Any, rows: dict[tuple, Row]) -> list[dict[str, Any]]:
    """Make a table for each task and view, and one of drafts."""
    found = []
    for group, tasks in groups.items():
        dense = rows[group, DENSE, 1.0]
        for task in tasks:
            whole = dense["score"][f"{task} {SEEN}"]
            for view in viewed(config, task):
                lines = []
                for name, kept in arms(config):
                    row = rows[group, name, kept]
                    at = f"{task} {SEEN if name == DENSE else view}"
                    lines.append(
                        [
                            name,
                            f"{kept:.3g}",
                            *figures(row["score"][at], whole),
                            f"{row['kv_bytes'] / 1024:.0f}",
                            f"{1 - row['kv_bytes'] / dense['kv_bytes']:.0%}",
                            f"{row['kv_bytes_prefill'] / 1024:.0f}",
                            f"{row['slots'][at]:.0f}",
                        ]
                    )
                heads = ("policy", "kept", SCORES.get(task, "right"), "above dense")
                sizes = ("KiB", "freed", "KiB, prompt", "slots read")
                title = f"{TITLES[task]}, question {view}"
                found.append(table(title, (*heads, *sizes), lines, NOTE))
    lines = []
    for (group, name, kept), row in rows.items():
        if group != "tree":
            continue
        seconds = rows["model", name, kept]["seconds"]
        cells = [f"{row['tokens_per_call']:.2f}", f"{row['same']}/{config.prompts}"]
        lines.append([name, f"{kept:.3g}", *cells, row["guarantee"], f"{seconds:.0f}"])
    if lines:
        heads = ("policy", "kept", "tokens a call, tree", "texts as plain's")
        found.append(table("Drafts", (*heads, "guarantee", "s"), lines, DRAFTED))
    return found + ([claimed(config, rows)] if config.claims else [])


def claimed(config: Any, rows: dict[tuple, Row]) -> dict[str, Any]:
    """Make the table of claims, each at every share kept."""
    lines = []
    own = {DENSE, *config.policies}
    for task, better, worse in config.claims:
        if task.split(" ")[0] not in config.tasks or {better, worse} - own:
            continue
        group = "recall" if task.startswith("recall") else "model"
        sign = -1 if task.startswith("long_nats") else 1
        for kept in config.kept:
            arms = [(group, x, 1.0 if x == DENSE else kept) for x in (better, worse)]
            first, second = (np.asarray(rows[arm]["score"][task]) for arm in arms)
            gap, error = mean_error(sign * (first - second))
            holds = "yes" if gap > 2 * error else "no" if gap < -2 * error else "even"
            claim = f"{better} better than {worse}"
            lines.append(
                [task, claim, f"{kept:.3g}", f"{gap:.3f} ± {error:.3f}", holds]
            )
    heads = ("task", "claim", "kept", "better by", "holds")
    return table("Directions", heads, lines, CLAIMED)


TITLES = {
    "needle": "Needle",
    "key_value": "Key-value retrieval",
    "long_nats": "Nats of long windows",
    "far_definition": "Definitions far back",
    "recall": "The recall model",
}
SCORES = {"long_nats": "nats"}
NOTE = (
    "kept: the share of the prompt, or of the context, that the budget is. right: the "
    "share of the answer's tokens that are the likeliest, each after those before, ± "
    "the standard error over cases; above dense: the mean of paired differences. KiB: "
    "of a row's cache, while decoding and while the prompt is read; freed: against the "
    "dense cache. slots read: of a layer, by a token behind the prompt."
)
DRAFTED = (
    "tokens a call: of texts written freely with a draft tree, plain decoding has 1; "
    "as plain's: texts that are those of plain decoding under the same policy. s: of "
    "reading all cases, with compilation."
)
CLAIMED = (
    "better by: paired differences over the cases of all seeds ± standard error, in "
    "shares right or in nats; yes and no: by more than two of them."
)


def check(config: Any) -> None:
    """Raise ConfigError for what would fail later, before anything is compiled."""
    unknown = [task for task in config.tasks if task not in TASKS]
    if unknown or not config.tasks:
        raise ConfigError(f"config.tasks={config.tasks}: use some of {TASKS}")
    if not config.views or set(config.views) - {SEEN, UNSEEN}:
        raise ConfigError(f"config.views={config.views}: use {SEEN!r}, {UNSEEN!r}")
    if not all(0 < kept < 1 for kept in config.kept):
        raise ConfigError(f"config.kept={config.kept}: use shares between 0 and 1")
    if config.cases < 1 or not config.seeds:
        raise ConfigError(
            f"config.cases={config.cases}, config.seeds={config.seeds}: use one at "
            "least of each"
        )


STAGE = Stage(run, "Cache policies", ("tasks", "views", "kept"))
