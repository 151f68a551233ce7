"""Held-out figures of a language model: bits per byte, and copying."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import decoding
from models import transformer
from models.errors import DataError
from training.data import documents
from training.objectives.language_models import next_token


class Bits(NamedTuple):
    """Compression of a set of documents."""

    bits_per_byte: float
    nats_per_token: float
    tokens: int
    bytes: int


def bits_per_byte(
    config: transformer.Config,
    params: Any,
    documents: Sequence[np.ndarray],
    size: int,
    separator: int = 0,
    window: int = 2048,
    context: int = 512,
) -> Bits:
    """Compute -log2 p(documents) / `size`.

    Every token of every document is predicted once, from the separator and at most
    `window` tokens before it. Past the first window of a document there are at least
    `context` of them.

    Args:
        config: the model's.
        params: its params.
        documents: int32[n] each.
        size: UTF-8 bytes of their text.
        separator: token before every document.
        window: tokens of a forward pass.
        context: fewest tokens before a prediction, past the first window.

    Raises:
        DataError: a context as long as the window.
    """

    @jax.jit
    def nats(params: Any, tokens: jax.Array, counted: jax.Array) -> jax.Array:
        logits = transformer.forward(config, params, tokens[None, :-1]).logits
        return (next_token.cross_entropy(logits, tokens[None, 1:]) * counted).sum()

    total, count = 0.0, 0
    for document in documents:
        ids = np.concatenate([[separator], document]).astype(np.int32)
        for tokens, _, counted in pieces(ids, window, context):
            total += float(nats(params, tokens, jnp.asarray(counted)))
            count += int(counted.sum())
    return Bits(total / math.log(2) / size, total / count, count, size)


def pieces(
    ids: np.ndarray, window: int, context: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Cut a document into pieces for forward passes, few lengths n of them.

    Args:
        ids: int32[T]; the first token is predicted by none.
        window: tokens of a forward pass.
        context: fewest tokens before a prediction, past the first window.

    Yields:
        tokens int32[n + 1], zeros behind the document; the places int32[n] in it of all
        but the first; and which of them, bool[n], this piece predicts.

    Raises:
        DataError: a context as long as the window.
    """
    if not 0 <= context < window:
        raise DataError(
            f"context={context}: must be 0 or more and below window={window}"
        )
    for start, first, end in spans(len(ids), window, context):
        length = _bucket(end - start, window)
        tokens = np.zeros(length + 1, np.int32)
        tokens[: end - start] = ids[start:end]
        place = start + 1 + np.arange(length)
        yield tokens, place, (place >= first) & (place < end)


def spans(length: int, window: int, context: int) -> list[tuple[int, int, int]]:
    """Cut `length` tokens into (start, first predicted, end) of overlapping pieces.

    A piece holds at most `window` + 1 tokens. Token 0 is never predicted and every
    other one exactly once.
    """
    out = []
    first = 1
    while first < length:
        start = max(0, first - 1 - (context if first > 1 else 0))
        end = min(length, start + window + 1)
        out.append((start, first, end))
        first = end
    return out


def _bucket(length: int, window: int) -> int:
    """Round a length up to a power of two: few shapes, so few compilations."""
    size = 128
    while size < length:
        size *= 2
    return min(size, window)


class Copying(NamedTuple):
    """Greedy copying of held-out tokens: medians over the cases."""

    matched: float  # of the new tokens, how many equal the passage's in their place
    prefix: float  # how many before the first that differs
    cases: int
    of: int


def copying(
    lm: Any,
    held_out: Sequence[np.ndarray],
    marker: Sequence[int],
    cases: int = 64,
    passage: int = 80,
    given: int = 16,
    new: int = 60,
    seed: int = 0,
) -> Copying:
    """Measure greedy copying: decode `new` tokens after a passage, marker and restart.

    Args:
        lm: the model.
        held_out: int32[n] each, documents that passages are drawn from.
        marker: tokens between the passage and its restart.
        cases: prompts.
        passage: tokens of a passage.
        given: its first tokens, which are repeated after the marker.
        new: tokens to decode.
        seed: of the passages.
    """
    passages = documents.random_passages(held_out, cases, passage, seed)
    prompts = [[*p.tolist(), *marker, *p[:given].tolist()] for p in passages]
    out = decoding.generate(lm, prompts, method="plain", max_new_tokens=new)
    matched, prefix = [], []
    for text, p in zip(out.tokens, passages):
        expected = p[given : given + new]
        decoded = np.full(len(expected), -1)
        decoded[: len(text)] = text[: len(expected)]
        same = decoded == expected
        matched.append(int(same.sum()))
        prefix.append(int(np.cumprod(same).sum()))
    return Copying(float(np.median(matched)), float(np.median(prefix)), cases, new)
