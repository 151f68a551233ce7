"""Cache policies by task and by the share of the prompt that they keep."""

import functools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

import decoding
import models
from decoding import Method, Spec, recipes
from experiments import console
from experiments.benchmarks import (
    far_definition,
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
from experiments.studies.search_tables import Row, pooled, table
from models.errors import ConfigError
from models.synthetic import recall

DENSE = "dense"
TASKS = ("needle", "key_value", "long_nats", "far_definition", "recall")
SEEN, UNSEEN = "seen", "unseen"


def run(config: Any, store: RunFolder, lms: Any = None) -> dict[str, Any]:
    """Measure what is missing and return everything; `lms` replaces the models."""
    check(config)
    loaded = lms or load(config)
    rows: dict[tuple, list[Row]] = {}
    every = list(arms(config))
    with console.bar(len(every) * len(config.seeds), "kv_cache") as bar:
        for task, view, name, kept in every:
            for place, seed in enumerate(config.seeds):
                arm = f"{task} {view} {name} {kept:g}"
                bar.doing(f"{arm}, seed {seed}")
                key = re.sub("[^a-z0-9.]+", "-", f"{arm} {seed}".lower())
                lm = loaded["recall" if task == "recall" else "model"]
                policy = spec(config, name, kept)
                about = (config, lm, task, view, policy, place)
                drafts = drafts_of(loaded, task, policy)
                made = functools.partial(measure, *about, drafts)
                row = store.make("rows", key, made)
                rows.setdefault((task, view, name, kept), []).append(row)
                bar.done(arm)
    return common.study(store, tables=tables(config, rows))


def load(config: Any) -> dict[str, Any]:
    """Load the target, and the recall and the draft model if they are needed."""
    loaded = {}
    if set(config.tasks) != {"recall"}:
        base = {"rope_theta": config.rope_theta} if config.rope_theta else {}
        loaded["model"] = models.load(config.model, **base)
        if any("draft" in spec(config, n, 0.5).card.needs for n in config.policies):
            loaded["draft"] = models.load(config.draft_model, **base)
    if "recall" in config.tasks:
        loaded["recall"] = recall.load()
    return loaded


def drafts_of(loaded: dict, task: str, policy: Spec) -> dict[str, Any] | None:
    """Return the draft model that a policy guesses by; of recall, the model itself."""
    if "draft" not in policy.card.needs:
        return None
    return {"draft": loaded["recall" if task == "recall" else "draft"]}


def arms(config: Any) -> list[tuple]:
    """List (task, view, policy, share kept); nats have no question to be unseen."""
    found = []
    for task in config.tasks:
        for view in config.views:
            if task == "long_nats" and view == UNSEEN and SEEN in config.views:
                continue
            found.append((task, view, DENSE, 1.0))
            for name in config.policies:
                found += [(task, view, name, kept) for kept in config.kept]
    return found


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
    config: Any,
    lm: Any,
    task: str,
    view: str,
    policy: Spec,
    place: int,
    drafts: dict[str, Any] | None = None,
) -> Row:
    """Decode the cases of a seed under a policy; lists of figures by case."""
    cases = cases_of(config, lm, task, config.seeds[place], place)
    method = Method(policy=policy)
    if task == "long_nats":
        settings: dict[str, Any] = {"method": method, "width": "paper"}
        settings["drafts"] = drafts
        out = long_nats.forced_output(lm, cases, **settings)
        score = [-float(np.mean(logprobs)) for logprobs in out.logprobs]
    else:
        out = write(lm, cases, view, method, drafts)
        score = [long_context.share_right(c, t) for c, t in zip(cases, out.tokens)]
    row = {
        "score": score,
        "kv_bytes": out.stats.kv_bytes,
        "kv_bytes_prefill": out.stats.kv_bytes_prefill,
        "keys_read": keys_read(out, cases),
        "tokens_per_call": out.stats.tokens_per_call,
        "seconds": out.stats.seconds,
        "guarantee": out.guarantee,
    }
    if config.draft and task == "key_value" and place == 0:
        drafter = recipes.method(config.draft)
        drafted = write(lm, cases, view, drafted_by(drafter, policy), drafts)
        row["drafted"] = drafted.stats.tokens_per_call
        row["same_text"] = drafted.tokens == out.tokens
    return row


