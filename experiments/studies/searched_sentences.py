"""Sentences with given words: rewards of look-aheads against those of beginnings."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import decoding
from decoding import Method, Spec
from experiments.measurement import bootstrap, search_cost
from experiments.measurement.draft_call_cost import verdict
from experiments.run_folder import RunFolder
from experiments.studies import search_tables
from experiments.studies.search_tables import Row, block, pooled, spread

WORDS = "commongen/commongen_lite_concepts.jsonl"
ASKED = "Write a sentence with the words {}.\n\n"


def concepts(row: Any) -> list[str]:
    """Return the words of a row of CommonGen, without their word classes."""
    return [concept.rpartition("_")[0] for concept in row["concept_set"]]


def problems(config: Any) -> list[list[str]]:
    """Return all lists of words."""
    return search_tables.read(config.data, WORDS, concepts)


def sentence_row(
    lm: Any,
    words: Sequence[Sequence[str]],
    tokens: int,
    method: Method | None,
) -> Row:
    """Write sentences: the words that each holds, its nats, and the cost."""
    prompts = [ASKED.format(", ".join(row)) for row in words]
    keywords = Spec("rewards/keywords", words=[list(row) for row in words])
    out = decoding.generate(
        lm,
        prompts,
        method,
        max_new_tokens=tokens,
        reward=() if method is None else keywords,
    )
    assert out.texts is not None
    pairs = [*zip(out.texts, words)]
    return {
        "coverage": [float(np.mean([w in text for w in row])) for text, row in pairs],
        "nats": [-float(np.sum(row)) for row in out.logprobs],
        "tokens": [len(row) for row in out.tokens],
        "texts": out.texts[:2],
        "seconds": out.stats.seconds,
        **search_cost.spent(out, len(prompts)),
    }


class Family(NamedTuple):
    """A look-ahead search and its reward of beginnings, by names of their arms."""

    name: str
    own: dict[str, Method]
    base: dict[str, Method]


def families(c: Any) -> list[Family]:
    """Make the arms of DeAL and Transfer Q*; `c` is the config's part."""

    def deal(ahead: int, alpha: float, rank: str = "sum") -> Method:
        numbers = {"width": c.width, "top": c.top, "lookahead": ahead}
        return Method(search=Spec("search/deal", alpha=alpha, rank=rank, **numbers))

    def transfer(ahead: int, weight: float) -> Method:
        alpha = 1 / weight if weight else float("inf")
        return Method(
            search=Spec("search/transfer_q", top=c.top, lookahead=ahead, alpha=alpha)
        )

    found = []
    for name, make in (("DeAL", deal), ("Transfer Q*", transfer)):
        own = {f"{name}, weight {w:g}": make(c.lookahead, w) for w in c.weights}
        weights = (0.0, *c.weights, *c.prefix_weights)
        base = {f"{name}, prefix, weight {w:g}": make(0, w) for w in weights}
        found.append(Family(name, own, base))
    found[0].own["DeAL, reward alone"] = deal(c.lookahead, 1.0, "reward")
    found[0].base["DeAL, prefix, reward alone"] = deal(0, 1.0, "reward")
    return found


def measure(config: Any, store: RunFolder, lm: Any) -> list[dict[str, Any]]:
    """Measure the part `commongen` and make its tables."""
    c = config.commongen
    lists = problems(config)
    own = lambda place: block(lists, place, c.problems)
    go = lambda method: (
        lambda place, seed: sentence_row(lm, own(place), c.tokens, method)
    )
    sets = families(c)
    methods: dict[str, Method | None] = {"greedy": None}
    for each in sets:
        methods |= {**each.base, **each.own}
    arms = {name: go(method) for name, method in methods.items()}
    rows = search_tables.measured(store, "commongen", arms, config.seeds)
    tables = [sentence_table(rows)]
    lines = []
    for each in sets:
        base = [rows[name] for name in ("greedy", *each.base)]
        lines += [[name, *at_equal_kl(rows[name], base)] for name in each.own]
    tables.append(
        search_tables.table(
            "Coverage at equal KL",
            ("search", "nats a text", "coverage", "prefix", "difference", "holds"),
            lines,
            "prefix: the coverage that rewards of beginnings, of the same search, "
            "reach with at most these nats, between their settings. *beyond*: none of "
            "them has as many nats, and the one with most is taken.",
            *search_tables.CLAIMS,
        )
    )
    return tables


def at_equal_kl(own: Sequence[Row], base: Sequence[Sequence[Row]]) -> list[str]:
    """Compare a setting's coverage with that of others at its nats, in cells.

    Others count with the best coverage of all that have no more nats; between two of
    them it is interpolated, as if they were mixed.
    """
    covered, nats = pooled(own, "coverage"), pooled(own, "nats")
    others = [(pooled(r, "nats"), pooled(r, "coverage")) for r in base]

    def reached(at: np.ndarray) -> float:
        points = sorted((a[at].mean(), b[at].mean()) for a, b in others)
        losses, gains = (np.asarray(x) for x in zip(*points))
        return float(np.interp(nats[at].mean(), losses, np.maximum.accumulate(gains)))

    every = np.arange(len(nats))
    gap, ends = bootstrap.interval(
        lambda at: float(covered[at].mean()) - reached(at), len(nats)
    )
    is_beyond = nats.mean() > max(a.mean() for a, _ in others)
    return [
        f"{nats.mean():.3f}",
        f"{covered.mean():.3f}",
        f"{reached(every):.3f}" + (" (beyond)" if is_beyond else ""),
        spread(gap, ends),
        verdict(*ends),
    ]


def sentence_table(rows: dict[str, list[Row]]) -> dict[str, Any]:
    """Make the table of coverage and of what it costs."""
    lines = []
    for name, r in rows.items():
        nats, tokens = pooled(r, "nats"), pooled(r, "tokens")
        lines.append(
            [
                name,
                f"{pooled(r, 'coverage').mean():.3f}",
                search_tables.by_seed(r, "coverage"),
                f"{nats.mean():.3f}",
                f"{np.exp(nats.sum() / tokens.sum()):.1f}",
                f"{tokens.mean():.1f}",
                f"{pooled(r, 'nodes').mean():.0f}",
            ]
        )
    return search_tables.table(
        "Sentences with given words",
        (
            "search",
            "coverage",
            "by seed",
            "nats a text",
            "perplexity",
            "tokens",
            "nodes",
        ),
        lines,
        f"{len(pooled(rows['greedy'], 'coverage'))} word lists of CommonGen-lite. "
        "coverage: share of the words that stand in the text.",
        "nats a text: −log of its probability under the model. A search that always "
        "writes this text has this KL divergence from the model.",
        "prefix: the reward is that of the text so far, with no look-ahead. weight: "
        "nats that full coverage is worth; with 0 DeAL is beam search and Transfer Q* "
        "greedy. reward alone: likelihood proposes and does not rank.",
    )
