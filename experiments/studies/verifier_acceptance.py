"""Measured and theoretical acceptance rates of verifiers on a real pair of models.

Pairs of laws (p of the target, q of the draft model) are taken at places of real texts.
At every pair each lossless verifier tests `k` drafts `samples` times, for each draw
that it supports. The acceptance rate is compared with its closed form
(`decoding/theory/acceptance_rates.py`) and with the bound of any verifier
(`decoding/theory/optimal_transport.py`).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import models
from decoding import base, catalogue
from decoding.catalogue import Spec
from decoding.theory import acceptance_rates, optimal_transport
from decoding.theory.acceptance_rates import Value
from decoding.tree_building import child_sampling
from experiments import console
from experiments.measurement import identity
from experiments.prompts import builtin_tasks
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common
from models.errors import ConfigError

LEAST = 16  # fewest tokens before a place
ERRORS = 4.0  # standard errors that a row may be off

Form = Callable[[np.ndarray, np.ndarray, int, np.random.Generator], Value]


def _plain(form: Callable[[np.ndarray, np.ndarray, int], Value]) -> Form:
    return lambda p, q, k, rng: form(p, q, k)


def _single(form: Callable[[np.ndarray, np.ndarray], Value]) -> Form:
    return lambda p, q, k, rng: form(p, q)


# Acceptance of drafts that are independent of the verifier's randomness.
MATCHED = {
    base.IID: _plain(acceptance_rates.matched),
    base.NO_REPLACE: acceptance_rates.matched_without,
    base.POINT: _plain(acceptance_rates.point),
}
FORMS: dict[str, dict[str, Form]] = {
    "verifiers/rejection": {
        base.IID: _single(acceptance_rates.rejection),
        base.NO_REPLACE: _single(acceptance_rates.rejection),
        base.POINT: _plain(acceptance_rates.point),
    },
    "verifiers/recursive_rejection": {
        base.IID: _plain(acceptance_rates.recursive),
        base.NO_REPLACE: acceptance_rates.recursive_without,
        base.POINT: _plain(acceptance_rates.point),
    },
    "verifiers/spectr": {base.IID: _plain(acceptance_rates.k_seq)},
    "verifiers/sample_then_match": MATCHED,
    # Of several coupled drafts the first alone has a closed form: a lower bound.
    "verifiers/gumbel_coupled": {
        **MATCHED,
        base.COUPLED: _single(acceptance_rates.coupled),
    },
}
CHAINS = ("verifiers/rejection",)  # one draft a node
BOUNDED = (base.COUPLED,)  # draws whose form is a lower bound beyond one draft


class Cell(NamedTuple):
    """One row: a verifier, its drafts, and the temperature of both models."""

    verifier: str
    draw: str
    k: int
    temperature: float

    @property
    def key(self) -> str:
        name = self.verifier.split("/")[1]
        return f"{name}-{self.draw}-k{self.k}-t{self.temperature:g}"


def lossless() -> list[str]:
    """List the verifiers of the catalogue whose law is the target's."""
    names = catalogue.of_kind("verifiers")
    return [n for n in names if catalogue.load(n).CARD.guarantee == base.LAW]


def table(config: Any) -> list[Cell]:
    """List all rows in the order of the report."""
    names = tuple(config.verifiers) or tuple(lossless())
    unknown = [n for n in names if n not in FORMS]
    if unknown:
        raise ConfigError(f"no closed form of {unknown[0]!r}; there are {list(FORMS)}")
    cells = []
    for temperature in config.temperatures:
        if temperature <= 0:
            raise ConfigError(
                f"config.temperatures has {temperature}: use temperatures above 0"
            )
        for name in names:
            for draw in FORMS[name]:
                for k in config.drafts_a_node:
                    if k == 1 or name not in CHAINS:
                        cells.append(Cell(name, draw, int(k), float(temperature)))
    return cells


