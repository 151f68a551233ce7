"""The stage `diffusion_constraints`: what canvases' constraints cost, and their texts.

Passes are timed alone, on drawn grammars and automata over tokens. Texts are written by
the masked toy, free and constrained, and judged by byte machines, which have no part in
constraints that run on the device.
"""

import functools
import re
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import decoding
from decoding import Method, Spec
from decoding.automata import (
    byte_machine,
    compiled,
    completions,
    token_charts,
    token_dfa,
    token_rules,
)
from decoding.conformance import schedules
from experiments import console
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common
from models.base import LanguageModel
from models.errors import ConfigError
from models.synthetic import toy_masked

Row = dict[str, Any]
LETTERS, EOS = 7, 5  # of the toy; the last letter is the mask
KINDS = ("regex", "gbnf", "cfg")


def run(config: Any, store: RunFolder) -> dict[str, Any]:
    """Measure what is missing and return everything."""
    check(config)
    jobs: list[tuple[str, str, Callable[[], Row]]] = []
    for kind, sizes in (("grammar", config.passes), ("automaton", config.automata)):
        for size in sizes:
            measure = functools.partial(timed, config, kind, *size)
            jobs.append(("passes", f"{kind} {size[0]} {size[1]}", measure))
    for constraint in config.constraints:
        for arm in config.arms:
            write = functools.partial(written, config, constraint, arm)
            jobs.append(("texts", f"{constraint['name']} {arm['name']}", write))
    rows: dict[str, list[Row]] = {"passes": [], "texts": []}
    with console.bar(len(jobs), "diffusion_constraints") as bar:
        for part, name, work in jobs:
            bar.doing(name)
            key = re.sub("[^a-z0-9.]+", "-", f"{part} {name}".lower())
            rows[part].append(store.make("rows", key, work))
            bar.done(name)
    made = [passes_table(rows["passes"]), texts_table(rows["texts"])]
    return common.study(store, **rows, tables=made)


def check(config: Any) -> None:
    """Raise ConfigError for what would fail later."""
    for constraint in config.constraints:
        if len([kind for kind in KINDS if kind in constraint]) != 1:
            raise ConfigError(
                f"config.constraints has {dict(constraint)}: give a name and one of "
                f"{list(KINDS)}"
            )
    for arm in config.arms:
        method_of(arm)
    if config.repeats < 1 or config.samples < 1 or not config.seeds:
        raise ConfigError(
            f"config.repeats={config.repeats}, config.samples={config.samples}, "
            f"config.seeds={config.seeds}: use one at least of each"
        )


def drawn_grammar(
    rules: int, nonterminals: int, vocabulary: int, rng: np.random.Generator
) -> token_charts.Tables:
    """Draw a grammar of `rules` different rules of two symbols.

    Each token is a whole text of one nonterminal.
    """
    every = np.arange(nonterminals**3)
    codes = rng.choice(every, rules, replace=False)
    sides: list[list[str]] = [[] for _ in range(nonterminals)]
    for code in codes.tolist():
        head, pair = divmod(code, nonterminals**2)
        left, right = divmod(pair, nonterminals)
        sides[head].append(f"s{left} s{right}")
    tokens = [b"", *(str(i).encode() for i in range(1, vocabulary))]
    for token in range(1, vocabulary):
        sides[token % nonterminals].append(f'"{token}"')
    lines = [f"s{i} ::= {' | '.join(side)}" for i, side in enumerate(sides)]
    # Whatever a nonterminal derives is a text, so that no rule is left out.
    text = "\n".join(
        [f"root ::= {' | '.join(f's{i}' for i in range(nonterminals))}", *lines]
    )
    return token_charts.tables(token_rules.rules(text, tokens, vocabulary), (0,))


def drawn_automaton(
    states: int, vocabulary: int, rng: np.random.Generator
) -> completions.Tables:
    """Draw an automaton over 64 classes of tokens that forbids half of its moves."""
    step = rng.integers(0, states, (states, 64)).astype(np.int32)
    step[rng.random(step.shape) < 0.5] = token_dfa.DEAD
    classes = rng.integers(0, 64, vocabulary).astype(np.int32)
    automaton = token_dfa.TokenDFA(step, classes, rng.random(states) < 0.5, 0)
    return completions.tables(completions.with_end(automaton, (0,)))


def timed(config: Any, kind: str, positions: int, size: int) -> Row:
    """Time one pass over a canvas, half of whose positions are open.

    Returns:
        kind, positions, size: as given; allowed, possible: ms of the median call.
    """
    rng = np.random.default_rng(config.seed)
    tokens = rng.integers(1, config.vocabulary, positions)
    canvas = jnp.asarray(np.where(rng.random(positions) < 0.5, -1, tokens), jnp.int32)
    if kind == "grammar":
        about = (size, config.nonterminals, config.vocabulary, rng)
        tables: Any = drawn_grammar(*about)
        every: tuple = (token_charts.fillings, token_charts.possible)
    else:
        tables = drawn_automaton(size, config.vocabulary, rng)
        every = (completions.fillings, completions.completable)
    row: Row = {"kind": kind, "positions": positions, "size": size}
    for name, function in zip(("allowed", "possible"), every):
        call = jax.jit(function)
        call(tables, canvas).block_until_ready()
        spent = []
        for _ in range(config.repeats):
            begun = time.perf_counter()
            call(tables, canvas).block_until_ready()
            spent.append(1e3 * (time.perf_counter() - begun))
        row[name] = float(np.median(spent))
    return row


