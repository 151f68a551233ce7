"""CTGS on a small model: what filters cost, whether they hold, and what is left.

Held-out code is continued by sampling under each set of filters. Every text is then
read once more by the plain model, whose laws say what the filters left of them.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

import decoding
import models
from decoding import Spec, vocab
from decoding.automata import vocabulary_filters
from decoding.constraints import ctgs
from experiments import console
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common, sampler_texts
from experiments.studies.search_tables import Row, table
from models.errors import ConfigError

PLAIN = "plain"


def run(config: Any, store: RunFolder, lm: Any = None) -> dict[str, Any]:
    """Measure what is missing and return everything; `lm` is loaded unless given."""
    lm = lm or models.load(config.model)
    arms = {name: _arguments(arm) for name, arm in config.arms.items()}
    if arms.get(PLAIN) != {}:
        raise ConfigError(f"config.arms needs {PLAIN!r}, without filters")
    prompts = common.texts(config, lm)[config.task]
    rows = []
    with console.bar(len(arms), "ctgs") as bar:
        for name, arguments in arms.items():
            bar.doing(name)
            work = functools.partial(written, config, lm, prompts, arms, arguments)
            rows.append({"arm": name, **store.make("rows", name, work)})
            bar.done(name)
    return common.study(store, tables=[texts_table(rows), truncation_table(rows)])


def _arguments(arm: Any) -> dict[str, Any]:
    """Return the arguments of `constraints/ctgs`, as plain dicts and tuples."""
    return arm.to_dict() if hasattr(arm, "to_dict") else dict(arm)


def written(config: Any, lm: Any, prompts: list, arms: dict, arguments: dict) -> Row:
    """Write the texts of one arm and measure them."""
    transforms = [Spec("constraints/ctgs", **arguments)] if arguments else []
    out = decoding.generate(
        lm,
        prompts,
        transforms=transforms,
        temperature=1.0,
        max_new_tokens=config.max_new_tokens,
        seed=config.seed,
    )
    spelled, eos = lm.tokenizer.token_bytes(), list(lm.config.eos)
    sets = {name: allowed(lm, other) for name, other in arms.items() if other}
    valid = {
        name: [holds(text, spelled, other, sets[name], eos) for text in out.tokens]
        for name, other in arms.items()
        if other
    }
    inside = allowed(lm, arguments) if arguments else np.ones(len(spelled), bool)
    laws = [
        text_laws(lm, prompt, text, inside, config)
        for prompt, text in zip(prompts, out.tokens)
    ]
    return {
        "tokens": int(inside.sum()),
        "nats": [float(law["nats"]) for law in laws],
        "masked": [float(law["nats"] + law["mass"]) for law in laws],
        "emptied": {
            name: [int(law[name]) for law in laws] for name in ("top_k", "top_p")
        },
        "steps": [len(text) for text in out.tokens],
        "valid": valid,
        "repeated": [
            sampler_texts.repeated(sampler_texts.Text([], text, [], 1.0, None)) or 0.0
            for text in out.tokens
        ],
        "samples": [lm.tokenizer.decode(text) for text in out.tokens[: config.shown]],
    }


def allowed(lm: Any, arguments: dict[str, Any]) -> np.ndarray:
    """Return the tokens that filters allow, and the end of sequence, bool[V]."""
    inside = ctgs.token_set(
        lm.tokenizer.token_bytes(),
        lm.config.vocab_size,
        arguments["filters"],
        arguments.get("texts", ()),
        arguments.get("spare", ""),
        vocabulary_filters.tables(
            arguments.get("pronunciations"), arguments.get("vectors")
        ),
    )
    inside[list(lm.config.eos)] = True
    return inside


def holds(
    text: Sequence[int],
    spelled: Sequence[bytes],
    arguments: dict[str, Any],
    inside: np.ndarray,
    eos: Sequence[int],
) -> bool:
    """Return whether a text passes: its tokens all filters, its letters the ban."""
    banned = arguments["filters"].get("banned", ())
    whole = b"".join(spelled[token] for token in text if token not in eos)
    letters = whole.decode("utf-8", "replace")
    return bool(inside[list(text)].all()) and not any(b in letters for b in banned)


def text_laws(
    lm: Any, prompt: list[int], text: list[int], inside: np.ndarray, config: Any
) -> dict[str, float]:
    """Read a text with the plain model.

    Returns:
        `nats` a token under its law; `mass`, the mean log of what the filters leave of
        it; and at how many tokens top-k and top-p keep none that the filters allow.
    """
    size = config.prompt_tokens + config.max_new_tokens
    tokens = np.zeros((1, size), np.int32)
    tokens[0, : len(prompt) + len(text)] = [*prompt, *text]
    read = sampler_texts.forward(lm.config)
    logits = read(lm.params, jnp.asarray(tokens)).logits[0]
    at = len(prompt) - 1 + np.arange(len(text))
    laws = np.asarray(vocab.log_softmax(logits), np.float64)[at]
    order = np.argsort(-laws, axis=1)
    chosen = inside[order]
    mass = np.exp(np.take_along_axis(laws, order, 1))
    before = np.cumsum(mass, 1) - mass  # of better tokens
    return {
        "nats": -laws[np.arange(len(text)), text].mean(),
        "mass": np.log((mass * chosen).sum(1)).mean(),
        "top_k": (~chosen[:, : config.top_k].any(1)).sum(),
        "top_p": (~(chosen & (before < config.top_p)).any(1)).sum(),
    }


def _mean(values: Sequence[float], digits: int = 3) -> str:
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{np.mean(values):.{digits}f} ± {error:.{digits}f}"


def texts_table(rows: list[Row]) -> dict[str, Any]:
    """Make a line for every arm."""
    plain = next(row for row in rows if row["arm"] == PLAIN)
    lines = []
    for row in rows:
        name = row["arm"]
        share = lambda valid: f"{sum(valid)}/{len(valid)}"
        is_plain = name == PLAIN
        lines.append(
            [
                name,
                f"{row['tokens']:,}",
                "–" if is_plain else share(row["valid"][name]),
                "–" if is_plain else share(plain["valid"][name]),
                _mean(row["nats"]),
                "–" if is_plain else _mean(np.subtract(row["nats"], plain["nats"])),
                _mean(row["masked"]),
                "–" if is_plain else _mean(np.subtract(row["nats"], row["masked"])),
                _mean(row["repeated"]),
            ]
        )
    heads = (
        "filters",
        "tokens allowed",
        "texts that pass",
        "plain texts that pass",
        "nats a token",
        "more than plain",
        "nats, filtered law",
        "gain by the filter",
        "repeated 4-grams",
    )
    notes = (
        f"{len(plain['nats'])} texts sampled at temperature 1. Nats: under the model's "
        "own law; filtered law: under that law restricted and renormalised. ±: "
        "standard error, of differences prompt by prompt.",
    )
    return table("Texts under filters", heads, lines, *notes)


def truncation_table(rows: list[Row]) -> dict[str, Any]:
    """Say how often truncation before the filters would leave no token."""
    lines = [
        [
            row["arm"],
            f"{sum(row['steps']):,}",
            *(f"{sum(row['emptied'][n]) / sum(row['steps']):.3f}" for n in EMPTIED),
            f"{np.mean(np.asarray(row['emptied']['top_p']) > 0):.3f}",
        ]
        for row in rows
        if row["arm"] != PLAIN
    ]
    heads = ("filters", "tokens", *EMPTIED.values(), "texts with such a token, top-p")
    note = "Shares of the tokens at which truncation alone leaves none that passes."
    return table("Filters behind truncation", heads, lines, note)


EMPTIED = {"top_k": "emptied by top-k", "top_p": "emptied by top-p"}
STAGE = Stage(run, "CTGS on {}", ("arms",))
