"""JSONSchemaBench on a model: coverage, compliance, time a token, calls saved.

Every method decodes the same prompts freely, under each prompt's own schema, and under
it with jump-forward. All prompts of a batch have other schemas, in one program.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import decoding
import models
from decoding import Method
from decoding.automata import compiled
from experiments import console
from experiments.benchmarks import jsonschemabench
from experiments.benchmarks.jsonschemabench import Problem
from experiments.measurement import bootstrap
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common
from models.errors import ConfigError, ConstraintError
from models.heads.formats import native

Row = dict[str, Any]

FREE, HELD, JUMP = "free", "held", "held, jump-forward"
WAYS = (FREE, HELD, JUMP)


def run(config: Any, store: RunFolder, lm: Any = None) -> dict[str, Any]:
    """Measure what is missing and return everything; `lm` is loaded unless given."""
    named = common.methods(config)
    lm = lm or models.load(config.model)
    heads = {n: native.load(folder, lm) for n, folder in config.trained.items()}
    problems, too_long = drawn(config, lm)
    taken = store.make("parts", "declared", lambda: declared(config, lm, problems))
    batches = [
        range(i, min(i + config.rows, len(problems)))
        for i in range(0, len(problems), config.rows)
    ]
    rows: list[Row] = []
    arms = [(m, w, s) for m in named for s in config.whitespaces for w in WAYS]
    arms = [arm for arm in arms if arm[1] != FREE or arm[2] == config.whitespaces[0]]
    with console.bar(len(arms) * len(batches), "schemas") as bar:
        for name, way, spaces in arms:
            bar.doing(f"{name}, {way}, {spaces}")
            for i, batch in enumerate(batches):
                some = [(problems[j], taken[j]) for j in batch]
                drafts = {"heads": heads[name]} if name in heads else {}
                about = (config, lm, named[name], drafts, way, spaces, some)
                key = f"{name}-{WAYS.index(way)}-{spaces}-{i}"
                row = store.make("rows", key, functools.partial(written, *about))
                rows.append({"method": name, "way": way, "spaces": spaces} | row)
                bar.done()
    return common.study(store, tables=tables(config, rows, taken, too_long))


def drawn(config: Any, lm: Any) -> tuple[list[Problem], int]:
    """Draw schemas whose prompts the model can read; count those that are too long.

    They come by the length of their prompts, so that a batch has like ones.
    """
    every = jsonschemabench.read(config.data)
    every = [x for x in every if x.subset in config.subsets]
    fitting: list[tuple[int, Problem]] = []
    too_long = 0
    for problem in jsonschemabench.drawn(every, 0, config.seed):
        if len(fitting) == config.schemas:
            break
        size = len(jsonschemabench.prompts(lm, [problem])[0])
        if size <= config.prompt_tokens:
            fitting.append((size, problem))
        else:
            too_long += 1
    if not fitting:
        raise ConfigError(
            f"config.prompt_tokens={config.prompt_tokens}: no schema's prompt is as "
            "short: raise it"
        )
    return [x for _, x in sorted(fitting, key=lambda pair: pair[0])], too_long


def declared(config: Any, lm: Any, problems: Sequence[Problem]) -> list[str]:
    """Return why the device refuses each schema; "" where it takes it."""
    target = lm.model.config
    compiler = compiled.compiler(lm.tokenizer, tuple(target.eos), target.vocab_size)
    reasons = []
    for problem in problems:
        try:
            lifted = compiler.lifted(_grammar(problem, config.whitespaces[0]))
            start = lifted.machine.start
            cost = int(lifted.machine.cost[start]) + 1
            long = f"needs up to {cost} tokens"
            reasons.append(long if cost > config.max_new_tokens else "")
        except ConstraintError as error:
            reasons.append(str(error))
    return reasons


def _grammar(problem: Problem, spaces: str) -> compiled.Grammar:
    return compiled.parse({"json_schema": problem.schema, "whitespace": spaces})


def written(
    config: Any,
    lm: Any,
    method: Method,
    drafts: Mapping[str, Any],
    way: str,
    spaces: str,
    some: Sequence[tuple[Problem, str]],
) -> Row:
    """Write and judge the texts of a batch; a schema that is refused decodes freely."""
    problems = [problem for problem, _ in some]
    held = [None if reason else _grammar(p, spaces) for p, reason in some]
    fields: dict[str, Any] = {}
    if way != FREE and any(held):
        fields = {"constraint": held, "finish": True, "jump_forward": way == JUMP}
    decode = functools.partial(
        decoding.generate,
        lm,
        jsonschemabench.prompts(lm, problems),
        method,
        max_new_tokens=config.max_new_tokens,
        drafts=drafts,
        width=config.width,
        **fields,
    )
    out = decode()
    if out.stats.compile_seconds:
        out = decode()
    texts = out.texts or []
    scores = [jsonschemabench.score(t, p.schema) for t, p in zip(texts, problems)]
    return {
        "right": [score.is_instance for score in scores],
        "json": [score.is_json for score in scores],
        "new": out.stats.new_tokens.tolist(),
        "calls": out.stats.target_calls.tolist(),
        "forced": out.forced or [0] * len(problems),
        "seconds": out.stats.seconds,
        "syncs": int(out.stats.host_syncs),
    }


def tables(
    config: Any, rows: Sequence[Row], taken: Sequence[str], too_long: int
) -> list[dict[str, Any]]:
    """Make the tables: coverage, and calls and times."""
    arms: dict[tuple, list[Row]] = {}
    for row in rows:
        arms.setdefault((row["method"], row["way"], row["spaces"]), []).append(row)
    return [_coverage(config, arms, taken, too_long), _calls(arms, taken)]


def _joined(rows: Sequence[Row], name: str) -> np.ndarray:
    return np.concatenate([row[name] for row in rows])


def _ratio(above: np.ndarray, below: np.ndarray) -> tuple[float, list[float]]:
    """Return the ratio of two sums over schemas, and its bootstrap interval."""
    share = lambda at: float(above[at].sum() / below[at].sum())
    return bootstrap.interval(share, len(above))


def _coverage(
    config: Any, arms: Mapping[tuple, list[Row]], taken: Sequence[str], too_long: int
) -> dict[str, Any]:
    lines = []
    is_taken = np.array([not reason for reason in taken])
    for (method, way, spaces), rows in arms.items():
        right, is_json = _joined(rows, "right"), _joined(rows, "json")
        has = is_taken if way != FREE else np.ones(len(right), bool)
        shares = jsonschemabench.coverage(has.tolist(), right.tolist())
        _, (low, high) = _ratio(right[has], np.ones(int(has.sum())))
        cells = (shares.declared, is_json.mean(), shares.empirical, shares.compliance)
        lines.append(
            [
                *(method, way, "" if way == FREE else spaces),
                *(f"{x:.3f}" for x in cells),
                f"{low:.3f} to {high:.3f}",
            ]
        )
    refused = [reason for reason in taken if reason]
    return {
        "title": "Coverage and compliance",
        "heads": [
            *("method", "texts", "spaces", "declared", "JSON", "empirical"),
            *("compliance", "95 %"),
        ],
        "lines": lines,
        "words": 3,
        "notes": [
            f"{len(taken)} schemas of {', '.join(config.subsets)}; {too_long} drawn "
            f"ones were left out, whose prompts have over {config.prompt_tokens} "
            f"tokens. Greedy, at most {config.max_new_tokens} new tokens, in blocks of "
            f"{config.width} nodes a row at most. Judged by python-jsonschema.",
            f"Refused: {len(refused)}. {'; '.join(x[:160] for x in refused[:6])}",
        ],
    }


def _calls(arms: Mapping[tuple, list[Row]], taken: Sequence[str]) -> dict[str, Any]:
    lines = []
    has = np.array([not reason for reason in taken])
    for (method, way, spaces), rows in arms.items():
        new, calls = (_joined(rows, name)[has] for name in ("new", "calls"))
        forced = _joined(rows, "forced")[has]
        rate, (low, high) = _ratio(new, calls)
        saved = ""
        if way == JUMP:
            before = _joined(arms[method, HELD, spaces], "calls")[has]
            share, ends = _ratio(before - calls, before)
            interval = f"{ends[0]:.1%} to {ends[1]:.1%}"
            saved = f"{share:.1%} ({interval}), {(calls < before).sum()} of {len(new)}"
        times = [1e3 * row["seconds"] / max(row["calls"]) for row in rows]
        tokens = [1e3 * row["seconds"] / sum(row["new"]) for row in rows]
        lines.append(
            [
                *(method, way, "" if way == FREE else spaces),
                f"{rate:.3f} ({low:.3f} to {high:.3f})",
                *(f"{int(new.sum())}", f"{forced.sum() / new.sum():.1%}", saved),
                *(f"{np.median(times):.1f}", f"{np.median(tokens):.2f}"),
                f"{sum(row['syncs'] for row in rows)}",
            ]
        )
    return {
        "title": "Calls and times",
        "heads": [
            *("method", "texts", "spaces", "tokens a call", "tokens", "forced"),
            *("calls saved, schemas with fewer", "ms a round", "ms a token", "syncs"),
        ],
        "lines": lines,
        "words": 3,
        "notes": [
            "Schemas that are taken; 95 % intervals over schemas. forced: tokens that "
            "the schema determines, in the tokenizer's own spelling. Times: medians of "
            "batches, prefill included, compilation not; a token's is shared by the "
            "batch. Calls saved: against the same method without jump-forward.",
        ],
    }


STAGE = Stage(run, "JSONSchemaBench: {}", ())
