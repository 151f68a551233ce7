"""Mirostat: a controller that holds the surprise of the tokens at a target.

Basu, Ramachandran, Keskar, Varshney, *Mirostat: A Neural Text Decoding Algorithm that
Directly Controls Perplexity*, 2021, arXiv 2007.14966, algorithm 1. The state is the
bound mu, 2 tau at first; surprises are in bits. At each token:

    version 1: s = sum t_i b_i / sum t_i^2 over the 101 best tokens, with
               t_i = log((i + 1) / i) and b_i = log(P_i / P_{i+1});
               keep k = round(((s - 1) 2^mu / (1 - N^(1 - s)))^(1/s)) + 1 tokens
    version 2: keep the tokens with -log2 P_i <= mu
    then       mu <- mu + rate (tau + log2 P_x), x the chosen token

tau -> target; eta -> rate; N is the size of the vocabulary. P is the law that reaches
this transform, before its own cut: at temperature 1, with nothing before it, the
model's. Summed up, sum(S - tau) = (mu_0 - mu_T) / rate: the mean surprise is the target
as long as mu stays bounded. It does not where the target is below the surprise of the
best tokens or above the entropy.

Deviations: the official code has N = 50000 for GPT-2's 50257, and adds 1 to k as here.
Version 2 is not in the paper; it is what inference programs call Mirostat 2.
Cost: version 1: a top-k of 101 and 32 passes over V; version 2: three passes.
"""

import math

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="Mirostat, arXiv 2007.14966",
    guarantee=base.LAW,
    family="truncation",
    data=("target", "rate"),
    sources=("basu2021mirostat",),
)

BEST = 100  # pairs of neighbours that the exponent is estimated from (paper: m)


@struct.dataclass
class Row:
    target: Array  # float32[]: bits
    rate: Array  # float32[]
    bound: Array  # float32[]: mu, in bits


def exponent(logits: Array) -> Array:
    """Estimate the exponent of Zipf's law that the best tokens follow, float32[]. ★"""
    best, _ = vocab.top_k(logits, min(BEST + 1, logits.shape[-1]))
    step = jnp.log1p(1 / jnp.arange(1, best.shape[-1], dtype=jnp.float32))
    possible = best[1:] > -jnp.inf
    fall = jnp.where(possible, best[:-1] - best[1:], 0.0)
    weight = jnp.where(possible, step * step, 0.0).sum()
    return (step * fall).sum() / jnp.where(weight > 0, weight, 1.0)


def size(bound: Array, s: Array, vocab_size: int) -> Array:
    """Return how many best tokens to keep for a bound in bits, int32[]. ★"""
    most = math.log(vocab_size)
    gap = s - 1
    small = jnp.abs(gap) < 1e-6
    # The limit for s -> 1 of (s - 1) / (1 - N^(1 - s)) is 1 / log N.
    safe = jnp.where(small, 1.0, gap)
    ratio = jnp.where(small, 1 / most, safe / -jnp.expm1(-safe * most))
    log_k = (jnp.log(ratio) + bound * math.log(2)) / jnp.maximum(s, 1e-6)
    k = jnp.round(jnp.exp(jnp.clip(log_k, -1.0, most))).astype(jnp.int32)
    return jnp.clip(k + 1, 1, vocab_size)


def transform(
    target: float = 3.0, rate: float = 1.0, version: int = 1
) -> base.LogitsTransform:
    """Hold the mean surprise.

    Args:
        target: bits a token, above 0; the perplexity is 2^target.
        rate: how much of an error moves the bound, above 0.
        version: 1 (the paper's) or 2.
    """
    if not 0 < target <= 100 or not 0 < rate <= 100:
        raise MethodError(
            f"target={target}, rate={rate}: use bits above 0 (the paper's is 3) and a "
            "rate above 0 (1)"
        )
    if version not in (1, 2):
        raise MethodError(f"version={version}: there are 1 and 2")

    def init(tokens: Array, length: Array) -> base.State:
        bound = jnp.float32(2 * target)
        return base.State(Row(jnp.float32(target), jnp.float32(rate), bound))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        bound = state.row.bound
        if version == 1:
            k = size(bound, exponent(logits), logits.shape[-1])
            return vocab.keep(logits, vocab.top_k_mask(logits, k))
        plain = -vocab.log_softmax(logits) <= bound * math.log(2)
        best = vocab.near_best_mask(logits, lambda x: x)
        return vocab.keep(logits, plain | best)

    def advance(
        state: base.State, token: Array, logits: Array, aux: dict[str, Array]
    ) -> base.State:
        row = state.row
        surprise = -vocab.token_logprob(logits, token) / math.log(2)
        # An impossible token says nothing; drafts may hold one.
        error = jnp.where(surprise < jnp.inf, surprise - row.target, 0.0)
        bound = row.bound - row.rate * error
        return base.State(row.replace(bound=bound), state.shared)

    return base.LogitsTransform(init, apply, advance, warper=True)
