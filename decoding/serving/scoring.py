"""Log-probabilities of given texts: one pass of the target, chunk by chunk.

Baseline. With the texts known, the laws of all their tokens come from few wide calls
(teacher forcing), so the decode loop carries no table of alternatives.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from decoding import vocab
from decoding.loops import prefill, state_sharding
from models.base import ALL
from models.distributed import sharding
from models.errors import PromptError

LOGITS = 2**26  # floats of a chunk's logits, at most (256 MB), down to 16 tokens


class Scores(NamedTuple):
    """Laws of the raw target; the first token of a text has none, and zeros here."""

    logprobs: np.ndarray  # float32[B, T]: of each token after those before it
    best_tokens: np.ndarray  # int32[B, T, k], the most probable first
    best_logprobs: np.ndarray  # float32[B, T, k]


def score(model: Any, params: Any, tokens: Array, length: Array, k: int) -> Scores:
    """Compute the log-probability of every token, and the `k` best in its place.

    Entries at and past `length` are undefined.

    Args:
        model: the target, with its own cache layout and sharding plan.
        params: its weights.
        tokens: int32[B, T].
        length: int32[B].
        k: 0 to V.

    Raises:
        PromptError: a paged cache's pool is too small for the texts.
    """
    batch, size = tokens.shape
    chunk = 128
    while chunk > 16 and batch * chunk * model.config.vocab_size > LOGITS:
        chunk //= 2
    dtype = jax.tree.leaves(params)[0].dtype
    make = functools.partial(model.init_cache, batch, size + chunk, dtype)
    with sharding.use(model.plan):
        cache = state_sharding.made(model.plan, make)
        overrun, scores = _pass(model, k, chunk, params, cache, tokens, length)
    if bool(overrun):
        raise PromptError(
            "a cache's pool of pages is too small to score the texts: make the pool "
            "larger, or ask for fewer prompts at a time"
        )
    return Scores(*(sharding.fetch(x)[:, :size] for x in scores))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _pass(model, k, chunk, params, cache, tokens, length):
    """Run all chunks; return whether the cache overran, and the `Scores` as arrays."""
    batch, size = tokens.shape
    room = (batch, -(-size // chunk) * chunk + 1)
    buffers = (
        jnp.zeros(room, jnp.float32),
        jnp.zeros((*room, k), jnp.int32),
        jnp.zeros((*room, k), jnp.float32),
    )
    none = jnp.zeros((batch, 0), jnp.int32)

    def body(carry: tuple) -> tuple:
        at, cache, buffers = carry
        block, _, count = prefill.chunk(tokens, length, cache, chunk)
        out, cache = model(params, cache, block.replace(logits_at=ALL))
        # Node i holds the token before the one that it predicts.
        where = at + 1 + jnp.arange(chunk)
        following = jnp.take(tokens, where, 1, mode="clip")
        laws = vocab.log_softmax(out.logits)
        best, ids = laws[..., :0], jnp.zeros((batch, chunk, 0), jnp.int32)
        if k:
            best, ids = vocab.top_k(laws, k)
        new = (vocab.at(laws, following), ids, best)
        buffers = tuple(
            lax.dynamic_update_slice_in_dim(old, part, at + 1, 1)
            for old, part in zip(buffers, new)
        )
        return at + chunk, cache.commit(none, count - 1, linear=True), buffers

    def more(carry: tuple) -> Array:
        return (carry[1].length < length - 1).any()

    _, cache, buffers = lax.while_loop(more, body, (jnp.int32(0), cache, buffers))
    return cache.overrun, buffers
