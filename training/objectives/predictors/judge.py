"""Judge decoding: label which of a draft's mismatches are harmless, and fit the judge.

Where the draft's likeliest token differs from the target's, the target continues from
the draft's token. The mismatch is *good* if that continuation is equivalent to the
reference (`same`, by default: it rejoins the reference). A linear judge is fitted to
the target's states at those tokens and these labels.

This way of labelling is that of AutoJudge (arXiv 2504.20039) for one mismatch at a
time; the original marks wrong spans of answers by hand (arXiv 2501.19309).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import decoding
from models import transformer
from models.errors import DataError
from models.predictors import judge_predictor
from training.teacher.outputs import NORM


class Case(NamedTuple):
    """A mismatch: the text up to the draft's token, and whether it is harmless."""

    tokens: list[int]
    good: bool


def rejoins(reference: Sequence[int], other: Sequence[int], tail: int = 8) -> bool:
    """Check whether the end of `other` occurs in the reference near the same place.

    The end is its last `tail` tokens; near is at most `tail` places to either side.
    """
    if len(other) < tail or len(reference) < tail:
        return list(other) == list(reference)
    end, last = len(other) - tail, list(other[-tail:])
    for start in range(max(end - tail, 0), end + tail + 1):
        if list(reference[start : start + tail]) == last:
            return True
    return False


def cases(
    lm: Any,
    draft: Any,
    prompts: Sequence[Sequence[int]],
    new_tokens: int = 64,
    horizon: int = 24,
    most: int = 8,
    seed: int = 0,
    same: Callable[[Sequence[int], Sequence[int]], bool] = rejoins,
    batch: int = 16,
) -> list[Case]:
    """Label at most `most` mismatches of every prompt.

    Args:
        lm: the target.
        draft: the draft model.
        prompts: token ids.
        new_tokens: tokens of a reference, the target's greedy text after a prompt.
        horizon: tokens that the target generates from a mismatch.
        most: mismatches of a prompt.
        seed: of the choice among its mismatches.
        same: `same(reference, other)` compares both texts from the mismatch on.
        batch: texts that are decoded at once.

    Raises:
        DataError: a count below 1.
    """
    if not prompts or min(new_tokens, horizon, most, batch) < 1:
        raise DataError(
            f"{len(prompts)} prompts, new_tokens={new_tokens}, horizon={horizon}, "
            f"most={most}, batch={batch}: use at least 1 of each"
        )
    rng = np.random.default_rng(seed)
    rows = [[int(t) for t in p] for p in prompts]
    texts = decoding.generate(lm, rows, max_new_tokens=new_tokens).tokens
    guess = _likeliest(draft, [p + t for p, t in zip(rows, texts)])
    origins, starts = [], []
    for row, text, drafted in zip(rows, texts, guess):
        wrong = [i for i in range(len(text)) if drafted[len(row) + i - 1] != text[i]]
        # The rest of the reference must be long enough to be compared.
        wrong = [i for i in wrong if i + horizon < len(text) or i == 0]
        for i in sorted(rng.permutation(wrong)[:most].tolist()):
            starts.append([*row, *text[:i], int(drafted[len(row) + i - 1])])
            origins.append((text[i:], len(row) + i))
    labelled = []
    for first in range(0, len(starts), batch):
        part = starts[first : first + batch]
        full = part + [part[-1]] * (batch - len(part))
        out = decoding.generate(lm, full, max_new_tokens=horizon).tokens
        for i, start in enumerate(part):
            reference, before = origins[first + i]
            other = [*start[before:], *out[i]]
            labelled.append(Case(start, same(reference[: len(other) + 8], other)))
    return labelled


def states(lm: Any, texts: Sequence[Sequence[int]], batch: int = 16) -> np.ndarray:
    """Compute float32[n, D], the target's last normed state after every text."""
    size = max(map(len, texts))

    @jax.jit
    def last(params: Any, tokens: Any, length: Any) -> Any:
        out = transformer.forward(lm.config, params, tokens, taps=(NORM,))
        rows = jnp.arange(tokens.shape[0])
        return out.hidden[NORM][rows, length - 1].astype(jnp.float32)

    parts = []
    for first in range(0, len(texts), batch):
        part = texts[first : first + batch]
        tokens, length = np.zeros((batch, size), np.int32), np.ones(batch, np.int32)
        for i, text in enumerate(part):
            tokens[i, : len(text)], length[i] = text, len(text)
        parts.append(np.asarray(last(lm.params, tokens, length))[: len(part)])
    return np.concatenate(parts)


def fit(
    given: np.ndarray,
    good: Sequence[bool],
    reject: float = 1.0,
    decay: float = 1e-2,
    steps: int = 30,
) -> dict[str, Any]:
    """Fit the judge: least weighted BCE + decay |w|^2 / 2, by Newton's method.

    Args:
        given: float32[n, D], the states of the mismatches.
        good: their labels.
        reject: weight of the harmful ones.
        decay: weight of the ridge.
        steps: Newton steps.

    Raises:
        DataError: one class is empty.
    """
    x, y = jnp.asarray(given, jnp.float32), jnp.asarray(good, jnp.float32)
    if not 0 < float(y.sum()) < len(y):
        raise DataError(
            f"{int(y.sum())} of {len(y)} mismatches are good, but a judge needs both "
            "kinds: use more prompts"
        )
    mean, spread = x.mean(0), x.std(0) + 1e-6
    scaled = jnp.concatenate([(x - mean) / spread, jnp.ones((len(y), 1))], 1)
    share = jnp.where(y > 0, 1.0, reject)
    ridge = decay * jnp.ones(scaled.shape[1]).at[-1].set(1e-6 / decay)

    @jax.jit
    def step(w: Any, _: Any) -> Any:
        chance = jax.nn.sigmoid(scaled @ w)
        slope = scaled.T @ (share * (chance - y)) / len(y) + ridge * w
        each = share * jnp.maximum(chance * (1 - chance), 1e-6) / len(y)
        curve = (scaled.T * each) @ scaled + jnp.diag(ridge)
        return w - jnp.linalg.solve(curve, slope), None

    w, _ = jax.lax.scan(step, jnp.zeros(scaled.shape[1]), None, steps)
    weight = w[:-1] / spread
    return {"weight": weight, "bias": w[-1] - (mean * weight).sum()}


def _likeliest(lm: Any, texts: Sequence[Sequence[int]]) -> np.ndarray:
    """Compute int32[n, T], the model's likeliest token after every place."""
    tokens = np.zeros((len(texts), max(map(len, texts))), np.int32)
    for i, text in enumerate(texts):
        tokens[i, : len(text)] = text

    @jax.jit
    def best(params: Any, tokens: Any) -> Any:
        logits: Any = transformer.forward(lm.config, params, tokens).logits
        return logits.argmax(-1)

    parts = [best(lm.params, row[None]) for row in tokens]
    return np.concatenate([np.asarray(p) for p in parts])


def accuracy(params: dict[str, Any], given: np.ndarray, good: Sequence[bool]) -> float:
    """Return how often the judge's decision at 1/2 equals the label."""
    decisions = (
        np.asarray(judge_predictor.probability(params, jnp.asarray(given))) > 0.5
    )
    return float((decisions == np.asarray(good)).mean())
