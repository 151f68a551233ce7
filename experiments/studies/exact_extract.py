"""exact-extract and greedy decoding on ends of lines that the text before them holds.

A case is cut from held-out code: a prompt that ends in the middle of a line, and the
tokens before it as the passage. The rest of the line, up to its newline, is a span of
the passage. Greedy decoding is free to write anything.
"""

import functools
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import decoding
import models
from decoding.serving import exact_extract
from experiments import console
from experiments.prompts import builtin_tasks
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common
from experiments.studies.search_tables import Row, compared, table
from models.errors import ConfigError


class Case(NamedTuple):
    """A line to finish."""

    prompt: list[int]
    answer: list[int]  # the rest of the line


def run(config: Any, store: RunFolder, lm: Any = None) -> dict[str, Any]:
    """Measure what is missing and return everything; `lm` is loaded unless given."""
    lm = lm or models.load(config.model)
    texts = [lm.tokenizer.encode(text) for _, text in builtin_tasks.held_out()]
    ends = newlines(lm)
    chosen = cases(config, texts, ends, max(config.passages))
    rows, times = [], []
    with console.bar(2 * len(config.passages), "exact-extract") as bar:
        for size in config.passages:
            bar.doing(f"passages of {size}")
            work = functools.partial(answered, config, lm, chosen, size, ends)
            rows.append(store.make("rows", f"passages_{size}", work))
            bar.done(f"passages of {size}")
        for size in config.passages:
            bar.doing(f"times of {size}")
            work = functools.partial(timed, config, lm, chosen[0], size, ends)
            times.append(store.make("rows", f"times_{size}", work))
            bar.done(f"times of {size}")
    shown = [answers_table(rows), claims_table(rows), times_table(times)]
    return common.study(store, tables=shown)


def newlines(lm: Any) -> tuple[int, ...]:
    """Return the tokens that begin with a newline, which end an answer."""
    spelled = lm.tokenizer.token_bytes()
    return tuple(i for i, token in enumerate(spelled) if token.startswith(b"\n"))


def cases(
    config: Any, texts: Sequence[list[int]], ends: Sequence[int], size: int
) -> list[Case]:
    """Cut up to `per_file` cases from each text, at random places.

    The answer is the last of a line's tokens, `answer` of them at most and 2 at least,
    and stands among the `size` tokens before the cut; so it does in the smallest of
    `passages`, so that all sizes have the same cases.

    Raises:
        ConfigError: too few texts have one.
    """
    chosen: list[Case] = []
    rng, near = random.Random(config.seed), min(config.passages)
    for text in texts:
        cuts = [i for i in range(size, len(text)) if text[i] in ends]
        rng.shuffle(cuts)
        before_text = len(chosen)
        for end in cuts:
            if len(chosen) in (config.cases, before_text + config.per_file):
                break
            length = rng.randint(2, config.longest)
            cut = end - length
            answer, before = text[cut:end], text[max(0, cut - near) : cut]
            if cut < size or set(answer) & set(ends):
                continue
            if is_within(answer, before):
                chosen.append(Case(text[cut - size : cut], answer))
        if len(chosen) == config.cases:
            return chosen
    raise ConfigError(
        f"held-out files have {len(chosen)} lines to finish, not {config.cases}: lower "
        "config.cases or raise config.per_file"
    )


def answered(
    config: Any, lm: Any, chosen: list[Case], size: int, ends: tuple[int, ...]
) -> Row:
    """Answer every case by both; the prompt's last `size` tokens are the passage."""
    prompts = [case.prompt for case in chosen]
    passages = [prompt[-size:] for prompt in prompts]
    spans = exact_extract.extract(lm, prompts, passages, config.longest, ends=ends)
    out = decoding.generate(
        lm, prompts, max_new_tokens=config.longest + 1, stop_token_ids=ends
    )
    row: Row = {name: [] for name in ("exact", "by_length", "greedy", "extractive")}
    row |= {name: [] for name in ("optimal", "gap", "above", "scores")}
    for case, one, passage, tokens, logprobs in zip(
        chosen, spans, passages, out.tokens, out.logprobs
    ):
        answer = tokens[:-1] if tokens and tokens[-1] in ends else tokens
        is_span = len(answer) < len(tokens) and is_within(answer, passage)
        row["exact"].append(float(one.best.tokens == case.answer))
        row["by_length"].append(float(one.by_length.tokens == case.answer))
        row["greedy"].append(float(answer == case.answer and len(answer) < len(tokens)))
        row["extractive"].append(float(is_span))
        row["optimal"].append(float(answer == one.best.tokens))
        row["scores"].append(one.best.score)
        if is_span:
            row["gap"].append(one.best.score - sum(logprobs))
            row["above"].append(float(sum(logprobs) > one.best.score + 1e-3))
    return {"size": size, **row}


