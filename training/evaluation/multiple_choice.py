"""Multiple choice: which of a question's answers a model finds the likeliest.

Nie et al., *Large Language Diffusion Models*, 2025, arXiv 2502.09992, section 2.4 and
appendix B (`get_log_likelihood.py` of the official repository). A masked diffusion
model gives each answer a bound. Of its G tokens mask k, in places drawn evenly, with k
drawn evenly from 1..G; the question is never masked:

    -log p(answer | question) <= E[ G / k  sum over masked tokens of CE ]

128 draws of each answer; one is enough for a single token, whose bound is exact. Under
block-causal attention each block of an answer has its own k. An autoregressive model
gives the exact nats.

Numbers k are stratified over an answer's draws (`diffusion_bound.counts`), so the
standard error of independent draws, which is given, is too large if anything.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding.denoising import composed
from decoding.denoising.canvas_policy import BLOCK_CAUSAL, CAUSAL
from decoding.loops import initial_state
from decoding.serving import scoring
from models.errors import DataError
from training.evaluation import diffusion_bound
from training.evaluation.diffusion_bound import Law
from training.objectives.language_models.next_token import cross_entropy

Tokens = Sequence[int]
Pair = tuple[Tokens, Tokens]  # a question and an answer
CLEAR = 2  # standard errors by which a choice is clear of the draws


class Question(NamedTuple):
    """A question, its answers, and the index of the right one; all in tokens."""

    prompt: tuple[int, ...]
    answers: tuple[tuple[int, ...], ...]
    right: int


class Likelihood(NamedTuple):
    """-log p of an answer, or a bound on it."""

    nats: float
    error: float  # standard error over draws; 0: exact, or of one draw
    tokens: int


class Accuracy(NamedTuple):
    """How often the right answer is chosen."""

    total: float  # by the least nats
    per_token: float  # by the least nats a token
    error: float  # standard error of `total` over questions
    chance: float  # of a choice at random
    clear: float  # share of choices whose lead is more than the draws' error
    questions: int


class Row(NamedTuple):
    """One draw of a pair, padded."""

    pair: int
    clean: np.ndarray  # int32[L]
    masked: np.ndarray  # bool[L]
    weights: np.ndarray  # float32[L]
    behind: np.ndarray  # int32[L]: 1 behind the text


def bounds(
    law: Law,
    pairs: Sequence[Pair],
    mask_token: int,
    block: int = 0,
    draws: int = 128,
    batch: int = 16,
    seed: int = 0,
) -> list[Likelihood]:
    """Estimate the bound of each answer given its question.

    Args:
        law: the model's, which also gets int32[B, L], 1 behind the texts.
        pairs: at least one token each.
        mask_token: the mask's id.
        block: positions of a block under block-causal attention; 0: bidirectional.
        draws: of each answer.
        batch: draws of a forward pass, of several answers perhaps.
        seed: of numbers and places; those of a pair depend on its index alone.

    Raises:
        DataError: an empty question or answer, or a count below 1.
    """
    _check(pairs, draws, batch)

    @jax.jit
    def score(logits: Any, clean: Any, weights: Any) -> Any:
        nats = cross_entropy(logits, clean) * weights
        return jnp.where(weights > 0, nats, 0.0).sum(1)

    values: list[list[float]] = [[] for _ in pairs]
    for part in _parts(pairs, block, draws, batch, seed):
        rows = part + part[-1:] * (batch - len(part))  # one program for a size
        clean, masked, weights, behind = map(np.stack, list(zip(*rows))[1:])
        noised = np.where(masked, mask_token, clean).astype(np.int32)
        nats = np.asarray(score(law(noised, clean, behind), clean, weights))
        for row, value in zip(part, nats):
            values[row.pair].append(float(value))
    return [
        Likelihood(float(np.mean(x)), _error(x), len(answer))
        for x, (_, answer) in zip(values, pairs)
    ]


def _parts(
    pairs: Sequence[Pair], block: int, draws: int, batch: int, seed: int
) -> Iterator[list[Row]]:
    """Yield draws that one forward pass runs, all of one size."""
    size = lambda i: initial_state.bucket(sum(map(len, pairs[i])))

    def rows(i: int) -> Iterator[Row]:
        prompt, answer = pairs[i]
        count = len(prompt) + len(answer)
        pad = (0, size(i) - count)
        place = np.arange(count)
        groups = place // block if block else np.zeros(count, int)
        groups = np.where(place < len(prompt), -1, groups)
        is_sure = np.bincount(groups[groups >= 0]).max() == 1
        rng = np.random.default_rng([seed, i])
        masked = diffusion_bound.masks(groups, 1 if is_sure else draws, rng)
        weights = diffusion_bound.weights(masked, groups)
        clean = np.pad(np.asarray([*prompt, *answer], np.int32), pad)
        behind = np.pad(np.zeros(count, np.int32), pad, constant_values=1)
        for hidden, share in zip(masked, weights):
            yield Row(i, clean, np.pad(hidden, pad), np.pad(share, pad), behind)

    order = sorted(range(len(pairs)), key=size)
    for _, same in itertools.groupby(order, key=size):
        drawn = itertools.chain.from_iterable(map(rows, same))
        while part := list(itertools.islice(drawn, batch)):
            yield part


def exact(lm: Any, pairs: Sequence[Pair], batch: int = 16) -> list[Likelihood]:
    """Compute -log p of each answer behind its question; `lm` is autoregressive.

    Args:
        lm: the model.
        pairs: at least one token each.
        batch: texts of a forward pass.

    Raises:
        DataError: an empty question or answer, or a batch below 1.
    """
    _check(pairs, 1, batch)
    found = []
    for begin in range(0, len(pairs), batch):
        part = pairs[begin : begin + batch]
        texts = [[*prompt, *answer] for prompt, answer in part]
        tokens = np.zeros(
            (len(texts), initial_state.bucket(max(map(len, texts)))), np.int32
        )
        for row, text in zip(tokens, texts):
            row[: len(text)] = text
        lengths = jnp.asarray([len(text) for text in texts], jnp.int32)
        about = (lm.model, lm.params, jnp.asarray(tokens), lengths, 0)
        logprobs = np.asarray(scoring.score(*about).logprobs, np.float64)
        for row, (prompt, answer) in zip(logprobs, part):
            nats = -row[len(prompt) : len(prompt) + len(answer)].sum()
            found.append(Likelihood(float(nats), 0.0, len(answer)))
    return found


def answered(
    lm: Any,
    questions: Sequence[Question],
    draws: int = 128,
    batch: int = 16,
    seed: int = 0,
    visibility: str = "",
) -> list[list[Likelihood]]:
    """Score all answers of all questions.

    Args:
        lm: a diffusion model, or an autoregressive one.
        questions: with two answers or more each.
        draws: of each answer's bound.
        batch: rows of a forward pass.
        seed: of the draws.
        visibility: of a diffusion model; "": what it was trained for first.

    Raises:
        DataError: a question without a choice, or a visibility that the model has not.
    """
    for number, question in enumerate(questions):
        count = len(question.answers)
        if count < 2 or not 0 <= question.right < count:
            raise DataError(
                f"question {number} has {count} answers, of which number "
                f"{question.right} is right: use two or more, counted from 0"
            )
    pairs = [(q.prompt, answer) for q in questions for answer in q.answers]
    if not composed.is_canvas(lm):
        found = exact(lm, pairs, batch)
    else:
        seen = [name for name in lm.config.visibility if name != CAUSAL]
        visibility = visibility or seen[0]
        if visibility not in seen:
            raise DataError(
                f"visibility={visibility!r}: the model was trained for {seen}"
            )
        block = lm.config.block_size if visibility == BLOCK_CAUSAL else 0
        law = diffusion_bound.law(lm, block)
        about = (law, pairs, lm.config.mask_token, block)
        found = bounds(*about, draws, batch, seed)
    each = iter(found)
    return [[next(each) for _ in question.answers] for question in questions]


def accuracy(
    questions: Sequence[Question], scores: Sequence[Sequence[Likelihood]]
) -> Accuracy:
    """Summarise what is chosen; the lower index wins a tie."""
    total, per_token, clear = [], [], []
    for question, answers in zip(questions, scores, strict=True):
        nats = np.asarray([answer.nats for answer in answers])
        rate = nats / [answer.tokens for answer in answers]
        errors = np.asarray([answer.error for answer in answers])
        best, second = np.argsort(nats, kind="stable")[:2]
        noise = float(np.hypot(errors[best], errors[second]))
        total.append(best == question.right)
        per_token.append(rate.argmin() == question.right)
        clear.append(nats[second] - nats[best] > CLEAR * noise)
    chance = np.mean([1 / len(question.answers) for question in questions])
    return Accuracy(
        float(np.mean(total)),
        float(np.mean(per_token)),
        _error([float(is_right) for is_right in total]),
        float(chance),
        float(np.mean(clear)),
        len(questions),
    )


def _error(values: Sequence[float]) -> float:
    """Return the standard error of a mean; 0 of a single value."""
    if len(values) < 2:
        return 0.0
    return float(np.std(values, ddof=1) / len(values) ** 0.5)


def _check(pairs: Sequence[Pair], draws: int, batch: int) -> None:
    if draws < 1 or batch < 1:
        raise DataError(f"draws={draws}, batch={batch}: use at least 1 of each")
    for number, (prompt, answer) in enumerate(pairs):
        if not len(prompt) or not len(answer):
            raise DataError(
                f"pair {number} has a question of {len(prompt)} tokens and an answer "
                f"of {len(answer)}: use at least 1 of each"
            )
