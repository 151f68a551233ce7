"""A language model that repeats a record, to measure drafting without a model.

`params["text"]` int32[B, T] holds a prompt and its response per row. At a node of token
t at position p the best token is the record's next one, `text[p + 1]`, if the record
has t at p. Next come the tokens that followed t earlier in the record, the most recent
first. Drafters that use the runners-up (Token Recycling's matrix) thus see those of a
bigram model. Greedy decoding then writes the record with any drafter, in as many calls
as a model that wrote this text would need.

After a token that the record rejects, the runners-up are also the earlier successors.
A real model's runners-up are better. So methods that read them look worse here than
they are; methods that read tokens alone are exact.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from models import base
from models.cache_layouts import kv_cache

SURE = 32.0  # logit of the record's next token


@dataclass(frozen=True)
class Config:
    """The fields of a model's config that loops and drafters read."""

    vocab_size: int
    max_positions: int = 1 << 24
    n_layers: int = 0
    d_model: int = 1
    bos: int | None = None
    eos: tuple[int, ...] = ()


def language_model(vocab_size: int) -> base.LanguageModel:
    """Build the model over `vocab_size` tokens; its "hidden states" are the logits."""

    def init(key: Array) -> dict:
        return {"text": jnp.zeros((1, 1), jnp.int32)}

    def init_cache(batch: int, size: int, dtype: Any = None) -> kv_cache.KVCache:
        empty = jnp.full((batch, size), -1, jnp.int32)
        return kv_cache.KVCache((), empty, jnp.zeros((batch,), jnp.int32))

    def row(text: Array, tokens: Array, positions: Array) -> Array:
        size = text.shape[0]
        index = jnp.arange(size - 1, dtype=jnp.int32)
        seen = (text[:-1] == tokens[:, None]) & (index < positions[:, None])
        recent = jnp.where(seen, (index + 1) / size, 0.0)
        nodes = jnp.arange(tokens.shape[0])[:, None]
        logits = jnp.zeros((tokens.shape[0], vocab_size), jnp.float32)
        logits = logits.at[nodes, text[None, 1:]].max(recent)
        following = text[jnp.minimum(positions + 1, size - 1)]
        matches = text[jnp.minimum(positions, size - 1)] == tokens
        return logits.at[nodes[:, 0], following].add(jnp.where(matches, SURE, 0.0))

    def embed(params: Any, tokens: Array, positions: Array) -> Array:
        return jax.vmap(row)(params["text"], tokens, positions)

    def layers(params, cache, x, block, lo, hi, taps=()):
        return x, cache, dict.fromkeys(taps, x)

    return base.LanguageModel(
        Config(vocab_size),
        init,
        init_cache,
        embed,
        layers,
        lambda params, cache, x, block, lo, hi: cache,
        lambda params, x: x,
        lambda params, x: x,
        lambda params, x, ids: jnp.take_along_axis(x, ids, -1),
    )