def is_within(span: Sequence[int], passage: Sequence[int]) -> bool:
    """Return whether a span of at least one token stands in the passage."""
    size = len(span)
    places = range(len(passage) - size + 1)
    return size > 0 and any(list(passage[i : i + size]) == list(span) for i in places)


def timed(config: Any, lm: Any, case: Case, size: int, ends: tuple[int, ...]) -> Row:
    """Time one prompt by both, after a call of each."""
    passage = case.prompt[-size:]

    def one(longest: int) -> Any:
        return exact_extract.extract(lm, [case.prompt], [passage], longest, ends=ends)

    calls: dict[str, Callable[[], Any]] = {
        "exact": lambda: one(config.longest),
        "greedy": lambda: decoding.generate(
            lm, [case.prompt], max_new_tokens=config.longest + 1, stop_token_ids=ends
        ),
    }
    if size <= config.whole:
        calls["whole"] = lambda: one(size)
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(config.repeats):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            spent[name].append(1e3 * (time.perf_counter() - started))
    return {
        "size": size,
        "calls": one(config.longest)[0].calls,
        "ms": {
            name: [float(x) for x in np.percentile(values, (25, 50, 75))]
            for name, values in spent.items()
        },
    }


def _mean(values: Sequence[float]) -> str:
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{np.mean(values):.3f} ± {error:.3f}" if len(values) else "–"


def answers_table(rows: list[Row]) -> dict[str, Any]:
    """Make a line for each size of passage."""
    columns = ("exact", "by_length", "greedy", "extractive", "optimal", "scores")
    lines = [
        [
            f"{row['size']}",
            *(_mean(row[name]) for name in columns),
            _mean(row["gap"]),
            f"{len(row['above']) - int(sum(row['above']))}/{len(row['above'])}",
        ]
        for row in rows
    ]
    heads = (
        "tokens of the passage",
        "right: exact-extract",
        "right: by length",
        "right: greedy",
        "greedy extractive",
        "greedy finds the best span",
        "log p of the best span",
        "above greedy's span, nats",
        "greedy not above",
    )
    notes = (
        f"{len(rows[0]['exact'])} cases. Right: the line's own rest. Extractive: "
        "greedy ends, and its text is a span of the passage; the last two columns are "
        "of these cases.",
    )
    return table("Ends of lines", heads, lines, *notes)


def claims_table(rows: list[Row]) -> dict[str, Any]:
    """Compare exact-extract with greedy decoding, case by case."""
    lines = [
        compared(
            f"right: exact-extract − greedy, passages of {row['size']}",
            np.asarray(row["exact"]),
            np.asarray(row["greedy"]),
        )
        for row in rows
    ]
    note = (
        "difference: with its 95 % bootstrap interval over cases. holds: *yes* if the "
        "interval is above 0, *no* if below, else *even*."
    )
    return table("Against greedy", ("claim", "difference", "holds"), lines, note)


def times_table(times: list[Row]) -> dict[str, Any]:
    """Make a line for each size of passage."""
    show = lambda x: "{1:.0f} ({0:.0f}–{2:.0f})".format(*x) if x else "–"
    lines = [
        [
            f"{row['size']}",
            f"{row['calls']}",
            *(show(row["ms"].get(name)) for name in ("exact", "whole", "greedy")),
        ]
        for row in times
    ]
    heads = ("tokens of the passage", "model calls", "exact, ms", "spans of any length")
    note = "One prompt; median and quartiles, compilation left out."
    return table("Times", (*heads, "greedy, ms"), lines, note)


STAGE = Stage(run, "exact-extract on {}", ("passages", "repeats", "whole"))