def pairs(config: Any, lm: Any, draft: Any) -> tuple[np.ndarray, np.ndarray]:
    """Compute raw logits float32[pairs, V] of target and draft after real texts."""
    prompts = builtin_tasks.build(
        lm, config.tasks, config.prompts, config.prompt_tokens
    )
    texts = [tokens for task in config.tasks for tokens in prompts[task]]
    places = [(i, j) for i, t in enumerate(texts) for j in range(LEAST, len(t))]
    if len(places) < config.pairs:
        raise ConfigError(
            f"config.pairs={config.pairs} and the texts have {len(places)} places: "
            "raise config.prompts or config.prompt_tokens"
        )
    rng = np.random.default_rng(config.seed)
    chosen = sorted(rng.choice(len(places), config.pairs, replace=False).tolist())
    logits: tuple[list, list] = ([], [])
    for i, text in enumerate(texts):
        positions = np.array([places[c][1] for c in chosen if places[c][0] == i], int)
        if len(positions):
            for model, out in zip((lm, draft), logits):
                # The law of token j is the row of token j - 1.
                out.append(np.asarray(identity.logits(model, text))[positions - 1])
    return np.concatenate(logits[0]), np.concatenate(logits[1])


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def hits(verifier: base.Verifier, draw: str, k: int, n: int, key, p, q) -> jax.Array:
    """Count how often the draft of each rank is accepted, of `n` times: int32[k].

    Args:
        draw: how drafts are drawn, a draw of `decoding.base`.
        k: drafts of the node.
        n: repetitions.
        key: a JAX random key.
        p: log probabilities float32[V] of the target.
        q: the same of the draft model.
    """
    state = verifier.init({})

    def one(key: jax.Array) -> jax.Array:
        keys = jax.random.split(key, 3)
        noise = jax.random.gumbel(keys[2], p.shape)
        drawn = child_sampling.candidates(
            draw, keys[:1], q[None, None], k, noise[None]
        )[0, 0]
        zero = jnp.zeros((1,), jnp.int32)
        tree = base.TokenTree(
            jnp.concatenate([zero, drawn.astype(jnp.int32)]),
            jnp.concatenate([zero - 1, jnp.zeros((k,), jnp.int32)]),
            jnp.full((k + 1,), base.CANDIDATE, jnp.int32),
            jnp.broadcast_to(q, (k + 1, *q.shape)),
            draw=draw,
            depth=1,
            linear=k == 1,
        )
        rows = jnp.broadcast_to(p, (k + 1, *p.shape))
        target = base.Target(rows, {}, lambda depth: noise)
        verdict = verifier.verify(keys[1], state, tree, target)
        return (jnp.arange(1, k + 1) == verdict.path[0]) & (verdict.count > 0)

    accepted = jax.lax.map(one, jax.random.split(key, n), batch_size=16)
    return accepted.sum(0)


def _log_law(logits: np.ndarray, temperature: float) -> np.ndarray:
    scaled = logits.astype(np.float64) / temperature
    return scaled - np.logaddexp.reduce(scaled, -1, keepdims=True)


def measure(
    cell: Cell, verifier: base.Verifier, p: np.ndarray, q: np.ndarray, config: Any
) -> dict[str, Any]:
    """Measure one row over all pairs.

    `p` and `q` are raw logits float32[pairs, V]. `error` is the standard error over
    draws, for these pairs.
    """
    n, key = config.samples, jax.random.key(config.seed)
    p, q = (_log_law(x, cell.temperature) for x in (p, q))
    counts = np.stack(
        [
            hits(
                verifier,
                cell.draw,
                cell.k,
                n,
                jax.random.fold_in(key, i),
                jnp.float32(p[i]),
                jnp.float32(q[i]),
            )
            for i in range(len(p))
        ]
    )
    rate = counts.sum(1) / n
    # Half a count to each side: 0 of n has an error above 0.
    shrunk = (counts.sum(1) + 0.5) / (n + 1)
    error = float(np.sqrt((shrunk * (1 - shrunk) / n).sum()) / len(p))
    form, rng = FORMS[cell.verifier][cell.draw], np.random.default_rng(config.seed)
    laws = [(np.exp(a), np.exp(b)) for a, b in zip(p, q)]
    forms = [form(a, b, cell.k, rng) for a, b in laws]
    expected = float(np.mean([d.mean for d in forms]))
    expected_error = float(np.sqrt(sum(d.error**2 for d in forms)) / len(forms))
    lower = cell.draw in BOUNDED and cell.k > 1
    gap = float(rate.mean()) - expected
    errors_off = gap / float(np.hypot(error, expected_error))
    return {
        "verifier": cell.verifier.split("/")[1],
        "draw": cell.draw,
        "k": cell.k,
        "temperature": cell.temperature,
        "pairs": len(p),
        "samples": n,
        "acceptance": float(rate.mean()),
        "error": error,
        "by_rank": (counts.sum(0) / (n * len(p))).tolist(),
        "expected": expected,
        "expected_error": expected_error,
        "kind": "at least" if lower else "mean" if expected_error else "exact",
        "errors_off": errors_off,
        "holds": bool(errors_off >= -ERRORS if lower else abs(errors_off) <= ERRORS),
        "bound": bound(cell, laws),
    }


def bound(cell: Cell, laws: Sequence[tuple[np.ndarray, np.ndarray]]) -> float | None:
    """Average the optimal-transport bound over the pairs; None if not enumerable."""
    if cell.draw == base.POINT:
        return float(
            np.mean([acceptance_rates.point(*law, cell.k).mean for law in laws])
        )
    if cell.k > 1 and cell.draw != base.IID:
        return None
    return float(np.mean([optimal_transport.acceptance(*law, cell.k) for law in laws]))