def drafted_by(method: Method, policy: Spec) -> Method:
    return Method(
        method.drafter, method.verifier, topology=method.topology, policy=policy
    )


def write(
    lm: Any, cases: Sequence[Case], view: str, method: Method, drafts: Any = None
) -> Any:
    """Decode the answers, with the whole prompt compressed or its context alone."""
    longest = max(len(case.expected) for case in cases)
    prompts = [list(case.prompt) for case in cases]
    fields: dict[str, Any] = {"method": method, "max_new_tokens": longest}
    fields |= {"width": "paper", "drafts": drafts}
    dense = method.policy == Spec("caches/dense")
    if view == SEEN or dense:
        return decoding.generate(lm, prompts, **fields)
    contexts = [tokens[: case.context] for tokens, case in zip(prompts, cases)]
    questions = [tokens[case.context :] for tokens, case in zip(prompts, cases)]
    return decoding.generate(lm, questions, contexts=contexts, **fields)


def keys_read(out: Any, cases: Sequence[Case]) -> float:
    """Return the slots of a layer that a token read; the dense cache reads all."""
    if out.stats.keys_read is not None:
        return float(out.stats.keys_read)
    new = np.mean([len(tokens) for tokens in out.tokens])
    return float(np.mean([len(case.prompt) for case in cases]) + (new - 1) / 2)


def figures(rows: Sequence[Row], dense: Sequence[Row]) -> tuple[str, str]:
    """Write the mean score, and its paired difference from the dense cache's."""
    score = pooled(rows, "score")
    gap = score - pooled(dense, "score")
    error = lambda x: x.std(ddof=1) / np.sqrt(len(x)) if len(x) > 1 else 0.0
    return (
        f"{score.mean():.3f} ± {error(score):.3f}",
        f"{gap.mean():+.3f} ± {error(gap):.3f}",
    )


def tables(config: Any, rows: dict[tuple, list[Row]]) -> list[dict[str, Any]]:
    """Make a table for each task and view."""
    found = []
    names = {n: i for i, n in enumerate([DENSE, *config.policies])}
    for task in config.tasks:
        for view in config.views:
            own = {k: r for k, r in rows.items() if k[:2] == (task, view)}
            if not own:
                continue
            dense = own[task, view, DENSE, 1.0]
            whole = dense[0]["kv_bytes"]
            order = sorted(own, key=lambda k: (-k[3], names[k[2]]))
            lines = []
            for key in order:
                row = own[key]
                mean = lambda field, row=row: float(np.mean([r[field] for r in row]))
                score, gap = figures(row, dense)
                drafted = [r["drafted"] for r in row if "drafted" in r]
                lines.append(
                    [
                        key[2],
                        f"{key[3]:.0%}",
                        score,
                        gap,
                        f"{mean('kv_bytes') / 1024:.0f}",
                        f"{1 - mean('kv_bytes') / whole:.0%}",
                        f"{mean('kv_bytes_prefill') / 1024:.0f}",
                        f"{mean('keys_read'):.0f}",
                        f"{drafted[0]:.2f}" if drafted else "–",
                        f"{sum(r['seconds'] for r in row):.1f}",
                    ]
                )
            found.append(
                table(
                    f"{TITLES[task]}, question {view}",
                    (
                        "policy",
                        "kept",
                        SCORES.get(task, "right"),
                        "above dense",
                        "KiB",
                        "freed",
                        "KiB, prompt",
                        "slots read",
                        "drafted",
                        "s",
                    ),
                    lines,
                    NOTE,
                )
            )
    return found


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
    "share of the answer's tokens, ± the standard error over cases; above dense: the "
    "mean of paired differences. KiB: of a row's cache, while decoding and while the "
    "prompt is read; freed: against the dense cache. slots read: of a layer, by a new "
    "token. drafted: tokens a call with drafts, which keep the text. s: of all cases."
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
