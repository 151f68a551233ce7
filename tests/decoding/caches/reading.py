"""Sparse reads in NumPy, on the peaked transformer of two layers.

The first layer reads everything, so the second one's queries, keys and values depend on
no selection. `gap` compares the log-probabilities of a run with those of a second layer
that reads what a rule says, token by token.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import decoding
from decoding import Method, Spec
from decoding.conformance import peaked
from models.transformer.layer import Layer
from models.transformer.modules import rotations

PROMPTS = peaked.PROMPTS[2:]
CLOSE = 2e-4


class Texts(NamedTuple):
    """A text's queries [T, G, R, d], scaled, and keys [T, G, d] of both layers."""

    q: tuple[np.ndarray, np.ndarray]
    k: tuple[np.ndarray, np.ndarray]
    prompt: int  # tokens of the prompt
    tokens: list[int]


def logprobs(prompt: list[int], text: list[int], reads: Callable) -> np.ndarray:
    """Return the log-probability of each new token.

    `reads(texts, g, t)` lists the tokens that query t of KV head g reads in the second
    layer, for t from the prompt's last token on.
    """
    lm = peaked.model()
    tokens = [*prompt, *text]
    ids, at = jnp.asarray([tokens], jnp.int32), jnp.arange(len(tokens))[None]
    spun = rotations(lm.config, at, peaked.SIZE)[0]
    layer: Any = Layer(lm.config)
    params = [{"params": lm.params[f"layer_{i}"]} for i in range(2)]
    mask = jnp.tril(jnp.ones((1, len(tokens), len(tokens)), bool))
    x = lm.model.embed(lm.params, ids, at)
    first = layer.apply(params[0], x, spun, method="project")
    x = layer.apply(params[0], x, mask, spun, None)
    second = layer.apply(params[1], x, spun, method="project")
    of = lambda part: tuple(np.asarray(y[part][0], np.float64) for y in (first, second))
    texts = Texts(of(0), of(1), len(prompt), tokens)
    q, k, v = (np.asarray(part[0], np.float64) for part in second)
    out = np.zeros(q.shape)
    for t in range(len(tokens)):
        for g in range(k.shape[1]):
            own = reads(texts, g, t) if t >= len(prompt) - 1 else range(t + 1)
            out[t, g] = weights(q[t, g], k[list(own), g]) @ v[list(own), g]
    out = jnp.asarray(out.reshape(1, len(tokens), -1), jnp.float32)
    x = x + layer.apply(params[1], out, method="merge")
    x = x + layer.apply(params[1], x, method="feed_forward")
    logits = lm.model.head(lm.params, lm.model.norm(lm.params, x))
    found = np.asarray(jax.nn.log_softmax(logits[0]))
    at_new = np.arange(len(prompt) - 1, len(tokens) - 1)
    return found[at_new, text]


def gap(spec: Spec, reads: Callable) -> float:
    """Return the largest difference of a log-probability from that of `reads`."""
    out = decoding.generate(
        peaked.model(), PROMPTS, Method(policy=spec), peaked.NEW, temperature=0.0
    )
    pairs = zip(PROMPTS, out.tokens, out.logprobs)
    return max(np.abs(logprobs(p, t, reads) - found).max() for p, t, found in pairs)


def weights(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Return the softmax weights [R, n] of queries q [R, d] on keys k [n, d]."""
    s = q @ k.T
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def best(scores: np.ndarray, count: int) -> list[int]:
    """Return the `count` best, of equal ones the first, compared in bfloat16."""
    rounded = np.asarray(scores).astype(ml_dtypes.bfloat16).astype(np.float64)
    return np.argsort(-rounded, kind="stable")[:count].tolist()


def listed(select: Callable, every: int) -> Callable:
    """Return the reads of lists: `select(texts, g, n)` of the first n tokens."""

    def reads(texts: Texts, g: int, t: int) -> list[int]:
        n = max(t // every * every, texts.prompt - 1)
        chosen, since = select(texts, g, n)
        return sorted({*chosen, *range(since, t + 1)})

    return reads