def run(
    config: Any, store: RunFolder, lm: Any = None, draft: Any = None
) -> dict[str, Any]:
    """Measure missing pieces, return all of them; load models that are not passed."""
    cells = table(config)
    if lm is None:
        lm, draft = models.load(config.model), models.load(config.draft)
    built = {c.verifier: Spec(c.verifier).build({}) for c in cells}
    p, q = pairs(config, lm, draft)
    rows = []
    with console.bar(len(cells), "laws") as bar:
        for cell in cells:
            bar.doing(cell.key)
            work = functools.partial(measure, cell, built[cell.verifier], p, q, config)
            row = store.make("rows", cell.key, work)
            rows.append(row)
            bar.done(
                f"{cell.key:44} {row['acceptance']:.4f} ± {row['error']:.4f}  due "
                f"{row['expected']:.4f}"
            )
    tables = [_table(rows), _directions(rows)]
    return common.study(store, laws=rows, tables=tables, plots=_plots(rows))


def _table(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Make the table of measured and theoretical acceptance."""
    heads = ("verifier", "draw", "k", "T", "accepted", "due", "errors off", "holds")
    lines = []
    for r in rows:
        sign = {"at least": "≥ ", "mean": "", "exact": ""}[r["kind"]]
        due = f"{sign}{r['expected']:.4f}"
        if r["expected_error"]:
            due += f" ± {r['expected_error']:.4f}"
        lines.append(
            [
                r["verifier"],
                r["draw"],
                f"{r['k']}",
                f"{r['temperature']:g}",
                f"{r['acceptance']:.4f} ± {r['error']:.4f}",
                due,
                "above" if sign and r["errors_off"] > 0 else f"{r['errors_off']:+.1f}",
                "yes" if r["holds"] else "NO",
                "–" if r["bound"] is None else f"{r['bound']:.4f}",
            ]
        )
    return {
        "title": "Accepted and due",
        "heads": [*heads, "most possible"],
        "lines": lines,
        "notes": [
            "accepted: how often one of the k drafts of a node is accepted, mean over "
            "the pairs of laws ± a standard error of the draws. due: its closed form "
            "on the same pairs; with an error where it was averaged over draws; ≥ "
            "where there is a lower bound alone. holds: within four standard errors.",
            "most possible: optimal transport, which no exact verifier exceeds; not "
            "enumerable for several drafts without replacement (–).",
        ],
    }


def _directions(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Test the papers' claims about these schemes, as differences with errors."""
    by_cell = {(r["verifier"], r["draw"], r["k"], r["temperature"]): r for r in rows}
    lines = []

    def compare(claim: str, more: tuple, less: tuple) -> None:
        if more in by_cell and less in by_cell:
            gap = by_cell[more]["acceptance"] - by_cell[less]["acceptance"]
            error = float(np.hypot(by_cell[more]["error"], by_cell[less]["error"]))
            verdict = "yes" if gap > 2 * error else "no" if gap < -2 * error else "even"
            lines.append([claim, f"{gap:+.4f} ± {error:.4f}", verdict])

    for _, _, k, t in dict.fromkeys((0, 0, r["k"], r["temperature"]) for r in rows):
        if k == 1:
            continue
        recursive, setting = "recursive_rejection", f"k = {k}, T = {t:g}"
        one = ("rejection", base.IID, 1, t)
        compare(f"K-SEQ > one draft, {setting}", ("spectr", base.IID, k, t), one)
        compare(
            f"recursive rejection > one draft, {setting}",
            (recursive, base.IID, k, t),
            one,
        )
        compare(
            f"without replacement ≥ with, {setting}",
            (recursive, base.NO_REPLACE, k, t),
            (recursive, base.IID, k, t),
        )
        compare(
            f"K-SEQ > recursive rejection with replacement, {setting}",
            ("spectr", base.IID, k, t),
            (recursive, base.IID, k, t),
        )
    return {
        "title": "Directions",
        "heads": ["direction", "difference", "holds"],
        "lines": lines,
        "notes": ["even: the difference is within two standard errors of nothing."],
    }


def _plots(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Plot acceptance by number of drafts, a figure a temperature."""
    plots = []
    for t in dict.fromkeys(r["temperature"] for r in rows):
        mine = [r for r in rows if r["temperature"] == t]
        series = []
        for name, draw in dict.fromkeys((r["verifier"], r["draw"]) for r in mine):
            cells = [r for r in mine if (r["verifier"], r["draw"]) == (name, draw)]
            values = [r["acceptance"] for r in cells]
            errors = [r["error"] for r in cells]
            widths = [r["k"] for r in cells]
            label = f"{name}, {draw}"
            series.append({"name": label, "x": widths, "y": values, "error": errors})
        plots.append(
            {
                "name": f"acceptance_t{t:g}",
                "title": f"a draft of k is accepted, T = {t:g}",
                "x": "drafts of a node",
                "series": series,
            }
        )
    return plots


STAGE = Stage(
    run,
    "Acceptance of {}'s verifiers and its closed forms",
    ("tasks", "temperatures", "verifiers", "drafts_a_node"),
    parts=("laws",),
)
