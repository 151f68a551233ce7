"""Beams in every layout of the cache, and with drafts."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import decoding
import models
from decoding import Method, Spec
from experiments import console
from experiments.prompts import builtin_tasks
from models import transformer
from models.cache_layouts import paged, quantized


def layouts(config: Any) -> list[dict[str, Any]]:
    """Search by beams in every layout of `config.layouts`, beside the dense one."""
    rows: list[dict[str, Any]] = []
    dense: list[list[list[int]]] = []
    for name in ("dense", *config.layouts):
        lm = models.load(config.model)
        if name != "dense":
            model = transformer.transformer(lm.model.config, cache=LAYOUTS[name])
            lm = replace(lm, model=model)
        prompts = _prompts(config, lm, config.layout_prompt)
        new, texts = config.layout_tokens, []
        for width in (1, config.layout_width):
            method = Method(search=Spec("search/beam", width=width))
            out = decoding.generate(lm, prompts, method, max_new_tokens=new, n=width)
            texts.append([[row] if width == 1 else row for row in out.tokens])
        greedy = decoding.generate(lm, prompts, max_new_tokens=new, width="paper")
        dense = dense or texts
        same = [row == other for row, other in zip(texts[1], dense[1])]
        rows.append(
            {
                "layout": name,
                "prompts": len(prompts),
                "greedy": sum(a[0] == b for a, b in zip(texts[0], greedy.tokens)),
                "same": sum(same),
                "width": config.layout_width,
            }
        )
    return rows


LAYOUTS: dict[str, Any] = {
    "paged": paged.pages(page=16),
    "int8": quantized.int8(256),
    "int4": quantized.int4(256),
}


def _prompts(config: Any, lm: Any, size: int) -> list[list[int]]:
    return builtin_tasks.build(lm, ("code",), config.prompts, size)["code"]


def of_layouts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Make the table of `layouts`."""
    width = rows[0]["width"]
    return {
        "title": "Layouts of the cache",
        "heads": [
            *("layout", "prompts", "one beam is greedy", f"{width} beams as dense"),
        ],
        "lines": [
            [str(row[name]) for name in ("layout", "prompts", "greedy", "same")]
            for row in rows
        ],
        "notes": [
            "Prompts whose texts are those of greedy decoding in the same layout, and "
            f"those whose {width} texts are all the dense ones: quantised keys are "
            "others, so other texts are no fault there."
        ],
    }


def drafted(config: Any, lm: Any, name: str) -> list[dict[str, Any]]:
    """Search with the drafts `name` of `config.drafts` and without, by width."""
    spec = config.drafts[name]
    part = Spec(spec["name"], **{k: v for k, v in spec.items() if k != "name"})
    beside = {n: models.load(d) for n, d in config.draft_models.items()}
    beside = {n: d for n, d in beside.items() if n in part.card.needs}
    prompts, rows = _prompts(config, lm, config.prompt_tokens), []
    with console.bar(len(config.widths), "width") as bar:
        for width in config.widths:
            bar.doing(f"{name}, width {width}")

            def search(drafter: Any, width: int = width) -> Callable[[], Any]:
                method = Method(
                    search=Spec("search/beam", width=width), drafter=drafter
                )
                drafts = beside if drafter else None
                fields = {"max_new_tokens": config.draft_tokens, "n": width}
                return lambda: decoding.generate(
                    lm, prompts, method, drafts=drafts, **fields
                )

            pair = (search(None), search(part))
            outs = [form() for form in pair]  # compiles
            spent: list[list[float]] = [[], []]
            for _ in range(config.repeats):
                for form, seconds in zip(pair, spent):
                    begun = time.perf_counter()
                    form()
                    seconds.append(time.perf_counter() - begun)
            rows.append(
                {"drafts": name, "width": width} | _compared(outs[0], outs[1], spent)
            )
            bar.done()
    return rows


def _compared(plain: Any, out: Any, spent: list[list[float]]) -> dict[str, Any]:
    """Compare a search with drafts with that without."""
    calls, levels = np.asarray(out.stats.target_calls), np.asarray(out.stats.levels)
    nodes = [int(found.stats.nodes_run.sum()) for found in (plain, out)]
    ratios = [a / b for a, b in zip(*spent)]
    return {
        "prompts": len(calls),
        "same": sum(a == b for a, b in zip(plain.tokens, out.tokens)),
        "levels": int(levels.sum()),
        "calls": int(calls.sum()),
        "nodes": nodes[1] / nodes[0],
        "share": float((levels - calls).sum() / calls.sum()),
        "speed": float(np.median(ratios)),
        "speeds": [min(ratios), max(ratios)],
    }


def of_drafts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Make the table of `drafted`."""
    return {
        "title": "Drafts inside beams",
        "heads": [
            *("drafts", "K", "same texts", "tokens a call", "whole levels a call"),
            *("nodes ÷ without", "time without ÷ with"),
        ],
        "lines": [_line(row) for row in rows],
        "notes": [
            "tokens a call: levels of the search, in each of which every text grows by "
            "a token, by calls of the target. whole levels a call: levels whose leaves "
            "were all drafted; of drafts one level deep it is the share of calls that "
            "served two levels. Texts may differ where two sums are nearer than "
            "rounding. Medians of runs in turns."
        ],
    }


def _line(row: dict[str, Any]) -> list[str]:
    least, most = row["speeds"]
    return [
        *(row["drafts"], str(row["width"]), f"{row['same']} of {row['prompts']}"),
        f"{row['levels'] / row['calls']:.2f}",
        *(f"{row['share']:.2f}", f"{row['nodes']:.1f}"),
        f"{row['speed']:.2f} ({least:.2f} to {most:.2f})",
    ]
