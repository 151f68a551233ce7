"""Searches as trees: whose texts they give, and what a round costs.

A beam search holds K hypotheses of a prompt. As leaves of one tree they share a cache
row, and nothing moves when they are reordered. As K rows, which is the usual form, the
caches of all rows are gathered by their parents in every round. Both are timed in
turns, and rows that are never reordered beside them.
"""

import functools
import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import decoding
import models
from decoding import Method, Spec, compose
from decoding.loops import decode, engines, initial_state
from decoding.serving import requests, searching
from experiments import console
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common, search_drafts
from models.errors import ConfigError

RULES = (False, True, "never")  # `early_stopping`, as the golden files number it


def run(config: Any, store: RunFolder, lm: Any = None) -> dict[str, Any]:
    """Measure what is missing and return everything; `lm` is loaded unless given."""
    lm = lm or models.load(config.model)
    found = store.make("parts", "parity", lambda: parity(config, lm))
    layouts = store.make("parts", "layouts", lambda: search_drafts.layouts(config))
    drafted = []
    for name in config.drafts:
        draft = functools.partial(search_drafts.drafted, config, lm, name)
        drafted += store.make("parts", f"drafts {name}", draft)
    rows = []
    cells = [tuple(cell) for cell in config.cells]
    with console.bar(len(cells), "cell") as bar:
        for cell in cells:
            bar.doing(str(cell))
            name = "_".join(map(str, cell))
            work = functools.partial(cost, config, lm, *cell)
            rows.append(store.make("rows", name, work))
            bar.done(str(cell))
    tables = [of_parity(found), search_drafts.of_layouts(layouts), of_cost(rows)]
    tables.append(search_drafts.of_drafts(drafted))
    return common.study(store, repeats=rows, tables=tables)


def parity(config: Any, lm: Any) -> dict[str, Any]:
    """Compare beams with the texts that HF transformers gave for the same prompts."""
    path = pathlib.Path(config.goldens)
    if not path.exists():
        raise ConfigError(
            f"goldens={config.goldens} is not there: run in the project's folder, or "
            "make the file with tests/golden/make_search_golden.py"
        )
    with np.load(path) as stored:
        known = dict(stored)
    cases = known["beams_cases"][:: config.every]
    texts, scores = known["beams_texts"][:: config.every], known["beams_scores"]
    scores = scores[:: config.every]
    same, count, gap = 0, 0, 0.0
    with console.bar(len(cases), "case") as bar:
        for case, want, values in zip(cases, texts, scores):
            place, width, penalty, rule, ends = case[:5]
            bar.doing(f"width {int(width)}")
            prompt = known["prompts"][int(place)]
            search = Spec(
                "search/beam",
                width=int(width),
                length_penalty=float(penalty),
                early_stopping=RULES[int(rule)],
            )
            out: Any = decoding.generate(
                lm,
                [prompt[prompt >= 0].tolist()],
                Method(search=search),
                max_new_tokens=texts.shape[-1],
                n=int(width),
                stop_token_ids=[config.line] if ends else None,
            )
            for text, score, wanted, value in zip(
                out.tokens[0], out.scores[0], want, values
            ):
                same += text == wanted[wanted >= 0].tolist()
                gap, count = max(gap, abs(score - float(value))), count + 1
            bar.done()
    return {"cases": len(cases), "texts": count, "same": same, "gap": gap}


def of_parity(found: dict[str, Any]) -> dict[str, Any]:
    """Make the table of `parity`."""
    line = [str(found[name]) for name in ("cases", "texts", "same")]
    return {
        "title": "HF transformers' beams",
        "heads": ["cases", "texts", "the same", "greatest gap of scores"],
        "lines": [[*line, f"{found['gap']:.1e}"]],
        "notes": [
            "Widths 2, 4 and 8, five length penalties, three stop rules, one and two "
            "ends of a text; texts of 32 tokens; transformers 4.57.3 in float32."
        ],
    }


def cost(
    config: Any, lm: Any, width: int, prompt: int, batch: int, rounds: int
) -> dict[str, Any]:
    """Time a round of `width` hypotheses of `batch` prompts, in the three forms."""
    rng = np.random.default_rng(config.seed)
    shape = (batch, prompt)
    prompts = rng.integers(1, lm.model.config.vocab_size, shape).tolist()
    tree = _Tree(lm, prompts, width, rounds)
    rows = _rows(lm, prompts, width, rounds)
    forms: dict[str, Any] = {"tree": tree}
    forms |= {"gathered": rows(True), "unordered": rows(False)}
    spent: dict[str, list[float]] = {name: [] for name in forms}
    for form in forms.values():
        form()  # compiles
    for _ in range(config.repeats):
        for name, form in forms.items():
            spent[name].append(form())
    ms = {name: 1e3 * float(np.median(times)) for name, times in spent.items()}
    ratios = [a / b for a, b in zip(spent["tree"], spent["gathered"])]
    return {
        "width": width,
        "prompt": prompt,
        "prompts": batch,
        "rounds": rounds,
        "ms": ms,
        "ratio": float(np.median(ratios)),
        "ratios": [min(ratios), max(ratios)],
        "slots": tree.slots,
    }


