"""Hyperfitting: train a model on few samples until it knows them by heart.

Carlsson, Liu, Ward, Kurfali, Nivre, *The Hyperfitting Phenomenon: Sharpening and
Stabilizing LLMs for Open-Ended Text Generation*, 2025, arXiv 2412.04318; constants are
in its recipe. A sample x is L tokens of a text. All params are trained, on the same
samples epoch after epoch, without weight decay, at a constant rate:

    loss = mean over samples, t = 2 .. L, of  -log p(x_t | x_1 .. x_{t-1})

L -> size. The loss is that of any language model; near zero the laws are nearly one-hot
and greedy texts repeat themselves less, while the loss of held-out text rises.

Deviations: samples lie anywhere in a document, without a BOS, and a document may give
several; the official code takes the first L tokens of every long document. Cost: that
of next-token training.

Metrics: `entropy`, the mean entropy of the laws in nats; `hits`, how often the
likeliest token is the text's.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from decoding import vocab
from models import transformer
from models.errors import DataError
from training.data import text_corpus
from training.loop.train_step import Objective
from training.objectives.language_models import next_token


def samples(
    documents: Sequence[np.ndarray], count: int, size: int, seed: int
) -> list[np.ndarray]:
    """Draw `count` samples int32[size] that do not overlap.

    Args:
        documents: int32[n] each.
        count: samples.
        size: tokens of each.
        seed: of the draw.

    Raises:
        DataError: the documents hold fewer samples.
    """
    places = [
        (document, start)
        for document in documents
        for start in range(0, len(document) - size + 1, size)
    ]
    if not 1 <= count <= len(places):
        raise DataError(
            f"{count} samples of {size} tokens are asked for, and the text has "
            f"{len(places)}: use 1 or more, at most that many, or more text"
        )
    order = np.random.default_rng(seed).permutation(len(places))[:count]
    chosen = [places[i] for i in order]
    return [np.asarray(x[start : start + size], np.int32) for x, start in chosen]


def stream(
    rows: Sequence[np.ndarray], epochs: int, batch: int, separator: int, seed: int
) -> text_corpus.Stream:
    """Show every sample once an epoch, each alone in a row, in another order.

    A row ends with the separator, which is not in the loss. Of an epoch that is no
    whole number of batches the last batch ends in the next epoch.

    Args:
        rows: samples of one size.
        epochs: how often each is shown.
        batch: rows of a step.
        separator: the token behind each sample.
        seed: of the orders.
    """
    size = len(rows[0])
    mask = np.append(np.ones(size, bool), False)
    corpus = text_corpus.Corpus(rows, separator, [mask] * len(rows))
    steps = -(-len(rows) * epochs // batch)
    stage = text_corpus.Stage(steps, batch, size)
    return text_corpus.Stream(corpus, (stage,), seed, whole=True)


def each(
    config: transformer.Config, params: Any, tokens: Array
) -> tuple[Array, Array, Array]:
    """Grade samples one by one.

    Args:
        config: the model's.
        params: its params.
        tokens: int32[B, L], samples.

    Returns:
        The mean nats, the mean entropy of the laws, and the share of hits, of each
        sample: float32[B].
    """
    out = transformer.forward(config, params, tokens[:, :-1])
    nats, entropy, hits = _terms(out.logits, tokens[:, 1:])
    return nats.mean(-1), entropy.mean(-1), hits.mean(-1)


def _terms(logits: Array | None, labels: Array) -> tuple[Array, Array, Array]:
    nats = next_token.cross_entropy(logits, labels)
    assert logits is not None
    hits = (vocab.argmax(logits) == labels).astype(jnp.float32)
    return nats, vocab.entropy(logits.astype(jnp.float32)), hits


def objective(config: transformer.Config, remat: bool = False) -> Objective:
    """Build the mean nats a token, over the predicted tokens of the samples."""

    def loss(params: Any, batch: dict[str, Array], target_out: Any) -> tuple:
        tokens, segments = batch["tokens"], batch.get("segments")
        segments = None if segments is None else segments[:, :-1]
        out = transformer.forward(config, params, tokens[:, :-1], segments, remat=remat)
        weights = next_token.counted(batch)
        mean = lambda x: (x * weights).sum() / jnp.maximum(weights.sum(), 1)
        nats, entropy, hits = map(mean, _terms(out.logits, tokens[:, 1:]))
        return nats, {"entropy": entropy, "hits": hits}

    def quantity(params: Any) -> str:
        return "mean nats a token"

    weight = lambda batch: next_token.counted(batch).sum()
    return Objective(loss, weight=weight, quantity=quantity)