def method_of(arm: Mapping[str, Any]) -> Method:
    """Return the method of an arm."""
    return Method.from_config({"schedule": arm["schedule"]})


@functools.cache
def toy() -> LanguageModel:
    """Make the toy's functions, once: its programs serve all tables."""
    return toy_masked.language_model(toy_masked.Config(LETTERS, eos=(EOS,)))


def written(config: Any, constraint: Mapping[str, Any], arm: Mapping[str, Any]) -> Row:
    """Write all prompts' texts, free and constrained.

    Returns:
        `free` and `held`, of each: texts, inside (in the language), calls, tokens,
        ms (a forward of all rows, of a call whose program is compiled).
    """
    kind = next(kind for kind in KINDS if kind in constraint)
    source = constraint[kind]
    machine = compiled.machine(
        compiled.parse({"gbnf" if kind == "cfg" else kind: source})
    )
    held: dict[str, Any] = {"constraint": {kind: source}}
    if kind == "cfg":
        held = {"transforms": (Spec("constraints/diffusion_cfg", grammar=source),)}
    row: Row = {"constraint": constraint["name"], "arm": arm["name"]}
    model = toy()
    for name, settings in (("free", {}), ("held", held)):
        cell = {"texts": 0, "inside": 0, "calls": 0, "tokens": 0, "ms": 0.0}
        for seed in config.seeds:
            params = model.init(jax.random.key(seed), config.scale)
            lm = types.SimpleNamespace(
                model=model, params=params, tokenizer=schedules.Letters()
            )
            for _ in range(2):  # the second call's program is compiled
                out = decoding.generate(
                    *(lm, [list(prompt) for prompt in config.prompts]),
                    method=method_of(arm),
                    max_new_tokens=config.tokens,
                    temperature=config.temperature,
                    n=config.samples,
                    seed=seed,
                    **settings,
                )
            texts = [t for part in out.tokens for t in _rows(part, config.samples)]
            cell["texts"] += len(texts)
            cell["inside"] += sum(is_inside(machine, text) for text in texts)
            cell["tokens"] += sum(map(len, texts))
            calls = out.stats.target_calls
            cell["calls"] += int(calls.sum())
            cell["ms"] += 1e3 * out.stats.seconds / int(calls.max()) / len(config.seeds)
        row[name] = cell
    return row


def _rows(part: Any, samples: int) -> list[list[int]]:
    """Return a prompt's texts; one sample is no list of lists."""
    return [part] if samples == 1 else part


def is_inside(machine: byte_machine.ByteMachine, tokens: Sequence[int]) -> bool:
    """Return whether a text, less its end of sequence, is in a machine's language."""
    body = list(tokens[:-1] if tokens and tokens[-1] == EOS else tokens)
    if EOS in body:
        return False
    data = schedules.Letters().token_bytes()
    return bool(byte_machine.accepts(machine, b"".join(data[t] for t in body)))


def passes_table(rows: Sequence[Row]) -> dict[str, Any]:
    """Make the table of one pass's times."""
    lines = [
        [
            row["kind"],
            str(row["positions"]),
            str(row["size"]),
            f"{row['allowed']:.2f}",
            f"{row['possible']:.2f}",
        ]
        for row in rows
    ]
    return {
        "title": "One pass, milliseconds",
        "heads": ["language", "positions", "rules, states", "allowed", "possible"],
        "lines": lines,
        "notes": [
            "allowed: the tokens of all positions, once a step. possible: yes or no, "
            "once for each further token that a step commits. A grammar's size is its "
            "rules of two symbols, an automaton's its states."
        ],
    }


def texts_table(rows: Sequence[Row]) -> dict[str, Any]:
    """Make the table of written texts."""
    lines = []
    for row in rows:
        free, held = row["free"], row["held"]
        line = [row["constraint"], row["arm"], str(held["texts"])]
        line += [f"{cell['inside'] / cell['texts']:.3f}" for cell in (free, held)]
        line += [f"{cell['calls'] / cell['texts']:.2f}" for cell in (free, held)]
        line += [f"{cell['tokens'] / cell['calls']:.2f}" for cell in (free, held)]
        line += [f"{cell['ms']:.2f}" for cell in (free, held)]
        lines.append(line)
    pairs = ("in the language", "calls a text", "tokens a call", "ms a forward")
    heads = [f"{name}, {which}" for name in pairs for which in ("free", "held")]
    return {
        "title": "Texts of the masked toy",
        "heads": ["constraint", "schedule", "texts", *heads],
        "lines": lines,
        "notes": [
            "in the language: share of the texts that a byte machine accepts. ms a "
            "forward: of all rows together, and of a compiled program; the toy's own "
            "forward costs next to nothing."
        ],
    }


STAGE = Stage(run, "Constraints of canvases", ("passes", "texts"))
