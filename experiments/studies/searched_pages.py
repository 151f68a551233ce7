"""Examples of manual pages: diverse beams against beams."""

from collections.abc import Sequence
from typing import Any

import numpy as np

import decoding
from decoding import Method, Spec
from experiments.measurement import search_cost, text_overlap
from experiments.run_folder import RunFolder
from experiments.studies import search_tables
from experiments.studies.search_tables import Row, block, compared, pooled

PAGES = "tldr_pages/tldr_en.jsonl.gz"
ASKED = "{about} Give an example of what {name} can do.\n\n"
LEAST = 3  # words of an example


def page(row: Any) -> tuple[str, str] | None:
    """Make a question of a page's name and description; its first example answers."""
    head, _, rest = row["text"].partition("\n\n- ")
    name = head.partition("\n")[0].removeprefix("# ")
    about = next((x[2:] for x in head.split("\n") if x.startswith("> ")), "")
    line = rest.partition("\n")[0].removesuffix(":")
    few = len(text_overlap.words(line)) < LEAST
    return None if few or not about else (ASKED.format(about=about, name=name), line)


def problems(config: Any) -> list[tuple[str, str]]:
    """Return a question and its answer for every page."""
    return search_tables.read(config.data, PAGES, page)


def page_row(
    lm: Any,
    pages: Sequence[tuple[str, str]],
    tokens: int,
    width: int,
    seed: int,
    method: Method,
    temperature: float = 0.0,
) -> Row:
    """Write `width` texts for every page: how they differ, and the best one's ROUGE."""
    out = decoding.generate(
        lm,
        [question for question, _ in pages],
        method,
        max_new_tokens=tokens,
        temperature=temperature,
        n=width,
        seed=seed,
    )
    assert out.texts is not None
    scores = [
        [text_overlap.rouge_1(text, line) for text in texts]
        for texts, (_, line) in zip(out.texts, pages)
    ]
    given = [[sum(each) / max(len(each), 1) for each in row] for row in out.logprobs]
    return {
        "distinct 1": [text_overlap.distinct(texts, 1) for texts in out.texts],
        "distinct 2": [text_overlap.distinct(texts, 2) for texts in out.texts],
        "best ROUGE-1": [max(row) for row in scores],
        "first ROUGE-1": [row[0] for row in scores],
        "nats": [-float(np.mean(row)) for row in given],
        "texts": out.texts[:2],
        "seconds": out.stats.seconds,
        **search_cost.spent(out, len(pages)),
    }


def measure(config: Any, store: RunFolder, lm: Any) -> list[dict[str, Any]]:
    """Measure the part `tldr` and make its tables."""
    c = config.tldr
    pages = problems(config)
    own = lambda place: block(pages, place, c.problems)
    go = lambda *args: (
        lambda place, seed: page_row(lm, own(place), c.tokens, c.width, seed, *args)
    )
    likely = Spec("rewards/likelihood")
    drawn = Method(search=Spec("search/best_of_n", samples=c.width), rewards=(likely,))
    groups = {"width": c.width, "groups": c.width}
    arms = {
        "beam": go(Method(search=Spec("search/beam", width=c.width))),
        "samples": go(drawn, 1.0),
    }
    diverse = {f"diverse, {x:g}": x for x in c.diversities}
    for name, penalty in diverse.items():
        spec = Spec("search/diverse_beam", diversity=penalty, **groups)
        arms[name] = go(Method(search=spec))
    rows = search_tables.measured(store, "tldr", arms, config.seeds)
    return page_tables(rows, c.width, [*diverse])


def page_tables(
    rows: dict[str, list[Row]], width: int, diverse: Sequence[str]
) -> list[dict[str, Any]]:
    """Make the tables of manual pages: the sets of texts, and the claims."""
    fields = ("distinct 1", "distinct 2", "best ROUGE-1", "first ROUGE-1", "nats")
    lines = [
        [
            name,
            *(f"{pooled(r, field).mean():.3f}" for field in fields),
            search_tables.by_seed(r, "best ROUGE-1"),
            f"{pooled(r, 'nodes').mean():.0f}",
        ]
        for name, r in rows.items()
    ]
    shown = search_tables.table(
        "Examples of manual pages",
        ("search", *fields, "best by seed", "nodes"),
        lines,
        f"{len(pooled(rows['beam'], 'nats'))} pages of tldr-pages, {width} texts each, "
        "of what a command can do. distinct n: share of different n-grams among those "
        "of a page's texts. ROUGE-1: F1 of words in common with the page's first "
        "example; the best of the texts, and the search's first.",
        "nats: of a token, under the model. samples: at temperature 1, the likeliest "
        "first.",
    )
    found = [
        compared(
            f"{name} ≥ beam, {field}",
            pooled(rows[name], field),
            pooled(rows["beam"], field),
        )
        for name in diverse
        for field in fields[:4]
    ]
    return [shown, search_tables.claims("Examples of manual pages: claims", found)]