class _Tree:
    """A search from its planted state; a call returns its seconds a round."""

    def __init__(self, lm: Any, prompts: list, width: int, rounds: int):
        search = Spec("search/beam", width=width, early_stopping="never")
        self.lm, self.slots = lm, 0
        self.parts = compose.compose(Method(search=search), lm, 0.0)
        self.params = compose.params(lm)
        self.engine = engines.engine(self.parts)
        limits = [len(row) + rounds for row in prompts]
        ends = [requests.Ends()] * len(prompts)
        self.asked = requests.Requests(prompts, limits, len(prompts), 1, ends, 0.0, ())
        self.sizes = searching.scratch(lm, self.parts.program, rounds)
        size = initial_state.bucket(max(limits))
        keys = engines.request_keys(0, len(prompts), 1)
        self.state = self.engine.start(
            *(self.params, self.parts, prompts, limits, keys, size),
            scratch=self.sizes[0],
            whole=True,
        )

    def __call__(self) -> float:
        rows = jax.block_until_ready(jax.tree.map(jnp.copy, self.state))
        begun = time.perf_counter()
        found: Any = (self.parts.program.select, None)
        state, _ = searching.run(
            self.lm, self.engine, self.params, found, rows, self.asked, self.sizes
        )
        jax.block_until_ready(state)
        self.slots = int(state.most_slots.max())
        return (time.perf_counter() - begun) / int(state.round)


def _rows(lm: Any, prompts: list, width: int, rounds: int) -> Any:
    """Return gathers -> a function that runs the rounds and returns seconds of one."""
    parts = compose.compose(Method(), lm, 0.0)
    params = compose.params(lm)
    engine = engines.engine(parts)
    repeated = [row for row in prompts for _ in range(width)]
    limits = [len(row) + rounds + 1 for row in repeated]
    keys = engines.request_keys(0, len(prompts), width)
    size = initial_state.bucket(max(limits))
    state = engine.start(params, parts, repeated, limits, keys, size)
    rng = np.random.default_rng(0)
    choice = rng.integers(0, width, (rounds, len(prompts), width))
    first = width * np.arange(len(prompts))[:, None]
    parents = jnp.asarray((choice + first).reshape(rounds, -1), jnp.int32)

    def make(gathers: bool) -> Any:
        @functools.partial(jax.jit, donate_argnums=1)
        def go(params: Any, state: Any) -> Any:
            def body(i: Any, state: Any) -> Any:
                state, _ = decode.round_(parts.program, params, state)
                if not gathers:
                    return state
                caches = {n: c.gather(parents[i]) for n, c in state.caches.items()}
                return state.replace(caches=caches)

            return lax.fori_loop(0, rounds, body, state)

        def spend() -> float:
            fresh = jax.block_until_ready(jax.tree.map(jnp.copy, state))
            begun = time.perf_counter()
            jax.block_until_ready(go(params, fresh))
            return (time.perf_counter() - begun) / rounds

        return spend

    return make


def of_cost(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Make the table of `cost`."""
    lines = [
        [
            *(str(row[name]) for name in ("width", "prompt", "prompts", "rounds")),
            *(f"{row['ms'][name]:.2f}" for name in ("tree", "gathered", "unordered")),
            f"{row['ratio']:.2f} ({row['ratios'][0]:.2f} to {row['ratios'][1]:.2f})",
            str(row["slots"]),
        ]
        for row in rows
    ]
    return {
        "title": "Milliseconds of a round",
        "heads": [
            *("K", "prompt", "prompts", "rounds", "tree", "rows, gathered"),
            *("rows, unordered", "tree ÷ gathered", "slots"),
        ],
        "lines": lines,
        "notes": [
            "Medians of runs in turns; the ratio's least and greatest in brackets. The "
            "tree's time has its top-k over the vocabulary, its settling and the "
            "growth of its scratch; rows decode greedily and rank nothing.",
            "slots: the most scratch slots in use.",
        ],
    }


STAGE = Stage(run, "Searches of {}", ())
